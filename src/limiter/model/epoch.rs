//! The memory of a store: which it is, and what was deliberately forgotten in it.

use crate::clock::Micros;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::partition::Partition;

/// The time between two losses of a store's memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// The store's clock when it was asked.
    pub now: Micros,
    /// Which: a later one has a greater number. Zero where nothing is ever lost.
    pub id: u64,
    /// Until when, by the store's clock, nothing is granted in it.
    pub settles_until: Option<Micros>,
    /// When a limiter was last reset, by the store's clock; zero if none was of late.
    pub reset_at: Micros,
}

/// A limiter was reset, or one of its partitions: what was used before no longer counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reset {
    /// The limiter.
    pub name: LimiterName,
    /// Which of its partitions; all if none.
    pub partition: Option<Partition>,
    /// When, by the store's clock.
    pub at: Micros,
}
