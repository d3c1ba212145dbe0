//! A copy of what a replica was granted, which other replicas keep for when the store loses its memory.

use std::sync::Arc;

use crate::clock::Micros;

/// The grants of a replica by a store, as it told the store, and the store the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrantCopy {
    /// The replica.
    pub replica: u64,
    /// Grows with each copy of the replica.
    pub number: u64,
    /// True if the replica has ended, and was granted nothing more.
    pub is_final: bool,
    /// How many microseconds the store's clock was stepped since: to be added to all instants.
    pub shift: i64,
    /// An instant at which the replica had been granted no less.
    pub written: Micros,
    /// Its grants that matter. Each line has the name of a limiter, its partition if any, and how long after the one before each grant
    /// is, in microseconds, and its permits: `name:partition 120:1 40:2`. Lines have their ends in front.
    pub text: Arc<str>,
}

/// The copies that a heartbeat tells, and those that its sender has.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct CopyExchange {
    /// True if the replica keeps copies of what others were granted.
    pub follows: bool,
    /// The replicas of which it has copies, and the copies' numbers.
    pub known: Vec<(u64, u64)>,
    /// The replica's own copy, if it has changed, and the copies that the store lacks.
    pub told: Vec<GrantCopy>,
}
