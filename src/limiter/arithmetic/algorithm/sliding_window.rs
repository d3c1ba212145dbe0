//! The sliding window: every interval of a rule's window holds at most its rate.
//!
//! Bookings may lie in the future, and a new one may fall between others. So the windows that reach back from it need
//! room, and those that end at later bookings.
//!
//! An entry stands for permits booked between the start of its cell and its instant. It enters a window as early and leaves
//! it as late as that allows, so rounding never lets a window go over. The twin is `lua/algorithm/sliding_window.lua`.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::{Algorithm, Position};
use crate::limiter::arithmetic::cell::{Entry, cell_start, cell_width};
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::model::limit::Limit;

/// The sliding window: at most `rate` permits in every interval of the window's length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlidingWindow;

/// The window that ends where a search stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Held {
    /// The number of entries that have left the window.
    gone: usize,
    /// The permits in the window.
    permits: u64,
}

impl SlidingWindow {
    /// Returns the rule of a limit whose slots stay good for `guard`.
    pub fn new(limit: &Limit, guard: Micros, precision: u64) -> (Quota, SlidingWindow) {
        let (per, rate) = (Micros::from(limit.per), limit.rate.get());
        (Quota { rate, window: per + guard, cell: cell_width(per, rate, precision) }, SlidingWindow)
    }
}

impl Algorithm for SlidingWindow {
    type Checkpoint = Held;

    fn letter(&self) -> char {
        'S'
    }

    fn window_start(&self, at: Micros, length: Micros) -> Option<Micros> {
        Some(at + Micros::ONE - length)
    }

    fn empty_checkpoint(&self) -> Held {
        Held::default()
    }

    fn advance(&self, quota: Quota, checkpoint: &mut Held, position: Position<'_>, before: usize) {
        let entered = &position.entries[..position.entered];
        checkpoint.permits += entered[before..].iter().map(|entry| entry.permits).sum::<u64>();
        while let Some(entry) = entered.get(checkpoint.gone)
            && entry.at + quota.window <= position.at
        {
            checkpoint.permits -= entry.permits;
            checkpoint.gone += 1;
        }
    }

    fn room(
        &self,
        quota: Quota,
        checkpoint: &Held,
        position: Position<'_>,
        cost: u64,
    ) -> Result<u64, Micros> {
        let (Quota { rate, window, .. }, Position { entries, entered, at, cell }) = (quota, position);
        let Held { mut gone, permits: mut held } = *checkpoint;
        let held_max = rate.saturating_sub(cost);
        if held > held_max {
            return Err(behind_held(window, *checkpoint, position, held_max));
        }
        let mut fullest = held;
        for (offset, entry) in position.later().iter().enumerate() {
            let end = cell_start(entry.at, cell);
            if end >= at + window {
                break;
            }
            held += entry.permits;
            while gone <= entered + offset && entries[gone].at + window <= end {
                held -= entries[gone].permits;
                gone += 1;
            }
            if held > held_max {
                return Err(end + Micros::ONE);
            }
            fullest = fullest.max(held);
        }
        Ok(rate.saturating_sub(fullest))
    }

    fn take(&self, _quota: Quota, checkpoint: &mut Held, _at: Micros, permits: u64) {
        checkpoint.permits += permits;
    }
}

/// Returns the instant at which enough has left the window that ends at a position, which holds more than `held_max`. Bookings enter it
/// on the way there.
fn behind_held(window: Micros, checkpoint: Held, position: Position<'_>, held_max: u64) -> Micros {
    let Position { entries, mut entered, at, cell } = position;
    let Held { mut gone, permits: mut held } = checkpoint;
    let mut next = at;
    while held > held_max {
        held -= entries[gone].permits;
        next = entries[gone].at + window;
        gone += 1;
        if held <= held_max {
            let is_in = |entry: &&Entry| cell_start(entry.at, cell) <= next;
            let enters = entries[entered..].iter().take_while(is_in);
            let (count, permits) =
                enters.fold((0, 0), |(count, sum), entry| (count + 1, sum + entry.permits));
            (entered, held) = (entered + count, held + permits);
        }
    }
    next
}
