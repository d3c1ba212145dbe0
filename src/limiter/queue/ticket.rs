//! The demand of a request on a queue, and the answer: a permit, or a place among the waiting requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::limiter::model::{Costs, Flow, Permits, Refusal};
use crate::limiter::queue::permit::{OriginQueue, Permit};
use crate::limiter::queue::request::RequestId;
use crate::limiter::queue::shadow::Shadows;

/// The demand of a request on a queue.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The permits that the request takes of each limiter.
    pub costs: Costs,
    /// The longest wait that the request asked for; the limiter's applies if it is shorter, or if this is `None`.
    pub wait_max: Option<Duration>,
    /// The caller, where callers share the quota.
    pub flow: Flow,
}

impl Demand {
    /// Returns the demand of a request that costs so much, and waits as long as the limiter allows.
    pub fn of(cost: Permits) -> Demand {
        Demand { costs: cost.into(), wait_max: None, flow: Flow::default() }
    }
}

/// A request that was let in.
pub enum Entered {
    /// The request may go now.
    Granted(Permit),
    /// The request has a place in the queue.
    Waiting(Ticket),
}

/// The receiver of the answer: the request is let in, or refused.
pub(in crate::limiter) type Answered = oneshot::Receiver<Result<Entered, Refusal>>;

/// A place in the queue. Dropping it leaves the queue, and later requests move up.
pub struct Ticket {
    queue: Arc<dyn OriginQueue>,
    request: RequestId,
    place: Option<u64>,
    approach: Option<oneshot::Receiver<()>>,
    turn: Option<oneshot::Receiver<Result<Permit, Refusal>>>,
    pub(in crate::limiter) shadows: Option<Shadows>,
}

impl Ticket {
    pub(in crate::limiter) fn new(
        queue: Arc<dyn OriginQueue>,
        (request, place): (RequestId, Option<u64>),
        approach: oneshot::Receiver<()>,
        turn: oneshot::Receiver<Result<Permit, Refusal>>,
    ) -> Ticket {
        Ticket { queue, request, place, approach: Some(approach), turn: Some(turn), shadows: None }
    }

    /// Returns the place of this request in the whole fleet's queue when it entered, counted in permits, its own included; `None` where
    /// nobody knows.
    pub fn place(&self) -> Option<u64> {
        self.place
    }

    /// Waits until the slot is near, so that an upstream connection can be made ready for it.
    pub async fn approaching(&mut self) {
        if let Some(approach) = &mut self.approach {
            // An error means that the turn or the refusal came first.
            let _ = approach.await;
            self.approach = None;
        }
    }

    /// Waits until the slot is due. Cancel safe: a dropped ticket leaves the queue.
    ///
    /// # Errors
    /// The refusal, if the limits changed and the wait has become too long, or weir is shutting down.
    pub async fn turn(mut self) -> Result<Permit, Refusal> {
        let outcome = match &mut self.turn {
            Some(turn) => turn.await.unwrap_or_else(|_| Err(self.queue.closed())),
            None => Err(self.queue.closed()),
        };
        self.turn = None;
        let mut permit = outcome?;
        permit.shadows = self.shadows.take();
        Ok(permit)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.turn.take().is_some() {
            self.queue.leave(self.request);
        }
    }
}
