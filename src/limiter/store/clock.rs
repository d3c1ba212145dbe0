//! What a replica knows of its store's clock: bounds from below and above, against its own monotonic clock.
//!
//! A call that was sent at one instant and answered at another was carried out in between, so each answer
//! bounds the store's clock, the quick ones tightly. A slot counts as due when even the lower bound has
//! reached it, and as late when the upper bound has passed it by the guard; what lies between is on time
//! wherever the truth is.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::model::clock_step::Step;

/// How fast two clocks may drift apart: 200 millionths, twice what is tolerable in a machine's clock.
const DRIFT_PER_MILLION: u64 = 200;

/// Bounds that contradict each other by more mean that a clock was stepped; by less, that it drifts or is slewed.
const STEP_MIN: Micros = Micros::from_millis(20);

/// Bounds of a store's clock.
#[derive(Clone, Copy, Debug)]
pub struct StoreClock {
    anchor: Instant,
    /// The least and the most that the store's clock showed at `anchor`.
    earliest: Micros,
    latest: Micros,
}

impl StoreClock {
    /// The bounds that one call gives: sent and answered at these instants, carried out at `now` of the store.
    pub fn new(sent: Instant, answered: Instant, now: Micros) -> StoreClock {
        let took = Micros::from(answered.saturating_duration_since(sent));
        StoreClock { anchor: answered, earliest: now, latest: now + took + Micros::ONE }
    }

    /// Adds what another call tells. Bounds that contradict each other mean that a clock was stepped: then
    /// the new one counts alone. Returns by how much, if it is much.
    pub fn learn(&mut self, sent: Instant, answered: Instant, now: Micros) -> Option<Step> {
        let told = StoreClock::new(sent, answered, now);
        // Who answered first need not be heard first; bounds cannot be carried back, only on.
        let anchor = answered.max(self.anchor);
        let earliest = self.earliest(anchor).max(told.earliest(anchor));
        let latest = self.latest(anchor).min(told.latest(anchor));
        if earliest <= latest {
            *self = StoreClock { anchor, earliest, latest };
            return None;
        }
        // What lies between the bounds is nobody's: the least that it can be.
        let forward = told.earliest(anchor) - self.latest(anchor);
        let back = self.earliest(anchor) - told.latest(anchor);
        *self = told;
        let step = if forward > back { Step::Forward(forward) } else { Step::Back(back) };
        (forward.max(back) >= STEP_MIN).then_some(step)
    }

    /// When the last answer came that told of it.
    pub fn heard(&self) -> Instant {
        self.anchor
    }

    /// The least that the store's clock shows at an instant.
    pub fn earliest(&self, instant: Instant) -> Micros {
        let passed = Micros::from(instant.saturating_duration_since(self.anchor));
        self.earliest + passed - drift(passed)
    }

    /// The most that the store's clock shows at an instant.
    pub fn latest(&self, instant: Instant) -> Micros {
        let passed = Micros::from(instant.saturating_duration_since(self.anchor));
        self.latest + passed + drift(passed) + Micros::ONE
    }

    /// Until then the store's clock has surely not reached an instant.
    pub fn not_before(&self, slot: Micros) -> Instant {
        let distance = slot - self.latest - Micros::ONE;
        self.anchor + (distance - drift(distance)).to_duration()
    }

    /// The instant from which a slot is due: the lower bound has reached it.
    pub fn due(&self, slot: Micros) -> Instant {
        let distance = (slot - self.earliest).0;
        let slowed = distance
            .saturating_add(distance.saturating_mul(DRIFT_PER_MILLION) / (1_000_000 - DRIFT_PER_MILLION));
        let extra = u64::from(distance > 0);
        self.anchor + Duration::from_micros(slowed + extra)
    }
}

/// What all workers of a replica know of one store's clock: each profits from the others' answers.
#[derive(Debug)]
pub struct SharedClock {
    known: Mutex<Option<StoreClock>>,
}

impl SharedClock {
    /// The clock of a store that has not been heard.
    pub fn unheard() -> SharedClock {
        SharedClock { known: Mutex::new(None) }
    }

    /// What is known, if anything.
    pub fn heard(&self) -> Option<StoreClock> {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known; of a clock that has not been heard, nothing that a slot could be due by.
    pub fn known(&self) -> StoreClock {
        let now = Instant::now();
        self.heard().unwrap_or_else(|| StoreClock::new(now, now, Micros::ZERO))
    }

    /// Adds what a call tells. Returns what is known then, and by how much the clock was stepped since the call before.
    pub fn learn(&self, sent: Instant, answered: Instant, now: Micros) -> (StoreClock, Option<Step>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *known {
            Some(known) => {
                let step = known.learn(sent, answered, now);
                (*known, step)
            }
            unheard => (*unheard.insert(StoreClock::new(sent, answered, now)), None),
        }
    }
}

fn drift(passed: Micros) -> Micros {
    Micros(passed.0 / 1_000_000 * DRIFT_PER_MILLION + passed.0 % 1_000_000 * DRIFT_PER_MILLION / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_heard_late_does_not_move_the_bounds_back() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let shown = |millis| Micros::from_millis(1_000_000 + millis);
        let clock = SharedClock::unheard();
        clock.learn(after(99), after(100), shown(100));
        // Another worker's answer, from before.
        let (known, step) = clock.learn(after(10), after(50), shown(30));
        assert_eq!(step, None);
        for millis in [50, 100, 1000] {
            assert!(known.earliest(after(millis).max(after(100))) <= shown(millis.max(100)));
            assert!(known.latest(after(millis)) >= shown(millis));
        }
        assert!(known.latest(after(100)) <= shown(102));
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_is_noticed_and_a_drift_is_not() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let shown = |millis: u64| Micros::from_millis(1_000_000 + millis);
        let clock = SharedClock::unheard();
        clock.learn(after(0), after(2), shown(1));
        // Ten milliseconds in ten seconds: somebody slews it.
        assert_eq!(clock.learn(after(10_000), after(10_002), shown(10_011)).1, None);
        let (known, step) = clock.learn(after(10_010), after(10_012), shown(3_610_011));
        let Some(Step::Forward(by)) = step else { panic!("{step:?}") };
        assert!(by.0.abs_diff(3_600_000_000) < 15_000, "{by:?}");
        assert!(known.earliest(after(10_012)) >= shown(3_610_011));
        let (_, step) = clock.learn(after(10_020), after(10_022), shown(10_021));
        let Some(Step::Back(by)) = step else { panic!("{step:?}") };
        assert!(by.0.abs_diff(3_600_000_000) < 15_000, "{by:?}");
    }
}
