//! A slot: the instant at which a permit may be used, and how long it stays good.

use crate::clock::{Micros, Moment};
use crate::limiter::store::clock::StoreClock;

/// The place where a slot was booked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Source {
    /// The store, in this epoch.
    Store(u64),
    /// This replica's own memory, in the outage of this number.
    Local(u64),
    /// No place: the store is unreachable, and the policy lets every request pass.
    Unlimited,
}

/// The instant at which a permit may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Slot {
    /// The instant by the clock of the slot's source.
    pub(in crate::limiter) at: Micros,
    /// The first instant of this process's clock at which the source's clock has surely reached the slot.
    pub(in crate::limiter) due: Moment,
    pub(in crate::limiter) source: Source,
}

impl Slot {
    /// Returns whether the slot must not be used any more at `now`.
    ///
    /// It is good for one guard, by the upper bound of the source's clock. Where that clock is known less precisely than half
    /// a guard, because answers take so long, no permit would ever be on time; so the imprecision is added.
    pub(in crate::limiter) fn is_late(&self, clock: &StoreClock, now: Moment, guard: Micros) -> bool {
        let uncertain = clock.latest(now) - clock.earliest(now);
        let extra = if uncertain + uncertain > guard { uncertain } else { Micros::ZERO };
        self.lateness(clock, now) > guard + extra
    }

    /// Returns the longest time by which the slot may have passed at `now`.
    pub(in crate::limiter) fn lateness(&self, clock: &StoreClock, now: Moment) -> Micros {
        match self.source {
            Source::Unlimited => Micros::ZERO,
            Source::Store(_) | Source::Local(_) => clock.latest(now) - self.at,
        }
    }
}
