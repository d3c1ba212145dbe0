//! A slot: where it was booked, and for how long it is good.

use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::store::clock::StoreClock;

/// Where a slot was booked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Source {
    /// In the store.
    Store,
    /// In this replica's own memory, because the store is away.
    Local,
    /// Nowhere: the store is away and the policy is to let everything pass.
    Unlimited,
}

/// The instant at which a permit may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Slot {
    /// On the clock of its source.
    pub(in crate::limiter) at: Micros,
    /// On this process's clock: the first instant at which the source's clock has surely reached it.
    pub(in crate::limiter) due: Instant,
    pub(in crate::limiter) source: Source,
}

impl Slot {
    /// Whether the slot must not be used any more at `now`.
    ///
    /// It is good for one guard, by the upper bound of the store's clock. Where the bounds are wider apart than half a
    /// guard (answers take that long) nobody could ever be on time, so the distance of the bounds is added.
    pub(in crate::limiter) fn is_late(&self, clock: &StoreClock, now: Instant, guard: Micros) -> bool {
        let uncertain = clock.latest(now) - clock.earliest(now);
        let extra = if uncertain + uncertain > guard { uncertain } else { Micros::ZERO };
        self.lateness(clock, now) > guard + extra
    }

    /// How far the slot may lie back at `now`, in the worst case.
    pub(in crate::limiter) fn lateness(&self, clock: &StoreClock, now: Instant) -> Micros {
        match self.source {
            Source::Unlimited => Micros::ZERO,
            Source::Store | Source::Local => clock.latest(now) - self.at,
        }
    }
}
