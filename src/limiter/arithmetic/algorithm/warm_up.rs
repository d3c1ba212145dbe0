//! Warm-up: a leaky bucket that is slow when it is cold (Guava's `SmoothWarmingUp`).
//!
//! Idle time stores permits, up to a maximum after the warm-up W. As with Guava a permit goes at once if the next one is free,
//! and pays for the one behind it. A fresh permit costs the spacing s = `window / rate`. A stored one costs the spacing as
//! well, up to the threshold W / 2s; from there the price rises evenly, to `cold` times the spacing at the maximum
//! W / 2s + 2W / (s + `cold` s). A rule of which nothing is known is cold.
//!
//! The stored permits are kept as the time that they take at the spacing, in units of 1 / 2(1 + `cold`) microseconds, of which idle
//! time adds whole ones. What they cost beyond the spacing is a function of that number, and a booking pays the difference
//! of two of its values. So the price of some permits is the same taken together or one by one.
//!
//! A price is never below the spacing, so this is a leaky bucket for everything else: see `bucket` about cells and the window.
//! The twin is `lua/algorithm/warm_up.lua`.

use std::fmt::Write;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::{Bucket, Tat, to_float, to_whole};
use crate::limiter::arithmetic::algorithm::{Algorithm, Position};
use crate::limiter::arithmetic::cell::{Entry, cell_from, cell_start};
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::model::limit::Limit;

/// A leaky bucket whose permits cost more after an idle time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WarmUp {
    /// The idle time after which it is cold.
    pub warm_up: Micros,
    /// The price of a permit when it is cold, in spacings.
    pub cold: u64,
}

/// The next free instant and the permits stored there.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Level {
    next: Tat,
    /// The stored permits in units of 1 / 2(1 + `cold`) microseconds of spacing.
    stored: u64,
    /// The rest, in parts of the rule's rate.
    stored_rest: u64,
}

/// The level after all bookings up to an instant.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct WarmUpCheckpoint {
    level: Level,
    /// The bookings until then are taken in.
    folded: Micros,
}

impl WarmUp {
    /// Returns the rule of a limit whose slots stay good for `guard`.
    pub fn new(limit: &Limit, guard: Micros, warm_up: Micros, cold: u64) -> (Quota, WarmUp) {
        (Bucket::new(limit, guard, 1).0, WarmUp { warm_up, cold })
    }

    /// Returns the stored permits of a cold rule.
    fn stored_max(self) -> u64 {
        self.warm_up.0 * (5 + self.cold)
    }

    /// Returns how long stored permits take beyond the spacing, until none is left.
    fn surcharge(self, stored: u64) -> u64 {
        let threshold = self.warm_up.0 * (1 + self.cold);
        let above = to_float(stored.saturating_sub(threshold));
        let slope = to_float(self.cold - 1);
        to_whole((above / to_float(self.warm_up.0) * above * slope / to_float(16 * (1 + self.cold))).floor())
    }

    /// Returns the level at an instant: idle time stores permits.
    fn level_at(self, level: Level, at: Micros) -> Level {
        if level.next.micros >= at {
            return level;
        }
        let idle = (at - level.next.micros).min(self.warm_up);
        let (stored, stored_max) = (level.stored + idle.0 * (5 + self.cold), self.stored_max());
        let stored_rest = if stored < stored_max { level.stored_rest } else { 0 };
        Level { next: Tat::at(at), stored: stored.min(stored_max), stored_rest }
    }

    /// Returns the level after permits were taken at an instant.
    fn after(self, quota: Quota, level: Level, at: Micros, permits: u64) -> Level {
        let before = self.level_at(level, at);
        let (span, rest) = quota.span_exact(permits);
        let (stored, stored_rest) = self.spend(quota, before, span, rest);
        let price = span + self.surcharge(before.stored) - self.surcharge(stored);
        Level { next: before.next.add(quota, (price, rest)), stored, stored_rest }
    }

    /// Returns what is stored after so much time at the spacing was taken from it.
    fn spend(self, quota: Quota, level: Level, span: u64, rest: u64) -> (u64, u64) {
        if span >= 2 * self.warm_up.0 {
            return (0, 0);
        }
        let parts = 2 * (1 + self.cold);
        let rest = rest * parts;
        let borrow = u64::from(level.stored_rest < rest % quota.rate);
        let spent = span * parts + rest / quota.rate + borrow;
        if level.stored < spent {
            return (0, 0);
        }
        (level.stored - spent, level.stored_rest + borrow * quota.rate - rest % quota.rate)
    }

    /// Returns the most permits that can be taken at an instant with the next one free at `border`.
    fn permits_until(self, quota: Quota, level: Level, at: Micros, border: Tat) -> u64 {
        let fits = |permits| self.after(quota, level, at, permits).next <= border;
        let mut too_many = level.next.permits_until(quota, border);
        if fits(too_many) {
            return too_many;
        }
        let mut most = 0;
        while too_many - most > 1 {
            let middle = u64::midpoint(most, too_many);
            if fits(middle) {
                most = middle;
            } else {
                too_many = middle;
            }
        }
        most
    }

    /// Checks that no later booking is put off by one before them, which leaves the level.
    ///
    /// A booking that the rule is free for again before the next one puts off none: it takes of what is stored, so that each later one finds
    /// the rule warmer than without it. Whether later ones are as far apart as their level wants by itself is no reason. Where permits
    /// were given back they may be nearer, and nothing would have room before them: the rule would stand still until they are used.
    fn keeps_later(self, quota: Quota, mut level: Level, position: Position<'_>) -> Result<(), Micros> {
        for entry in position.later() {
            let start = cell_start(entry.at, position.cell);
            if level.next <= Tat::at(start) {
                break;
            }
            if level.next > Tat::at(start + quota.cell) {
                return Err(start + Micros::ONE);
            }
            level = self.after(quota, level, entry.at, entry.permits);
        }
        Ok(())
    }

    fn fold_entries(self, quota: Quota, checkpoint: &mut WarmUpCheckpoint, entries: &[Entry]) {
        for entry in entries.iter().filter(|entry| entry.at > checkpoint.folded) {
            checkpoint.level = self.after(quota, checkpoint.level, entry.at, entry.permits);
        }
    }
}

impl Algorithm for WarmUp {
    type Checkpoint = WarmUpCheckpoint;

    fn letter(&self) -> char {
        'W'
    }

    fn write(&self, text: &mut String) {
        // Writing to a string does not fail.
        let _ = write!(text, " {} {}", self.warm_up.0, self.cold);
    }

    fn capacity(&self, _quota: Quota) -> u64 {
        1
    }

    fn window_start(&self, _at: Micros, _length: Micros) -> Option<Micros> {
        None
    }

    fn empty_checkpoint(&self) -> WarmUpCheckpoint {
        WarmUpCheckpoint::default()
    }

    fn folded(&self, checkpoint: &WarmUpCheckpoint) -> Micros {
        checkpoint.folded
    }

    fn folded_cell(&self, quota: Quota) -> Micros {
        Bucket { burst: 1 }.folded_cell(quota)
    }

    fn advance(
        &self,
        quota: Quota,
        checkpoint: &mut WarmUpCheckpoint,
        position: Position<'_>,
        before: usize,
    ) {
        self.fold_entries(quota, checkpoint, &position.entries[before..position.entered]);
    }

    fn room(
        &self,
        quota: Quota,
        checkpoint: &WarmUpCheckpoint,
        position: Position<'_>,
        cost: u64,
    ) -> Result<u64, Micros> {
        let (next, at) = (checkpoint.level.next, position.at);
        let from = next.micros - quota.cell + Micros(u64::from(next.rest > 0));
        if from > at {
            return Err(cell_from(from, quota.cell));
        }
        let after = self.after(quota, checkpoint.level, at, cost);
        if !position.later().is_empty() {
            // Later bookings were judged with more stored than one more booking leaves them: each is tried by itself.
            return self.keeps_later(quota, after, position).map(|()| cost);
        }
        let border = Tat::at(at + quota.cell);
        if after.next > border {
            return Ok(cost);
        }
        Ok(cost + cost + self.permits_until(quota, after, at, border))
    }

    fn take(&self, quota: Quota, checkpoint: &mut WarmUpCheckpoint, at: Micros, permits: u64) {
        checkpoint.level = self.after(quota, checkpoint.level, at, permits);
    }

    fn fold(&self, quota: Quota, checkpoint: &mut WarmUpCheckpoint, entries: &[Entry], until: Micros) {
        let last = entries.partition_point(|entry| entry.at <= until);
        self.fold_entries(quota, checkpoint, &entries[..last]);
        checkpoint.folded = checkpoint.folded.max(until);
    }

    fn available(
        &self,
        quota: Quota,
        checkpoint: &WarmUpCheckpoint,
        entries: &[Entry],
        _external: u64,
        now: Micros,
    ) -> u64 {
        let mut checkpoint = *checkpoint;
        self.fold(quota, &mut checkpoint, entries, now);
        u64::from(checkpoint.level.next <= Tat::at(now))
    }

    fn expires(&self, quota: Quota, checkpoint: &WarmUpCheckpoint, entries: &[Entry]) -> Micros {
        let (mut checkpoint, last) = (*checkpoint, entries.last().map(|entry| entry.at));
        self.fold_entries(quota, &mut checkpoint, entries);
        let Level { next, stored, .. } = checkpoint.level;
        if next == Tat::default() {
            return Micros::ZERO;
        }
        let cold = next.micros + Micros::ONE + Micros((self.stored_max() - stored).div_ceil(5 + self.cold));
        cold.max(last.map_or(Micros::ZERO, |last| last + quota.window))
    }

    fn missing(&self, quota: Quota, checkpoint: &WarmUpCheckpoint) -> Option<(u64, Micros)> {
        let (from, next) = (Tat::at(checkpoint.folded), checkpoint.level.next);
        Some((from.permits_until(quota, next) + u64::from(next > from), checkpoint.folded))
    }

    fn lacking(&self, quota: Quota, at: Micros, permits: u64) -> WarmUpCheckpoint {
        let next = Tat::at(at).add(quota, quota.span_exact(permits));
        WarmUpCheckpoint { level: Level { next, stored: self.stored_max(), stored_rest: 0 }, folded: at }
    }

    fn is_emptier(&self, one: &WarmUpCheckpoint, other: &WarmUpCheckpoint) -> bool {
        one.level.next >= other.level.next
    }
}
