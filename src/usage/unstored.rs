//! Counts that are not known to be in the store: by hour, and in batches that are sent again under their number until they are answered.
//!
//! Pure: has no clock and no store.

use std::collections::BTreeMap;

use super::counts::{Counts, Key};
use super::period::{Per, Period};

/// The most hours that wait for a store that is away; of a longer outage the earliest are dropped.
const HOURS_MAX: usize = 7 * 24;

/// Counts of one hour for the store, which adds a number once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The number, from 1 on; a later batch has a greater one.
    pub number: u64,
    /// The beginning of the hour, in seconds since the Unix epoch.
    pub hour: u64,
    /// The counts; there may be none.
    pub rows: Vec<(Key, Counts)>,
}

impl Batch {
    /// Returns the periods to which the counts belong.
    pub fn periods(&self) -> [Period; 2] {
        [Per::Hour, Per::Day].map(|per| per.at(self.hour))
    }
}

/// The counts on their way to the store.
#[derive(Default, Debug)]
pub(super) struct Unstored {
    hours: BTreeMap<u64, BTreeMap<Key, Counts>>,
    /// The batch that was sent and not answered: it may have been taken.
    unanswered: Option<Batch>,
    number: u64,
}

impl Unstored {
    /// Adds what was counted in an hour. Returns whether the earliest hour had to be dropped.
    pub(super) fn add(&mut self, hour: u64, counted: Vec<(Key, Counts)>) -> bool {
        if counted.is_empty() {
            return false;
        }
        let rows = self.hours.entry(hour).or_default();
        counted.into_iter().for_each(|(key, counts)| *rows.entry(key).or_default() += counts);
        let is_full = self.hours.len() > HOURS_MAX;
        if is_full {
            self.hours.pop_first();
        }
        is_full
    }

    /// Returns the next batch to send: the one that was not answered, or the earliest hour; of `now`, and empty, if nothing waits.
    pub(super) fn next(&mut self, now: u64) -> Batch {
        if self.unanswered.is_none() {
            self.number += 1;
            let (hour, rows) =
                self.hours.pop_first().unwrap_or_else(|| (Per::Hour.at(now).from, BTreeMap::new()));
            self.unanswered = Some(Batch { number: self.number, hour, rows: rows.into_iter().collect() });
        }
        self.unanswered.clone().unwrap_or_else(|| Batch { number: self.number, hour: now, rows: Vec::new() })
    }

    /// Notes that the store has the last batch.
    pub(super) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// Returns whether something waits for the store.
    pub(super) fn has_more(&self) -> bool {
        self.unanswered.is_some() || !self.hours.is_empty()
    }

    /// Calls `each` with every count of a period that the store may not have.
    pub(super) fn pending(&self, period: Period, mut each: impl FnMut(&Key, Counts)) {
        let unanswered = self.unanswered.iter().filter(|batch| period.holds(batch.hour));
        unanswered.flat_map(|batch| &batch.rows).for_each(|(key, counts)| each(key, *counts));
        let hours = self.hours.iter().filter(|(hour, _)| period.holds(**hour));
        hours.flat_map(|(_, rows)| rows).for_each(|(key, counts)| each(key, *counts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::counts::By;

    fn counted(granted: u64) -> Vec<(Key, Counts)> {
        vec![((By::Client, "a".into()), Counts { granted, ..Counts::default() })]
    }

    fn pending(unstored: &Unstored, period: Period) -> u64 {
        let mut sum = 0;
        unstored.pending(period, |_, counts| sum += counts.granted);
        sum
    }

    #[test]
    fn a_batch_is_the_same_until_it_is_answered() {
        let mut unstored = Unstored::default();
        unstored.add(7200, counted(2));
        let first = unstored.next(7300);
        assert_eq!(first, Batch { number: 1, hour: 7200, rows: counted(2) });
        unstored.add(7200, counted(5));
        unstored.add(10800, counted(1));
        assert_eq!(unstored.next(10900), first);
        assert_eq!(pending(&unstored, Per::Hour.at(7200)), 7);
        assert_eq!(pending(&unstored, Per::Day.at(7200)), 8);
        unstored.answered();
        assert_eq!(pending(&unstored, Per::Hour.at(7200)), 5);
        assert_eq!(unstored.next(10900), Batch { number: 2, hour: 7200, rows: counted(5) });
        unstored.answered();
        assert_eq!(unstored.next(10900), Batch { number: 3, hour: 10800, rows: counted(1) });
        unstored.answered();
        assert!(!unstored.has_more());
        assert_eq!(unstored.next(10900), Batch { number: 4, hour: 10800, rows: Vec::new() });
    }

    #[test]
    fn the_hours_of_a_long_outage_are_bounded() {
        let mut unstored = Unstored::default();
        let dropped = (0..HOURS_MAX as u64 + 2).filter(|hour| unstored.add(hour * 3600, counted(1))).count();
        assert_eq!((dropped, unstored.next(0).hour), (2, 2 * 3600));
    }
}
