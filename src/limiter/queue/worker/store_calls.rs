//! The calls of a worker to the store: the one under way, and those that were given up.

use std::future::pending;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;

use super::move_watch::MoveWatch;
use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Answer, Call};
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::shared_quota;
use crate::limiter::store::Failure;

/// How often a queue logs the same error of the store.
const WARN_INTERVAL: Micros = Micros::from_millis(1000);

/// A call that was made.
pub(super) struct MadeCall {
    pub(super) call: Arc<Call>,
    /// The limiters as they were at the call.
    pub(super) limiter_refs: Arc<[LimiterRef]>,
    pub(super) sent: Moment,
}

/// The end of a call. What becomes of that for which it was made:
///
/// | the call | events | requests, and slots asked for | slots that it gives back |
/// |---|---|---|---|
/// | is answered | `Linked`, `Paused`, `Answered` | booked, or refused | given back |
/// | is answered in an epoch that is over, or not open yet | `Linked`, `PutBack` | go with the next call | given back where the store has kept its memory, else void |
/// | is answered before the store knew of this replica's offline grants | `Linked`, `PutBack`, `Unneeded` | go with the next call; those booked are given back | given back |
/// | is not made | `PutBack`, `Linked` | go with the next call | go with the next call |
/// | fails before it is sent | `Failed` | go with the next call, a heartbeat later | go with the next call |
/// | fails | `Failed` | go with the next call, a heartbeat later | count as used |
/// | is given up, since an outage begins | none | served by the policies | count as used, or `Unneeded` if it was not made |
/// | is answered behind its failure, or its being given up | `Unneeded` | those booked are given back | given back |
///
/// Only an `Answered` renews the lease.
pub(super) enum CallEnd {
    Answered(Answer),
    Failed(Failure),
    /// It was not made: while it waited to be sent, the store became another to this replica, and would have booked in vain.
    NotMade,
}

/// The result of a call.
pub(super) type CallResult = (MadeCall, CallEnd);

/// A call under way.
pub(super) type CallInFlight = BoxFuture<'static, CallResult>;

/// The calls of a worker to the store.
pub(super) struct StoreCalls {
    /// The limiters as of the next call.
    pub(super) limiter_refs: Arc<[LimiterRef]>,
    pub(super) under_way: Option<CallInFlight>,
    /// The news of heartbeats beside the answers.
    pub(super) moves: MoveWatch,
    /// Calls that were given up and may still complete. Nobody wants the slots that they book.
    pub(super) late: FuturesUnordered<CallInFlight>,
    /// The latest logged error of the store, and when it was logged.
    warned: Option<(Moment, String)>,
}

/// Waits for the result of the call under way.
pub(super) async fn next_result(under_way: &mut Option<CallInFlight>) -> CallResult {
    match under_way {
        Some(call) => {
            let result = call.await;
            *under_way = None;
            result
        }
        None => pending().await,
    }
}

impl StoreCalls {
    pub(super) fn new(queue: &Queue) -> StoreCalls {
        let limiter_refs = shared_quota::limiter_refs(&queue.instances);
        let late = FuturesUnordered::new();
        StoreCalls { limiter_refs, under_way: None, moves: MoveWatch::default(), late, warned: None }
    }

    /// Takes on the limits as configured now.
    pub(super) fn make_limiter_refs(&mut self, queue: &Queue) {
        self.limiter_refs = shared_quota::limiter_refs(&queue.instances);
    }

    /// Returns whether calendar windows have gone on.
    pub(super) fn has_expired(&self, store_now: Micros) -> bool {
        self.limiter_refs.iter().any(|limiter| limiter.valid_until.is_some_and(|until| store_now >= until))
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns the call under way, and those that were given up.
    pub(super) fn futures(&mut self) -> (&mut Option<CallInFlight>, &mut FuturesUnordered<CallInFlight>) {
        (&mut self.under_way, &mut self.late)
    }

    /// Gives up the call under way.
    pub(super) fn abandon(&mut self) {
        let Some(call) = self.under_way.take() else { return };
        let late = async move {
            match call.await {
                (made, CallEnd::Failed(Failure { late: Some(late), error })) => {
                    let failed = CallEnd::Failed(Failure { late: None, error });
                    (made, late.await.map_or(failed, CallEnd::Answered))
                }
                (made, outcome) => (made, outcome),
            }
        };
        self.late.push(late.boxed());
    }

    /// Notes an error. Returns whether it is to be logged: not the same one with each call, as some last until somebody acts.
    pub(super) fn note_warning(&mut self, text: &str, now: Moment) -> bool {
        let is_old = |(at, logged): &(Moment, String)| *logged == text && now - *at < WARN_INTERVAL;
        let is_new = !self.warned.as_ref().is_some_and(is_old);
        if is_new {
            self.warned = Some((now, text.to_owned()));
        }
        is_new
    }
}
