//! How far ahead a store is booked, as one replica has heard it, and as all have.

use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use crate::clock::Micros;

/// Into so many steps the time is divided of which answers are kept.
const STEPS: u32 = 12;

/// The last booked slot, in the answers of the last moments.
pub(in crate::limiter) struct OutageFence {
    /// Within that time every replica whose requests wait hears from the store.
    heard_by_all: Duration,
    /// When a call was sent, and the last slot that it was told of: one answer from before that time, and later ones.
    samples: VecDeque<(Instant, Micros)>,
    latest: Option<(Instant, Micros)>,
    /// What the store's clock showed then.
    now: Micros,
}

impl OutageFence {
    /// Of a store from which whoever waits hears so often, and a call takes less than half as long.
    pub(in crate::limiter) fn new(heartbeat: Duration) -> OutageFence {
        OutageFence {
            heard_by_all: heartbeat * 3 / 2,
            samples: VecDeque::new(),
            latest: None,
            now: Micros::ZERO,
        }
    }

    /// Takes in what a call was told that was sent at an instant.
    pub(in crate::limiter) fn learn(&mut self, sent: Instant, now: Micros, last: Micros) {
        (self.latest, self.now) = (Some((sent, last)), now);
        let step = self.heard_by_all / STEPS;
        if self.samples.back().is_none_or(|(before, _)| sent >= *before + step) {
            self.samples.push_back((sent, last));
        }
        while self.samples.get(1).is_some_and(|(next, _)| *next + self.heard_by_all <= sent) {
            self.samples.pop_front();
        }
    }

    /// The last booked slot, if it lay ahead when the store was last heard.
    pub(in crate::limiter) fn last(&self) -> Option<Micros> {
        self.latest.map(|(_, last)| last).filter(|last| *last > self.now)
    }

    /// No replica whose requests wait has last heard of an earlier last slot.
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
    fn what_was_booked_lately_is_not_known_to_all() {
        let mut ahead = OutageFence::new(Duration::from_millis(200));
        let start = Instant::now();
        assert_eq!((ahead.last(), ahead.known_to_all()), (None, Micros::ZERO));
        for millis in 0..1000 {
            let now = Micros::from_millis(5000 + millis);
            ahead.learn(start + Duration::from_millis(millis), now, now + Micros::from_millis(2000));
            assert_eq!(ahead.last(), Some(now + Micros::from_millis(2000)));
            let age = ahead.last().unwrap() - ahead.known_to_all();
            assert!(millis < 300 || (300_000..=325_000).contains(&age.0), "{millis} ms: {age:?}");
            assert!(millis >= 300 || ahead.known_to_all() == Micros::ZERO);
            assert!(ahead.samples.len() <= 14);
        }
        // Nothing lies ahead any more.
        ahead.learn(start + Duration::from_secs(9), Micros::from_millis(14_000), Micros::from_millis(7999));
        assert_eq!(ahead.last(), None);
    }
}
