//! The other queues of this process, as a worker sees them.

use std::sync::Arc;

use crate::clock::Moment;
use crate::limiter::model::{Cause, PauseStretch};
use crate::limiter::queue::active_limiter::LimiterInstance;
use crate::limiter::queue::handle::Queue;

/// All queues of this process.
pub(in crate::limiter) trait Siblings: Send + Sync {
    /// Wakes every worker, because the store has lost its state.
    fn wake_all(&self);

    /// Keeps all queues of a limiter to a pause of the store, by the store's clock.
    fn pause(&self, instance: &LimiterInstance, stretch: PauseStretch, cause: Cause);

    /// Keeps all queues of a limiter to a pause that this replica alone knows, or ends their pause. The store is told when it
    /// answers.
    fn pause_locally(&self, instance: &LimiterInstance, until: Moment, cause: Cause);

    /// Keeps all queues of a limiter to a pause by this process's clock, or ends their pause.
    fn apply_pause(&self, instance: &LimiterInstance, from: Moment, until: Moment);

    /// Removes a queue that has ended.
    fn ended(&self, queue: &Arc<Queue>);
}
