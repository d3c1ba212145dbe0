//! The fixed window: each window of a calendar holds at most the rule's rate.
//!
//! A permit may be sent up to a guard after its slot, so nothing is booked in the last guard of a window: it
//! might be sent in the next one. Counts are lost by that to nobody, for a window's permits do not depend on when in it they go.

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::window_of;
use crate::limiter::arithmetic::timeline::Entry;
use crate::limiter::model::calendar_windows::Stretch;

/// The window in which a search stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// Where it ends.
    end: Micros,
    /// What is booked in it, also behind the search.
    pub(super) held: u64,
}

impl Frame {
    /// Moves to the window that holds `at`.
    pub(super) fn advance(&mut self, stretches: &[Stretch], entries: &[Entry], at: Micros) {
        if at >= self.end {
            let (start, end) = window_of(stretches, at);
            let first = entries.partition_point(|entry| entry.at < start);
            let inside = entries[first..].iter().take_while(|entry| entry.at < end);
            *self = Frame { end, held: inside.map(|entry| entry.permits).sum() };
        }
    }

    /// Room at `at` under so many permits in a window, or the next instant worth trying.
    pub(super) fn room(&self, rate: u64, guard: Micros, at: Micros, cost: u64) -> Result<u64, Micros> {
        if at + guard >= self.end || self.held > rate.saturating_sub(cost) {
            return Err(self.end);
        }
        Ok(rate.saturating_sub(self.held))
    }
}
