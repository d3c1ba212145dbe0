//! The times that an upstream lately took to the head of its response, for the requests of one route: those of other routes may be
//! quite another work. Knows nothing of requests.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// The number of responses that are remembered.
const REMEMBERED: usize = 100;

/// The times of the last responses.
pub(crate) struct AnswerTimes {
    /// In microseconds; the next one replaces the oldest.
    micros: [AtomicU32; REMEMBERED],
    count: AtomicUsize,
}

impl Default for AnswerTimes {
    /// Creates the times of a route that has had no response yet.
    fn default() -> AnswerTimes {
        AnswerTimes { micros: std::array::from_fn(|_| AtomicU32::new(0)), count: AtomicUsize::new(0) }
    }
}

impl AnswerTimes {
    /// Notes the time of a response.
    pub(crate) fn add(&self, time: Duration) {
        let place = self.count.fetch_add(1, Ordering::Relaxed) % REMEMBERED;
        if let Some(micros) = self.micros.get(place) {
            micros.store(u32::try_from(time.as_micros()).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
    }

    /// Returns the time within which nine of ten responses came; zero while there are none.
    pub(crate) fn percentile_90(&self) -> Duration {
        let count = self.count.load(Ordering::Relaxed).min(REMEMBERED);
        let mut micros: [u32; REMEMBERED] =
            std::array::from_fn(|place| self.micros[place].load(Ordering::Relaxed));
        let Some(rank) = (count * 9).div_ceil(10).checked_sub(1) else { return Duration::ZERO };
        let (_, percentile, _) = micros[..count].select_nth_unstable(rank);
        Duration::from_micros(u64::from(*percentile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_of_the_last_hundred_are_within() {
        let times = AnswerTimes::default();
        assert_eq!(times.percentile_90(), Duration::ZERO);
        times.add(Duration::from_millis(800));
        assert_eq!(times.percentile_90(), Duration::from_millis(800));
        (1..=100).rev().for_each(|millis| times.add(Duration::from_millis(millis)));
        assert_eq!(times.percentile_90(), Duration::from_millis(90));
        (0..100).for_each(|_| times.add(Duration::from_hours(10)));
        assert_eq!(times.percentile_90(), Duration::from_micros(u32::MAX.into()));
    }
}
