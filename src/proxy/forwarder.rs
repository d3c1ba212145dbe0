//! The life of a request: its route, its permit, a connection, the response.
//!
//! The permit is confirmed right before the head is written to a connection that is already open, and it is
//! spent from then on; until then, whatever ends the request gives it back.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join;
use http::header::{CONNECTION, UPGRADE};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio::time::{Instant, timeout, timeout_at};

use super::Proxy;
use super::body::{self, Body, RequestBody, Upload, UploadState};
use super::connect::Wanted;
use super::connection::Client;
use super::error::{ConnectError, ProxyError};
use super::headers::{self, Origin};
use super::partition::Facts;
use super::pool::SendError;
use super::record::Record;
use super::response::{self, Asked, SWITCHING_PROTOCOLS};
use super::router::{Route, Table, Target};
use super::upgrade::Tunnel;
use super::upstream::{Lease, Ready};
use crate::config::model::Http2;
use crate::limiter::{Demand, Entered, Gate, Partition, Permit, Refusal, Ticket};
use crate::telemetry::Outcome;

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
    let mut record = Box::new(Record::begin(&table, &client, &request));
    let asked = Asked::of(&request);
    let expects_continue = headers::expects_continue(request.headers());
    let (error, unread) = match Plan::make(&table, &client, &request) {
        Err(error) => (error, Some(request.into_body())),
        Ok((plan, target)) => {
            record.routed(&plan.route);
            let mut unread = None;
            match forward(&plan, target, &client, request, &mut record, &mut unread).await {
                Ok(answer) => return Ok(answer.finish(record, &client)),
                Err(error) => (error, unread),
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
    /// The protocol that it changes to.
    upgrade: Option<HeaderValue>,
    demand: Demand,
    /// Of the route's limiters, in order.
    partitions: Vec<Option<Partition>>,
}

impl Plan {
    /// Also says what the request asks the upstream for.
    fn make<B>(
        table: &Table,
        client: &Client,
        request: &Request<B>,
    ) -> Result<(Plan, PathAndQuery), ProxyError> {
        headers::check(request)?;
        let authority = headers::authority(request)?;
        let (uri, headers) = (request.uri(), request.headers());
        let host = &*headers::host(authority.as_ref());
        let route = table.route(Target { host, path: uri.path(), method: request.method(), headers })?;
        let target = headers::target(uri, &route.rule)?;
        let wait_max = headers::wait_max(headers)?;
        let demand = Demand { cost: headers::cost(headers, &route.rule.cost)?, wait_max };
        // Of the request as it came: what goes upstream has other headers.
        let facts = Facts { headers, uri, host, peer: client.peer };
        let partitions = facts.partitions(&route.rule.limiters);
        // Over HTTP/2 no protocol can be changed to; the request goes on without the wish, as it may.
        let upgrade = headers::upgrade(request);
        let upgrade = upgrade.filter(|_| route.rule.upstream.http2 != Http2::PriorKnowledge);
        let route = Arc::clone(route);
        Ok((Plan { route, authority, upgrade, demand, partitions }, target))
    }

    /// The request as it goes upstream, still without its body.
    fn outgoing<B>(&self, target: PathAndQuery, request: Request<B>, client: &Client) -> (Request<()>, B) {
        let (mut parts, body) = request.into_parts();
        let origin = Origin {
            peer: client.peer,
            authority: self.authority.as_ref(),
            upgrade: self.upgrade.as_ref(),
            version: parts.version,
        };
        headers::to_upstream(&mut parts.headers, &self.route.rule, &origin);
        parts.uri = Uri::from(target);
        parts.extensions.clear();
        (Request::from_parts(parts, ()), body)
    }

    fn wanted(&self) -> Wanted {
        if self.upgrade.is_some() { Wanted::Http1 } else { Wanted::Any }
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

/// Takes the permit and sends the request. Until its body goes upstream it stays in `unread`.
async fn forward(
    plan: &Plan,
    target: PathAndQuery,
    client: &Client,
    mut request: Request<Incoming>,
    record: &mut Record,
    unread: &mut Option<Incoming>,
) -> Result<Answer, ProxyError> {
    let changes = plan.upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let host_asked = plan.route.rule.preserve_host.then(|| plan.authority.clone()).flatten();
    let (mut outgoing, incoming) = plan.outgoing(target, request, client);
    *unread = Some(incoming);
    let (permit, ready) = admit(plan, client, &mut outgoing).await?;

    let upstream = &plan.route.upstream;
    let (body, upload) = match unread.take() {
        Some(incoming) => RequestBody::new(incoming, upstream.settings().idle_timeout),
        None => (RequestBody::Empty, None),
    };
    let began = Instant::now();
    let going = Going { permit, ready, request: outgoing.map(|()| body), upload };
    let (mut response, lease) = send(plan, client, going, record).await?;
    plan.route.metrics.upstream_answered(began.elapsed());
    if response::is_refusal(response.status(), response.headers()) {
        plan.route.metrics.upstream_refused(response.status().as_u16());
    }

    record.status = response.status().as_u16();
    let protocol = response.headers().get(UPGRADE).cloned();
    let host_asked = host_asked.as_ref().map(Authority::as_str);
    headers::to_client(response.headers_mut(), &plan.route.rule, host_asked);
    response::tell_wait(response.headers_mut(), record);
    // Of the connection to the client, and hyper knows best.
    *response.version_mut() = Version::HTTP_11;
    if response.status() == SWITCHING_PROTOCOLS {
        return change(response, protocol, changes, lease);
    }
    record.outcome = Outcome::Forwarded;
    let idle_timeout = upstream.settings().idle_timeout;
    Ok(Answer::Response(response.map(|incoming| Body::upstream(incoming, idle_timeout, lease))))
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
) -> Result<(Option<Permit>, Ready), ProxyError> {
    let Some(gate) = &plan.route.gate else { return Ok((None, Ready::default())) };
    let entered = gate.enter(&plan.partitions, plan.demand).await;
    match entered.map_err(|refusal| refused(gate, refusal))? {
        Entered::Granted(permit) => Ok((Some(permit), Ready::default())),
        Entered::Waiting(ticket) => {
            headers::compact(outgoing);
            let (permit, ready) = while_wanted(client, pin!(wait(plan, gate, ticket))).await?;
            Ok((Some(permit), ready))
        }
    }
}

/// Waits for the slot, and opens a connection shortly before it.
async fn wait(plan: &Plan, gate: &Gate, mut ticket: Ticket) -> Result<(Permit, Ready), ProxyError> {
    let refused = |refusal| refused(gate, refusal);
    let upstream = &plan.route.upstream;
    ticket.approaching().await;
    let Some(_place) = upstream.early_place() else {
        return Ok((ticket.turn().await.map_err(refused)?, Ready::default()));
    };
    let turn = async { ticket.turn().await.map_err(refused) };
    let checkout = async { Ok(Ready::from(upstream.checkout(plan.wanted()).await?)) };
    try_join(turn, checkout).await
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

fn refused(gate: &Gate, refusal: Refusal) -> ProxyError {
    let limiter = gate.limiter(refusal.limiter());
    ProxyError::Refused { refusal, limiter }
}

/// What it takes to send a request.
struct Going {
    permit: Option<Permit>,
    ready: Ready,
    request: Request<RequestBody>,
    upload: Option<Arc<Upload>>,
}

/// Sends the request and waits for the head of its response. A request of which nothing was written, because
/// the connection had been closed meanwhile, is sent once more by a fresh one; its permit is not spent yet.
async fn send(
    plan: &Plan,
    client: &Client,
    going: Going,
    record: &mut Record,
) -> Result<(Response<Incoming>, Lease), ProxyError> {
    let Going { mut permit, ready, mut request, upload } = going;
    let upstream = &plan.route.upstream;
    let (mut lease, mut again) = match ready.take() {
        Some(lease) => (lease, true),
        None => {
            // On the heap: what waits must stay small.
            let lease = Box::pin(checkout(plan, &mut permit)).await?;
            let reused = lease.is_reused();
            (lease, reused)
        }
    };
    loop {
        if let (Some(permit), Some(gate)) = (&mut permit, &plan.route.gate) {
            let confirmed = async { permit.confirm().await.map_err(|refusal| refused(gate, refusal)) };
            if let Err(error) = while_wanted(client, pin!(confirmed)).await {
                lease.release();
                return Err(error);
            }
            record.waited = permit.waited();
        }
        let spent = Spent(permit.take());
        let answer = {
            let answer = pin!(lease.send(request, upload.clone()));
            in_time(answer, upstream.settings().timeout, upload.as_deref()).await
        };
        match answer {
            Some(Ok(response)) => return Ok((response, lease)),
            Some(Err(SendError::Failed(error))) => return Err(failed(error, upload.as_deref())),
            Some(Err(SendError::Unsent(unsent, error))) => {
                permit = spent.recall();
                if !again {
                    return Err(ConnectError::Http(Arc::new(error)).into());
                }
                (again, request) = (false, *unsent);
                lease = upstream.checkout_fresh(plan.wanted()).await?;
            }
            None => return Err(ProxyError::UpstreamTimeout),
        }
    }
}

/// Gets a connection. While one takes long to open, other permits go before this one.
async fn checkout(plan: &Plan, permit: &mut Option<Permit>) -> Result<Lease, ConnectError> {
    let mut checkout = pin!(plan.route.upstream.checkout(plan.wanted()));
    if let Ok(lease) = timeout(CONNECT_SOON, checkout.as_mut()).await {
        return lease;
    }
    if let Some(permit) = permit {
        permit.set_aside();
    }
    checkout.await
}

/// A permit whose request has been handed over. Nobody knows whether it was written if the client leaves now, so
/// it counts as spent unless the request comes back unsent.
struct Spent(Option<Permit>);

impl Spent {
    fn recall(mut self) -> Option<Permit> {
        self.0.take()
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.commit();
        }
    }
}

/// Waits for an answer as long as `limit`, counted from the last piece of the request's body.
async fn in_time<T>(
    mut answer: Pin<&mut impl Future<Output = T>>,
    limit: Duration,
    upload: Option<&Upload>,
) -> Option<T> {
    let mut deadline = Instant::now() + limit;
    loop {
        if let Ok(answer) = timeout_at(deadline, answer.as_mut()).await {
            return Some(answer);
        }
        deadline = upload?.last_piece() + limit;
        if deadline <= Instant::now() {
            return None;
        }
    }
}

/// Why there is no response: the client's body may be the reason.
fn failed(error: hyper::Error, upload: Option<&Upload>) -> ProxyError {
    match upload.map(Upload::state) {
        Some(UploadState::Stalled) => ProxyError::RequestTimeout,
        Some(UploadState::Broken) => ProxyError::ClientGone,
        _ => ProxyError::UpstreamProtocol(error),
    }
}
