//! Token and leaky bucket: `burst` permits at once, then `rate` per window. A leaky bucket has a burst of one.
//!
//! A bucket is kept as the instant at which it will be full again (GCRA's theoretical arrival time, ITU-T I.371), with the
//! rest in parts of `rate`, so a million permits at 7 a second do not drift. A request fits where that instant lies ahead by
//! no more than the time in which `burst` less its cost flows in. A cost above `burst` goes when the bucket is full.
//!
//! At high rates slots lie on a grid of cells with many permits each. A slot that is late by up to a cell must not cost
//! quota, so the arrival time may lie ahead by one cell more. A booking placed before others is judged together with its
//! cell, which may add a second cell. The window is longer by two cells in return. What may lie ahead goes beyond the burst, so a
//! cell is never wider than half a guard, by which permits may come late anyway. Folded bookings are kept on a wider grid. The twin
//! is `lua/algorithm/bucket.lua`.

use std::fmt::Write;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::{Algorithm, Position};
use crate::limiter::arithmetic::cell::{Entry, cell_from, cell_start, cell_width};
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::limit::Limit;

/// The fewest cells of a window that holds more permits.
const CELLS: u64 = 512;

/// A bucket that holds `burst` permits and is filled at `rate` per window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// The permits in a full bucket; 1 if permits are evenly spaced.
    pub burst: u64,
}

/// The theoretical arrival time: when a bucket will be full again, in whole microseconds and parts of the rule's rate.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tat {
    /// Whole microseconds.
    pub(super) micros: Micros,
    /// The fraction of a microsecond, in parts of the rule's rate.
    pub(super) rest: u64,
}

/// A bucket after all bookings up to an instant.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TatCheckpoint {
    tat: Tat,
    /// The bookings until then are taken from the bucket.
    folded: Micros,
}

/// A factor that rounds a quotient of floating point numbers surely down.
const SURE: f64 = 1.0 - 1.0 / 1_099_511_627_776.0;

impl Bucket {
    /// Returns the rule of a limit whose slots stay good for `guard`.
    pub fn new(limit: &Limit, guard: Micros, burst: u64) -> (Quota, Bucket) {
        let (per, rate) = (Micros::from(limit.per), limit.rate.get());
        let kept_apart = if burst > 1 { rate + burst } else { rate };
        let cell = cell_width(per, kept_apart, CELLS).min(Micros((guard.0 / 2).max(1)));
        (Quota { rate, window: per + guard + cell + cell, cell }, Bucket { burst })
    }

    /// Returns how far the arrival time may lie ahead of an instant at which `permits` still fit.
    fn tolerance(self, quota: Quota, permits: u64) -> (u64, u64) {
        let beyond = quota.span_exact(self.burst.saturating_sub(permits));
        if beyond.0 >= quota.cell.0 { beyond } else { (quota.cell.0, 0) }
    }

    /// Returns the first whole instant at which permits fit.
    fn earliest(self, quota: Quota, tat: Tat, permits: u64) -> Micros {
        let (micros, rest) = self.tolerance(quota, permits);
        tat.micros - Micros(micros) + Micros(u64::from(tat.rest > rest))
    }
}

impl Algorithm for Bucket {
    type Checkpoint = TatCheckpoint;

    fn letter(&self) -> char {
        'B'
    }

    fn write(&self, text: &mut String) {
        // Writing to a string does not fail.
        let _ = write!(text, " {}", self.burst);
    }

    fn capacity(&self, _quota: Quota) -> u64 {
        self.burst
    }

    fn seen_for(&self, quota: Quota) -> Micros {
        quota.window.max(quota.span(self.burst) + Micros::ONE)
    }

    fn window_start(&self, _at: Micros, _length: Micros) -> Option<Micros> {
        None
    }

    fn share(&self, share: Share) -> Bucket {
        Bucket { burst: share.of(self.burst) }
    }

    fn empty_checkpoint(&self) -> TatCheckpoint {
        TatCheckpoint::default()
    }

    fn folded(&self, checkpoint: &TatCheckpoint) -> Micros {
        checkpoint.folded
    }

    fn folded_cell(&self, quota: Quota) -> Micros {
        if quota.cell == Micros::ONE { quota.cell } else { quota.cell.max(Micros(quota.window.0 / CELLS)) }
    }

    fn advance(&self, quota: Quota, checkpoint: &mut TatCheckpoint, position: Position<'_>, before: usize) {
        for entry in &position.entries[before..position.entered] {
            if entry.at > checkpoint.folded {
                checkpoint.tat = checkpoint.tat.take(quota, entry.at, entry.permits);
            }
        }
    }

    fn room(
        &self,
        quota: Quota,
        checkpoint: &TatCheckpoint,
        position: Position<'_>,
        cost: u64,
    ) -> Result<u64, Micros> {
        let from = self.earliest(quota, checkpoint.tat, cost);
        if from > position.at {
            return Err(cell_from(from, quota.cell));
        }
        let mut after = checkpoint.tat.take(quota, position.at, cost);
        let border = Tat::at(position.at).add(quota, self.tolerance(quota, cost));
        let mut room = cost;
        if after <= border {
            room += cost + after.permits_until(quota, border);
        }
        for entry in position.later() {
            let start = cell_start(entry.at, position.cell);
            let border = Tat::at(start).add(quota, self.tolerance(quota, entry.permits));
            if after > border {
                return Err(start + Micros::ONE);
            }
            room = room.min(cost + after.permits_until(quota, border));
            let start = Tat::at(start);
            if after <= start {
                // The bucket is full again before this booking, so later bookings do not depend on the new one.
                room = room.min(cost + after.permits_until(quota, start));
                break;
            }
            after = after.take(quota, entry.at, entry.permits);
        }
        Ok(room)
    }

    fn take(&self, quota: Quota, checkpoint: &mut TatCheckpoint, at: Micros, permits: u64) {
        checkpoint.tat = checkpoint.tat.take(quota, at, permits);
    }

    fn fold(&self, quota: Quota, checkpoint: &mut TatCheckpoint, entries: &[Entry], until: Micros) {
        let first = entries.partition_point(|entry| entry.at <= checkpoint.folded);
        for entry in entries[first..].iter().take_while(|entry| entry.at <= until) {
            checkpoint.tat = checkpoint.tat.take(quota, entry.at, entry.permits);
        }
        checkpoint.folded = checkpoint.folded.max(until);
    }

    fn available(
        &self,
        quota: Quota,
        checkpoint: &TatCheckpoint,
        entries: &[Entry],
        _external: u64,
        now: Micros,
    ) -> u64 {
        let mut checkpoint = *checkpoint;
        self.fold(quota, &mut checkpoint, entries, now);
        let now = Tat::at(now);
        if checkpoint.tat <= now {
            return self.burst;
        }
        let missing = now.parts_until(quota, checkpoint.tat) / to_float(quota.window.0);
        self.burst.saturating_sub(to_whole((missing * SURE).ceil()))
    }

    fn expires(&self, quota: Quota, checkpoint: &TatCheckpoint, entries: &[Entry]) -> Micros {
        let (mut checkpoint, last) = (*checkpoint, entries.last().map(|entry| entry.at));
        if let Some(last) = last {
            self.fold(quota, &mut checkpoint, entries, last);
        }
        let full = checkpoint.tat.micros + Micros(u64::from(checkpoint.tat.rest > 0));
        full.max(last.map_or(Micros::ZERO, |last| last + quota.window))
    }

    fn missing(&self, quota: Quota, checkpoint: &TatCheckpoint) -> Option<(u64, Micros)> {
        let from = Tat::at(checkpoint.folded);
        let whole = from.permits_until(quota, checkpoint.tat);
        Some((whole + u64::from(checkpoint.tat > from), checkpoint.folded))
    }

    fn lacking(&self, quota: Quota, at: Micros, permits: u64) -> TatCheckpoint {
        TatCheckpoint { tat: Tat::at(at).add(quota, quota.span_exact(permits)), folded: at }
    }

    fn is_emptier(&self, one: &TatCheckpoint, other: &TatCheckpoint) -> bool {
        one.tat >= other.tat
    }
}

impl Tat {
    /// Returns a whole instant.
    pub(super) fn at(micros: Micros) -> Tat {
        Tat { micros, rest: 0 }
    }

    /// Returns the arrival time after permits were taken at an instant.
    fn take(self, quota: Quota, at: Micros, permits: u64) -> Tat {
        self.max(Tat::at(at)).add(quota, quota.span_exact(permits))
    }

    pub(super) fn add(self, quota: Quota, (micros, rest): (u64, u64)) -> Tat {
        let rest = self.rest + rest;
        let carry = u64::from(rest >= quota.rate);
        Tat { micros: self.micros + Micros(micros + carry), rest: rest - carry * quota.rate }
    }

    /// Returns the permits that flow in until a later instant, rounded down; for a whole number it may be one less.
    pub(super) fn permits_until(self, quota: Quota, later: Tat) -> u64 {
        if later <= self {
            return 0;
        }
        to_whole((self.parts_until(quota, later) / to_float(quota.window.0) * SURE).floor())
    }

    /// Returns the distance to a later instant in parts of a microsecond, as the twin computes it.
    fn parts_until(self, quota: Quota, later: Tat) -> f64 {
        to_float((later.micros - self.micros).0) * to_float(quota.rate) + to_float(later.rest)
            - to_float(self.rest)
    }
}

/// Integers of limiters are below 2^53, or compared with nothing but themselves.
#[allow(clippy::cast_precision_loss)]
pub(super) fn to_float(number: u64) -> f64 {
    number as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn to_whole(number: f64) -> u64 {
    number as u64
}
