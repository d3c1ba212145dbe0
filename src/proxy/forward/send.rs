//! Sends a request by one connection, or by another if the first was closed meanwhile, and waits for the head of its response.
//!
//! Decides nothing about attempts that follow a response: [`super::retry`] does.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::admission::{Spent, check_patience, confirm, readmit, set_aside_while, traced, while_wanted};
use super::connect::{self, Needed};
use super::feedback;
use super::outgoing::{Keeps, Outgoing};
use super::plan::Plan;
use super::record::Record;
use crate::limiter::Permit;
use crate::proxy::error::{ConnectError, ProxyError, http2_cause};
use crate::proxy::listen::client::Client;
use crate::proxy::messages::request_body::{self, RequestBody};
use crate::proxy::messages::upload::{Upload, UploadState};
use crate::proxy::upstream::connection::SendError;
use crate::proxy::upstream::lease::{Lease, Ready};
use crate::telemetry::Part;

/// The result of sending a request.
pub(crate) type SendResult = Result<(Response<Incoming>, Lease), ProxyError>;

/// The doubts about a connection before a request is sent by it: it may fail without an answer where another one would not.
#[derive(Clone, Copy)]
struct Doubts {
    freshness: Freshness,
    /// True if a response whose head is too large may pass by another connection.
    may_grow: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    /// The connection is new: it has neither carried a request nor stood idle.
    Fresh,
    /// The connection has stood idle, or others share it: the upstream may have closed or retired it meanwhile.
    MayBeStale,
}

impl Freshness {
    /// Returns that of a connection that was not held ready.
    fn of(lease: &Lease) -> Freshness {
        if lease.is_reused() { Freshness::MayBeStale } else { Freshness::Fresh }
    }
}

impl Doubts {
    /// Returns the requests that are copied before they are sent by the connection.
    fn keeps(self, lease: &Lease) -> Keeps {
        if lease.is_multiplexed() {
            Keeps::Any
        } else if self.freshness == Freshness::MayBeStale || self.may_grow {
            Keeps::Harmless
        } else {
            Keeps::Nothing
        }
    }

    /// Returns whether a doubt explains a failure, so that it says nothing of the upstream.
    fn explain(self, error: &hyper::Error) -> bool {
        let may_be_stale = self.freshness == Freshness::MayBeStale;
        (may_be_stale && is_hang_up(error)) || (self.may_grow && error.is_parse_too_large())
    }
}

/// Sends the request and waits for the head of its response. Ends the attempt in the trace, whatever its result.
///
/// A request that has been sent is never answered as one that weir refused: where its repetition gets no permit, its failure stands.
pub(crate) async fn send(
    plan: &Plan,
    client: &Client,
    outgoing: &mut Outgoing,
    record: &mut Record,
) -> SendResult {
    let mut failed = None;
    let sent = match (deliver(plan, client, outgoing, record, &mut failed).await, failed) {
        (Err(ProxyError::Refused { refusal, .. }), Some(failed)) => {
            record.permits_refused(refusal.limiter());
            Err(failed)
        }
        (Err(ProxyError::UpstreamUnavailable { .. } | ProxyError::Draining), Some(failed)) => Err(failed),
        (sent, _) => sent,
    };
    sent.inspect_err(|error| record.end_attempt(Err(error)))
}

/// Sends the request and waits for the head of its response.
///
/// If nothing was written because the connection had been closed, the request is sent by another connection with the same permit.
/// If the upstream closed the connection at that moment, or its response has more headers than this connection has room for, the
/// request is repeated with another permit, provided that does no harm (RFC 9110, 9.2.2). It does none where an HTTP/2 upstream says that
/// it has not processed the request (RFC 9113, 8.7). The failure that calls for it is left in `failed`.
async fn deliver(
    plan: &Plan,
    client: &Client,
    outgoing: &mut Outgoing,
    record: &mut Record,
    failed: &mut Option<ProxyError>,
) -> SendResult {
    let upstream = &plan.route.upstream;
    let (mut freshness, mut lease) = match outgoing.ready.take()?.or_else(|| upstream.idle(plan.wanted())) {
        Some(lease) => (Freshness::MayBeStale, lease),
        None => {
            let lease = connected(plan, client, &mut outgoing.permit, Needed::Any, record).await?;
            (Freshness::of(&lease), lease)
        }
    };
    let mut unsent: Option<Box<Request<RequestBody>>> = None;
    loop {
        if let Err(error) = confirmed(plan, client, &mut outgoing.permit, record).await {
            outgoing.permit = None;
            lease.release();
            return Err(error);
        }
        record.note_sent(outgoing.permit.as_ref());
        let spent = Spent::new(outgoing.permit.take());
        let doubts = Doubts { freshness, may_grow: lease.may_grow() };
        let keeps = doubts.keeps(&lease);
        let mut request =
            unsent.take().map_or_else(|| prepare(plan, client, outgoing, record, keeps), |unsent| *unsent);
        // It may have waited, also after it was prepared.
        plan.route.set_headers.renew(&plan.route.rule, request.headers_mut());
        let sent_at = Instant::now();
        let sending = (sent_at, upstream.settings().timeouts.headers);
        match lease.send(request, outgoing.upload.clone(), sending).await {
            Ok(response) => {
                let took = sent_at.elapsed();
                plan.route.answer_times.add(took);
                connect::answered(plan);
                record.end_attempt(Ok(response.status()));
                outgoing.feedback = feedback::of(plan, &response, spent.commit(), took);
                return Ok((response, lease));
            }
            Err(SendError::Failed(error))
                if failed.is_none()
                    && may_be_repeated(outgoing, &error, doubts)
                    && outgoing.take_repetition() =>
            {
                drop(spent);
                let error = failed.insert(failure(error, outgoing.upload.as_deref()));
                record.end_attempt(Err(error));
                let wait_max = plan.wait_left(record.wait.total);
                Box::pin(readmit(plan, client, outgoing, record, (wait_max, false))).await?;
                // The request needs a connection of another kind than one that was made ready.
                outgoing.ready = Ready::default();
            }
            Err(SendError::Failed(error)) => return Err(failure(error, outgoing.upload.as_deref())),
            Err(SendError::Coded) => return Err(ProxyError::UpstreamCoding),
            Err(SendError::TimedOut) => return Err(ProxyError::UpstreamTimeout),
            Err(SendError::Unsent(request, error)) => {
                outgoing.permit = spent.recall();
                record.note_unsent();
                if freshness == Freshness::Fresh {
                    return Err(ConnectError::Http(Arc::new(error)).into());
                }
                unsent = Some(request);
            }
        }
        // All requests of a shared connection have lost it: they share the next one, too.
        let needed = if lease.is_multiplexed() { Needed::Any } else { Needed::Fresh };
        lease = connected(plan, client, &mut outgoing.permit, needed, record).await?;
        freshness = Freshness::of(&lease);
    }
}

/// Makes sure that the permit is good now: one whose slot has passed waits for another.
async fn confirmed(
    plan: &Plan,
    client: &Client,
    permit: &mut Option<Permit>,
    record: &mut Record,
) -> Result<(), ProxyError> {
    let (Some(permit), Some(limiter_set)) = (permit, &plan.route.limiter_set) else { return Ok(()) };
    let confirmed = if permit.confirm_at_once() {
        Ok(())
    } else {
        record.wait.begin();
        let confirmed = pin!(confirm(plan, permit, limiter_set));
        traced(record, Part::Wait, while_wanted(client, confirmed)).await
    };
    record.wait.end(confirmed.is_ok().then_some(permit));
    confirmed.and_then(|()| check_patience(plan, record))
}

/// Returns whether a request that got this error may be sent by another connection: one that the upstream has not processed, and any that
/// does no harm twice, where the connection may have been stale, or has too little room for the head of the response.
fn may_be_repeated(outgoing: &Outgoing, error: &hyper::Error, doubts: Doubts) -> bool {
    (is_unprocessed(error) || (doubts.explain(error) && outgoing.is_harmless())) && outgoing.can_be_repeated()
}

/// Returns the request as it goes upstream, and begins an attempt in its trace.
fn prepare(
    plan: &Plan,
    client: &Client,
    outgoing: &mut Outgoing,
    record: &mut Record,
    keeps: Keeps,
) -> Request<RequestBody> {
    let mut request = outgoing.request(plan, client, keeps);
    record.begin_attempt(&plan.route, &mut request);
    request
}

/// Waits for a connection. If that takes long, other requests go before this one, and a client that leaves meanwhile is noticed.
async fn connected(
    plan: &Plan,
    client: &Client,
    permit: &mut Option<Permit>,
    needed: Needed,
    record: &Record,
) -> Result<Lease, ProxyError> {
    let deadline = Instant::now() + plan.wait_left(record.wait.total);
    // Boxed, because waiting requests must stay small.
    let opening = Box::pin(async {
        let opening = pin!(connect::open(plan, needed, deadline));
        match permit {
            Some(permit) => set_aside_while(permit, opening).await,
            None => opening.await,
        }
    });
    while_wanted(client, pin!(traced(record, Part::Connect, opening))).await
}

/// Returns whether an HTTP/2 upstream says that it has not processed the request: it retires the connection and names an earlier stream as
/// the last one (RFC 9113, 6.8), or refuses the stream.
fn is_unprocessed(error: &hyper::Error) -> bool {
    // h2 itself refuses a stream whose response is too large.
    http2_cause(error).filter(|cause| cause.is_remote()).is_some_and(|cause| {
        let reason = cause.reason();
        reason == Some(h2::Reason::REFUSED_STREAM)
            || (cause.is_go_away() && reason == Some(h2::Reason::NO_ERROR))
    })
}

/// Returns whether the upstream closed a connection instead of answering.
fn is_hang_up(error: &hyper::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected];
    error.is_incomplete_message()
        || error.is_closed()
        || request_body::io_kind(error).is_some_and(|kind| kinds.contains(&kind))
}

/// Returns the error of a request without a response, whose cause may be the client's body.
fn failure(error: hyper::Error, upload: Option<&Upload>) -> ProxyError {
    match upload.map(Upload::state) {
        Some(UploadState::Stalled) => ProxyError::RequestTimeout,
        Some(UploadState::Broken) => ProxyError::ClientGone,
        Some(UploadState::Malformed) => ProxyError::BadFraming("the body is not framed as HTTP has it"),
        // The kernel has given the connection up: the upstream took nothing for `server.write_timeout`, or has vanished.
        _ if request_body::io_kind(&error) == Some(ErrorKind::TimedOut) => ProxyError::UpstreamTimeout,
        _ if is_hang_up(&error) => ProxyError::UpstreamClosed,
        _ => ProxyError::UpstreamProtocol(error),
    }
}
