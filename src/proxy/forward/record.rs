//! The record of a request: its line in the access log, its metrics and its trace, written when the request is over.
//!
//! Changes nothing about a request.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use tokio::time::Instant;

use super::plan::Notes;
use crate::config::model::{Errors, Route as Rule};
use crate::limiter::{LimiterName, Partition, Permit, Provenance, model::Costs};
use crate::proxy::error::ProxyError;
use crate::proxy::listen::client::Client;
use crate::proxy::messages::response::{self, CLIENT_LEFT, Refused};
use crate::proxy::route::callers::{CallerCounts, Callers};
use crate::proxy::route::partition::Facts;
use crate::proxy::route::table::{Route, Table};
use crate::telemetry::{AccessLine, AccessRule, Outcome, Summary, Trace};

/// The record of a request. Its drop writes it, from the fields as they are then.
pub(crate) struct Record {
    /// The end of the request. At first it says that the client has left.
    pub(crate) end: End,
    /// The time in the queue.
    pub(crate) wait: Wait,
    /// The sender of the request.
    pub(crate) caller: Caller,
    /// The trace, if there are traces.
    pub(crate) trace: Option<Box<Trace>>,
    /// The form of a response that weir makes: the route's, once there is one.
    pub(crate) errors: Errors,
    began: Instant,
    method: Method,
    /// The path without the query, which may hold credentials. Only for the access log and the trace.
    path: Box<str>,
    access_log: Option<AccessRule>,
    callers: Arc<Callers>,
    permits: PermitCount,
    client: Arc<Client>,
}

/// The count of a request's permits, which waits until it is known what becomes of them.
enum PermitCount {
    /// None: it has asked for none, or they are counted.
    Counted,
    /// So many are asked for, or held.
    Asked(Costs),
    /// So many are with a request on its way upstream.
    Sent(Costs, Provenance),
}

/// The end of a request. Until something else is known, the client has left: a dropped future cannot report that itself.
pub(crate) struct End {
    /// The status that the client got.
    pub(crate) status: u16,
    /// The outcome.
    pub(crate) outcome: Outcome,
    /// The `weir-error` of a response that weir made.
    error: Option<&'static str>,
    /// The reason of a response that weir made, or for which the upstream's broke off. It may name addresses that the client does not
    /// learn.
    reason: Option<String>,
}

/// The time of a request in the queue.
#[derive(Default)]
pub(crate) struct Wait {
    /// The time of the waits that have ended.
    pub(crate) total: Duration,
    /// The part of it before the present permit was asked for.
    earlier: Duration,
    /// The place in the fleet's queue when the request entered, in permits, if that is known.
    pub(crate) place: Option<u64>,
    /// The beginning of the current wait.
    since: Option<Instant>,
}

/// The sender of a request.
pub(crate) struct Caller {
    /// The address: the connection's peer, or the client behind a trusted proxy.
    pub(crate) address: IpAddr,
    /// The name, if `clients` are configured.
    pub(crate) name: Option<Arc<str>>,
}

impl Notes for Record {
    fn address(&mut self, address: IpAddr) {
        self.caller.address = address;
    }

    fn named(&mut self, name: Option<&Arc<str>>) {
        self.caller.name = name.cloned();
    }

    fn routed(&mut self, route: &Arc<Route>) {
        self.callers = Arc::clone(&route.callers);
        self.errors = route.rule.errors;
    }

    fn partitioned(&mut self, facts: Facts<'_>, route: &Route, partitions: &[Option<Partition>]) {
        if let Some(limiter_set) = &route.limiter_set {
            limiter_set.name_partitions(partitions, |place| facts.shown(&route.rule.limiters[place].1));
        }
    }
}

impl Wait {
    /// Begins a wait.
    pub(crate) fn begin(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Notes that the request asks for another permit, whose wait is added to the earlier ones.
    pub(crate) fn ask_again(&mut self) {
        self.earlier = self.total;
    }

    /// Returns whether the request has waited for its present permit.
    fn is_for_permit(&self) -> bool {
        self.total > self.earlier
    }

    /// Ends the current wait. A permit knows itself how long it was waited for.
    pub(crate) fn end(&mut self, permit: Option<&Permit>) {
        let since = self.since.take();
        self.total = match permit {
            Some(permit) => self.earlier + permit.waited(),
            None => self.total + since.map_or(Duration::ZERO, |since| since.elapsed()),
        };
    }
}

impl Record {
    /// Begins the record of a request whose head has been read.
    pub(crate) fn begin<B>(
        table: &Table,
        trace: Option<Box<Trace>>,
        client: &Arc<Client>,
        request: &Request<B>,
        began: Instant,
    ) -> Record {
        client.activity.began(began);
        let access_log = table.access_log();
        let path = if access_log.is_some() || trace.is_some() { request.uri().path() } else { "" };
        Record {
            end: End { status: CLIENT_LEFT, outcome: Outcome::Cancelled, error: None, reason: None },
            wait: Wait::default(),
            caller: Caller { address: client.peer, name: None },
            trace,
            errors: table.server().errors,
            began,
            method: request.method().clone(),
            path: path.into(),
            access_log,
            callers: Arc::clone(table.no_route()),
            permits: PermitCount::Counted,
            client: Arc::clone(client),
        }
    }

    /// Returns the time since the request came.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Notes a response that weir made, and returns it.
    pub(crate) fn refused(&mut self, refused: Refused) -> Response<Bytes> {
        let Refused { response, outcome, code, reason } = refused;
        self.end.outcome = outcome;
        self.end.reason = Some(reason);
        // A client that has left gets no response.
        if outcome != Outcome::Cancelled {
            self.end.status = response.status().as_u16();
            self.end.error = Some(code);
        }
        response
    }

    /// Notes that the response broke off on its way, and why.
    pub(crate) fn broke_off(&mut self, reason: &str) {
        self.end.outcome = Outcome::Failed;
        self.end.reason = Some(format!("the response broke off: {reason}"));
    }

    /// Notes that the request asks for permits. Those are counted once, when it is known what becomes of them.
    pub(crate) fn note_asked(&mut self, costs: Costs) {
        self.permits = PermitCount::Asked(costs);
    }

    /// Notes that the request is on its way upstream with its permits.
    pub(crate) fn note_sent(&mut self, permit: Option<&Permit>) {
        if let PermitCount::Asked(costs) = &self.permits {
            let by = permit.map_or(Provenance::Store, Permit::provenance);
            self.permits = PermitCount::Sent(costs.clone(), by);
        }
    }

    /// Notes that nothing of the request was sent after all.
    pub(crate) fn note_unsent(&mut self) {
        if let PermitCount::Sent(costs, _) = &self.permits {
            self.permits = PermitCount::Asked(costs.clone());
        }
    }

    /// Counts the permits that a limiter refused.
    pub(crate) fn permits_refused(&mut self, limiter: &LimiterName) {
        if let PermitCount::Asked(costs) = std::mem::replace(&mut self.permits, PermitCount::Counted) {
            self.counts().refused(&costs, limiter);
        }
    }

    /// Counts the permits, which were used if the request has gone upstream.
    pub(crate) fn count_permits(&mut self) {
        let has_waited = self.wait.is_for_permit();
        match std::mem::replace(&mut self.permits, PermitCount::Counted) {
            PermitCount::Counted => {}
            PermitCount::Asked(costs) => self.counts().cancelled(&costs),
            PermitCount::Sent(costs, by) => self.counts().granted(&costs, by, has_waited),
        }
    }

    fn counts(&self) -> &CallerCounts {
        self.callers.of(self.caller.name.as_ref())
    }

    /// Begins an attempt in the trace, and passes the trace on unless the route removes or sets the trace's header itself.
    pub(crate) fn begin_attempt<B>(&mut self, route: &Route, request: &mut Request<B>) {
        let Some(trace) = &mut self.trace else { return };
        let Rule { remove_headers, set_headers, upstream, .. } = &route.rule;
        let mut kept = remove_headers.iter().chain(set_headers.iter().map(|(name, _)| name));
        let may_tell = !kept.any(|name| name == "traceparent");
        trace.begin_attempt(&self.method, &upstream.host, request.headers_mut(), may_tell);
    }

    /// Ends the attempt in the trace.
    pub(crate) fn end_attempt(&mut self, status: Result<StatusCode, &ProxyError>) {
        if let Some(trace) = &mut self.trace {
            trace.end_attempt(status.map(|status| status.as_u16()).map_err(response::code_of));
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let now = Instant::now();
        let elapsed = now - self.began;
        // The request may be dropped while it waits.
        self.wait.end(None);
        let waited = self.wait.total;
        self.client.activity.ended(now);
        self.count_permits();
        let End { status, outcome, error, ref reason } = self.end;
        self.counts().finished(status, outcome, elapsed);
        let summary = Summary {
            method: &self.method,
            path: &self.path,
            route: self.callers.route(),
            status,
            outcome,
            error,
            waited,
            client_address: self.caller.address.to_canonical(),
            client: self.caller.name.as_deref(),
        };
        if let Some(trace) = &self.trace {
            trace.describe(&summary);
        }
        if let Some(rule) = &self.access_log {
            let trace_id = self.trace.as_ref().and_then(|trace| trace.id());
            let (reason, trace_id) = (reason.as_deref(), trace_id.as_deref());
            AccessLine { summary, duration: elapsed, reason, trace_id }.log(rule);
        }
    }
}
