//! Takes permits for a request: waits for the slot, confirms the permit before sending, and settles it after.
//!
//! A permit is confirmed right before the head is written to an open connection, and is spent from then on. Until then, every end of
//! the request gives it back. Decides nothing about limits.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{Either, select};
use http::Request;
use tokio::time::{Instant, timeout};

use super::connect::{self, Needed};
use super::feedback::Feedback;
use super::outgoing::Outgoing;
use super::plan::Plan;
use super::record::Record;
use crate::clock::Micros;
use crate::limiter::{Demand, Entered, LimiterSet, Permit, Receipt, Refusal, Ticket};
use crate::proxy::error::ProxyError;
use crate::proxy::listen::client::Client;
use crate::proxy::listen::early_bytes::EarlyReading;
use crate::proxy::messages::versions;
use crate::proxy::upstream::lease::Ready;
use crate::telemetry::Part;

/// The time after which a request whose connection is still opening hands its slot back, if others wait; if not, it looks again after
/// twice the time. Most guards are longer, so the next request can use the slot.
const SET_ASIDE_AFTER: Duration = Duration::from_millis(5);

/// Takes a permit, if the route has limiters. A request that waits returns with a connection held ready.
pub(crate) async fn admit(
    plan: &Plan,
    client: &Client,
    head: &mut Request<()>,
    demand: &Demand,
    record: &mut Record,
) -> Result<(Option<Permit>, Ready), ProxyError> {
    connect::check_breaker(plan)?;
    record.note_asked(demand.costs.clone());
    let Some(limiter_set) = &plan.route.limiter_set else { return Ok((None, Ready::default())) };
    let entered = traced(record, Part::Reserve, limiter_set.enter(&plan.partitions, demand.clone())).await;
    match entered.map_err(|refusal| refused(plan, limiter_set, refusal))? {
        Entered::Granted(permit) => Ok((Some(permit), Ready::default())),
        Entered::Waiting(ticket) => {
            versions::compact(head);
            record.wait.begin();
            record.wait.place = ticket.place();
            let early = client.early.begin(plan.body_bytes.unwrap_or_default());
            let deadline = Instant::now() + limiter_set.wait_of(demand);
            let connects_again = connects_again(plan, head);
            let waiting = pin!(wait(plan, limiter_set, (ticket, deadline), connects_again, early.as_ref()));
            let waited = traced(record, Part::Wait, while_waiting(client, early.as_ref(), waiting)).await;
            record.wait.end(waited.as_ref().ok().map(|(permit, _)| permit));
            let (permit, ready) = waited?;
            Ok((Some(permit), ready))
        }
    }
}

/// Takes another permit for a request whose last one was spent. If it `has_response`, it needs a connection as well: a failure to open one
/// does not replace that.
pub(crate) async fn readmit(
    plan: &Plan,
    client: &Client,
    outgoing: &mut Outgoing,
    record: &mut Record,
    (wait_max, has_response): (Duration, bool),
) -> Result<(), ProxyError> {
    // The body's decision is made without it, so that the next attempt waits for the pause.
    let mut rules = outgoing.feedback.body_rules.take();
    rules.iter_mut().for_each(|rules| rules.report());
    let demand = Demand { wait_max: Some(wait_max), ..plan.demand.clone() };
    record.count_permits();
    record.wait.ask_again();
    let admitted = admit(plan, client, &mut outgoing.head, &demand, record).await;
    let usable = |(permit, ready): (_, Ready)| match has_response {
        true => Ok((permit, ready.unless_failed()?)),
        false => Ok((permit, ready)),
    };
    match admitted.and_then(usable) {
        Ok(admitted) => {
            // Nobody reads the body.
            rules.into_iter().for_each(|rules| rules.end());
            (outgoing.permit, outgoing.ready) = admitted;
            outgoing.feedback = Feedback::default();
            Ok(())
        }
        Err(error) => {
            // The client may read it after all.
            outgoing.feedback.body_rules = rules;
            Err(error)
        }
    }
}

/// Confirms a permit, which means another wait if its slot has passed.
pub(crate) async fn confirm(
    plan: &Plan,
    permit: &mut Permit,
    limiter_set: &LimiterSet,
) -> Result<(), ProxyError> {
    permit.confirm().await.map_err(|refusal| refused(plan, limiter_set, refusal))
}

/// Refuses a request that has waited and whose client is likely to leave before the answer, because the upstream has become slower
/// meanwhile. The permit goes to another request, so the way back is as long as the limiter takes for the next permit.
pub(crate) fn check_patience(plan: &Plan, record: &Record) -> Result<(), ProxyError> {
    let (Some(patience), Some(limiter_set)) = (&plan.patience, &plan.route.limiter_set) else {
        return Ok(());
    };
    if record.wait.total.is_zero() || !patience.is_too_late(record.elapsed(), || plan.answer_time()) {
        return Ok(());
    }
    let names = plan.route.rule.limiters.iter().map(|(name, _)| name);
    let mut limiters = names.filter_map(|name| limiter_set.limiter(name, &plan.partitions));
    let Some(limiter) = limiters.next() else { return Ok(()) };
    let spacing =
        limiter.limits.iter().map(|limit| Micros(Micros::from(limit.per).0 / limit.rate.get())).max();
    let (name, retry_after) = (limiter.name.clone(), spacing.unwrap_or_default());
    let refusal = Refusal::RateLimited { limiter: name, limit: 0, available: 0, retry_after };
    let wait = Some(patience.describe(patience.wait(|| plan.answer_time())));
    Err(ProxyError::Refused { refusal, limiter: Some(limiter), wait, class: plan.class() })
}

/// Runs a part of a request as a span of its trace, if it has one. A traced part is boxed, because waiting requests must stay
/// small.
pub(crate) fn traced<T>(
    record: &Record,
    part: Part,
    running: impl Future<Output = T>,
) -> impl Future<Output = T> {
    match &record.trace {
        Some(trace) => Either::Left(Box::pin(trace.part(part, running))),
        None => Either::Right(running),
    }
}

/// Returns whether a failure to connect is followed by another attempt, as the route allows it.
fn connects_again(plan: &Plan, head: &Request<()>) -> bool {
    let retry = plan.route.rule.retry.as_ref();
    retry.is_some_and(|retry| retry.on_connect) && plan.is_harmless(head)
}

/// Waits for the turn, and makes sure then that the client has not left behind bytes that were not read before.
async fn wait(
    plan: &Plan,
    limiter_set: &LimiterSet,
    (mut ticket, deadline): (Ticket, Instant),
    connects_again: bool,
    early: Option<&EarlyReading<'_>>,
) -> Result<(Permit, Ready), ProxyError> {
    ticket.approaching().await;
    if let Some(early) = early {
        early.turn_is_near();
    }
    // Boxed, because waiting requests must stay small, and most are far from their turn.
    let (mut permit, ready) = Box::pin(turn(plan, limiter_set, (ticket, deadline), connects_again)).await?;
    match early {
        Some(early) if Box::pin(has_left(early, &mut permit)).await => Err(ProxyError::ClientGone),
        _ => Ok((permit, ready)),
    }
}

/// Returns whether the client has left, as far as can be seen now.
async fn has_left(early: &EarlyReading<'_>, permit: &mut Permit) -> bool {
    set_aside_while(permit, pin!(early.look())).await
}

/// Waits for the slot, which is near, and makes a connection ready for it.
///
/// A failure to open one before the slot changes nothing: the request keeps its turn, and connects then. After the slot it is the
/// request's own failure. So it is where the route has a breaker, which holds back all others in their order: this one would meet it again
/// behind later ones. There it ends the request, unless that connects again: then it is the first attempt, and the turn is kept.
async fn turn(
    plan: &Plan,
    limiter_set: &LimiterSet,
    (ticket, deadline): (Ticket, Instant),
    connects_again: bool,
) -> Result<(Permit, Ready), ProxyError> {
    let refused = |refusal| refused(plan, limiter_set, refusal);
    let upstream = &plan.route.upstream;
    let Some(_place) = upstream.ready_place() else {
        return Ok((ticket.turn().await.map_err(refused)?, Ready::default()));
    };
    let turn = pin!(async { ticket.turn().await.map_err(refused) });
    let opening = pin!(async {
        match upstream.idle(plan.wanted()) {
            Some(lease) => Ok(lease),
            None => Box::pin(connect::open(plan, Needed::Any, deadline)).await,
        }
    });
    match select(turn, opening).await {
        Either::Left((permit, opening)) => {
            let mut permit = permit?;
            // Boxed, because waiting requests must stay small.
            let opened = Box::pin(set_aside_while(&mut permit, opening)).await;
            Ok((permit, opened.map_or_else(Ready::failed, Ready::from)))
        }
        Either::Right((Err(error), turn)) if plan.route.breaker.is_some() => {
            let is_attempt = connects_again && matches!(error, ProxyError::UpstreamConnect(_));
            if is_attempt { Ok((turn.await?, Ready::failed(error))) } else { Err(error) }
        }
        Either::Right((opened, turn)) => {
            let ready = opened.map_or_else(|_| Ready::default(), Ready::from);
            Ok((turn.await?, ready))
        }
    }
}

/// Waits in the queue, unless the client leaves or weir must answer its waiting requests. Reads what the client sends meanwhile, because
/// its departure may stand behind it.
async fn while_waiting<T>(
    client: &Client,
    early: Option<&EarlyReading<'_>>,
    waiting: Pin<&mut impl Future<Output = Result<T, ProxyError>>>,
) -> Result<T, ProxyError> {
    let reading = async {
        match early {
            Some(early) => early.run().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = client.probe.closed() => Err(ProxyError::ClientGone),
        done = waiting => done,
        // After the wait, which says when the turn is near.
        () = reading => Err(ProxyError::ClientGone),
        () = client.signals.refuse.cancelled() => Err(ProxyError::Draining),
    }
}

/// Waits for a connection. If that takes long and others wait, the request is set aside, and they go before it.
pub(crate) async fn set_aside_while<T>(
    permit: &mut Permit,
    mut opening: Pin<&mut impl Future<Output = T>>,
) -> T {
    let mut patience = SET_ASIDE_AFTER;
    loop {
        if let Ok(opened) = timeout(patience, opening.as_mut()).await {
            return opened;
        }
        if permit.set_aside() {
            return opening.await;
        }
        patience *= 2;
    }
}

/// Waits for a future, unless the client leaves or weir must answer its waiting requests.
pub(crate) async fn while_wanted<T>(
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

fn refused(plan: &Plan, limiter_set: &LimiterSet, refusal: Refusal) -> ProxyError {
    let limiter = limiter_set.limiter(refusal.limiter(), &plan.partitions);
    ProxyError::Refused { refusal, limiter, wait: plan.wait_told(), class: plan.class() }
}

/// A permit whose request has been handed to hyper. If the client leaves now, the request may have been written, so a drop spends the
/// permit.
pub(crate) struct Spent(Option<Permit>);

impl Spent {
    /// Takes the permit of a request that is handed over.
    pub(crate) fn new(permit: Option<Permit>) -> Spent {
        Spent(permit)
    }

    /// Returns the permit of a request of which nothing was written.
    pub(crate) fn recall(mut self) -> Option<Permit> {
        self.0.take()
    }

    /// Spends the permit.
    pub(crate) fn commit(mut self) -> Option<Receipt> {
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
