//! The sliding window: every interval of a rule's window holds at most its rate.
//!
//! Bookings may lie in the future, and a new one may fall between others, so the windows that reach back
//! from it *and* those that end at later bookings must have room.
//!
//! An entry stands for permits booked somewhere between the start of its cell and its `at`. It enters a
//! window as early and leaves it as late as that allows, so rounding never lets a window go over.

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::{Rule, cell_start};
use crate::limiter::arithmetic::timeline::Entry;

/// The window that ends where a search stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Window {
    /// How many entries have left it.
    pub(super) left: usize,
    /// The permits that it holds.
    pub(super) held: u64,
}

impl Window {
    /// Lets go what has left the window when it ends at `at`; `entries` are those that have entered it.
    pub(super) fn advance(&mut self, rule: &Rule, entries: &[Entry], at: Micros) {
        while let Some(entry) = entries.get(self.left)
            && entry.at + rule.window <= at
        {
            self.held -= entry.permits;
            self.left += 1;
        }
    }

    /// Room at `at` under so many permits in a window, or the next instant worth trying. The first `entered` entries lie there or before.
    pub(super) fn room(
        &self,
        (window, rate): (Micros, u64),
        entries: &[Entry],
        entered: usize,
        at: Micros,
        cell: Micros,
        cost: u64,
    ) -> Result<u64, Micros> {
        let Window { mut left, mut held } = *self;
        let spare = rate.saturating_sub(cost);
        if held > spare {
            let mut next = at;
            while held > spare {
                held -= entries[left].permits;
                next = entries[left].at + window;
                left += 1;
            }
            return Err(next);
        }
        let mut fullest = held;
        for (offset, entry) in entries[entered..].iter().enumerate() {
            let end = cell_start(entry.at, cell);
            if end >= at + window {
                break;
            }
            held += entry.permits;
            while left <= entered + offset && entries[left].at + window <= end {
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
}
