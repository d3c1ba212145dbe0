//! How far ahead a store is booked, as this replica knows it, and as every replica surely knows it.
//!
//! When the store becomes unreachable, each replica grants nothing of its own before the last slot that it knows of. So the
//! slots up to the one known to all can still be used, and later ones cannot.

use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use crate::clock::Micros;

/// The number of samples kept of the recent past.
const STEPS: u32 = 12;

/// The last booked slot of the store, over its recent answers.
pub(in crate::limiter) struct OutageFence {
    /// The time within which every replica with waiting requests has got an answer of the store.
    heard_by_all: Duration,
    /// When a call was sent, and the last slot in its answer: one answer that is older than `heard_by_all`, and the later
    /// ones.
    samples: VecDeque<(Instant, Micros)>,
    latest: Option<(Instant, Micros)>,
    /// The store's time in the latest answer.
    now: Micros,
}

impl OutageFence {
    /// Creates the fence of a store that is asked at each heartbeat, and answers within half of one.
    pub(in crate::limiter) fn new(heartbeat: Duration) -> OutageFence {
        OutageFence {
            heard_by_all: heartbeat * 3 / 2,
            samples: VecDeque::new(),
            latest: None,
            now: Micros::ZERO,
        }
    }

    /// Takes in an answer: when its call was sent, the store's time, and the last booked slot.
    pub(in crate::limiter) fn observe(&mut self, sent: Instant, now: Micros, last: Micros) {
        (self.latest, self.now) = (Some((sent, last)), now);
        let step = self.heard_by_all / STEPS;
        if self.samples.back().is_none_or(|(before, _)| sent >= *before + step) {
            self.samples.push_back((sent, last));
        }
        while self.samples.get(1).is_some_and(|(next, _)| *next + self.heard_by_all <= sent) {
            self.samples.pop_front();
        }
    }

    /// Returns the last booked slot, if it lay in the future at the latest answer.
    pub(in crate::limiter) fn last(&self) -> Option<Micros> {
        self.latest.map(|(_, last)| last).filter(|last| *last > self.now)
    }

    /// Returns the last slot that every replica with waiting requests knows of; zero if that is not sure yet.
    pub(in crate::limiter) fn known_to_all(&self) -> Micros {
        let (Some((sent, _)), Some((before, last))) = (self.latest, self.samples.front()) else {
            return Micros::ZERO;
        };
        if *before + self.heard_by_all <= sent { *last } else { Micros::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recent_booking_is_not_known_to_all() {
        let mut fence = OutageFence::new(Duration::from_millis(200));
        let start = Instant::now();
        assert_eq!((fence.last(), fence.known_to_all()), (None, Micros::ZERO));
        for millis in 0..1000 {
            let now = Micros::from_millis(5000 + millis);
            fence.observe(start + Duration::from_millis(millis), now, now + Micros::from_millis(2000));
            assert_eq!(fence.last(), Some(now + Micros::from_millis(2000)));
            let age = fence.last().unwrap() - fence.known_to_all();
            assert!(millis < 300 || (300_000..=325_000).contains(&age.0), "{millis} ms: {age:?}");
            assert!(millis >= 300 || fence.known_to_all() == Micros::ZERO);
            assert!(fence.samples.len() <= 14);
        }
        // Nothing is booked in the future any more.
        fence.observe(start + Duration::from_secs(9), Micros::from_millis(14_000), Micros::from_millis(7999));
        assert_eq!(fence.last(), None);
    }
}
