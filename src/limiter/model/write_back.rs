//! The permits that a replica was granted, for a store that does not know of them.

use crate::clock::Micros;

/// The reason why a store does not know grants of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// The store has lost its memory of the grants.
    Lost,
    /// The permits were granted without the store.
    Away,
}

/// The grants of a replica under one limiter, for a store that does not know them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteBack {
    /// The replica.
    pub replica: u64,
    /// The reason why the store does not know the grants.
    pub unknown: Unknown,
    /// Grows with each write-back of a replica for the same reason, so that one that arrives twice counts once.
    pub number: u64,
    /// The epoch for which this is written. In another one the store charges nothing.
    pub epoch: u64,
    /// The latest time that the store's clock may have shown when the write-back was made; zero if that is unknown. The store may
    /// carry the write-back out much later.
    pub sent: Micros,
    /// How many microseconds ago permits were used, the longest first, and how many. A negative number lies ahead.
    pub entries: Vec<(i64, u64)>,
}
