//! What became of a request: one line in the access log and its metrics, written when the request is over.
//!
//! A record that nobody finishes says that the client left: a future that is dropped cannot say so itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use tokio::time::Instant;

use super::connection::Client;
use super::response::CLIENT_LEFT;
use super::router::{Route, Table};
use crate::telemetry::{Outcome, RouteMetrics};

/// A request's record. It is written on drop, from the fields as they are then.
pub(crate) struct Record {
    /// The status that the client got.
    pub(crate) status: u16,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// How long it waited in the queue.
    pub(crate) waited: Duration,
    /// The `weir-error` of an answer that weir made itself.
    pub(crate) error: Option<&'static str>,
    /// The client's address, as far as it is known.
    pub(crate) address: IpAddr,
    /// The client's name, where there are `clients`.
    pub(crate) caller: Option<Arc<str>>,
    began: Instant,
    method: Method,
    /// Without the query, where credentials may be. Only for the access log.
    path: Option<Box<str>>,
    route: Arc<str>,
    metrics: RouteMetrics,
    client: Arc<Client>,
}

impl Record {
    /// Begins when the request's head has been read.
    pub(crate) fn begin<B>(table: &Table, client: &Arc<Client>, request: &Request<B>) -> Record {
        let began = Instant::now();
        client.activity.began(began);
        let (route, metrics) = table.no_route();
        Record {
            status: CLIENT_LEFT,
            outcome: Outcome::Cancelled,
            waited: Duration::ZERO,
            error: None,
            address: client.peer,
            caller: None,
            began,
            method: request.method().clone(),
            path: table.access_log().then(|| request.uri().path().into()),
            route: Arc::clone(route),
            metrics: metrics.clone(),
            client: Arc::clone(client),
        }
    }

    /// It has a route.
    pub(crate) fn routed(&mut self, route: &Route) {
        self.route = Arc::clone(&route.rule.name);
        self.metrics = route.metrics.clone();
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let now = Instant::now();
        let elapsed = now - self.began;
        self.client.activity.ended(now);
        self.metrics.finished(self.status, self.outcome, elapsed);
        if let Some(path) = &self.path {
            tracing::info!(
                target: "weir::access",
                method = self.method.as_str(),
                path = &**path,
                route = &*self.route,
                status = self.status,
                outcome = self.outcome.as_str(),
                wait_ms = millis(self.waited),
                duration_ms = millis(elapsed),
                error = self.error,
                client_ip = %self.address.to_canonical(),
                client = self.caller.as_deref(),
            );
        }
    }
}

/// Milliseconds, saturating.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
