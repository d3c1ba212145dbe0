//! The algorithms by which limits count: one file each, with the functions of one trait.
//!
//! `kind` holds the lists of them, and nothing outside this room asks which algorithm a limit has. A new algorithm is a file
//! here and a line in each list. The twins are `lua/algorithm/`, with the same functions.

pub mod bucket;
pub mod fixed_window;
pub mod kind;
pub mod sliding_window;
pub mod warm_up;

use std::fmt::Debug;

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::{Entry, held_between};
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::arithmetic::share::Share;

/// An algorithm: decides when a rule has room for permits.
///
/// A search shows each rule the bookings in ascending order. The rule keeps of them what it needs, its *checkpoint*. A state keeps
/// one, too: of the bookings that it no longer has one by one.
pub trait Algorithm: Clone {
    /// The data that a rule keeps about the bookings that it was shown.
    type Checkpoint: Copy + Eq + Debug;

    /// Returns the letter with which the text of a rule begins, for the Lua twin.
    fn letter(&self) -> char;

    /// Appends the parameters to the text of a rule, each after a space.
    fn write(&self, _text: &mut String) {}

    /// Returns the most permits that are granted at one instant.
    fn capacity(&self, quota: Quota) -> u64 {
        quota.rate
    }

    /// Returns how long a permit matters after it was used.
    fn seen_for(&self, quota: Quota) -> Micros {
        quota.window
    }

    /// Returns the distance between two refused callers who need that many permits.
    fn spacing(&self, quota: Quota, permits: u64) -> Micros {
        quota.span(permits)
    }

    /// Returns whether bookings at two instants, the later one second, must stay apart even within a cell.
    fn separates(&self, _first: Micros, _later: Micros) -> bool {
        false
    }

    /// Returns the start of the window of that length that ends at `at`; `None` without windows.
    ///
    /// External usage is left free in each window; without windows it is charged once.
    fn window_start(&self, at: Micros, length: Micros) -> Option<Micros>;

    /// Returns the parameters of one of `parts` equal shares.
    #[must_use]
    fn share(&self, _share: Share) -> Self {
        self.clone()
    }

    /// Returns the checkpoint of no booking.
    fn empty_checkpoint(&self) -> Self::Checkpoint;

    /// Moves a checkpoint to a search's position. The entries from the one numbered `before` on have been entered since.
    fn advance(&self, quota: Quota, checkpoint: &mut Self::Checkpoint, position: Position<'_>, before: usize);

    /// Returns how many permits have room at a search's position, if at least `cost` have.
    ///
    /// # Errors
    /// The next instant worth trying, always a later one.
    fn room(
        &self,
        quota: Quota,
        checkpoint: &Self::Checkpoint,
        position: Position<'_>,
        cost: u64,
    ) -> Result<u64, Micros>;

    /// Adds permits that are booked at a search's position to the checkpoint.
    fn take(&self, quota: Quota, checkpoint: &mut Self::Checkpoint, at: Micros, permits: u64);

    /// Adds the bookings up to an instant to a checkpoint, if the algorithm keeps one.
    fn fold(&self, _quota: Quota, _checkpoint: &mut Self::Checkpoint, _entries: &[Entry], _until: Micros) {}

    /// Returns the instant until which bookings are in a checkpoint; zero if the algorithm keeps none.
    fn folded(&self, _checkpoint: &Self::Checkpoint) -> Micros {
        Micros::ZERO
    }

    /// Returns the width of the cells in which bookings are kept that are in a checkpoint: only a change of the limits reads them.
    fn folded_cell(&self, quota: Quota) -> Micros {
        quota.cell
    }

    /// Returns the permits that could be used at `now`, besides `external` permits that others use.
    fn available(
        &self,
        quota: Quota,
        _checkpoint: &Self::Checkpoint,
        entries: &[Entry],
        external: u64,
        now: Micros,
    ) -> u64 {
        let from = self.window_start(now, quota.window).unwrap_or(now);
        quota.rate.saturating_sub(external).saturating_sub(held_between(entries, from, now))
    }

    /// Returns the instant from which neither a booking nor the checkpoint matters.
    fn expires(&self, quota: Quota, _checkpoint: &Self::Checkpoint, entries: &[Entry]) -> Micros {
        entries.last().map_or(Micros::ZERO, |last| last.at + quota.window)
    }

    /// Returns how many permits a checkpoint lacks, rounded up, and the instant of that lack; `None` if the algorithm keeps
    /// no checkpoint.
    fn missing(&self, _quota: Quota, _checkpoint: &Self::Checkpoint) -> Option<(u64, Micros)> {
        None
    }

    /// Returns a checkpoint that lacks permits at an instant.
    fn lacking(&self, _quota: Quota, _at: Micros, _permits: u64) -> Self::Checkpoint {
        self.empty_checkpoint()
    }

    /// Returns whether one checkpoint lacks at least as much as another.
    fn is_emptier(&self, _one: &Self::Checkpoint, _other: &Self::Checkpoint) -> bool {
        true
    }
}

/// The position of a search in the bookings.
#[derive(Clone, Copy, Debug)]
pub struct Position<'a> {
    /// All bookings, ascending.
    pub entries: &'a [Entry],
    /// The number of entries that are entered: their cell starts at `at` or before.
    pub entered: usize,
    /// The instant.
    pub at: Micros,
    /// The width of the cells in which the bookings are kept.
    pub cell: Micros,
}

impl<'a> Position<'a> {
    /// Returns the bookings behind the position.
    pub fn later(&self) -> &'a [Entry] {
        &self.entries[self.entered..]
    }
}
