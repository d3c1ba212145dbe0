//! The permits that a replica was granted, for a store that does not know of them.

use crate::clock::Micros;

/// The reason why a store does not know grants of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// The store has lost its memory of the grants.
    Lost,
    /// The store was away. Permits may have been granted without it for this long.
    Away(Micros),
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
    /// The latest epoch that the replica knows.
    pub known_epoch: u64,
    /// The permits of the limiter's tightest limit that were lately in use by the whole fleet, as the replica saw them.
    pub observed_usage: u64,
    /// The store's clock when the write-back was made, by the replica's estimate; zero if it has none. The store may carry
    /// the write-back out much later.
    pub sent: Micros,
    /// How many microseconds ago permits were used, the longest first, and how many. A negative number lies ahead.
    pub entries: Vec<(i64, u64)>,
}
