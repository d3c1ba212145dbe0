//! Token and leaky bucket: `burst` at once, then `rate` per window. A leaky bucket is one of burst 1.
//!
//! Kept as the instant at which the bucket will be full again (GCRA's theoretical arrival time, ITU-T I.371), with the
//! rest in parts of `rate`, so a million permits at 7 a second do not drift. A request may go where that instant lies
//! no further ahead than the bucket holds beyond its cost. A cost above `burst` goes when the bucket is full.
//!
//! Under high rates slots are put on a grid of cells, many permits each. That a slot is late by up to a cell must not
//! cost quota, so a bucket may be ahead of itself by one. Where a booking goes in before others they are judged as one a cell,
//! and may come to be ahead by a second one. The window is longer by two in return (`Rule::new`).

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::{Rule, cell_from, cell_start};
use crate::limiter::arithmetic::timeline::Entry;

/// The instant at which a bucket will be full again: whole microseconds and a rest in parts of the rule's rate.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tat {
    /// Whole microseconds.
    pub micros: Micros,
    /// The rest.
    pub rest: u64,
}

/// Bookings are seen one by one for this part of a window after their instant, and then only as the level that they left. A permit
/// that is given back later than that is not refunded.
pub(in crate::limiter) const REFUND_PART: u64 = 8;

/// What a bucket remembers of bookings that it no longer sees one by one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TatCheckpoint {
    /// The level after them.
    pub level: Tat,
    /// The last of them may lie here.
    pub folded: Micros,
}

impl TatCheckpoint {
    /// Takes in the bookings up to an instant.
    pub(in crate::limiter) fn fold(&mut self, rule: &Rule, entries: &[Entry], until: Micros) {
        let first = entries.partition_point(|entry| entry.at <= self.folded);
        for entry in entries[first..].iter().take_while(|entry| entry.at <= until) {
            self.level = self.level.take(rule, entry.at, entry.permits);
        }
        self.folded = self.folded.max(until);
    }

    /// What the bucket of another rule remembers that misses as many permits.
    pub(in crate::limiter) fn converted(&self, old: &Rule, new: &Rule) -> TatCheckpoint {
        let from = Tat::at(self.folded);
        let missing = from.permits_until(old, self.level) + u64::from(self.level > from);
        TatCheckpoint { level: from.add(new, new.span_exact(missing)), folded: self.folded }
    }
}

/// How much of a quotient of floating point numbers is sure.
const SURE: f64 = 1.0 - 1.0 / 1_099_511_627_776.0;

impl Tat {
    /// The level at a whole instant.
    pub fn at(micros: Micros) -> Tat {
        Tat { micros, rest: 0 }
    }

    /// Takes permits out at an instant.
    pub fn take(self, rule: &Rule, at: Micros, permits: u64) -> Tat {
        self.max(Tat::at(at)).add(rule, rule.span_exact(permits))
    }

    fn add(self, rule: &Rule, (micros, rest): (u64, u64)) -> Tat {
        let rest = self.rest + rest;
        let carry = u64::from(rest >= rule.rate);
        Tat { micros: self.micros + Micros(micros + carry), rest: rest - carry * rule.rate }
    }

    /// Permits that flow in between this level and a later one, rounded down; where the number is whole it may be one less.
    fn permits_until(self, rule: &Rule, later: Tat) -> u64 {
        if later <= self {
            return 0;
        }
        to_permits((self.parts_until(rule, later) / to_float(rule.window.0) * SURE).floor())
    }

    /// The distance to a later level in parts of a microsecond, as the twin computes it.
    fn parts_until(self, rule: &Rule, later: Tat) -> f64 {
        to_float((later.micros - self.micros).0) * to_float(rule.rate) + to_float(later.rest)
            - to_float(self.rest)
    }
}

/// Integers of limiters are below 2^53, or compared with nothing but themselves.
#[allow(clippy::cast_precision_loss)]
fn to_float(number: u64) -> f64 {
    number as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn to_permits(number: f64) -> u64 {
    number as u64
}

/// How far ahead of an instant the level may lie for permits to go there.
fn tolerance(rule: &Rule, burst: u64, permits: u64) -> (u64, u64) {
    let beyond = rule.span_exact(burst.saturating_sub(permits));
    if beyond.0 >= rule.cell.0 { beyond } else { (rule.cell.0, 0) }
}

/// The first whole instant at which permits may go.
fn earliest(rule: &Rule, burst: u64, level: Tat, permits: u64) -> Micros {
    let (micros, rest) = tolerance(rule, burst, permits);
    level.micros - Micros(micros) + Micros(u64::from(level.rest > rest))
}

/// Room at an instant for `cost`, or the next instant worth trying. `later` are the bookings behind the instant, kept in
/// cells of width `cell`.
pub(super) fn room(
    rule: &Rule,
    burst: u64,
    level: Tat,
    at: Micros,
    later: &[Entry],
    cell: Micros,
    cost: u64,
) -> Result<u64, Micros> {
    let from = earliest(rule, burst, level, cost);
    if from > at {
        return Err(cell_from(from, rule.cell));
    }
    let mut after = level.take(rule, at, cost);
    let border = Tat::at(at).add(rule, tolerance(rule, burst, cost));
    let mut room = cost;
    if after <= border {
        room += cost + after.permits_until(rule, border);
    }
    for entry in later {
        let start = cell_start(entry.at, cell);
        let border = Tat::at(start).add(rule, tolerance(rule, burst, entry.permits));
        if after > border {
            return Err(start + Micros::ONE);
        }
        room = room.min(cost + after.permits_until(rule, border));
        let start = Tat::at(start);
        if after <= start {
            // The bucket is full again before: what follows notices nothing.
            room = room.min(cost + after.permits_until(rule, start));
            break;
        }
        after = after.take(rule, entry.at, entry.permits);
    }
    Ok(room)
}

/// Whole permits that a bucket holds at an instant.
pub fn available(rule: &Rule, burst: u64, level: Tat, now: Micros) -> u64 {
    let now = Tat::at(now);
    if level <= now {
        return burst;
    }
    let missing = now.parts_until(rule, level) / to_float(rule.window.0);
    burst.saturating_sub(to_permits((missing * SURE).ceil()))
}
