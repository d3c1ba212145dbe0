//! The upstream's own count of a limiter beside weir's, by the headers of its latest responses. Changes no limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::clock::{Micros, Moment};
use crate::usage::UpstreamCount;

/// Time between two comparisons of a limiter.
const INTERVAL: Micros = Micros::from_millis(1000);
/// How long a count is shown after the response that told it.
const SHOWN_FOR: Micros = Micros::from_millis(300_000);
/// The most limits of which counts are kept: those of a limiter, or of its overrides.
const LIMITS_MAX: usize = 16;

/// The latest counts of a limiter, one for each limit.
#[derive(Default)]
pub(in crate::limiter) struct UpstreamCounts {
    next: AtomicU64,
    latest: Mutex<Vec<(Moment, UpstreamCount)>>,
}

impl UpstreamCounts {
    /// Returns whether it is time for a comparison, and begins the time until the next one.
    pub(in crate::limiter) fn is_due(&self, now: Moment) -> bool {
        let is_due = now.0 >= self.next.load(Ordering::Relaxed);
        if is_due {
            self.next.store((now + INTERVAL).0, Ordering::Relaxed);
        }
        is_due
    }

    /// Notes what a response has told.
    pub(in crate::limiter) fn note(&self, now: Moment, count: UpstreamCount) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.retain(|(at, known)| known.limit != count.limit && now - *at < SHOWN_FOR);
        latest.push((now, count));
        if latest.len() > LIMITS_MAX {
            latest.remove(0);
        }
    }

    /// Returns the counts that are not too old, each with its age.
    pub(in crate::limiter) fn latest(&self, now: Moment) -> Vec<UpstreamCount> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = latest.iter().filter(|(at, _)| now - *at < SHOWN_FOR);
        fresh.map(|(at, count)| UpstreamCount { age_us: (now - *at).0, ..count.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_count_of_each_limit_is_shown_for_some_minutes() {
        let counts = UpstreamCounts::default();
        let at = |seconds: u64| Moment(1_000_000 * seconds);
        assert_eq!([at(1), at(1), at(2)].map(|now| counts.is_due(now)), [true, false, true]);
        let count =
            |label: &str, apart| UpstreamCount { limit: label.into(), remaining: 4, apart, age_us: 0 };
        for (now, label, apart) in [(1, "9/1s", 5), (2, "90/1m", -3), (3, "9/1s", 1)] {
            counts.note(at(now), count(label, apart));
        }
        let latest = |now| -> Vec<(i64, u64)> {
            counts.latest(at(now)).iter().map(|count| (count.apart, count.age_us / 1_000_000)).collect()
        };
        assert_eq!(latest(5), [(-3, 3), (1, 2)]);
        assert_eq!((latest(302), latest(303)), (vec![(1, 299)], vec![]));
        (0..100).for_each(|limit| counts.note(at(9), count(&format!("{limit}/1h"), 0)));
        assert_eq!(latest(9).len(), LIMITS_MAX);
    }
}
