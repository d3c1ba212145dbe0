//! Forwards requests. The only room that speaks HTTP to clients and to upstreams.
//!
//! A request passes these rooms: [`listen`] accepts its connection and reads it; [`route`] finds its route, caller and partitions;
//! [`forward`] takes its permit, sends it by a connection of [`upstream`], and returns the response. [`messages`] reads and writes
//! heads and bodies, [`net`] holds sockets and timers, [`error`] the errors of all. This file wires them and holds the configuration
//! in force. Each room uses only those before it: `error`, `net`, `messages`, `listen`, `upstream`, `route`, `forward`. [`bench`] and
//! [`fuzz`] open the pure parts to benches and fuzzers.
//!
//! Decides nothing about limits, and reads no file but the certificates and keys that `server.tls` and an upstream name.

#[doc(hidden)]
pub mod bench;
mod error;
mod forward;
#[doc(hidden)]
pub mod fuzz;
mod listen;
mod messages;
mod net;
mod route;
#[cfg(test)]
mod tests;
mod upstream;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::error::ProxyBuildError;
use self::forward::forwarder;
use self::forward::response_body::ResponseBody;
use self::listen::client::Client;
use self::listen::listener;
pub use self::listen::listener::Drained;
use self::listen::service::{Service, Settings};
use self::route::table::{NO_ROUTE, Route, Table};
pub use self::upstream::dial::{Resolve, SystemResolver};
use self::upstream::key::Key;
pub use self::upstream::key::Reach;
use self::upstream::upstream::Upstream;
use crate::config::{Config, model};
use crate::limiter::Limiters;
use crate::telemetry::{Metrics, Spans};

/// The time for upstream connections to close when weir ends.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);

/// The largest file that an upstream may name. The configuration refuses larger ones.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The running proxy: its routes, swapped whole, and its upstreams. A clone is cheap and the same proxy.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    table: ArcSwap<Table>,
    upstreams: Mutex<Upstreams>,
    metrics: Metrics,
    spans: Spans,
    making: Making,
}

/// The parts that every new upstream gets.
struct Making {
    reach: Reach,
    /// The owner of the tasks of connections to upstreams.
    tasks: TaskTracker,
}

type Upstreams = HashMap<Key, Arc<Upstream>>;

impl Proxy {
    /// Compiles the configuration's routes; connects to nothing yet.
    pub fn new(
        metrics: Metrics,
        spans: Spans,
        config: &Config,
        limiters: &Limiters,
    ) -> Result<Proxy, ProxyBuildError> {
        Proxy::with_reach(metrics, spans, config, limiters, Reach::default())
    }

    /// Does the same with another way to reach upstreams.
    pub fn with_reach(
        metrics: Metrics,
        spans: Spans,
        config: &Config,
        limiters: &Limiters,
        reach: Reach,
    ) -> Result<Proxy, ProxyBuildError> {
        let making = Making { reach, tasks: TaskTracker::new() };
        let (table, upstreams) = build(config, limiters, &metrics, &making, &Upstreams::new())?;
        let (table, upstreams) = (ArcSwap::from_pointee(table), Mutex::new(upstreams));
        Ok(Proxy { shared: Arc::new(Shared { table, upstreams, metrics, spans, making }) })
    }

    /// Puts another configuration into force for all requests that begin from now on. On an error nothing changes. Unchanged
    /// upstreams keep their connections.
    pub fn apply(&self, config: &Config, limiters: &Limiters) -> Result<(), ProxyBuildError> {
        let Shared { table, upstreams, metrics, making, .. } = &*self.shared;
        let mut upstreams = upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let (new_table, new_upstreams) = build(config, limiters, metrics, making, &upstreams)?;
        table.store(Arc::new(new_table));
        let old = std::mem::replace(&mut *upstreams, new_upstreams);
        for (key, upstream) in old {
            if !upstreams.contains_key(&key) {
                upstream.close_idle();
            }
        }
        metrics.retain_routes(|name| config.routes.iter().any(|route| *route.name == *name));
        Ok(())
    }

    /// Closes all upstream connections, after [`serve`] has returned.
    pub async fn close(&self) {
        self.each_upstream(Upstream::close_idle);
        let tasks = &self.shared.making.tasks;
        tasks.close();
        let _ = timeout(CLOSE_TIME_MAX, tasks.wait()).await;
    }

    fn each_upstream(&self, act: impl Fn(&Upstream)) {
        let upstreams = self.shared.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        upstreams.values().for_each(|upstream| act(upstream));
    }

    /// Returns the table in force.
    fn table(&self) -> Arc<Table> {
        self.shared.table.load_full()
    }
}

impl Service for Proxy {
    type Body = ResponseBody;

    fn settings(&self) -> Settings {
        let table = self.shared.table.load();
        Settings { server: Arc::clone(table.server()), tls: table.tls().cloned() }
    }

    fn answer(
        self,
        client: Arc<Client>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + 'static {
        let trace = self.shared.spans.begin(request.headers());
        forwarder::handle(&self.shared.table.load(), trace, client, request)
    }

    fn sweep(&self) {
        self.each_upstream(Upstream::sweep);
    }
}

/// Serves until `shutdown` is cancelled, then drains as `server.drain_delay` and `server.drain_timeout` say.
pub async fn serve(listener: TcpListener, proxy: Proxy, shutdown: CancellationToken) -> Drained {
    listener::serve(listener, proxy, shutdown).await
}

/// Builds the table of a configuration, with the upstreams of `known` that it leaves unchanged.
fn build(
    config: &Config,
    limiters: &Limiters,
    metrics: &Metrics,
    making: &Making,
    known: &Upstreams,
) -> Result<(Table, Upstreams), ProxyBuildError> {
    let mut upstreams = Upstreams::new();
    let mut routes = Vec::with_capacity(config.routes.len());
    for rule in &config.routes {
        let key = key(&rule.upstream)?;
        let upstream = match upstreams.get(&key).or_else(|| known.get(&key)) {
            Some(upstream) => Arc::clone(upstream),
            None => Arc::new(Upstream::new(&key, &making.reach, making.tasks.clone())?),
        };
        upstreams.insert(key, Arc::clone(&upstream));
        let names: Vec<_> = rule.limiters.iter().map(|(name, _)| name.clone()).collect();
        let limiter_set = limiters.gate(&names).map_err(|source| {
            let route = Arc::clone(&rule.name);
            ProxyBuildError::Limiters { route, source }
        })?;
        let metrics = metrics.route(&rule.name);
        routes.push(Arc::new(Route { rule: rule.clone(), upstream, limiter_set, metrics }));
    }
    // If tokens are configured as well, a client with one needs no certificate.
    let certificate_required = config.clients.as_ref().is_none_or(|clients| !clients.has_tokens());
    let tls = config.server.tls.as_ref().map(|tls| listen::tls::Acceptor::new(tls, certificate_required));
    Ok((Table::new(routes, metrics.route(NO_ROUTE), config, tls.transpose()?), upstreams))
}

/// Reads the files that an upstream names.
fn key(settings: &model::Upstream) -> Result<Key, ProxyBuildError> {
    let ca = settings.ca.as_deref().map(|path| {
        read(path).map_err(|source| ProxyBuildError::CaUnreadable { path: path.to_owned(), source })
    });
    let own = |path: &Path| {
        let unreadable = |error| ProxyBuildError::ClientCertificate {
            path: path.to_owned(),
            reason: format!("cannot be read: {error}"),
        };
        read(path).map_err(unreadable)
    };
    let identity = match &settings.identity {
        Some((cert, key)) => Some((own(cert)?, own(key)?)),
        None => None,
    };
    Ok(Key { settings: settings.clone(), ca: ca.transpose()?, identity })
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
