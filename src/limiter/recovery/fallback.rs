//! The memory from which a replica serves while the store is unreachable.

use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::limiter::recovery::fleet::Fleet;
use crate::limiter::store::memory::MemoryStore;

/// This replica's identity and its own memory. All its workers share one.
pub(in crate::limiter) struct Fallback {
    /// This replica's number in the store.
    pub(in crate::limiter) replica: u64,
    /// Limiter state, used while the store is unreachable.
    pub(in crate::limiter) store: MemoryStore,
    /// The clock of that memory.
    pub(in crate::limiter) clock: Clock,
    /// This replica's random numbers.
    pub(in crate::limiter) entropy: Entropy,
    /// The registered replicas, for people; and the number assumed before the store answers.
    pub(in crate::limiter) fleet: Fleet,
}
