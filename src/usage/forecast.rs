//! When a limit is spent, if the fleet goes on at its present pace.
//!
//! Pure: has no clock.

use super::pace::PARTS;

/// Steps of a window in which the forecast looks ahead.
const STEPS: u32 = 288;

/// How a limit gets permits back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Refill {
    /// Each permit leaves the window when it is as old as the window is long.
    Rolling,
    /// All at once, after so many seconds.
    At(f64),
    /// Steadily, `rate` in each window.
    Steady,
}

/// The use of a limit by the whole fleet.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Use {
    /// Permits in a window, and its length in seconds.
    pub(super) rate: f64,
    pub(super) per: f64,
    pub(super) refill: Refill,
    /// Permits that are left now.
    pub(super) available: f64,
    /// Permits that are granted in a second.
    pub(super) pace: f64,
    /// The permits granted in each part of the window, the one that runs first.
    pub(super) parts: [f64; PARTS],
    /// The seconds for which the first part has run.
    pub(super) into_part: f64,
}

impl Use {
    /// Returns in how many seconds the limit is spent; infinity where it lasts.
    pub(super) fn exhausted_in(&self) -> f64 {
        let Use { rate, per, available, pace, .. } = *self;
        if available < 1.0 {
            return 0.0;
        }
        if pace <= 0.0 {
            return f64::INFINITY;
        }
        match self.refill {
            Refill::At(seconds) => lasting(available / pace, seconds),
            Refill::Steady if pace > rate / per => available / (pace - rate / per),
            Refill::Steady => f64::INFINITY,
            Refill::Rolling => self.exhausted_rolling(),
        }
    }

    /// Looks ahead for one window, in which everything leaves that was granted until now. After it the pace alone counts: a limit
    /// that lasts until then is as full as an even pace makes it.
    fn exhausted_rolling(&self) -> f64 {
        let Use { rate, per, available, pace, .. } = *self;
        let used = (rate - available).max(0.0);
        let (gone, all) = (self.left_of_parts(0.0), self.parts.iter().sum::<f64>());
        let known = all - gone;
        // Permits that the store counts and no replica remembers leave as the rest does; without any memory of it, evenly.
        let left_by = |seconds: f64| {
            if known > 0.0 {
                used * (self.left_of_parts(seconds) - gone) / known
            } else {
                used * seconds / per
            }
        };
        let step = per / f64::from(STEPS);
        let over_at = |seconds: f64| used + pace * seconds - left_by(seconds) - rate;
        let mut before = over_at(0.0);
        for index in 1..=STEPS {
            let seconds = step * f64::from(index);
            let over = over_at(seconds);
            if over >= 0.0 {
                return seconds - step * over / (over - before).max(f64::EPSILON);
            }
            before = over;
        }
        // An even pace above the limit's would have spent it by now.
        f64::INFINITY
    }

    /// Returns how many of the permits in the parts have left the window in so many seconds, each part evenly. The last part has begun to.
    fn left_of_parts(&self, seconds: f64) -> f64 {
        let part = self.per / 12.0;
        let mut left = 0.0;
        for (age, permits) in (0_u8..).zip(self.parts) {
            // A part began so long ago, and lasted so long.
            let began = self.into_part + part * f64::from(age);
            let lasted = if age == 0 { self.into_part } else { part };
            let gone = seconds - (self.per - began);
            if lasted > 0.0 {
                left += permits * (gone / lasted).clamp(0.0, 1.0);
            }
        }
        left
    }
}

/// Returns the time, or infinity if it is not before the end.
fn lasting(seconds: f64, end: f64) -> f64 {
    if seconds < end { seconds } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: f64 = 3600.0;

    fn used(parts: [f64; PARTS], into_part: f64, pace: f64, refill: Refill) -> Use {
        let available = 3600.0 - parts.iter().sum::<f64>();
        Use { rate: 3600.0, per: HOUR, refill, available, pace, parts, into_part }
    }

    fn near(seconds: f64, expected: f64) {
        assert!((seconds - expected).abs() < expected * 0.02, "{seconds}, expected {expected}");
    }

    #[test]
    fn a_window_that_began_empty_is_spent_when_its_permits_are() {
        let mut parts = [0.0; PARTS];
        parts[0] = 300.0;
        near(used(parts, 100.0, 3.0, Refill::Rolling).exhausted_in(), 1100.0);
        near(used(parts, 100.0, 3.0, Refill::At(2000.0)).exhausted_in(), 1100.0);
        assert!(used(parts, 100.0, 3.0, Refill::At(1000.0)).exhausted_in().is_infinite());
        near(used(parts, 100.0, 3.0, Refill::Steady).exhausted_in(), 1650.0);
        assert!(used(parts, 100.0, 1.0, Refill::Steady).exhausted_in().is_infinite());
    }

    #[test]
    fn use_that_leaves_the_window_makes_room() {
        // 0.9 a second for an hour, and 1.1 from now on: 360 are left, and lessen by 0.2 a second.
        let mut parts = [270.0; PARTS];
        (parts[0], parts[12]) = (0.0, 270.0);
        near(used(parts, 0.0, 1.1, Refill::Rolling).exhausted_in(), 1800.0);
        assert!(used(parts, 0.0, 0.95, Refill::Rolling).exhausted_in().is_infinite());
        // All of it leaves soon.
        let mut old = [0.0; PARTS];
        old[12] = 3300.0;
        assert!(used(old, 150.0, 0.99, Refill::Rolling).exhausted_in().is_infinite());
    }

    #[test]
    fn a_spent_limit_is_spent_now_and_an_idle_one_lasts() {
        let mut parts = [0.0; PARTS];
        parts[1] = 3600.0;
        assert!(used(parts, 10.0, 0.0, Refill::Rolling).exhausted_in() == 0.0);
        parts[1] = 3599.0;
        assert!(used(parts, 10.0, 0.0, Refill::Rolling).exhausted_in().is_infinite());
        near(used(parts, 10.0, 0.5, Refill::Rolling).exhausted_in(), 2.0);
    }

    #[test]
    fn use_that_no_replica_remembers_leaves_evenly() {
        let forgotten = Use { available: 1800.0, ..used([0.0; PARTS], 0.0, 1.25, Refill::Rolling) };
        near(forgotten.exhausted_in(), 2400.0);
    }
}
