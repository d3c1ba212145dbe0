//! The fixed window: each window of a calendar holds at most the rule's rate.
//!
//! A permit may be sent up to a guard after its slot, so the last guard of a window stays empty: a permit booked there might
//! be sent in the next window. No permit is lost by that, since those of a window may go at any time in it. The twin is
//! `lua/algorithm/fixed_window.lua`.

use std::fmt::Write;
use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::{Algorithm, Position};
use crate::limiter::arithmetic::cell::cell_width;
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::calendar_windows::{CalendarWindows, Stretch, window_of};
use crate::limiter::model::limit::{Limit, PRECISION_DEFAULT};

/// The distance between two refused callers, for each permit: the permits of a window come back at one instant.
const SPACING: Micros = Micros::from_millis(10);

/// How far the wall clocks of a replica and of the store may lie apart.
pub const CLOCKS_APART: Micros = Micros::from_millis(25);

/// The fixed window: at most `rate` permits in each window of a calendar.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FixedWindow {
    /// The length of the part at the end of each window that stays empty.
    pub guard: Micros,
    /// The windows, as stretches of equal length.
    pub stretches: Arc<[Stretch]>,
}

/// The window that holds the present instant of a search.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The end of the window.
    end: Micros,
    /// The permits booked in the window, also after the present instant of the search.
    held: u64,
}

impl FixedWindow {
    /// Returns the rule of a limit whose slots stay good for `guard`, and the instant until which it holds; `None`: for
    /// ever.
    pub fn new(
        limit: &Limit,
        guard: Micros,
        windows: &CalendarWindows,
        now: Micros,
    ) -> (Quota, FixedWindow, Option<Micros>) {
        let (per, rate) = (Micros::from(limit.per), limit.rate.get());
        let cell = cell_width(per, rate, u64::from(PRECISION_DEFAULT));
        let schedule = windows.schedule(now);
        let fixed_window = FixedWindow { guard, stretches: schedule.stretches };
        (Quota { rate, window: per + guard, cell }, fixed_window, schedule.valid_until)
    }
}

/// Returns the start of a stretch by a clock that lies so many microseconds behind. Where that is before all time, it is the start of
/// its first window that is not.
fn shifted(stretch: &Stretch, ahead: i64) -> Micros {
    let start = i128::from(stretch.start.0) - i128::from(ahead);
    let start = if start < 0 { start.rem_euclid(i128::from(stretch.length.0.max(1))) } else { start };
    Micros(u64::try_from(start).unwrap_or(u64::MAX))
}

impl Algorithm for FixedWindow {
    type Checkpoint = Frame;

    /// Leaves both ends of a window empty: the replica knows the store's clock only so well.
    fn share(&self, share: Share) -> FixedWindow {
        let shortest = self.stretches.iter().map(|stretch| stretch.length.0).min().unwrap_or_default();
        let apart = CLOCKS_APART.min(Micros(shortest / 8));
        let later =
            |stretch: &Stretch| Stretch { start: shifted(stretch, share.clock_ahead) + apart, ..*stretch };
        FixedWindow {
            guard: self.guard + apart + apart,
            stretches: self.stretches.iter().map(later).collect(),
        }
    }

    fn letter(&self) -> char {
        'F'
    }

    fn write(&self, text: &mut String) {
        // Writing to a string does not fail.
        let _ = write!(text, " {}", self.guard.0);
        for stretch in self.stretches.iter() {
            let _ = write!(text, " {} {}", stretch.start.0, stretch.length.0);
        }
    }

    fn spacing(&self, quota: Quota, permits: u64) -> Micros {
        quota.span(permits).min(Micros(SPACING.0.saturating_mul(permits))).min(Micros::SPAN_MAX)
    }

    fn separates(&self, first: Micros, later: Micros) -> bool {
        first != later && window_of(&self.stretches, first) != window_of(&self.stretches, later)
    }

    fn window_start(&self, at: Micros, _length: Micros) -> Option<Micros> {
        Some(window_of(&self.stretches, at).0)
    }

    fn empty_checkpoint(&self) -> Frame {
        Frame::default()
    }

    fn advance(&self, _quota: Quota, checkpoint: &mut Frame, position: Position<'_>, _before: usize) {
        if position.at >= checkpoint.end {
            let (start, end) = window_of(&self.stretches, position.at);
            let first = position.entries.partition_point(|entry| entry.at < start);
            let inside = position.entries[first..].iter().take_while(|entry| entry.at < end);
            *checkpoint = Frame { end, held: inside.map(|entry| entry.permits).sum() };
        }
    }

    fn room(
        &self,
        quota: Quota,
        checkpoint: &Frame,
        position: Position<'_>,
        cost: u64,
    ) -> Result<u64, Micros> {
        if position.at + self.guard >= checkpoint.end || checkpoint.held > quota.rate.saturating_sub(cost) {
            return Err(checkpoint.end);
        }
        Ok(quota.rate.saturating_sub(checkpoint.held))
    }

    fn take(&self, _quota: Quota, checkpoint: &mut Frame, _at: Micros, permits: u64) {
        checkpoint.held += permits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_share_lie_within_the_stores_however_its_clock_lies() {
        let length = Micros::from_millis(1000);
        let windows = FixedWindow {
            guard: Micros::from_millis(10),
            stretches: [Stretch { start: Micros::ZERO, length }].into(),
        };
        let stored_at = Micros::from_millis(1_800_000_000_000);
        for ahead in [0, 8_850, -8_850, 1_869_088, -1_869_088] {
            let share = windows.share(Share { parts: 2, place: None, clock_ahead: ahead });
            let local_start = Micros(stored_at.0.saturating_add_signed(-ahead)) + CLOCKS_APART;
            let (start, end) = window_of(&share.stretches, local_start);
            assert_eq!((start, end), (local_start, local_start + length), "{ahead}");
            assert_eq!(share.guard, windows.guard + CLOCKS_APART + CLOCKS_APART);
        }
    }
}
