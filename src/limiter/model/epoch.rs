//! Epochs of a store, and resets. A store begins an epoch when it has lost its memory, or may have been away.

use crate::clock::Micros;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::partition::Partition;

/// The time between two doubts of what a store knows, as the store shows it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// The store's clock at the call.
    pub now: Micros,
    /// The number of the epoch, greater than that of any earlier one. Zero in a store that never loses its memory.
    pub id: u64,
    /// The instant of the store's clock at which the epoch opens, if that lies ahead: nothing is granted before.
    pub settles_until: Option<Micros>,
    /// The last reset of a limiter, by the store's clock; zero if there was none lately.
    pub reset_at: Micros,
    /// The first epoch of the store's present memory: what was granted before is unknown to it.
    pub memory: u64,
}

/// A reset of a limiter, or of one of its partitions: permits used before no longer count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reset {
    /// The limiter.
    pub name: LimiterName,
    /// The partition; all of them if `None`.
    pub partition: Option<Partition>,
    /// The instant of the reset, by the store's clock.
    pub at: Micros,
}
