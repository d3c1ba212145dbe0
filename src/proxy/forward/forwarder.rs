//! The life of a request: its route, its permit, a connection, the response.
//!
//! The permit is confirmed right before the head is written to a connection that is already open, and it is
//! spent from then on; until then, whatever ends the request gives it back.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::{Either, try_join};
use http::header::{AUTHORIZATION, CONNECTION, UPGRADE};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio::time::{Instant, timeout};

use crate::config::model::Http2;
use crate::limiter::{
    Demand, Entered, LimiterSet, Partition, Permit, Receipt, Refusal, Ticket, UpstreamSignal, Window,
};
use crate::proxy::Proxy;
use crate::proxy::error::{ConnectError, ProxyError};
use crate::proxy::forward::record::Record;
use crate::proxy::forward::retry::Retries;
use crate::proxy::forward::upgrade::Tunnel;
use crate::proxy::listen::connection::Client;
use crate::proxy::messages::body::{self, Body, RequestBody, Upload, UploadState};
use crate::proxy::messages::headers::{self, Origin, Seen};
use crate::proxy::messages::quota::{Quota, Reported};
use crate::proxy::messages::response::{self, Asked, SWITCHING_PROTOCOLS};
use crate::proxy::route::caller;
use crate::proxy::route::partition::Facts;
use crate::proxy::route::router::{Route, Table, Target};
use crate::proxy::upstream::connect::Wanted;
use crate::proxy::upstream::pool::SendError;
use crate::proxy::upstream::upstream::{Lease, Ready};
use crate::telemetry::{Outcome, Part};

/// A connection that is not open by then holds up no other permit: an upstream that does not answer must not stop a queue.
/// Until then it does, or a burst would open a connection for each of its requests at once.
const CONNECT_SOON: Duration = Duration::from_millis(100);

/// Answers a request, whatever happens to it.
pub(crate) async fn handle(
    proxy: Proxy,
    client: Arc<Client>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let table = proxy.table();
    let mut record = Box::new(Record::begin(&table, proxy.spans(), &client, &request));
    let seen = Seen::of(request.headers());
    let asked = Asked::of(&request, seen);
    let expects_continue = headers::expects_continue(request.headers(), seen);
    let (error, unread) = match Plan::make(&table, &client, &request, seen, &mut record) {
        Err(error) => (error, Some(request.into_body())),
        Ok((plan, target)) => {
            let mut going = Going::new(&plan, target, request);
            match forward(&plan, &client, &mut going, &mut record).await {
                Ok(answer) => return Ok(answer.finish(record, &client)),
                Err(error) => {
                    record.came_back(Err(&error));
                    (error, going.body.take())
                }
            }
        }
    };
    tracing::debug!(%error, "a request was not forwarded");
    let response = response::refuse(&error, asked, &mut record);
    // A client that was not told to continue has not begun to send.
    if let Some(unread) = unread.filter(|_| !expects_continue) {
        Box::pin(body::discard(unread)).await;
    }
    Ok(response.map(|body| body.recorded(record)))
}

/// What is done with a request, decided before anything is.
struct Plan {
    route: Arc<Route>,
    authority: Option<Authority>,
    /// What the request's headers are.
    seen: Seen,
    version: Version,
    /// The protocol that it changes to.
    upgrade: Option<HeaderValue>,
    demand: Demand,
    /// Of the route's limiters, in order.
    partitions: Vec<Option<Partition>>,
    /// Its `Authorization` is for weir alone.
    token_in_authorization: bool,
}

impl Plan {
    /// Also says what the request asks the upstream for. Who calls comes before what is asked for: whoever is not
    /// known learns nothing of the routes.
    fn make<B>(
        table: &Table,
        client: &Client,
        request: &Request<B>,
        seen: Seen,
        record: &mut Record,
    ) -> Result<(Plan, PathAndQuery), ProxyError> {
        let address = caller::address(&table.server().trusted_proxies, client.peer, request.headers());
        record.address = address;
        caller::admit(table.server(), client.peer)?;
        headers::check(request, seen)?;
        let authority = headers::authority(request)?;
        let (uri, headers) = (request.uri(), request.headers());
        let host = &*headers::host(authority.as_ref());
        let found = table.route(Target { host, path: uri.path(), method: request.method(), headers });
        let rule = found.as_ref().ok().map(|route| &route.rule);
        let caller = caller::identify(table.clients(), headers, &client.names, rule)?;
        record.caller = caller.name.clone();
        let route = found?;
        record.routed(route);
        caller::may_use(&route.rule, &caller)?;
        let target = headers::target(uri, &route.rule)?;
        let wait_max = headers::wait_max(headers, seen)?;
        let demand = Demand { cost: headers::cost(headers, &route.rule.cost)?, wait_max };
        // Of the request as it came: what goes upstream has other headers.
        let facts = Facts { headers, uri, host, address, client: caller.name.as_deref() };
        let partitions = facts.partitions(&route.rule.limiters);
        // Over HTTP/2 no protocol can be changed to; the request goes on without the wish, as it may.
        let upgrade = headers::upgrade(request, seen);
        let upgrade = upgrade.filter(|_| route.rule.upstream.http2 != Http2::PriorKnowledge);
        let (route, token_in_authorization) = (Arc::clone(route), caller.token_in_authorization);
        let version = request.version();
        let plan =
            Plan { route, authority, seen, version, upgrade, demand, partitions, token_in_authorization };
        Ok((plan, target))
    }

    /// The attempts that its request has, if it has more than one.
    fn retries(&self, going: &Going) -> Option<Retries<'_>> {
        let rule = self.route.rule.retry.as_ref()?;
        let waits = self.route.gate.as_ref().map_or(Duration::ZERO, LimiterSet::wait_max);
        let waited = going.permit.as_ref().map_or(Duration::ZERO, Permit::waited);
        let wait = waits.min(self.demand.wait_max.unwrap_or(Duration::MAX)).saturating_sub(waited);
        Retries::of(rule, &going.head, wait).filter(|_| self.upgrade.is_none())
    }

    fn wanted(&self) -> Wanted {
        if self.upgrade.is_some() { Wanted::Http1 } else { Wanted::Any }
    }
}

/// A request on its way.
struct Going {
    /// As it came, but for its target.
    head: Request<()>,
    /// Until it goes upstream.
    body: Option<Incoming>,
    permit: Option<Permit>,
    ready: Ready,
    /// The client's side, if it wants to change to another protocol.
    changes: Option<OnUpgrade>,
    /// Whether the head is as it goes upstream.
    is_ready: bool,
    /// Whether the head is still here, and nothing of the body is missed.
    is_whole: bool,
    /// What can be seen of its body, once that goes upstream.
    upload: Option<Arc<Upload>>,
    /// Whether another attempt may be made, for which it is kept.
    is_kept: bool,
}

impl Going {
    fn new(plan: &Plan, target: PathAndQuery, mut request: Request<Incoming>) -> Going {
        let changes = plan.upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        parts.uri = Uri::from(target);
        parts.extensions.clear();
        if plan.token_in_authorization {
            parts.headers.remove(AUTHORIZATION);
        }
        let head = Request::from_parts(parts, ());
        Going {
            head,
            body: Some(body),
            permit: None,
            ready: Ready::default(),
            changes,
            is_ready: false,
            is_whole: true,
            upload: None,
            is_kept: false,
        }
    }

    /// Whether all of it can be sent once more.
    fn can_be_repeated(&self) -> bool {
        self.is_whole && self.upload.as_ref().is_none_or(|upload| upload.is_whole())
    }

    /// The request as it goes upstream. Its head stays here if it may be sent once more, by another connection (`again`) or in
    /// another attempt.
    fn request(&mut self, plan: &Plan, client: &Client, again: bool) -> Request<RequestBody> {
        let mut head = std::mem::take(&mut self.head);
        if !std::mem::replace(&mut self.is_ready, true) {
            let origin = Origin {
                peer: client.peer,
                secure: client.secure,
                authority: plan.authority.as_ref(),
                upgrade: plan.upgrade.as_ref(),
                version: head.version(),
                seen: plan.seen,
            };
            let Route { rule, upstream, .. } = &*plan.route;
            headers::to_upstream(head.headers_mut(), rule, upstream.host(), &origin);
        }
        let body = match self.body.take() {
            Some(incoming) => {
                let idle_timeout = plan.route.upstream.settings().idle_timeout;
                let retry = plan.route.rule.retry.as_ref().filter(|_| self.is_kept);
                let kept_max = retry.map(|retry| retry.body_bytes_max);
                let (body, upload) = RequestBody::new(incoming, idle_timeout, kept_max);
                self.upload = upload;
                body
            }
            None => {
                let kept = self.upload.as_ref().and_then(|upload| upload.whole());
                kept.filter(|kept| !kept.is_empty())
                    .map_or(RequestBody::Empty, |kept| RequestBody::Kept(Some(kept)))
            }
        };
        let is_harmless =
            matches!(body, RequestBody::Empty) && head.method().is_idempotent() && self.changes.is_none();
        self.is_whole = self.is_kept || (again && is_harmless);
        if self.is_whole {
            self.head = head.clone();
        }
        head.map(|()| body)
    }
}

/// What the client gets.
enum Answer {
    Response(Response<Body>),
    Tunnel(Response<Body>, Tunnel),
}

impl Answer {
    fn finish(self, record: Box<Record>, client: &Client) -> Response<Body> {
        match self {
            Answer::Response(response) => response.map(|body| body.recorded(record)),
            Answer::Tunnel(response, tunnel) => {
                tunnel.open(record, client);
                response
            }
        }
    }
}

/// Takes the permit and sends the request.
async fn forward(
    plan: &Plan,
    client: &Client,
    going: &mut Going,
    record: &mut Record,
) -> Result<Answer, ProxyError> {
    (going.permit, going.ready) = admit(plan, client, &mut going.head, &plan.demand, record).await?;
    let (mut response, lease) = match plan.retries(going) {
        None => send(plan, client, going, record).await,
        Some(retries) => Box::pin(attempts(plan, client, going, record, retries)).await,
    }?;

    record.status = response.status().as_u16();
    let protocol = response.headers().get(UPGRADE).cloned();
    let host_asked = plan.authority.as_ref().filter(|_| plan.route.rule.preserve_host).map(Authority::as_str);
    headers::to_client(response.headers_mut(), &plan.route.rule, host_asked);
    response::tell_wait(response.headers_mut(), record);
    // Of the connection to the client, and hyper knows best.
    *response.version_mut() = Version::HTTP_11;
    if response.status() == SWITCHING_PROTOCOLS {
        return change(response, protocol, going.changes.take(), lease);
    }
    record.outcome = Outcome::Forwarded;
    // Over HTTP/2 the header alone says it.
    if plan.version != Version::HTTP_2
        && let Some(length) = response::length_unsent(response.status(), response.headers())
    {
        lease.release();
        return Ok(Answer::Response(response.map(|_| Body::announced(length))));
    }
    let idle_timeout = plan.route.upstream.settings().idle_timeout;
    Ok(Answer::Response(response.map(|incoming| Body::upstream(incoming, idle_timeout, lease))))
}

/// What came of sending the request.
type Sent = Result<(Response<Incoming>, Lease), ProxyError>;

/// Sends the request for as long as it has attempts and needs them.
async fn attempts(
    plan: &Plan,
    client: &Client,
    going: &mut Going,
    record: &mut Record,
    mut retries: Retries<'_>,
) -> Sent {
    going.is_kept = true;
    let mut sent = attempt(plan, client, going, record).await;
    while going.can_be_repeated()
        && let Some(reason) = retries.take(sent.as_ref().map(|(response, _)| response.status()))
    {
        let demand = Demand { wait_max: Some(retries.wait()), ..plan.demand };
        match admit(plan, client, &mut going.head, &demand, record).await {
            Ok((permit, ready)) => (going.permit, going.ready) = (permit, ready),
            // There is no permit within its wait: the client gets what there is.
            Err(ProxyError::Refused { .. } | ProxyError::Draining) => break,
            Err(error) => {
                sent = Err(error);
                continue;
            }
        }
        plan.route.metrics.retried(&reason);
        // The connection of the last answer closes with it, unless others share that.
        drop(sent);
        sent = attempt(plan, client, going, record).await;
    }
    sent
}

/// One of several, which ends in its trace when it ends.
async fn attempt(plan: &Plan, client: &Client, going: &mut Going, record: &mut Record) -> Sent {
    let sent = send(plan, client, going, record).await;
    if let Err(error) = &sent {
        record.came_back(Err(error));
    }
    sent
}

/// Takes in what an answer says beside being one, `elapsed` after its request was sent.
fn answered(plan: &Plan, response: &Response<Incoming>, receipt: Option<&Receipt>, elapsed: Duration) {
    let (status, headers) = (response.status(), response.headers());
    let Route { rule, metrics, .. } = &*plan.route;
    metrics.upstream_answered(elapsed);
    let is_refusal = response::is_refusal(status, headers);
    if is_refusal {
        metrics.upstream_rejected(status.as_u16());
    }
    let (Some(receipt), Some(gate)) = (receipt, &plan.route.gate) else { return };
    if is_refusal || (receipt.follows_upstream() && Quota::is_reported(headers)) {
        gate.report_upstream(&plan.partitions, receipt, spoken(plan, status, headers, is_refusal));
    }
    let cost = rule.settle.as_ref().and_then(|settle| headers::cost_settled(status, headers, settle));
    if let Some(cost) = cost {
        gate.settle(&plan.partitions, receipt, cost);
    }
}

/// What an answer says of the upstream's quota.
fn spoken(plan: &Plan, status: StatusCode, headers: &HeaderMap, is_refusal: bool) -> UpstreamSignal {
    let quota = Quota::of(headers, SystemTime::now());
    if quota.nonsense > 0 {
        plan.route.metrics.upstream_invalid_quota_headers(quota.nonsense);
    }
    let windows = quota.windows.iter().filter_map(|window| {
        let Reported { limit, remaining, window: per, .. } = *window;
        Some(Window { limit, remaining: remaining?, per })
    });
    let asks = is_refusal && response::asks_for_pause(status, quota.wait.is_some());
    let refusal = asks.then(|| status.as_u16());
    UpstreamSignal { refusal, wait: quota.wait.filter(|_| asks), windows: windows.collect() }
}

/// The upstream changes to another protocol, as the client asked it to.
fn change(
    mut response: Response<Incoming>,
    protocol: Option<HeaderValue>,
    client: Option<OnUpgrade>,
    lease: Lease,
) -> Result<Answer, ProxyError> {
    let (Some(protocol), Some(client)) = (protocol, client) else { return Err(ProxyError::UpgradeUnasked) };
    let upstream = hyper::upgrade::on(&mut response);
    response.headers_mut().insert(UPGRADE, protocol);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    Ok(Answer::Tunnel(response.map(|_| Body::empty()), Tunnel::new(client, upstream, lease)))
}

/// Takes a permit, if the route has limiters; a request that waits comes back with a connection in hand.
async fn admit(
    plan: &Plan,
    client: &Client,
    outgoing: &mut Request<()>,
    demand: &Demand,
    record: &mut Record,
) -> Result<(Option<Permit>, Ready), ProxyError> {
    let Some(gate) = &plan.route.gate else { return Ok((None, Ready::default())) };
    let entered = traced(record, Part::Reserve, gate.enter(&plan.partitions, *demand)).await;
    match entered.map_err(|refusal| refused(gate, refusal))? {
        Entered::Granted(permit) => Ok((Some(permit), Ready::default())),
        Entered::Waiting(ticket) => {
            headers::compact(outgoing);
            record.begin_wait();
            let waiting = pin!(wait(plan, gate, ticket));
            let waited = traced(record, Part::Wait, while_wanted(client, waiting)).await;
            record.end_wait(waited.as_ref().ok().map(|(permit, _)| permit));
            let (permit, ready) = waited?;
            Ok((Some(permit), ready))
        }
    }
}

/// A part of a request that is seen in its trace, where it has one: on the heap then, for what waits must stay small.
fn traced<T>(record: &Record, part: Part, running: impl Future<Output = T>) -> impl Future<Output = T> {
    match &record.trace {
        Some(trace) => Either::Left(Box::pin(trace.part(part, running))),
        None => Either::Right(running),
    }
}

/// Waits for the slot, and opens a connection shortly before it.
async fn wait(plan: &Plan, gate: &LimiterSet, mut ticket: Ticket) -> Result<(Permit, Ready), ProxyError> {
    let refused = |refusal| refused(gate, refusal);
    let upstream = &plan.route.upstream;
    ticket.approaching().await;
    let Some(_place) = upstream.early_place() else {
        return Ok((ticket.turn().await.map_err(refused)?, Ready::default()));
    };
    let turn = async { ticket.turn().await.map_err(refused) };
    let ready = async {
        let lease = match upstream.idle(plan.wanted()) {
            Some(lease) => lease,
            None => Box::pin(upstream.open(plan.wanted())).await?,
        };
        Ok(Ready::from(lease))
    };
    try_join(turn, ready).await
}

/// Waits for something, unless the client leaves or weir's time is over.
async fn while_wanted<T>(
    client: &Client,
    waiting: Pin<&mut impl Future<Output = Result<T, ProxyError>>>,
) -> Result<T, ProxyError> {
    tokio::select! {
        biased;
        done = waiting => done,
        () = client.probe.closed() => Err(ProxyError::ClientGone),
        () = client.signals.refuse.cancelled() => Err(ProxyError::Draining),
    }
}

fn refused(gate: &LimiterSet, refusal: Refusal) -> ProxyError {
    let limiter = gate.limiter(refusal.limiter());
    ProxyError::Refused { refusal, limiter }
}

/// Sends the request and waits for the head of its response. A request of which nothing was written, because
/// the connection had been closed meanwhile, is sent once more by a fresh one; its permit is not spent yet. One that was
/// written to a connection that the upstream closed at the same moment is repeated, with a permit of its own, if that does no
/// harm (RFC 9110, 9.2.2).
async fn send(plan: &Plan, client: &Client, going: &mut Going, record: &mut Record) -> Sent {
    let (upstream, began) = (&plan.route.upstream, Instant::now());
    let (mut lease, mut again) = match going.ready.take() {
        Some(lease) => (lease, true),
        None => match upstream.idle(plan.wanted()) {
            Some(lease) => (lease, true),
            // On the heap: what waits must stay small.
            None => {
                let opening = Box::pin(open(plan, &mut going.permit));
                let lease = traced(record, Part::Connect, opening).await?;
                let reused = lease.is_reused();
                (lease, reused)
            }
        },
    };
    let mut unsent: Option<Box<Request<RequestBody>>> = None;
    let mut is_repeated = false;
    loop {
        if let (Some(permit), Some(gate)) = (&mut going.permit, &plan.route.gate) {
            record.begin_wait();
            let confirmed = {
                let confirmed = async { permit.confirm().await.map_err(|refusal| refused(gate, refusal)) };
                let confirmed = pin!(confirmed);
                traced(record, Part::Wait, while_wanted(client, confirmed)).await
            };
            record.end_wait(confirmed.is_ok().then_some(permit));
            if let Err(error) = confirmed {
                lease.release();
                return Err(error);
            }
        }
        let spent = Spent(going.permit.take());
        let request = match unsent.take() {
            Some(unsent) => *unsent,
            None => {
                let mut request = going.request(plan, client, again);
                record.goes_upstream(&plan.route, &mut request);
                request
            }
        };
        match lease.send(request, going.upload.clone()).await {
            Ok(response) => {
                record.came_back(Ok(response.status()));
                answered(plan, &response, spent.commit().as_ref(), began.elapsed());
                return Ok((response, lease));
            }
            Err(SendError::Failed(error))
                if hung_up(&error)
                    && again
                    && going.is_whole
                    && going.upload.is_none()
                    && !std::mem::replace(&mut is_repeated, true) =>
            {
                drop(spent);
                record.came_back(Err(&ProxyError::UpstreamProtocol(error)));
                (going.permit, _) =
                    Box::pin(admit(plan, client, &mut going.head, &plan.demand, record)).await?;
                again = false;
                let opening = Box::pin(upstream.open_fresh(plan.wanted()));
                lease = traced(record, Part::Connect, opening).await?;
            }
            Err(SendError::Failed(error)) => return Err(failed(error, going.upload.as_deref())),
            Err(SendError::TimedOut) => return Err(ProxyError::UpstreamTimeout),
            Err(SendError::Unsent(request, error)) => {
                going.permit = spent.recall();
                if !again {
                    return Err(ConnectError::Http(Arc::new(error)).into());
                }
                (again, unsent) = (false, Some(request));
                let opening = Box::pin(upstream.open_fresh(plan.wanted()));
                lease = traced(record, Part::Connect, opening).await?;
            }
        }
    }
}

/// Opens a connection. While that takes long, other permits go before this one.
async fn open(plan: &Plan, permit: &mut Option<Permit>) -> Result<Lease, ConnectError> {
    let mut opening = pin!(plan.route.upstream.open(plan.wanted()));
    if let Ok(lease) = timeout(CONNECT_SOON, opening.as_mut()).await {
        return lease;
    }
    if let Some(permit) = permit {
        permit.set_aside();
    }
    opening.await
}

/// A permit whose request has been handed over. Nobody knows whether it was written if the client leaves now, so
/// it counts as spent unless the request comes back unsent.
struct Spent(Option<Permit>);

impl Spent {
    fn recall(mut self) -> Option<Permit> {
        self.0.take()
    }

    fn commit(mut self) -> Option<Receipt> {
        self.0.take().and_then(Permit::commit)
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.commit();
        }
    }
}

/// Whether the upstream closed a connection in place of an answer.
fn hung_up(error: &hyper::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected];
    error.is_incomplete_message()
        || error.is_closed()
        || body::io_kind(error).is_some_and(|kind| kinds.contains(&kind))
}

/// Why there is no response: the client's body may be the reason.
fn failed(error: hyper::Error, upload: Option<&Upload>) -> ProxyError {
    match upload.map(Upload::state) {
        Some(UploadState::Stalled) => ProxyError::RequestTimeout,
        Some(UploadState::Broken) => ProxyError::ClientGone,
        Some(UploadState::Malformed) => ProxyError::BadFraming("the body is not framed as HTTP has it"),
        _ => ProxyError::UpstreamProtocol(error),
    }
}
