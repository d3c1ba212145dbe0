//! What became of a request: one line in the access log, its metrics and its trace, written when the request is over.
//!
//! A record that nobody finishes says that the client left: a future that is dropped cannot say so itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use tokio::time::Instant;

use crate::config::model::Route as Rule;
use crate::limiter::Permit;
use crate::proxy::error::ProxyError;
use crate::proxy::listen::connection::Client;
use crate::proxy::messages::response::{self, CLIENT_LEFT};
use crate::proxy::route::router::{Route, Table};
use crate::telemetry::{Outcome, RouteMetrics, Spans, Summary, Trace};

/// A request's record. It is written on drop, from the fields as they are then.
pub(crate) struct Record {
    /// The status that the client got.
    pub(crate) status: u16,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// How long it waited in the queue.
    pub(crate) waited: Duration,
    /// Since when it waits there, in a wait whose length is not known yet.
    waiting_since: Option<Instant>,
    /// The `weir-error` of an answer that weir made itself.
    pub(crate) error: Option<&'static str>,
    /// What stood in the way, in words. It may name addresses, so the client need not learn it.
    pub(crate) reason: Option<String>,
    /// The client's address, as far as it is known.
    pub(crate) address: IpAddr,
    /// The client's name, where there are `clients`.
    pub(crate) caller: Option<Arc<str>>,
    /// Where there are traces.
    pub(crate) trace: Option<Box<Trace>>,
    began: Instant,
    method: Method,
    /// Without the query, where credentials may be. Only for the access log and the trace.
    path: Box<str>,
    is_logged: bool,
    route: Arc<str>,
    metrics: RouteMetrics,
    client: Arc<Client>,
}

impl Record {
    /// Begins when the request's head has been read.
    pub(crate) fn begin<B>(
        table: &Table,
        spans: &Spans,
        client: &Arc<Client>,
        request: &Request<B>,
    ) -> Record {
        let began = Instant::now();
        client.activity.began(began);
        let (route, metrics) = table.no_route();
        let (trace, is_logged) = (spans.begin(request.headers()), table.access_log());
        let path = if is_logged || trace.is_some() { request.uri().path() } else { "" };
        Record {
            status: CLIENT_LEFT,
            outcome: Outcome::Cancelled,
            waited: Duration::ZERO,
            waiting_since: None,
            error: None,
            reason: None,
            address: client.peer,
            caller: None,
            trace,
            began,
            method: request.method().clone(),
            path: path.into(),
            is_logged,
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

    /// It may have to wait from now on.
    pub(crate) fn begin_wait(&mut self) {
        self.waiting_since = Some(Instant::now());
    }

    /// It waits no longer. For how long whoever gets a permit has waited, the permit tells.
    pub(crate) fn end_wait(&mut self, permit: Option<&Permit>) {
        let since = self.waiting_since.take();
        self.waited = match permit {
            Some(permit) => permit.waited(),
            None => self.waited + since.map_or(Duration::ZERO, |since| since.elapsed()),
        };
    }

    /// It goes upstream, in an attempt of its trace, which the upstream may go on with unless the route keeps that header back.
    pub(crate) fn goes_upstream<B>(&mut self, route: &Route, request: &mut Request<B>) {
        let Some(trace) = &mut self.trace else { return };
        let Rule { remove_headers, set_headers, upstream, .. } = &route.rule;
        let mut kept = remove_headers.iter().chain(set_headers.iter().map(|(name, _)| name));
        let may_tell = !kept.any(|name| name == "traceparent");
        trace.begin_attempt(&self.method, &upstream.host, request.headers_mut(), may_tell);
    }

    /// The attempt is over: with an answer, or without one.
    pub(crate) fn came_back(&mut self, status: Result<StatusCode, &ProxyError>) {
        if let Some(trace) = &mut self.trace {
            trace.end_attempt(status.map(|status| status.as_u16()).map_err(response::code_of));
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let now = Instant::now();
        let elapsed = now - self.began;
        // One that is dropped while it waits.
        self.end_wait(None);
        let waited = self.waited;
        self.client.activity.ended(now);
        self.metrics.finished(self.status, self.outcome, elapsed);
        let client_address = self.address.to_canonical();
        if let Some(trace) = &self.trace {
            trace.describe(&Summary {
                method: &self.method,
                path: &self.path,
                route: &self.route,
                status: self.status,
                outcome: self.outcome,
                error: self.error,
                waited,
                client_address,
                client: self.caller.as_deref(),
            });
        }
        if self.is_logged {
            tracing::info!(
                target: "weir::access",
                method = self.method.as_str(),
                path = &*self.path,
                route = &*self.route,
                status = self.status,
                outcome = self.outcome.as_str(),
                wait_ms = millis(waited),
                duration_ms = millis(elapsed),
                error = self.error,
                reason = self.reason.as_deref(),
                client_ip = %client_address,
                client = self.caller.as_deref(),
                trace_id = self.trace.as_ref().and_then(|trace| trace.id()),
            );
        }
    }
}

/// Milliseconds, saturating.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
