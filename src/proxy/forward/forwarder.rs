//! Answers one request: makes the plan, takes the permit, sends the request and returns the response.
//!
//! Decides nothing about limits, and chooses no status code.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::Either;
use http::header::{CONNECTION, CONTENT_LENGTH, Entry, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, Version};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::admission::admit;
use super::attempts::{attempts, retries};
use super::body_ahead;
use super::outgoing::Outgoing;
use super::plan::{Notes, Plan};
use super::record::Record;
use super::response_body::ResponseBody;
use super::send::send;
use super::tunnel::Tunnel;
use crate::proxy::error::ProxyError;
use crate::proxy::listen::client::{Client, Sender};
use crate::proxy::listen::switch::Switched;
use crate::proxy::messages::body_facts::{BodyFacts, BodyNeed};
use crate::proxy::messages::client_body::ClientBody;
use crate::proxy::messages::end_to_end::EndToEnd;
use crate::proxy::messages::form::Reader;
use crate::proxy::messages::header_flags::HeaderFlags;
use crate::proxy::messages::request_body::Rest;
use crate::proxy::messages::response::{self, SWITCHING_PROTOCOLS};
use crate::proxy::messages::{headers, limit_headers, request_body, request_head, stream_usage};
use crate::proxy::route::caller;
use crate::proxy::route::links::Links;
use crate::proxy::route::table::{Route, Table};
use crate::proxy::upstream::lease::Lease;
use crate::telemetry::{Outcome, Trace};

/// The time between a refusal over HTTP/2 and the reset of its stream. A client that reads both at once, as those of nghttp2 do, drops
/// the refusal.
const RESET_AFTER: Duration = Duration::from_millis(250);

/// Answers a request, whatever happens to it.
///
/// The plan is made at once and not in the future, so that the future holds neither the request as it came nor the table, unless the plan
/// depends on the body. The future is boxed here, and not by the connection, so that only a pointer is passed on; most connections are idle most of the time.
pub(crate) fn handle(
    table: &Arc<Table>,
    trace: Option<Box<Trace>>,
    client: Arc<Client>,
    mut request: Request<ClientBody>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + Unpin + 'static + use<> {
    let arrived = Instant::now();
    request_head::unify_host(&mut request);
    let mut record = Box::new(Record::begin(table, trace, &client, &request, arrived));
    let flags = HeaderFlags::of(request.headers());
    let origin = Origin {
        reader: Reader::of(&request, flags),
        sends_body: !request_head::expects_continue(request.headers(), flags),
        version: request.version(),
    };
    if request.method() == Method::CONNECT {
        // Behind it the client sends what it means for the other end of a tunnel, which must not be read as a request.
        client.unread.set();
    }
    let has_facts = !table.body_paths().is_empty() && !http_body::Body::is_end_stream(request.body());
    let body = if has_facts { BodyFacts::unread() } else { BodyFacts::nothing() };
    let made = Plan::make(table, client.sender(), &request, (flags, arrived, &body), &mut *record);
    if let Some(need) = body.need()
        && let Some(route) = needing_route(table, need, &made, (&request, client.sender()))
    {
        record.routed(&route);
        let again = Again { table: Arc::clone(table), need, route, flags, arrived };
        return Either::Left(Box::pin(answer_by_body(again, request, origin, record, client)));
    }
    Either::Right(match made {
        Err(error) => {
            let unread = Unread { body: Some(request.into_body()), origin };
            Either::Left(Box::pin(refuse(error, unread, record, client)))
        }
        Ok((mut plan, target)) => {
            plan.body_bytes = body_bytes(request.body());
            let outgoing = Outgoing::new(&plan, target, request);
            Either::Right(Box::pin(pass(plan, outgoing, origin, record, client)))
        }
    })
}

/// The circumstances of a response that weir makes, beside its reason.
#[derive(Clone, Copy)]
struct Origin {
    reader: Reader,
    /// False if the client waits for 100 Continue, and so has not begun to send a body.
    sends_body: bool,
    /// The version of HTTP.
    version: Version,
}

/// Returns the route that needs the body, if it is to be read. That of a caller whom neither this route nor the one that was found
/// knows is not.
fn needing_route(
    table: &Table,
    need: BodyNeed,
    made: &Result<(Plan, PathAndQuery), ProxyError>,
    (request, sender): (&Request<ClientBody>, Sender<'_>),
) -> Option<Arc<Route>> {
    let Some(rank) = need.rank else { return made.as_ref().ok().map(|(plan, _)| Arc::clone(&plan.route)) };
    let route = table.at_rank(rank)?;
    let may_be_known =
        || caller::identify(table.clients(), request.headers(), sender.names, Some(&route.rule)).is_ok();
    let is_wanted = !matches!(made, Err(ProxyError::UnknownClient)) || may_be_known();
    is_wanted.then(|| Arc::clone(route))
}

/// A plan that has to be made again, by the body.
struct Again {
    table: Arc<Table>,
    need: BodyNeed,
    route: Arc<Route>,
    flags: HeaderFlags,
    arrived: Instant,
}

/// Answers a request by a plan that is made again once its body has been read.
fn answer_by_body(
    again: Again,
    request: Request<ClientBody>,
    mut origin: Origin,
    mut record: Box<Record>,
    client: Arc<Client>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + 'static {
    // Reading it tells the client to continue.
    origin.sends_body = true;
    async move {
        // Boxed, because waiting requests must stay small.
        match Box::pin(plan_by_body(again, request, &mut record, &client)).await {
            Ok(planned) => {
                let (plan, outgoing) = *planned;
                pass(plan, outgoing, origin, record, client).await
            }
            Err(refused) => {
                let (error, body) = *refused;
                refuse(error, Unread { body: Some(body), origin }, record, client).await
            }
        }
    }
}

/// Reads the body, and makes the plan again by its facts. Returns the body with the error.
async fn plan_by_body(
    again: Again,
    mut request: Request<ClientBody>,
    record: &mut Record,
    client: &Client,
) -> Result<Box<(Plan, Outgoing)>, Box<(ProxyError, ClientBody)>> {
    let Again { table, need, route, flags, arrived } = again;
    let read = body_ahead::read(&table, (need, &route), (client, arrived), (&mut request, flags)).await;
    let made = read.and_then(|body| {
        let (plan, target) = Plan::make(&table, client.sender(), &request, (flags, arrived, &body), record)?;
        let rule = &plan.route.rule;
        let lacks_usage = rule.includes_usage()
            && stream_usage::can_change(&EndToEnd::new(request.headers(), flags, false))
            && stream_usage::lacks_usage(request.uri().path(), body.up_to(rule.body_bytes_max));
        Ok((plan, target, lacks_usage))
    });
    match made {
        Err(error) => Err(Box::new((error, request.into_body()))),
        Ok((mut plan, target, lacks_usage)) => {
            plan.body_bytes = body_bytes(request.body());
            if lacks_usage {
                ask_for_usage(&mut request);
            }
            let mut outgoing = Outgoing::new(&plan, target, request);
            outgoing.without_usage = lacks_usage.then(Box::default);
            Ok(Box::new((plan, outgoing)))
        }
    }
}

/// Returns the bytes that are still to come of a body, as far as it tells; `None` without a body.
fn body_bytes(body: &ClientBody) -> Option<u64> {
    (!http_body::Body::is_end_stream(body)).then(|| body.bytes_to_come())
}

/// Lets a request ask for the usage of its stream.
fn ask_for_usage(request: &mut Request<ClientBody>) {
    request.body_mut().insert_member(stream_usage::MEMBER);
    let length = http_body::Body::size_hint(request.body()).exact();
    if let (Entry::Occupied(mut known), Some(length)) = (request.headers_mut().entry(CONTENT_LENGTH), length)
    {
        known.insert(length.into());
    }
}

/// Answers a request by its plan.
#[expect(
    clippy::manual_async_fn,
    reason = "an async function holds its arguments twice, and waiting requests must stay small"
)]
fn pass(
    plan: Plan,
    mut outgoing: Outgoing,
    origin: Origin,
    mut record: Box<Record>,
    client: Arc<Client>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + 'static {
    async move {
        match forward(&plan, &client, &mut outgoing, &mut record).await {
            Ok(answer) => Ok(answer.finish(record, &client)),
            Err(error) => {
                let unread = Unread { body: outgoing.body.take(), origin };
                refuse(error, unread, record, client).await
            }
        }
    }
}

/// The body of a request that is refused.
struct Unread {
    /// The body, unless it was sent.
    body: Option<ClientBody>,
    origin: Origin,
}

/// Answers a request with an error at once, whatever the client is still sending.
async fn refuse(
    error: ProxyError,
    mut unread: Unread,
    mut record: Box<Record>,
    client: Arc<Client>,
) -> Result<Response<ResponseBody>, Infallible> {
    tracing::debug!(%error, "a request was not forwarded");
    if let ProxyError::Refused { refusal, .. } = &error {
        record.permits_refused(refusal.limiter());
    }
    let mut refused = response::refuse(&error, unread.origin.reader, record.errors);
    response::add_position(refused.response.headers_mut(), record.wait.place);
    let response = record.refused(refused);
    if let Some(body) = unread.body.take().filter(|body| !http_body::Body::is_end_stream(body)) {
        Box::pin(leave_unread(unread, body, client)).await;
    }
    Ok(response.map(|bytes| ResponseBody::own(bytes).recorded(record)))
}

/// Leaves the body of a refused request. A short one is read to its end behind the response, which keeps the connection. With any other
/// the connection of HTTP/1 ends, and the stream of HTTP/2 is reset.
async fn leave_unread(unread: Unread, body: ClientBody, client: Arc<Client>) {
    let rest =
        if unread.origin.sends_body { request_body::drop_arrived(body).await } else { Rest::Long(body) };
    match rest {
        Rest::Nothing => {}
        Rest::Long(body) if unread.origin.version == Version::HTTP_2 => {
            behind_response(&client, async move {
                sleep(RESET_AFTER).await;
                drop(body);
            });
        }
        Rest::Long(_) => client.unread.set(),
        Rest::Short(mut body) => {
            let mark = client.unread.clone();
            behind_response(&client, async move {
                if !request_body::drop_short(&mut body).await {
                    // Before hyper learns that nobody reads the body.
                    mark.set();
                }
            });
        }
    }
}

/// Runs what is left to do for a request behind its response. The client counts as busy meanwhile: what it sends is no head of a request.
fn behind_response(client: &Arc<Client>, work: impl Future<Output = ()> + Send + 'static) {
    let busy = client.activity.busy();
    client.tasks.spawn(async move {
        work.await;
        drop(busy);
    });
}

/// The answer to a forwarded request.
enum Answer {
    Response(Response<ResponseBody>),
    Tunnel(Response<ResponseBody>, Box<Tunnel>),
}

impl Answer {
    fn finish(self, record: Box<Record>, client: &Client) -> Response<ResponseBody> {
        match self {
            Answer::Response(response) => response.map(|body| body.recorded(record)),
            Answer::Tunnel(response, tunnel) => {
                tunnel.open(record, client);
                response
            }
        }
    }
}

/// Takes the permit, sends the request, and makes the upstream's response the client's.
async fn forward(
    plan: &Plan,
    client: &Client,
    outgoing: &mut Outgoing,
    record: &mut Record,
) -> Result<Answer, ProxyError> {
    (outgoing.permit, outgoing.ready) = admit(plan, client, &mut outgoing.head, &plan.demand, record).await?;
    let (response, lease) = match retries(plan, outgoing) {
        None => send(plan, client, outgoing, record).await,
        Some(retries) => Box::pin(attempts(plan, client, outgoing, record, retries)).await,
    }?;
    respond(plan, client, response, lease, outgoing, record)
}

/// Makes an upstream's response the client's.
fn respond(
    plan: &Plan,
    client: &Client,
    mut response: Response<Incoming>,
    lease: Lease,
    outgoing: &mut Outgoing,
    record: &mut Record,
) -> Result<Answer, ProxyError> {
    record.end.status = response.status().as_u16();
    lease.forget_copy();
    let rule = &plan.route.rule;
    let flags = HeaderFlags::of(response.headers());
    let protocol =
        if flags.has(HeaderFlags::UPGRADE) { response.headers().get(UPGRADE).cloned() } else { None };
    headers::to_client(response.headers_mut(), flags);
    if rule.rewrite_links && flags.has(HeaderFlags::LINKS) {
        let links = Links::new(rule, client, plan.origin.as_deref(), plan.authority.as_ref());
        links.rewrite(response.status(), response.headers_mut());
    }
    if let Some(form) = rule.limit_headers {
        let left = outgoing.feedback.quota_left.take();
        limit_headers::replace(response.headers_mut(), form, left.as_deref(), SystemTime::now());
    }
    response::add_wait(response.headers_mut(), (record.wait.total, record.wait.place), || plan.class());
    // hyper writes the version of the client's connection.
    *response.version_mut() = Version::HTTP_11;
    if response.status() == SWITCHING_PROTOCOLS {
        let timeout = rule.upstream.timeouts.tunnel;
        // A connection that does not switch must not be handed over at its end.
        let asked = plan.upgrade.as_ref().filter(|_| protocol.is_some());
        let switched = asked.map(|_| client.switch.want());
        return switch(response, protocol, switched, lease, timeout);
    }
    record.end.outcome = Outcome::Forwarded;
    // Over HTTP/2 the header alone announces the length.
    if plan.version != Version::HTTP_2
        && let Some(length) = response::length_unsent(response.status(), response.headers())
    {
        lease.release();
        return Ok(Answer::Response(response.map(|_| ResponseBody::announced(length))));
    }
    let idle_timeout = plan.route.upstream.settings().timeouts.idle;
    let mut feedback = std::mem::take(&mut outgoing.feedback);
    if let Some(without_usage) = outgoing.without_usage.take().filter(|_| stream_usage::is_stream(&response))
    {
        feedback.without_usage = Some(without_usage);
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    let body = |incoming| ResponseBody::upstream(incoming, idle_timeout, lease, feedback);
    Ok(Answer::Response(response.map(body)))
}

/// Makes the response that switches to the protocol that the client asked for.
fn switch(
    mut response: Response<Incoming>,
    protocol: Option<HeaderValue>,
    client: Option<oneshot::Receiver<Switched>>,
    lease: Lease,
    timeout: Duration,
) -> Result<Answer, ProxyError> {
    let (Some(protocol), Some(client)) = (protocol, client) else { return Err(ProxyError::UpgradeUnasked) };
    let upstream = hyper::upgrade::on(&mut response);
    response.headers_mut().insert(UPGRADE, protocol);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    let tunnel = Box::new(Tunnel::new(client, upstream, lease, timeout));
    Ok(Answer::Tunnel(response.map(|_| ResponseBody::own(Bytes::new())), tunnel))
}
