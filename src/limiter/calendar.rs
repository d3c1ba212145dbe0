//! What has been booked under one limiter: instants, and how many permits each holds.
//!
//! Instants that fall into the same cell of the grid are one entry, kept at the latest of them, so the
//! calendar's size depends on how many instants matter and never on how many permits were granted. It
//! knows no limits: [`super::algorithm`] reads it, [`super::book`] writes it. `lua/calendar.lua` is its twin.

use crate::clock::Micros;
use crate::limiter::limit::{Algorithm, Limit, PRECISION_DEFAULT};

/// A limit in the form in which a calendar is searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Permits in a window.
    pub rate: u64,
    /// The window, widened by the guard.
    pub window: Micros,
    /// The width of the instants that this rule needs kept apart.
    pub cell: Micros,
}

impl Rule {
    /// The rule of a limit whose slots stay good for `guard`.
    pub fn new(limit: &Limit, guard: Micros) -> Rule {
        Rule { rate: limit.rate.get(), window: Micros::from(limit.per) + guard, cell: cell(limit) }
    }
}

fn cell(limit: &Limit) -> Micros {
    let precision = match limit.algorithm {
        Algorithm::SlidingWindow { precision } => u64::from(precision.get()),
        _ => u64::from(PRECISION_DEFAULT),
    };
    if limit.rate.get() <= precision {
        return Micros::ONE;
    }
    Micros((Micros::from(limit.per).0 / precision).max(1))
}

/// Permits booked in one cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The latest instant booked in the cell: what was booked earlier in it counts as booked here, so it
    /// leaves a window later than it might, never earlier.
    pub at: Micros,
    /// How many.
    pub permits: u64,
}

/// The first instant of the cell that holds `at`.
pub fn cell_start(at: Micros, cell: Micros) -> Micros {
    Micros(at.0 - at.0 % cell.0.max(1))
}

/// Bookings in ascending order, at most one entry a cell.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Calendar {
    entries: Vec<Entry>,
}

impl Calendar {
    /// The bookings, ascending.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The last booked instant.
    pub fn last(&self) -> Option<Micros> {
        self.entries.last().map(|entry| entry.at)
    }

    /// Drops what no rule can see any more, and merges what only rules with wide cells can still see.
    ///
    /// Two entries become one, at the later instant, only when both have left every window that needed
    /// them apart; so a limit over a second stays exact beside a limit over a day, and the day costs
    /// no more than its own precision.
    pub fn prune(&mut self, now: Micros, rules: &[Rule]) {
        let longest = rules.iter().map(|rule| rule.window).max().unwrap_or_default();
        let gone = self.entries.partition_point(|entry| entry.at + longest <= now);
        self.entries.drain(..gone);
        if rules.len() < 2 {
            return;
        }
        let mut kept = 0;
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            let cell = rules
                .iter()
                .filter(|rule| entry.at + rule.window > now)
                .map(|rule| rule.cell)
                .min()
                .unwrap_or(Micros::ONE);
            if kept > 0 && cell_start(self.entries[kept - 1].at, cell) == cell_start(entry.at, cell) {
                self.entries[kept - 1].at = entry.at;
                self.entries[kept - 1].permits += entry.permits;
            } else {
                self.entries[kept] = entry;
                kept += 1;
            }
        }
        self.entries.truncate(kept);
    }

    /// Books `permits` at `at`, where `after` is the number of entries whose cell starts at `at` or
    /// before. Returns whether a new entry was made (at index `after`).
    pub fn charge(&mut self, after: usize, at: Micros, permits: u64, cell: Micros) -> bool {
        if let Some(entry) = after.checked_sub(1).and_then(|index| self.entries.get_mut(index))
            && cell_start(entry.at, cell) == cell_start(at, cell)
        {
            entry.at = entry.at.max(at);
            entry.permits += permits;
            return false;
        }
        self.entries.insert(after, Entry { at, permits });
        true
    }

    /// Takes back up to `permits` that were booked at `at`; returns how many were found.
    pub fn uncharge(&mut self, at: Micros, permits: u64, cell: Micros) -> u64 {
        let index = self.entries.partition_point(|entry| entry.at < at);
        let Some(entry) = self.entries.get_mut(index).filter(|entry| cell_start(entry.at, cell) <= at) else {
            return 0;
        };
        let taken = entry.permits.min(permits);
        entry.permits -= taken;
        if entry.permits == 0 {
            self.entries.remove(index);
        }
        taken
    }

    /// Removes and returns the bookings from `at` on.
    pub fn split_off(&mut self, at: Micros) -> Vec<Entry> {
        let index = self.entries.partition_point(|entry| entry.at < at);
        self.entries.split_off(index)
    }
}
