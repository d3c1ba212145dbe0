//! Bounds of a store's clock from below and above, against the replica's own monotonic clock.
//!
//! A call is carried out between the instants at which it was sent and answered. So each answer bounds the store's clock, and
//! a quick one bounds it tightly. A slot is due when the lower bound has reached it, and late when the upper bound has passed it
//! by the guard. In between it is on time, whatever the true clock shows.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Step, stepped};

/// The speed at which two clocks may drift apart: 200 millionths, twice as much as is tolerable in a machine's clock.
const DRIFT_PER_MILLION: u64 = 200;

/// The smallest contradiction of bounds that means a step of a clock; a smaller one is drift or slewing.
const STEP_MIN: Micros = Micros::from_millis(20);

/// How much of a contradiction is slewing: a thousandth of the time since the last answer.
const SLEWED_PER_MILLION: u64 = 1000;

/// For how long contradictions are summed up: a clock that stands still contradicts each answer by little.
const SUMMED_FOR: Micros = Micros::from_millis(1000);

/// The smallest sum of contradictions that means a step, beyond what is slewing.
const SUM_MIN: Micros = Micros::from_millis(5);

/// Bounds of a store's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreClock {
    anchor: Moment,
    /// The earliest and the latest time that the store's clock may have shown at `anchor`.
    earliest: Micros,
    latest: Micros,
}

/// Keeps the bounds of a store's clock from answer to answer, and notices its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockWatch {
    bounds: StoreClock,
    was_due: Due,
    moved: Moved,
}

/// The latest time that was due by bounds that were replaced: `time` at a moment and ever since, and as much less before as it was earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Due {
    at: Moment,
    time: Micros,
}

impl Due {
    /// Returns the later of both, whichever moment is looked at.
    fn max(self, other: Due) -> Due {
        let (early, late) = if self.time <= other.time { (self, other) } else { (other, self) };
        // Until both meet the other one may have been later.
        Due { at: late.at.min(early.at + (late.time - early.time)), ..late }
    }

    fn at(self, moment: Moment) -> Micros {
        let before = self.at - moment;
        self.time - before + drift(before)
    }
}

/// How far the bounds were moved lately by contradictions too small for a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Moved {
    since: Moment,
    /// All of it, whichever way, but for what is slewing: by this a step is noticed.
    in_all: Micros,
    /// Forward less back, in microseconds: by so much at most a step has moved the clock in the end. What was granted is moved with
    /// it, and may be remembered later than it was, never earlier.
    forward: i64,
}

impl Moved {
    fn none(since: Moment) -> Moved {
        Moved { since, in_all: Micros::ZERO, forward: 0 }
    }
}

impl ClockWatch {
    /// Begins with one call, sent and answered at these instants, and carried out at `now` of the store.
    pub fn new(sent: Moment, answered: Moment, now: Micros) -> ClockWatch {
        let bounds = StoreClock::new(sent, answered, now);
        ClockWatch { bounds, was_due: Due { at: answered, time: Micros::ZERO }, moved: Moved::none(answered) }
    }

    /// Returns the bounds.
    pub fn bounds(&self) -> StoreClock {
        self.bounds
    }

    /// Returns the latest slot that can have been used at an instant, after all steps: bounds that were replaced may have been later.
    pub fn used_until(&self, instant: Moment) -> Micros {
        let before = self.bounds.anchor - instant;
        (self.bounds.latest(instant) - before + drift(before)).max(self.was_due.at(instant))
    }

    /// Narrows the bounds by another call. Bounds that contradict each other mean that a clock was stepped: then the new ones
    /// count alone. Returns the step, if it is large.
    pub fn learn(&mut self, sent: Moment, answered: Moment, now: Micros) -> Option<Step> {
        let (known, other) = (self.bounds, StoreClock::new(sent, answered, now));
        // An earlier answer may be handled later; bounds can only be carried forward.
        let anchor = answered.max(known.anchor);
        let earliest = known.earliest(anchor).max(other.earliest(anchor));
        let latest = known.latest(anchor).min(other.latest(anchor));
        if earliest <= latest {
            self.bounds = StoreClock { anchor, earliest, latest };
            return None;
        }
        // The least size that the step can have: one of both is zero.
        let forward = other.earliest(anchor) - known.latest(anchor);
        let back = known.earliest(anchor) - other.latest(anchor);
        let (size, passed) = (forward + back, anchor - known.anchor);
        let slewed = Micros(passed.0.saturating_mul(SLEWED_PER_MILLION) / 1_000_000);
        let is_lately = anchor - self.moved.since < SUMMED_FOR && self.moved.in_all > Micros::ZERO;
        let before = if is_lately { self.moved } else { Moved::none(anchor) };
        let moved = Moved {
            since: before.since,
            in_all: before.in_all + (size - slewed),
            forward: before
                .forward
                .saturating_add(signed(other.latest(anchor) - known.earliest(anchor)))
                .saturating_sub(signed(back)),
        };
        let replaced = Due { at: anchor, time: known.earliest(anchor) };
        *self = ClockWatch { bounds: other, was_due: self.was_due.max(replaced), moved };
        if size < STEP_MIN && moved.in_all < SUM_MIN {
            return None;
        }
        let by = Micros(moved.forward.unsigned_abs());
        let step = if moved.forward > 0 { Step::Forward(by) } else { Step::Back(by) };
        (self.moved, self.was_due.time) = (Moved::none(anchor), stepped(self.was_due.time, step));
        Some(step)
    }
}

impl StoreClock {
    /// Returns the bounds by one call, sent and answered at these instants, and carried out at `now` of the store.
    pub fn new(sent: Moment, answered: Moment, now: Micros) -> StoreClock {
        let took = answered - sent;
        StoreClock { anchor: answered, earliest: now, latest: now + took + Micros::ONE }
    }

    /// Returns when the last answer came.
    pub fn heard(&self) -> Moment {
        self.anchor
    }

    /// Returns the earliest time that the store's clock may show at an instant.
    pub fn earliest(&self, instant: Moment) -> Micros {
        let passed = instant - self.anchor;
        self.earliest + passed - drift(passed)
    }

    /// Returns the latest time that the store's clock may show at an instant.
    pub fn latest(&self, instant: Moment) -> Micros {
        let passed = instant - self.anchor;
        self.latest + passed + drift(passed)
    }

    /// Returns the instant until which the store's clock has surely not reached a slot.
    pub fn not_before(&self, slot: Micros) -> Moment {
        let distance = slot - self.latest - Micros::ONE;
        self.anchor + (distance - drift(distance))
    }

    /// Returns the moment at which the store's clock showed an instant, also one before the last answer, or will show it.
    pub fn moment_of(&self, instant: Micros) -> Moment {
        let before = self.earliest - instant;
        if before > Micros::ZERO { self.anchor - before } else { self.due(instant) }
    }

    /// Returns the instant from which a slot is due: the lower bound has reached it. One that was due already when the last answer came is
    /// due from then on.
    pub fn due(&self, slot: Micros) -> Moment {
        let distance = (slot - self.earliest).0;
        let slowed = distance
            .saturating_add(distance.saturating_mul(DRIFT_PER_MILLION) / (1_000_000 - DRIFT_PER_MILLION));
        let extra = u64::from(distance > 0);
        self.anchor + Micros(slowed + extra)
    }
}

/// Returns how far two clocks drift apart at most, rounded up: bounds are carried forward with each answer, and what a rounding
/// drops adds up.
fn drift(passed: Micros) -> Micros {
    let whole = passed.0 / 1_000_000 * DRIFT_PER_MILLION;
    Micros(whole + (passed.0 % 1_000_000 * DRIFT_PER_MILLION).div_ceil(1_000_000))
}

fn signed(span: Micros) -> i64 {
    i64::try_from(span.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Moment {
        Moment(7_000_000) + Micros::from_millis(millis)
    }

    fn shown(millis: u64) -> Micros {
        Micros::from_millis(1_000_000 + millis)
    }

    #[test]
    fn an_answer_that_is_heard_late_does_not_move_the_bounds_back() {
        let mut clock = ClockWatch::new(after(99), after(100), shown(100));
        // Another worker's answer, from before.
        assert_eq!(clock.learn(after(10), after(50), shown(30)), None);
        for millis in [50, 100, 1000] {
            assert!(clock.bounds().earliest(after(millis).max(after(100))) <= shown(millis.max(100)));
            assert!(clock.bounds().latest(after(millis)) >= shown(millis));
        }
        assert!(clock.bounds().latest(after(100)) <= shown(102));
    }

    #[test]
    fn bounds_hold_a_fast_clock_whatever_the_number_of_answers() {
        // This replica's clock runs 200 millionths faster than the store's.
        let local = |micros: u64| Moment(7_000_000 + micros + micros / 5000);
        let store = |micros: u64| Micros(1_000_000_000 + micros);
        let mut clock = ClockWatch::new(local(0), local(10), store(10));
        for sent in (1000..1_000_000).step_by(1000) {
            assert_eq!(clock.learn(local(sent), local(sent + 400), store(sent + 200)), None);
            let (earliest, latest) =
                (clock.bounds().earliest(local(sent + 400)), clock.bounds().latest(local(sent + 400)));
            assert!(
                earliest <= store(sent + 400) && latest >= store(sent + 400),
                "{earliest:?} {latest:?} at {sent}"
            );
        }
    }

    #[test]
    fn a_clock_that_stands_still_is_noticed_whatever_the_number_of_answers() {
        let mut clock = ClockWatch::new(after(0), after(1), shown(0));
        let steps = (1..40).filter_map(|millis| clock.learn(after(millis), after(millis + 1), shown(0)));
        let steps: Vec<Step> = steps.collect();
        assert!(matches!(steps[..], [Step::Back(_), ..]), "{steps:?}");
        let Step::Back(by) = steps[0] else { return };
        assert!((5000..7000).contains(&by.0), "{by:?}");
    }

    #[test]
    fn a_clock_that_stood_still_and_has_caught_up_is_noticed_and_moves_nothing() {
        let mut clock = ClockWatch::new(after(0), after(0), shown(0));
        assert_eq!(clock.learn(after(104), after(104), shown(100)), None);
        let step = clock.learn(after(154), after(154), shown(154));
        let (Some(Step::Forward(by)) | Some(Step::Back(by))) = step else { panic!("{step:?}") };
        assert!(by.0 < 100, "{by:?}");
    }

    #[test]
    fn a_step_is_noticed_and_a_drift_is_not() {
        let mut clock = ClockWatch::new(after(0), after(2), shown(1));
        // Ten milliseconds in ten seconds: somebody slews it.
        assert_eq!(clock.learn(after(10_000), after(10_002), shown(10_011)), None);
        let step = clock.learn(after(10_010), after(10_012), shown(3_610_011));
        let Some(Step::Forward(by)) = step else { panic!("{step:?}") };
        assert!(by.0.abs_diff(3_600_000_000) < 15_000, "{by:?}");
        assert!(clock.bounds().earliest(after(10_012)) >= shown(3_610_011));
        let step = clock.learn(after(10_020), after(10_022), shown(10_021));
        let Some(Step::Back(by)) = step else { panic!("{step:?}") };
        assert!(by.0.abs_diff(3_600_000_000) < 15_000, "{by:?}");
    }

    #[test]
    fn a_step_moves_what_was_granted_to_no_earlier_than_it_was() {
        for step in [2000, -2000] {
            let mut clock = ClockWatch::new(after(0), after(2), shown(1));
            // Carried out at once, and read 30 ms later: this process stood still.
            let stepped_by = |millis: u64| Micros(shown(millis).0.saturating_add_signed(1000 * step));
            let told = clock.learn(after(10), after(40), stepped_by(10));
            let granted = stepped(shown(5), told.expect("a step"));
            assert!(granted >= stepped_by(5) && granted <= stepped_by(5 + 33), "{step}: {granted:?}");
        }
    }

    #[test]
    fn a_slot_is_due_when_the_slowest_clock_has_reached_it_and_not_before_the_fastest() {
        // Carried out between 0 and 2 ms, when the store showed 1 ms.
        let clock = StoreClock::new(after(0), after(2), shown(1));
        assert_eq!(
            (clock.heard(), clock.earliest(after(2)), clock.latest(after(2))),
            (after(2), shown(1), shown(3) + Micros::ONE)
        );
        // 200 millionths of ten seconds are two milliseconds.
        assert_eq!(clock.earliest(after(10_002)), shown(9_999));
        assert_eq!(clock.latest(after(10_002)), shown(10_005) + Micros::ONE);
        let due = clock.due(shown(10_001));
        assert!(
            clock.earliest(due) >= shown(10_001) && clock.earliest(Moment(due.0 - 2)) < shown(10_001),
            "{due:?}"
        );
        assert_eq!((clock.due(shown(1)), clock.due(shown(0))), (after(2), after(2)), "it is due already");
        let not_before = clock.not_before(shown(10_003));
        assert!(clock.latest(not_before) < shown(10_003), "{not_before:?}");
        assert!(clock.latest(not_before + Micros(10)) >= shown(10_003), "{not_before:?}");
        assert_eq!(clock.not_before(shown(0)), after(2));
    }

    #[test]
    fn an_instant_from_before_the_last_answer_was_shown_before_it() {
        let clock = StoreClock::new(after(8000), after(8002), shown(8001));
        assert_eq!(clock.moment_of(shown(3001)), after(3002));
        assert_eq!([8001, 9001].map(|at| clock.moment_of(shown(at))), [after(8002), clock.due(shown(9001))]);
        assert_eq!(clock.moment_of(Micros::ZERO), Moment::default(), "before this process's clock began");
    }

    #[test]
    fn a_drift_is_rounded_up() {
        let drifts = [0, 1, 5000, 5001, 1_000_000, 2_500_000].map(|micros| drift(Micros(micros)).0);
        assert_eq!(drifts, [0, 1, 1, 2, 200, 500]);
    }

    #[test]
    fn a_slot_may_have_been_used_by_bounds_that_were_replaced() {
        let mut clock = ClockWatch::new(after(0), after(1), shown(0));
        let before = clock.bounds().earliest(after(100));
        // The store's clock is 4 ms behind: too little for a step.
        assert_eq!(clock.learn(after(99), after(100), shown(96)), None);
        assert_eq!(clock.used_until(after(100)), before);
        // Ten milliseconds before it was that much earlier, and some drift later.
        assert_eq!(clock.used_until(after(90)), before - Micros::from_millis(10) + Micros(2));
        // Once the new bounds have passed it they count.
        assert_eq!(clock.used_until(after(200)), clock.bounds().latest(after(200)));
    }

    #[test]
    fn of_two_instants_that_were_due_the_later_one_counts_from_where_they_meet() {
        let (early, late) = (Due { at: after(0), time: shown(100) }, Due { at: after(50), time: shown(103) });
        // From 3 ms on the later one is the latest of both, though it was due in fact from 50 ms on.
        let both = Due { at: after(3), time: shown(103) };
        assert_eq!((early.max(late), late.max(early)), (both, both));
        let same = Due { at: after(50), time: shown(100) };
        assert_eq!((early.max(same).at, same.max(early).at), (after(0), after(0)));
        assert_eq!(both.at(after(3)), shown(103));
        assert_eq!(both.at(after(2)), shown(102) + Micros::ONE);
    }

    #[test]
    fn each_answer_narrows_the_bounds() {
        // Carried out at the end of a slow call, and at the beginning of another one.
        let mut clock = ClockWatch::new(after(0), after(20), shown(20));
        assert_eq!(clock.learn(after(30), after(50), shown(30)), None);
        let (earliest, latest) = (clock.bounds().earliest(after(50)), clock.bounds().latest(after(50)));
        assert!(
            earliest >= shown(50) - Micros(10) && latest <= shown(50) + Micros(10),
            "{earliest:?} {latest:?}"
        );
    }

    #[test]
    fn small_contradictions_long_after_each_other_are_no_step() {
        for (second, is_step) in [(500, true), (2500, false)] {
            let mut clock = ClockWatch::new(after(0), after(0), shown(0));
            assert_eq!(clock.learn(after(100), after(100), shown(96)), None);
            let behind = shown(second) - Micros::from_millis(8);
            assert_eq!(clock.learn(after(second), after(second), behind).is_some(), is_step, "{second}");
        }
    }
}
