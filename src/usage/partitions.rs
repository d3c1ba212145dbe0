//! The partitions of one limiter that used most and waited longest in the last minutes, with what is known of each.
//!
//! Pure: has no clock. Bounded: two spans of time, each with some hundred partitions.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::largest::Largest;
use crate::clock::Micros;

/// The length of a span. The last two count, so what is shown is of the last two and a half to five minutes.
const SPAN_US: u64 = 150_000_000;
/// The partitions that are told of: so many by use, and as many by wait.
pub(super) const TOLD_MAX: usize = 20;
/// The partitions of which the value or the permits left are remembered: more than are kept by both spans.
const NOTES_MAX: usize = 1024;
/// The characters of a value that are shown.
const VALUE_CHARS_MAX: usize = 80;

/// A partition that matters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartitionReading {
    /// The hash of its value, in hexadecimal.
    pub partition: Arc<str>,
    /// Permits that it used, at most.
    pub granted: u64,
    /// By how much that may be too much.
    pub over: u64,
    /// The longest wait of its requests in microseconds, of those that wait now, too.
    pub longest_wait_us: u64,
    /// The rest of its tightest limit when the store last told; `None` if it has not.
    pub left: Option<PartitionLeft>,
}

/// The permits left in a partition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartitionLeft {
    /// The label of its tightest limit.
    pub limit: Arc<str>,
    /// The permits of the limit.
    pub rate: u64,
    /// The permits left.
    pub available: u64,
    /// How long ago, in microseconds.
    pub age_us: u64,
}

/// The partitions of a limiter that matter.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TopPartitions {
    /// The time that they are of, in microseconds.
    pub over_us: u64,
    /// Those that used most, at most 20.
    pub used: Vec<PartitionReading>,
    /// Those that waited longest, at most 20.
    pub waited: Vec<PartitionReading>,
}

impl TopPartitions {
    /// Adds up what replicas have told, each so long ago.
    pub(super) fn added_up<'a>(told: impl Iterator<Item = (Duration, &'a TopPartitions)>) -> TopPartitions {
        let mut sums: HashMap<Arc<str>, PartitionReading> = HashMap::new();
        let mut over_us = 0;
        for (ago, top) in told {
            let ago_us = Micros::from(ago).0;
            over_us = top.over_us.max(over_us);
            // One that is in both lists is the same in both.
            let both = top.used.iter().chain(&top.waited).map(|one| (&*one.partition, one));
            let seen: HashMap<&str, &PartitionReading> = both.collect();
            for one in seen.into_values() {
                let left = one
                    .left
                    .as_ref()
                    .map(|left| PartitionLeft { age_us: left.age_us.saturating_add(ago_us), ..left.clone() });
                match sums.get_mut(&one.partition) {
                    None => {
                        sums.insert(Arc::clone(&one.partition), PartitionReading { left, ..one.clone() });
                    }
                    Some(sum) => {
                        sum.granted = sum.granted.saturating_add(one.granted);
                        sum.over = sum.over.saturating_add(one.over);
                        sum.longest_wait_us = one.longest_wait_us.max(sum.longest_wait_us);
                        sum.left =
                            [sum.left.take(), left].into_iter().flatten().min_by_key(|left| left.age_us);
                    }
                }
            }
        }
        TopPartitions::of(over_us, &sums.into_values().collect::<Vec<_>>())
    }

    fn of(over_us: u64, all: &[PartitionReading]) -> TopPartitions {
        let most = |number: fn(&PartitionReading) -> u64| {
            let mut most: Vec<&PartitionReading> = all.iter().filter(|one| number(one) > 0).collect();
            most.sort_by_key(|one| (std::cmp::Reverse(number(one)), Arc::clone(&one.partition)));
            most.into_iter().take(TOLD_MAX).cloned().collect()
        };
        TopPartitions { over_us, used: most(|one| one.granted), waited: most(|one| one.longest_wait_us) }
    }
}

/// A part of the last minutes.
struct Span<K> {
    used: Largest<K>,
    waited: Largest<K>,
}

impl<K> Default for Span<K> {
    fn default() -> Span<K> {
        Span { used: Largest::default(), waited: Largest::default() }
    }
}

/// A partition, as far as it is known: its value, if it may be shown, and the permits left, with the moment of that.
#[derive(Clone, Default)]
struct Note {
    value: Option<Arc<str>>,
    left: Option<(u64, PartitionLeft)>,
}

/// The partitions of a limiter that are counted.
pub struct PartitionUse<K> {
    now: Span<K>,
    before: Span<K>,
    /// When the present span began, and the one before; `None` before the first look.
    began_us: Option<(u64, u64)>,
    notes: HashMap<K, Note>,
}

impl<K> Default for PartitionUse<K> {
    fn default() -> PartitionUse<K> {
        PartitionUse { now: Span::default(), before: Span::default(), began_us: None, notes: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash + Display> PartitionUse<K> {
    /// Counts used permits of a partition.
    pub fn used(&mut self, partition: K, permits: u64) {
        self.now.used.add(partition, permits);
    }

    /// Notes that a request of a partition has waited so many microseconds.
    pub fn waited(&mut self, partition: K, wait_us: u64) {
        self.now.waited.raise(partition, wait_us);
    }

    /// Notes at a moment, in microseconds, what is left of each limit of a partition: its label, its rate, and the permits. The limit with
    /// the smallest part left is kept.
    pub fn left<'a>(
        &mut self,
        partition: K,
        at_us: u64,
        limits: impl Iterator<Item = (&'a Arc<str>, u64, u64)>,
    ) {
        let tightest =
            limits.min_by_key(|(_, rate, left)| u128::from(*left) * 1_000_000 / u128::from(*rate).max(1));
        if let (Some((limit, rate, available)), Some(note)) = (tightest, self.note(partition)) {
            match &mut note.left {
                // Almost always the same limit.
                Some((at, known)) if known.limit == *limit => {
                    (*at, known.rate, known.available) = (at_us, rate, available);
                }
                none => {
                    let left = PartitionLeft { limit: Arc::clone(limit), rate, available, age_us: 0 };
                    *none = Some((at_us, left));
                }
            }
        }
    }

    /// Notes the value of a partition, if it is not known; `value` returns it.
    pub fn named(&mut self, partition: K, value: impl FnOnce() -> String) {
        if let Some(note) = self.note(partition)
            && note.value.is_none()
        {
            let value: String = value().chars().take(VALUE_CHARS_MAX).collect();
            note.value = Some(value.into());
        }
    }

    /// Returns the partitions that matter at a moment, in microseconds. Must be called every few seconds: it begins a new span when one is
    /// over.
    pub fn top(&mut self, now_us: u64) -> TopPartitions {
        let (began_us, before_us) = *self.began_us.get_or_insert((now_us, now_us));
        if now_us.saturating_sub(began_us) >= SPAN_US {
            self.before = std::mem::take(&mut self.now);
            self.began_us = Some((now_us, began_us));
            let Span { used, waited } = &self.before;
            self.notes.retain(|partition, _| used.contains(partition) || waited.contains(partition));
        }
        let over_us = now_us.saturating_sub(self.began_us.map_or(before_us, |(_, before_us)| before_us));
        let mut all: HashMap<K, (u64, u64, u64)> = HashMap::new();
        for span in [&self.now, &self.before] {
            for kept in span.used.iter() {
                let (granted, over, _) = all.entry(kept.key).or_default();
                (*granted, *over) = (*granted + kept.number, *over + kept.over);
            }
            for kept in span.waited.iter() {
                let (_, _, wait_us) = all.entry(kept.key).or_default();
                *wait_us = kept.number.max(*wait_us);
            }
        }
        let mut all: Vec<(K, (u64, u64, u64))> = all.into_iter().collect();
        let told = self.told(&mut all, now_us);
        TopPartitions::of(over_us, &told)
    }

    /// Returns the value of a partition, if it is known.
    pub fn value(&self, partition: &K) -> Option<Arc<str>> {
        self.notes.get(partition)?.value.clone()
    }

    /// Returns those that used most and waited longest, as they are told.
    fn told(&self, all: &mut [(K, (u64, u64, u64))], now_us: u64) -> Vec<PartitionReading> {
        let mut told: HashMap<K, PartitionReading> = HashMap::new();
        for by in [|of: &(u64, u64, u64)| of.0, |of: &(u64, u64, u64)| of.2] {
            // Equal ones in whatever order they lie: nobody can tell which of them matter.
            all.sort_unstable_by_key(|(_, of)| std::cmp::Reverse(by(of)));
            for (partition, (granted, over, longest_wait_us)) in all.iter().take(TOLD_MAX) {
                let left = self.notes.get(partition).and_then(|note| note.left.as_ref());
                let reading = PartitionReading {
                    partition: partition.to_string().into(),
                    granted: *granted,
                    over: *over,
                    longest_wait_us: *longest_wait_us,
                    left: left.map(|(at, left)| PartitionLeft {
                        age_us: now_us.saturating_sub(*at),
                        ..left.clone()
                    }),
                };
                told.insert(*partition, reading);
            }
        }
        told.into_values().collect()
    }

    /// Returns the note on a partition. There is room for all that are kept, and for some that may be soon.
    fn note(&mut self, partition: K) -> Option<&mut Note> {
        let is_kept = |span: &Span<K>| span.used.contains(&partition) || span.waited.contains(&partition);
        let has_room = self.notes.len() < NOTES_MAX || self.notes.contains_key(&partition);
        if !has_room {
            if !is_kept(&self.now) && !is_kept(&self.before) {
                return None;
            }
            let (now, before) = (&self.now, &self.before);
            self.notes.retain(|key, _| {
                [now, before].iter().any(|span| span.used.contains(key) || span.waited.contains(key))
            });
        }
        Some(self.notes.entry(partition).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn of<'a>(list: &'a [PartitionReading], partition: &str) -> Option<&'a PartitionReading> {
        list.iter().find(|one| *one.partition == *partition)
    }

    #[test]
    fn those_that_use_most_and_wait_longest_are_told_with_what_is_left() {
        let mut partitions = PartitionUse::default();
        partitions.top(0);
        for partition in 0..1000_u32 {
            partitions.used(partition, 1 + u64::from(partition == 7) * 500);
            partitions.waited(partition, u64::from(partition) * SECOND);
        }
        let limits: [(Arc<str>, u64, u64); 2] = [("9/1s".into(), 9, 3), ("800/1h".into(), 800, 8)];
        partitions.left(7, 2 * SECOND, limits.iter().map(|(label, rate, left)| (label, *rate, *left)));
        partitions.named(7, || "x".repeat(200));
        let top = partitions.top(5 * SECOND);
        assert_eq!((top.over_us, top.used.len(), top.waited.len()), (5 * SECOND, TOLD_MAX, TOLD_MAX));
        let left = PartitionLeft { limit: "800/1h".into(), rate: 800, available: 8, age_us: 3 * SECOND };
        assert_eq!((&*top.used[0].partition, &top.used[0].left), ("7", &Some(left)));
        assert!(top.used[0].granted >= 501 && top.used[0].granted - top.used[0].over <= 501);
        assert_eq!((&*top.waited[0].partition, top.waited[0].longest_wait_us), ("999", 999 * SECOND));
        assert_eq!(
            (partitions.value(&7), partitions.value(&8)),
            (Some("x".repeat(VALUE_CHARS_MAX).into()), None)
        );
    }

    #[test]
    fn only_the_last_minutes_count_and_notes_are_bounded() {
        let mut partitions = PartitionUse::default();
        partitions.top(0);
        partitions.used(1_000_000, 5);
        for second in 0..400_u32 {
            for index in 0..50 {
                partitions.used(second * 50 + index, 1);
                partitions.named(second * 50 + index, String::new);
            }
            let top = partitions.top(u64::from(second) * SECOND);
            assert!(top.over_us <= 2 * SPAN_US && partitions.notes.len() <= NOTES_MAX);
        }
        assert_eq!(of(&partitions.top(400 * SECOND).used, "1000000"), None);
        // Without use nothing is left to tell of, nor in memory.
        partitions.top(600 * SECOND);
        let top = partitions.top(800 * SECOND);
        assert_eq!((top.used.len(), partitions.notes.len()), (0, 0));
    }

    #[test]
    fn replicas_are_added_up() {
        let reading = |partition: &str, granted, longest_wait_us, age_us| PartitionReading {
            partition: partition.into(),
            granted,
            over: 1,
            longest_wait_us,
            left: Some(PartitionLeft { limit: "9/1s".into(), rate: 9, available: age_us, age_us }),
        };
        let one = TopPartitions::of(SECOND, &[reading("a", 5, 3, 9), reading("b", 7, 0, 1)]);
        let other = TopPartitions::of(2 * SECOND, &[reading("a", 4, 8, 2)]);
        let told_at_once = [(Duration::ZERO, &one), (Duration::ZERO, &other)];
        let sum = TopPartitions::added_up(told_at_once.into_iter());
        assert_eq!((sum.over_us, &*sum.used[0].partition, sum.used[0].granted), (2 * SECOND, "a", 9));
        assert_eq!((sum.used[0].over, sum.waited[0].longest_wait_us), (2, 8));
        assert_eq!(sum.used[0].left.as_ref().map(|left| left.available), Some(2));
        assert_eq!((sum.used.len(), sum.waited.len()), (2, 1));
        // The one that was told longer ago is older.
        let told = [(Duration::ZERO, &one), (Duration::from_micros(20), &other)];
        let sum = TopPartitions::added_up(told.into_iter());
        assert_eq!(sum.used[0].left.as_ref().map(|left| (left.available, left.age_us)), Some((9, 9)));
    }
}
