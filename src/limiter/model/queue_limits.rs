//! The bounds of a queue.

use std::time::Duration;

/// The bounds of a queue, in each replica.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueueLimits {
    /// The longest wait of a request.
    pub timeout: Duration,
    /// The most requests that wait at once.
    pub max_waiting: u32,
}
