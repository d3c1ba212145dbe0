//! Keeps an idle queue from ending.

use std::ops::Deref;
use std::sync::Arc;

use crate::limiter::queue::handle::Queue;

/// A guard that keeps an idle queue from ending until the guard is dropped.
pub(in crate::limiter) struct QueueGuard(Arc<Queue>);

impl QueueGuard {
    /// Keeps a queue. `None` if it has ended.
    pub(in crate::limiter) fn new(queue: Arc<Queue>) -> Option<QueueGuard> {
        queue.hold().then(|| QueueGuard(queue))
    }

    pub(in crate::limiter) fn queue(&self) -> Arc<Queue> {
        self.0.clone()
    }
}

impl Deref for QueueGuard {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.0.release();
    }
}
