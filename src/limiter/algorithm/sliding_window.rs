//! The sliding window: every interval of a rule's window holds at most its rate.
//!
//! Bookings may lie in the future, and a new one may fall between others, so the windows that reach back
//! from it *and* those that end at later bookings must have room. `lua/calendar.lua` is the twin.
//!
//! An entry stands for permits booked somewhere between the start of its cell and its `at`. It enters a
//! window as early and leaves it as late as that allows, so rounding never lets a window go over.

use crate::clock::Micros;
use crate::limiter::calendar::{Calendar, Rule, cell_start};

/// A search that only moves forward in time, over all rules at once.
///
/// Bookings of a batch are mostly in order, so each entry is passed once for the whole batch.
pub struct Search<'a> {
    calendar: &'a mut Calendar,
    rules: &'a [Rule],
    /// The finest cell of all rules: how the calendar is kept.
    cell: Micros,
    /// Where the search stands.
    at: Micros,
    /// Entries whose cell starts at `at` or before.
    entered: usize,
    /// For each rule: entries that have left the window that ends at `at`, and what it holds.
    windows: Vec<Window>,
}

#[derive(Clone, Copy, Default)]
struct Window {
    left: usize,
    held: u64,
}

/// What a search found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The earliest instant with room.
    pub at: Micros,
    /// How many permits have room there; at least the number that was asked for.
    pub room: u64,
    /// The rule that moved the search to this instant, if any did.
    pub limited_by: Option<usize>,
}

impl<'a> Search<'a> {
    /// A search that begins at `from`.
    pub fn new(calendar: &'a mut Calendar, rules: &'a [Rule], from: Micros) -> Search<'a> {
        let cell = finest_cell(rules);
        let windows = vec![Window::default(); rules.len()];
        let mut search = Search { calendar, rules, cell, at: Micros::ZERO, entered: 0, windows };
        search.advance(from);
        search
    }

    /// Where the search stands.
    pub fn at(&self) -> Micros {
        self.at
    }

    /// Moves forward to `at`; an earlier instant changes nothing.
    pub fn advance(&mut self, at: Micros) {
        self.at = self.at.max(at);
        let entries = self.calendar.entries();
        while let Some(entry) = entries.get(self.entered)
            && cell_start(entry.at, self.cell) <= self.at
        {
            self.windows.iter_mut().for_each(|window| window.held += entry.permits);
            self.entered += 1;
        }
        for (window, rule) in self.windows.iter_mut().zip(self.rules) {
            while window.left < self.entered && entries[window.left].at + rule.window <= self.at {
                window.held -= entries[window.left].permits;
                window.left += 1;
            }
        }
    }

    /// The earliest instant, from where the search stands, with room for `cost` permits under every rule.
    ///
    /// A rule whose rate is below `cost` (another replica's, during a reload) lets it pass through an
    /// empty window.
    pub fn earliest(&mut self, cost: u64) -> Found {
        let mut limited_by = None;
        'moved: loop {
            let mut room = u64::MAX;
            for index in 0..self.rules.len() {
                match self.room(index, cost) {
                    Ok(found) => room = room.min(found),
                    Err(next) => {
                        limited_by = Some(index);
                        self.advance(next);
                        continue 'moved;
                    }
                }
            }
            return Found { at: self.at, room: room.max(cost), limited_by };
        }
    }

    /// Room under one rule where the search stands, or the next instant worth trying.
    fn room(&self, index: usize, cost: u64) -> Result<u64, Micros> {
        let entries = self.calendar.entries();
        let Rule { rate, window, .. } = self.rules[index];
        let Window { mut left, mut held } = self.windows[index];
        let spare = rate.saturating_sub(cost);
        if held > spare {
            let mut next = self.at;
            while held > spare {
                held -= entries[left].permits;
                next = entries[left].at + window;
                left += 1;
            }
            return Err(next);
        }
        let mut fullest = held;
        for (offset, entry) in entries[self.entered..].iter().enumerate() {
            let end = cell_start(entry.at, self.cell);
            if end >= self.at + window {
                break;
            }
            held += entry.permits;
            while left <= self.entered + offset && entries[left].at + window <= end {
                held -= entries[left].permits;
                left += 1;
            }
            if held > spare {
                return Err(end + Micros::ONE);
            }
            fullest = fullest.max(held);
        }
        Ok(rate.saturating_sub(fullest))
    }

    /// Books `permits` where the search stands.
    pub fn charge(&mut self, permits: u64) {
        if self.calendar.charge(self.entered, self.at, permits, self.cell) {
            self.entered += 1;
        }
        self.windows.iter_mut().for_each(|window| window.held += permits);
    }
}

/// The width of the cells in which a calendar under these rules is kept.
pub fn finest_cell(rules: &[Rule]) -> Micros {
    rules.iter().map(|rule| rule.cell).min().unwrap_or(Micros::ONE)
}
