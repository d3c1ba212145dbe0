//! Takes the counters of this process to the store, once a minute and at the end, and reads the fleet's counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Duration, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::clock::StoreTime;
use super::counters::Usage;
use super::counts::{By, Counts, Key};
use super::period::{Per, Period};
use super::store::{Stamp, UsageError, UsageStore};
use super::unstored::Unstored;

/// The seconds between two writes, which come at the full minutes of the store's clock, so that no write mixes two hours.
const INTERVAL: u64 = 60;
/// The pause after a write that failed.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The longest time for what is left at the end.
const LAST_MAX: Duration = Duration::from_secs(2);

/// The counts of one client, route or limiter in one period.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The period's beginning, in seconds since the Unix epoch.
    pub from: u64,
    /// The name.
    pub name: Arc<str>,
    /// The counts.
    pub counts: Counts,
}

/// The fleet's counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// From when on they are whole, in microseconds since the Unix epoch.
    pub since_us: u64,
    /// The rows: period by period, who used most first.
    pub rows: Vec<Row>,
}

/// The counts of this process on their way to the store.
pub struct Recorder {
    usage: Usage,
    store: Arc<dyn UsageStore>,
    unstored: Mutex<Unstored>,
    time: Arc<StoreTime>,
}

impl Recorder {
    /// Creates a recorder of these counters.
    pub fn new(usage: Usage, store: Arc<dyn UsageStore>, time: Arc<StoreTime>) -> Recorder {
        Recorder { usage, store, unstored: Mutex::default(), time }
    }

    /// Writes at every full minute, until `end`; then what is left.
    pub async fn run(&self, end: CancellationToken) {
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => break,
                () = sleep(pause) => {}
            }
            // A write at the full hour has the counts of the hour before.
            self.collect(1);
            pause = match self.write().await {
                Ok(()) => {
                    Duration::from_micros(INTERVAL * 1_000_000 - self.now_us() % (INTERVAL * 1_000_000))
                }
                // The store counts and logs its failures.
                Err(_) => RETRY_AFTER,
            };
        }
        self.collect(0);
        let last = async { while lock(&self.unstored).has_more() && self.write().await.is_ok() {} };
        let _ = timeout(LAST_MAX, last).await;
        if lock(&self.unstored).has_more() {
            tracing::warn!(
                "the last counts of who used what could not be written: the store does not answer"
            );
        }
    }

    /// Returns the fleet's counts from the period that holds `range.0` to the one that holds `range.1`, in seconds since the Unix epoch;
    /// without a range those of the period that runs. What this replica has not written yet is among them.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn read(&self, by: By, per: Per, range: Option<(u64, u64)>) -> Result<Report, UsageError> {
        self.collect(0);
        let now = self.now_us() / 1_000_000;
        let (from, to) = range.unwrap_or((now, now));
        let first = per.at(from).from;
        let periods: Vec<Period> = (first..=to)
            .step_by(usize::try_from(per.seconds()).unwrap_or(usize::MAX))
            .map(|at| per.at(at))
            .collect();
        let record = self.store.read(&periods).await?;
        let mut sums: BTreeMap<(u64, Arc<str>), Counts> = BTreeMap::new();
        let mut add = |period: Period, key: &Key, counts| {
            if key.0 == by {
                *sums.entry((period.from, Arc::clone(&key.1))).or_default() += counts;
            }
        };
        record.rows.iter().for_each(|(period, key, counts)| add(*period, key, *counts));
        let unstored = lock(&self.unstored);
        periods.iter().for_each(|period| unstored.pending(*period, |key, counts| add(*period, key, counts)));
        let mut rows: Vec<Row> =
            sums.into_iter().map(|((from, name), counts)| Row { from, name, counts }).collect();
        rows.sort_by_key(|row| (row.from, std::cmp::Reverse(row.counts.granted)));
        Ok(Report { since_us: record.stamp.since_us, rows })
    }

    /// Returns the store's clock in microseconds since the Unix epoch; this machine's until the store has answered.
    pub fn now_us(&self) -> u64 {
        self.time.now_us()
    }

    /// Takes what was counted since the last time as use of the hour that was so many seconds ago.
    fn collect(&self, seconds_ago: u64) {
        let second = (self.now_us() / 1_000_000).saturating_sub(seconds_ago);
        if lock(&self.unstored).add(Per::Hour.at(second).from, self.usage.take()) {
            tracing::warn!("counts of who used what were dropped: the store has been away for too long");
        }
    }

    async fn write(&self) -> Result<(), UsageError> {
        let batch = lock(&self.unstored).next(self.now_us() / 1_000_000);
        let Stamp { now_us, .. } = self.store.add(&batch).await?;
        lock(&self.unstored).answered();
        self.time.set(now_us);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::store::{MemoryUsage, unix_us};

    fn granted(granted: u64) -> Counts {
        Counts { granted, ..Counts::default() }
    }

    #[tokio::test]
    async fn the_hour_that_runs_is_whole_before_and_after_a_write() {
        let (usage, store) = (Usage::default(), Arc::new(MemoryUsage::default()));
        let recorder = Recorder::new(usage.clone(), store, Arc::default());
        let (few, many): (Arc<str>, Arc<str>) = ("few".into(), "many".into());
        usage.counters(By::Client, &few).add(granted(2));
        usage.counters(By::Route, &few).add(granted(9));
        let rows = |report: Report| -> Vec<(String, u64)> {
            report.rows.iter().map(|row| (row.name.to_string(), row.counts.granted)).collect()
        };
        for per in [Per::Hour, Per::Day] {
            let report = recorder.read(By::Client, per, None).await.unwrap();
            assert_eq!(rows(report), [("few".to_owned(), 2)]);
        }
        recorder.write().await.unwrap();
        usage.counters(By::Client, &few).add(granted(1));
        usage.counters(By::Client, &many).add(granted(7));
        for per in [Per::Hour, Per::Day] {
            let report = recorder.read(By::Client, per, None).await.unwrap();
            assert!(report.since_us <= recorder.now_us());
            assert_eq!(rows(report), [("many".to_owned(), 7), ("few".to_owned(), 3)]);
        }
    }

    #[tokio::test]
    async fn remaining_counts_are_written_at_the_end() {
        let (usage, store) = (Usage::default(), Arc::new(MemoryUsage::default()));
        let recorder = Recorder::new(usage.clone(), store.clone(), Arc::default());
        usage.counters(By::Limiter, &"l".into()).add(granted(3));
        let end = CancellationToken::new();
        end.cancel();
        let before = Per::Hour.at(unix_us() / 1_000_000);
        recorder.run(end).await;
        let mut hours = vec![before, Per::Hour.at(unix_us() / 1_000_000)];
        hours.dedup();
        let rows = store.read(&hours).await.unwrap().rows;
        let rows: Vec<_> = rows.into_iter().map(|(_, key, counts)| (key, counts)).collect();
        assert_eq!(rows, [((By::Limiter, "l".into()), granted(3))]);
    }
}
