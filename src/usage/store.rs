//! The place for the fleet's counts: the trait, and a store in this process for a weir without Redis.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};

use super::counts::{Counts, Key};
use super::period::Period;
use super::unstored::Batch;
use crate::clock::{Micros, unix_now};

/// How long counts are kept.
pub const KEPT_FOR: Duration = Duration::from_secs(35 * 24 * 3600);

/// The store's clock, and from when on its counts are whole: in microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The present instant.
    pub now_us: u64,
    /// From when on the counts are whole: since weir began to count, or since the store lost its memory; at most [`KEPT_FOR`] ago.
    pub since_us: u64,
}

/// The counts of some periods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The store's clock.
    pub stamp: Stamp,
    /// The counts, in the order of the periods.
    pub rows: Vec<(Period, Key, Counts)>,
}

/// The store did not answer; the reason.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The figures of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaFigures {
    /// True if it is the one that asks.
    pub is_this: bool,
    /// How long ago.
    pub ago: Duration,
    /// Its figures.
    pub figures: String,
}

/// A place for the fleet's counts.
pub trait UsageStore: Send + Sync + 'static {
    /// Adds the counts of a batch to its hour and its day, once.
    fn add<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Result<Stamp, UsageError>>;

    /// Tells the other replicas this one's figures, or takes leave of them. Returns the store's clock, in microseconds since the Unix
    /// epoch, and what the replicas have told that were silent for no longer than `counts_for`.
    fn exchange<'a>(
        &'a self,
        _figures: &'a str,
        _counts_for: Duration,
        _leaves: bool,
    ) -> BoxFuture<'a, Result<(u64, Vec<ReplicaFigures>), UsageError>> {
        ready(Ok((unix_us(), Vec::new()))).boxed()
    }

    /// Returns the counts of these periods.
    fn read<'a>(&'a self, periods: &'a [Period]) -> BoxFuture<'a, Result<Record, UsageError>>;
}

/// The counts of a weir that shares none.
pub struct MemoryUsage {
    since_us: u64,
    periods: Mutex<BTreeMap<Period, BTreeMap<Key, Counts>>>,
}

impl Default for MemoryUsage {
    fn default() -> MemoryUsage {
        MemoryUsage { since_us: unix_us(), periods: Mutex::default() }
    }
}

impl MemoryUsage {
    fn stamp(&self) -> Stamp {
        let now_us = unix_us();
        let kept_us = Micros::from(KEPT_FOR).0;
        Stamp { now_us, since_us: self.since_us.max(now_us.saturating_sub(kept_us)).min(now_us) }
    }
}

impl UsageStore for MemoryUsage {
    fn add<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Result<Stamp, UsageError>> {
        let mut periods = self.periods.lock().unwrap_or_else(PoisonError::into_inner);
        for period in batch.periods() {
            for (key, counts) in &batch.rows {
                *periods.entry(period).or_default().entry(key.clone()).or_default() += *counts;
            }
        }
        let stamp = self.stamp();
        periods.retain(|period, _| period.from + period.per.seconds() >= stamp.since_us / 1_000_000);
        ready(Ok(stamp)).boxed()
    }

    fn read<'a>(&'a self, periods: &'a [Period]) -> BoxFuture<'a, Result<Record, UsageError>> {
        let kept = self.periods.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = periods.iter().flat_map(|period| {
            let rows = kept.get(period).into_iter().flatten();
            rows.map(|(key, counts)| (*period, key.clone(), *counts))
        });
        ready(Ok(Record { stamp: self.stamp(), rows: rows.collect() })).boxed()
    }
}

/// Returns the wall clock's time in microseconds since the Unix epoch.
pub(super) fn unix_us() -> u64 {
    Micros::from(unix_now()).0
}
