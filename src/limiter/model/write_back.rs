//! The permits that a replica was granted, for a store that does not know of them.

use crate::clock::Micros;

/// Why a store does not know what a replica was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// It has lost it.
    Lost,
    /// It was away, and permits may have been granted without it from so long ago on.
    Away(Micros),
}

/// What a replica was granted under one limiter, for a store that does not know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteBack {
    /// The replica.
    pub replica: u64,
    /// Why the store does not know it.
    pub unknown: Unknown,
    /// Grows with each write of a replica that is unknown for that reason: what comes twice counts once.
    pub number: u64,
    /// The epoch that the replica has heard of.
    pub known: u64,
    /// How much of the limiter's tightest limit was lately seen in use, by whomever.
    pub seen: u64,
    /// What the store's clock showed when this was made, as far as is known: it may be carried out much later. Zero if it
    /// has not been heard.
    pub sent: Micros,
    /// How many microseconds before that permits were used, the longest first, and how many; less than zero: will be used.
    pub entries: Vec<(i64, u64)>,
}
