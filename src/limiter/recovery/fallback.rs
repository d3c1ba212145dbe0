//! What a replica serves from while the store is away.

use crate::clock::Clock;
use crate::limiter::recovery::members::Fleet;
use crate::limiter::store::memory::MemoryStore;

/// What the workers of a replica share beside the store: who they are, and what they fall back on while it is away.
pub(in crate::limiter) struct Fallback {
    /// This replica, as the store tells it from others.
    pub(in crate::limiter) replica: u64,
    /// This replica's own memory.
    pub(in crate::limiter) store: MemoryStore,
    /// The clock of that.
    pub(in crate::limiter) clock: Clock,
    /// The replicas by which a limit is divided.
    pub(in crate::limiter) fleet: Fleet,
}
