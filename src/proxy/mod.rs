//! Forwards requests. The only room that speaks HTTP to applications and to upstreams.
//!
//! The way of a request: [`listen`] accepts its connection and reads it; [`route`] chooses its route and finds out who sent it;
//! [`forward`] takes its permit and sends it by a connection of [`upstream`]. [`messages`] holds what is known of heads and bodies,
//! [`net`] what is known of sockets, [`error`] why weir answers itself. [`bench`] and [`fuzz`] show what is pure to benches and
//! fuzzers.
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
mod upstream;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

pub use self::error::ProxyBuildError;
pub use self::listen::listener::{Drained, serve};
use self::route::router::{NO_ROUTE, Route, Table};
pub use self::upstream::dial::{Resolve, SystemResolver};
use self::upstream::upstream::{Key, Upstream};
use crate::config::{Config, model};
use crate::limiter::Limiters;
use crate::telemetry::{Metrics, Spans};

/// How long upstream connections may take to say goodbye when weir ends.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);

/// The age at which a connection to an upstream carries no new request. An open connection stays at the address that its
/// name had, so this is how long a change in DNS takes to be followed under load, and a handshake now and then is the price.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);
/// The largest file that an upstream names; the configuration refuses larger ones.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// How upstreams are reached, beyond what the configuration says.
#[derive(Clone)]
pub struct Reach {
    /// What looks their names up.
    pub resolver: Arc<dyn Resolve>,
    /// The age at which a connection carries no new request.
    pub connection_age_max: Duration,
}

impl Default for Reach {
    fn default() -> Reach {
        Reach { resolver: Arc::new(SystemResolver), connection_age_max: CONNECTION_AGE_MAX }
    }
}

/// The running proxy: its routes, swapped whole, and its upstreams. Cheap to clone.
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

/// What every upstream is made with.
struct Making {
    reach: Reach,
    /// Connections to upstreams.
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

    /// The same, with another way to reach upstreams.
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

    /// Puts another configuration in place for all requests that begin from now on; if it cannot be used, nothing
    /// changes. Upstreams that it leaves as they were keep their connections.
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

    /// Closes all upstream connections. For the end, when [`serve`] has returned.
    pub async fn close(&self) {
        self.each_upstream(Upstream::close_idle);
        let tasks = &self.shared.making.tasks;
        tasks.close();
        let _ = timeout(CLOSE_TIME_MAX, tasks.wait()).await;
    }

    /// Closes upstream connections that have been idle for too long.
    fn sweep(&self) {
        self.each_upstream(Upstream::sweep);
    }

    fn each_upstream(&self, act: impl Fn(&Upstream)) {
        let upstreams = self.shared.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        upstreams.values().for_each(|upstream| act(upstream));
    }

    /// Where the traces of requests go.
    fn spans(&self) -> &Spans {
        &self.shared.spans
    }

    /// The configuration as it is now.
    fn table(&self) -> Arc<Table> {
        self.shared.table.load_full()
    }
}

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
        let gate = limiters.gate(&names).map_err(|source| {
            let route = Arc::clone(&rule.name);
            ProxyBuildError::Limiters { route, source }
        })?;
        let metrics = metrics.route(&rule.name);
        routes.push(Arc::new(Route { rule: rule.clone(), upstream, gate, metrics }));
    }
    // Where a token will do as well, who has one need not have a certificate.
    let certificate_required = config.clients.as_ref().is_none_or(|clients| !clients.has_tokens());
    let tls = config.server.tls.as_ref().map(|tls| listen::tls::Acceptor::new(tls, certificate_required));
    Ok((Table::new(routes, metrics.route(NO_ROUTE), config, tls.transpose()?), upstreams))
}

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
