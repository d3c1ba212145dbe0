//! What a request asks of a queue, and what it gets: a permit, or a place among those that wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::limiter::model::limit::Permits;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::permit::{OriginQueue, Permit};
use crate::limiter::queue::shadow::Shadows;

/// What a request needs.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// The permits that it takes.
    pub cost: Permits,
    /// A wait shorter than the limiter's, if the request asked for one.
    pub wait_max: Option<Duration>,
}

/// A request that was let in.
pub enum Entered {
    /// It may go now.
    Granted(Permit),
    /// It has a place in the queue.
    Waiting(Ticket),
}

/// Where a request hears whether it was let in.
pub(in crate::limiter) type Answered = oneshot::Receiver<Result<Entered, Refusal>>;

/// A place in the queue. Dropping it leaves the queue: those behind move up.
pub struct Ticket {
    shared: Arc<dyn OriginQueue>,
    approach: Option<oneshot::Receiver<()>>,
    turn: Option<oneshot::Receiver<Result<Permit, Refusal>>>,
    pub(in crate::limiter) shadows: Option<Shadows>,
}

impl Ticket {
    pub(in crate::limiter) fn new(
        shared: Arc<dyn OriginQueue>,
        approach: oneshot::Receiver<()>,
        turn: oneshot::Receiver<Result<Permit, Refusal>>,
    ) -> Ticket {
        Ticket { shared, approach: Some(approach), turn: Some(turn), shadows: None }
    }

    /// Ends when the slot is near, so that an upstream connection can be made ready for it.
    pub async fn approaching(&mut self) {
        if let Some(approach) = &mut self.approach {
            // An error means that the turn came, or the refusal, before anything else.
            let _ = approach.await;
            self.approach = None;
        }
    }

    /// Ends when the slot is due. Cancel safe: a dropped ticket leaves the queue.
    ///
    /// # Errors
    /// The refusal, if the limits changed and the wait has become too long, or weir is shutting down.
    pub async fn turn(mut self) -> Result<Permit, Refusal> {
        let outcome = match &mut self.turn {
            Some(turn) => turn.await.unwrap_or_else(|_| Err(self.shared.closed())),
            None => Err(self.shared.closed()),
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
            self.shared.leave();
        }
    }
}
