//! Forwards requests. The only room that speaks HTTP to clients and to upstreams.
//!
//! A request passes these rooms: [`listen`] accepts its connection and reads it; [`route`] finds its route, caller and partitions;
//! [`forward`] takes its permit, sends it by a connection of [`upstream`], and returns the response. [`messages`] reads and writes
//! heads and bodies, [`net`] holds sockets and timers, [`error`] the errors of all. This file wires them and holds the configuration
//! in force. Each room uses only those before it: `error`, `net`, `messages`, `listen`, `upstream`, `route`, `forward`. [`bench`] and
//! [`fuzz`] open the pure parts to benches and fuzzers.
//!
//! [`explain`] asks the same code what would become of a request. A reload has two stages: [`prepare`] builds routes and upstreams and may fail, a commit swaps them and cannot.
//!
//! Decides nothing about limits, and reads no file but the certificates and keys that `server.tls` and an upstream name.

#[doc(hidden)]
pub mod bench;
mod error;
mod explain;
mod forward;
#[doc(hidden)]
pub mod fuzz;
mod listen;
mod messages;
mod net;
mod prepare;
mod route;
#[cfg(test)]
mod tests;
mod upstream;

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::error::ProxyBuildError;
pub use self::explain::Explanation;
use self::forward::forwarder;
use self::forward::response_body::ResponseBody;
use self::listen::client::Client;
use self::listen::listener;
pub use self::listen::listener::Drained;
use self::listen::service::{Service, Settings};
use self::messages::client_body::ClientBody;
use self::net::body_memory::BodyMemory;
use self::prepare::{Builder, Parts, Upstreams};
use self::route::table::Table;
pub use self::upstream::dial::{Resolve, SystemResolver};
pub use self::upstream::key::Reach;
use self::upstream::upstream::Upstream;
use crate::config::Config;
use crate::limiter::PreparedLimiters;
use crate::telemetry::{ConnectionErrors, Metrics, Spans};
use crate::usage::Usage;

/// The time for upstream connections to close when weir ends.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);

/// The running proxy: its routes, swapped whole, and its upstreams. A clone is cheap and the same proxy.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    table: ArcSwap<Table>,
    upstreams: Mutex<Upstreams>,
    builder: Builder,
    spans: Spans,
}

/// Routes and upstreams that are ready to come into force. Dropped without a commit, they change nothing.
#[must_use = "a prepared proxy changes nothing before it is committed"]
pub struct PreparedProxy {
    shared: Arc<Shared>,
    parts: Parts,
}

impl Proxy {
    /// Creates a proxy with the configuration's routes. Connects to nothing yet.
    ///
    /// # Errors
    /// If a certificate, a key or a route's limiters cannot be used.
    pub fn new(
        metrics: Metrics,
        usage: Usage,
        spans: Spans,
        config: &Config,
        limiters: &PreparedLimiters,
        reach: Reach,
    ) -> Result<Proxy, ProxyBuildError> {
        let body_memory = Arc::new(BodyMemory::new(config.server.body_memory));
        let builder = Builder { metrics, usage, reach, tasks: TaskTracker::new(), body_memory };
        let Parts { table, upstreams } = builder.build(config, limiters, &Upstreams::new(), None)?;
        table.publish_metrics();
        let (table, upstreams) = (ArcSwap::new(table), Mutex::new(upstreams));
        Ok(Proxy { shared: Arc::new(Shared { table, upstreams, builder, spans }) })
    }

    /// Prepares another configuration, with limiters that are prepared too. Changes nothing yet. Reads files, so it
    /// may block. Upstreams that the configuration leaves as they are keep their connections.
    ///
    /// # Errors
    /// If a certificate, a key or a route's limiters cannot be used.
    pub fn prepare(
        &self,
        config: &Config,
        limiters: &PreparedLimiters,
    ) -> Result<PreparedProxy, ProxyBuildError> {
        let present = self.upstreams().clone();
        let parts = self.shared.builder.build(config, limiters, &present, Some(&self.table()))?;
        Ok(PreparedProxy { shared: self.shared.clone(), parts })
    }

    /// Explains what would become of a request from an address, by the routes in force. Sends nothing, takes no permit.
    pub fn explain(&self, request: Request<()>, body: Option<&[u8]>, peer: IpAddr) -> Explanation {
        explain::explain(&self.table(), request, body, peer)
    }

    /// Returns the breakers of the routes in force as JSON, in their order, and brings their metrics up to date.
    pub fn breakers(&self) -> Vec<serde_json::Value> {
        self.table().breakers()
    }

    /// Closes all upstream connections, after [`serve`] has returned.
    pub async fn close(&self) {
        self.each_upstream(Upstream::close_idle);
        let tasks = &self.shared.builder.tasks;
        tasks.close();
        let _ = timeout(CLOSE_TIME_MAX, tasks.wait()).await;
    }

    fn each_upstream(&self, act: impl Fn(&Upstream)) {
        self.upstreams().values().for_each(|upstream| act(upstream));
    }

    fn upstreams(&self) -> MutexGuard<'_, Upstreams> {
        self.shared.upstreams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the routes in force.
    fn table(&self) -> Arc<Table> {
        self.shared.table.load_full()
    }
}

impl PreparedProxy {
    /// Puts the configuration in force for all requests that begin from now on. Requests under way keep the routes and
    /// upstreams that they began with, but for the values of the headers that these set.
    pub fn commit(self) {
        let PreparedProxy { shared, parts: Parts { table, upstreams } } = self;
        // First, so that the new limiters and the old routes are in force together for a moment only.
        shared.table.store(table.clone());
        table.publish_set_headers();
        shared.builder.body_memory.resize(table.server().body_memory, &shared.builder.tasks);
        table.publish_metrics();
        let mut present = shared.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *present, upstreams);
        before.iter().filter(|(key, _)| !present.contains_key(key)).for_each(|(_, gone)| gone.close_idle());
        drop(present);
        let kept: HashSet<&str> = table.route_names().collect();
        shared.builder.metrics.retain_routes(|name| kept.contains(name));
        shared.builder.metrics.retain_clients(|name| table.counts(name));
    }
}

impl Service for Proxy {
    type Body = ResponseBody;

    fn settings(&self) -> Settings {
        let table = self.shared.table.load();
        let body_memory = Arc::clone(&self.shared.builder.body_memory);
        Settings { server: Arc::clone(table.server()), tls: table.tls().cloned(), body_memory }
    }

    fn connection_errors(&self) -> ConnectionErrors {
        self.shared.builder.metrics.connection_errors()
    }

    fn answer(
        self,
        client: Arc<Client>,
        request: Request<ClientBody>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + Unpin + 'static {
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
