//! Permits that are booked before anybody asks for them, where many do: a request takes one from here without a round
//! trip and without waking the worker.
//!
//! A slot is good for one guard, whoever uses it. So what is booked now serves those who come in the next part of a guard,
//! and what nobody took by then is given back. That holds something back from the rest of the fleet for some
//! milliseconds; so it is done only
//! - under a pace at which the stock is used: sparse requests pay for nothing in advance,
//! - while the limits have more than half of their permits left, and of a small part of those: whoever asks elsewhere finds
//!   room all the same,
//! - while nobody waits for the limits in this queue: a newcomer must not pass.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::clock::Micros;
use crate::limiter::model::limit::Permits;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::store::clock::StoreClock;

/// A guard that is shorter has no part in which a round trip would pay.
const GUARD_MIN: Micros = Micros::from_millis(4);

/// Requests in a step of the [`Pace`] from which on it pays.
const PACE_MIN: u64 = 8;

/// The most permits of one limit that a replica holds in stock: that part of what is left, and that part of the limit.
const PART_OF_LEFT: u64 = 4;
const PART_OF_LIMIT: u64 = 8;

/// The most requests that there is stock for.
const STOCK_MAX: u64 = 16_384;

/// For how long there is no stock after one was too late to be used when it came.
const SLOW_FOR: Duration = Duration::from_secs(1);

/// Permits of one slot.
pub(in crate::limiter) struct Batch {
    pub(in crate::limiter) slot: Slot,
    pub(in crate::limiter) cost: Permits,
    pub(in crate::limiter) count: u64,
    /// The generations under which they were booked.
    pub(in crate::limiter) known: Arc<[u64]>,
    clock: StoreClock,
    /// Until then they are handed out: there is still time to send the request.
    until: Instant,
}

impl Batch {
    /// What a store has booked at `at`; `Err` with it if that is too long ago to be of use.
    pub(in crate::limiter) fn new(
        at: Micros,
        (cost, count): (Permits, u64),
        known: Arc<[u64]>,
        clock: StoreClock,
        guard: Micros,
    ) -> Result<Batch, Batch> {
        let now = Instant::now();
        let usable = Micros(guard.0 / 4 * 3);
        let left = usable - (clock.latest(now) - at);
        let slot = Slot { at, due: clock.due(at), source: Source::Store };
        let batch = Batch { slot, cost, count, known, clock, until: now + left.to_duration() };
        if left > Micros::ZERO && slot.due <= now { Ok(batch) } else { Err(batch) }
    }

    /// When it becomes too old.
    pub(in crate::limiter) fn until(&self) -> Instant {
        self.until
    }
}

/// What lies ready. Bounded by what the worker books.
#[derive(Default)]
pub(in crate::limiter) struct Prefetch {
    batches: VecDeque<Batch>,
    /// Handed out since the worker looked last.
    taken: u64,
    /// When less is left, the worker is told, once.
    low: u64,
    is_told: bool,
}

impl Prefetch {
    /// One of that cost, and whether the worker must be told to book more.
    pub(in crate::limiter) fn take(
        &mut self,
        cost: Permits,
        now: Instant,
    ) -> Option<(Slot, StoreClock, bool)> {
        let is_good = |batch: &&mut Batch| batch.cost == cost && batch.count > 0 && now < batch.until;
        let batch = self.batches.iter_mut().find(is_good)?;
        batch.count -= 1;
        let (slot, clock) = (batch.slot, batch.clock);
        self.taken += 1;
        let tell = !self.is_told && self.left() < self.low;
        self.is_told |= tell;
        Some((slot, clock, tell))
    }

    fn left(&self) -> u64 {
        self.batches.iter().map(|batch| batch.count).sum()
    }

    /// Adds what was booked.
    pub(in crate::limiter) fn add(&mut self, batch: Batch, low: u64) {
        self.batches.push_back(batch);
        (self.low, self.is_told) = (low, false);
    }

    /// How many were taken since the last look, and how many are left; what has become too old comes out.
    pub(in crate::limiter) fn look(&mut self, now: Instant) -> PrefetchSnapshot {
        let stale = self.batches.iter().take_while(|batch| batch.until <= now || batch.count == 0).count();
        let stale = self.batches.drain(..stale).filter(|batch| batch.count > 0).collect();
        let until = self.batches.front().map(|batch| batch.until);
        PrefetchSnapshot { taken: std::mem::take(&mut self.taken), left: self.left(), until, stale }
    }

    /// Takes everything out.
    pub(in crate::limiter) fn clear(&mut self) -> VecDeque<Batch> {
        std::mem::take(&mut self.batches)
    }
}

/// What the worker sees of a [`Prefetch`].
#[derive(Default)]
pub(in crate::limiter) struct PrefetchSnapshot {
    pub(in crate::limiter) taken: u64,
    pub(in crate::limiter) left: u64,
    /// When the oldest of it becomes too old.
    pub(in crate::limiter) until: Option<Instant>,
    pub(in crate::limiter) stale: Vec<Batch>,
}

/// How many requests come, in steps of a quarter of a guard.
pub(in crate::limiter) struct Pace {
    since: Instant,
    count: u64,
    before: u64,
    /// No stock until then.
    slow_until: Instant,
    /// What the last request cost.
    cost: Permits,
}

impl Pace {
    pub(in crate::limiter) fn new() -> Pace {
        let now = Instant::now();
        Pace { since: now, count: 0, before: 0, slow_until: now, cost: Permits::ONE }
    }

    fn step(guard: Micros) -> Duration {
        guard.to_duration() / 4
    }

    /// Some requests of a cost have come.
    pub(in crate::limiter) fn count(
        &mut self,
        count: u64,
        cost: Option<Permits>,
        now: Instant,
        guard: Micros,
    ) {
        let step = Pace::step(guard);
        if now >= self.since + step {
            self.before = if now < self.since + 2 * step { self.count } else { 0 };
            (self.since, self.count) = (now, 0);
        }
        self.count += count;
        self.cost = cost.unwrap_or(self.cost);
    }

    /// When the next step begins.
    pub(in crate::limiter) fn next(&self, guard: Micros) -> Instant {
        self.since + Pace::step(guard)
    }

    /// A stock was too late.
    pub(in crate::limiter) fn slow(&mut self) {
        self.slow_until = Instant::now() + SLOW_FOR;
    }

    /// What is to be booked, where so much is left in stock: for the next two steps and a half, within what the limits can
    /// spare. `None` while there is enough for the next one.
    pub(in crate::limiter) fn wanted(
        &self,
        left: u64,
        spare: u64,
        now: Instant,
        guard: Micros,
    ) -> Option<(Permits, u64)> {
        // Two steps in a row: one burst is not a pace.
        let pace = self.before;
        if pace < PACE_MIN || self.count == 0 || guard < GUARD_MIN || now < self.slow_until || left >= pace {
            return None;
        }
        let most = (pace * 5 / 2).min(STOCK_MAX).min(spare / self.cost.get());
        let count = most.saturating_sub(left);
        (count > 0).then_some((self.cost, count))
    }

    /// Below how many in stock the worker is told.
    pub(in crate::limiter) fn low(&self) -> u64 {
        self.before
    }
}

/// What a limit that holds so much, and has so much left, can spare for a replica's stock.
pub(in crate::limiter) fn spare(holds: u64, left: u64) -> u64 {
    if left > holds / 2 { (left / PART_OF_LEFT).min(holds / PART_OF_LIMIT) } else { 0 }
}
