//! Permits booked before anybody asks, for a busy queue: a request takes one without a round trip to the store and without
//! waking the worker.
//!
//! A slot is good for one guard. So permits booked now serve the requests of the next part of a guard, and the rest is given
//! back. That keeps permits from the rest of the fleet for some milliseconds, so permits are prefetched only
//! - at a pace of requests that uses them up;
//! - while more than half of each limit's permits are left, and then a small part of those, so that other replicas find
//!   enough, at the pace of a burst, too;
//! - while no request waits in this queue: newcomers must not overtake it.

use std::collections::VecDeque;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Generations, Permits};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::store::clock::StoreClock;

/// The shortest guard with which prefetching pays: a part of it must be longer than a round trip.
const GUARD_MIN: Micros = Micros::from_millis(4);

/// The fewest requests in a step of the [`Pace`] for which prefetching pays.
const PACE_MIN: u64 = 8;

/// A replica prefetches at most one in this many of the permits that a limit has left.
const PART_OF_LEFT: u64 = 4;

/// A replica prefetches at most one in this many of the permits of a limit.
const PART_OF_LIMIT: u64 = 8;

/// A limit of which a replica may not prefetch for so many steps of its pace may be used up by others before prefetched permits are back.
const BUDGET_STEPS: u64 = 12;

/// The most requests for which permits are prefetched.
const PREFETCH_MAX: u64 = 16_384;

/// How long nothing is prefetched after prefetched permits came too late to be used.
const SLOW_FOR: Micros = Micros::from_millis(1000);

/// Prefetched permits of one slot and one cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Batch {
    pub(in crate::limiter) slot: Slot,
    pub(in crate::limiter) cost: Permits,
    pub(in crate::limiter) count: u64,
    /// The generation of each limiter under which they were booked.
    pub(in crate::limiter) generations: Generations,
    clock: StoreClock,
    /// The end of the time in which its permits are handed out: until then a request can still be sent within the guard.
    until: Moment,
}

impl Batch {
    /// Creates a batch of permits that the store has booked at `at` in an epoch.
    ///
    /// # Errors
    /// The same batch, if its slot has not come yet, or passed too long ago to be used.
    pub(in crate::limiter) fn new(
        (at, epoch): (Micros, u64),
        (cost, count): (Permits, u64),
        generations: Generations,
        (clock, now): (StoreClock, Moment),
        guard: Micros,
    ) -> Result<Batch, Batch> {
        let usable = Micros(guard.0 / 4 * 3);
        let left = usable - (clock.latest(now) - at);
        let slot = Slot { at, due: clock.due(at), source: Source::Store(epoch) };
        let batch = Batch { slot, cost, count, generations, clock, until: now + left };
        if left > Micros::ZERO && slot.due <= now { Ok(batch) } else { Err(batch) }
    }

    /// Returns the instant until which the permits of the batch are handed out.
    pub(in crate::limiter) fn until(&self) -> Moment {
        self.until
    }
}

/// The prefetched permits of a queue. Their number is bounded by what the worker books.
#[derive(Default)]
pub(in crate::limiter) struct Prefetch {
    batches: VecDeque<Batch>,
    /// The permits handed out since the last snapshot.
    taken: u64,
    /// The number of permits below which the worker is woken, once.
    low: u64,
    has_woken: bool,
}

impl Prefetch {
    /// Takes a permit of this cost. Returns its slot, the clock of the slot, and whether the worker must be woken to book
    /// more.
    pub(in crate::limiter) fn take(
        &mut self,
        cost: Permits,
        now: Moment,
    ) -> Option<(Slot, StoreClock, bool)> {
        let is_good = |batch: &&mut Batch| batch.cost == cost && batch.count > 0 && now < batch.until;
        let batch = self.batches.iter_mut().find(is_good)?;
        batch.count -= 1;
        let (slot, clock) = (batch.slot, batch.clock);
        self.taken += 1;
        let wakes = !self.has_woken && self.left() < self.low;
        self.has_woken |= wakes;
        Some((slot, clock, wakes))
    }

    fn left(&self) -> u64 {
        self.batches.iter().map(|batch| batch.count).sum()
    }

    /// Adds a batch; the worker is woken when fewer than `low` permits are left.
    pub(in crate::limiter) fn add(&mut self, batch: Batch, low: u64) {
        self.batches.push_back(batch);
        (self.low, self.has_woken) = (low, false);
    }

    /// Returns how many permits were taken since the last snapshot and how many are left, and takes out those that have become
    /// too old.
    pub(in crate::limiter) fn snapshot(&mut self, now: Moment) -> PrefetchSnapshot {
        let stale = self.batches.iter().take_while(|batch| batch.until <= now || batch.count == 0).count();
        let stale = self.batches.drain(..stale).filter(|batch| batch.count > 0).collect();
        let until = self.batches.front().map(|batch| batch.until);
        PrefetchSnapshot { taken: std::mem::take(&mut self.taken), left: self.left(), until, stale }
    }

    /// Takes all permits out.
    pub(in crate::limiter) fn clear(&mut self) -> VecDeque<Batch> {
        std::mem::take(&mut self.batches)
    }
}

/// A [`Prefetch`] as the worker sees it after an event.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct PrefetchSnapshot {
    pub(in crate::limiter) taken: u64,
    pub(in crate::limiter) left: u64,
    /// When the oldest permits become too old.
    pub(in crate::limiter) until: Option<Moment>,
    /// The permits that have become too old.
    pub(in crate::limiter) stale: Vec<Batch>,
}

/// The number of requests that arrive in a step, which is a quarter of a guard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Pace {
    /// When the current step began.
    since: Moment,
    /// The requests of the current step.
    this_step: u64,
    /// The requests of the step before.
    last_step: u64,
    /// The instant until which nothing is prefetched.
    slow_until: Moment,
    /// The cost of the latest request.
    cost: Permits,
}

impl Pace {
    pub(in crate::limiter) fn new(now: Moment) -> Pace {
        Pace { since: now, this_step: 0, last_step: 0, slow_until: now, cost: Permits::ONE }
    }

    fn step(guard: Micros) -> Micros {
        Micros(guard.0 / 4)
    }

    /// Counts requests that have arrived, and the cost of the latest, if known.
    pub(in crate::limiter) fn count(
        &mut self,
        count: u64,
        cost: Option<Permits>,
        now: Moment,
        guard: Micros,
    ) {
        let step = Pace::step(guard);
        if now >= self.since + step {
            self.last_step = if now < self.since + step + step { self.this_step } else { 0 };
            (self.since, self.this_step) = (now, 0);
        }
        self.this_step += count;
        self.cost = cost.unwrap_or(self.cost);
    }

    /// Returns when the next step begins.
    pub(in crate::limiter) fn next(&self, guard: Micros) -> Moment {
        self.since + Pace::step(guard)
    }

    /// Stops prefetching for a while: permits came too late to be used.
    pub(in crate::limiter) fn slow(&mut self, now: Moment) {
        self.slow_until = now + SLOW_FOR;
    }

    /// Returns the cost and number of permits to prefetch, where `left` are at hand: enough for two and a half steps, which must be a small
    /// part of the `budget` of the limits. `None` while there are enough for the next step, or if prefetching does not pay.
    pub(in crate::limiter) fn wanted(
        &self,
        left: u64,
        budget: u64,
        now: Moment,
        guard: Micros,
    ) -> Option<(Permits, u64)> {
        // Requests must come in two steps in a row: one burst is not a pace.
        let pace = self.last_step;
        if pace < PACE_MIN
            || self.this_step == 0
            || guard < GUARD_MIN
            || now < self.slow_until
            || left >= pace
        {
            return None;
        }
        if budget / self.cost.get() < pace * BUDGET_STEPS {
            return None;
        }
        Some((self.cost, (pace * 5 / 2).min(PREFETCH_MAX).saturating_sub(left)))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns the number of permits below which the worker is woken: those of one step.
    pub(in crate::limiter) fn low(&self) -> u64 {
        self.last_step
    }
}

/// Returns how many permits a replica may prefetch of a limit that holds `holds` permits and has `left` of them left.
pub(in crate::limiter) fn prefetch_budget(holds: u64, left: u64) -> u64 {
    if left > holds / 2 { (left / PART_OF_LEFT).min(holds / PART_OF_LIMIT) } else { 0 }
}
