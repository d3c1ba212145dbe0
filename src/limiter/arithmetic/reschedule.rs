//! Moves bookings after a change: of the limits, by a pause, by a reset, or by what others use.
//!
//! A change voids the bookings from an instant on. The i-th void permit gets the i-th place under the rules in force, by the next call of
//! a queue ([`moving`](super::moving)). The place stays charged until the replica that holds the void slot claims it. Until that instant
//! the old slots stay good, and by then every replica has heard of the change. Pure. The twin is `lua/reschedule.lua`.

use std::borrow::{Borrow, BorrowMut};
use std::collections::VecDeque;

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::{Entry, cell_start};
use crate::limiter::arithmetic::search::Search;
use crate::limiter::model::{Generation, UNKNOWN_GENERATION};

/// The permits of one slot, which a queue claims or gives back in ascending order: one way through the places that a change gave
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cursor {
    /// The permits stand in the slot that their holder knows.
    Here {
        /// The slot.
        slot: Micros,
    },
    /// A change has moved the permits.
    Moved(Rows),
    /// The permits are gone: a change moved them, and they were not claimed in time, or they were given back.
    Lost,
}

/// The void permits of one slot, and where a cursor stands in them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// The rows of the slot, and how many of their permits were not claimed at first.
    first: usize,
    end: usize,
    left: u64,
    /// The present row, the permits before it, and the permits of it that are gone.
    index: usize,
    passed: u64,
    taken: u64,
}

impl Cursor {
    /// Returns how many permits of the slot were not claimed at first; `None` if no change has moved them.
    pub fn unclaimed(&self) -> Option<u64> {
        if let Cursor::Moved(rows) = self { Some(rows.left) } else { None }
    }
}

/// Void permits and their new place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rescheduled {
    from: Micros,
    to: Micros,
    /// The permits that have not been claimed.
    permits: u64,
}

/// The last change of a state, and the void permits that wait to be claimed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Reschedule {
    generation: Generation,
    /// The width of the cells in which the generation before was kept.
    cell: Micros,
    /// The void bookings that have no new place yet, in their order.
    void: VecDeque<Entry>,
    /// The void permits that are not claimed, in the order of their old places.
    unclaimed: Vec<Rescheduled>,
    /// The instant until which the places are kept, and no other change moves bookings.
    until: Micros,
}

impl Reschedule {
    /// Returns the last change.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns whether bookings wait for a place, or places to be claimed; no other change may move bookings meanwhile.
    pub fn is_pending(&self) -> bool {
        !self.unclaimed.is_empty() || !self.void.is_empty()
    }

    /// Returns the instant until which bookings without a place are kept; zero if there are none.
    pub fn expires(&self) -> Micros {
        if self.void.is_empty() { Micros::ZERO } else { self.until }
    }

    /// Forgets the places that were claimed, and at the end of their time all of them, and the bookings without a place.
    pub fn forget(&mut self, now: Micros) {
        if self.until <= now {
            self.void.clear();
        }
        self.unclaimed.retain(|moved| moved.permits > 0 && self.until > now);
    }

    /// Keeps the places until an instant, for a caller that may hold permits of the generation before. Others have nothing to claim: if they
    /// kept them, callers that come and go would put the next change off without end.
    pub fn keep_places(&mut self, generation: u64, until: Micros) {
        if self.is_pending() && generation == self.generation.before {
            self.until = self.until.max(until);
        }
    }

    /// Begins a generation in which `void` bookings are moved, all of those from `void_from` on. `cell` is the width of the cells of the
    /// generation before.
    pub fn start(
        &mut self,
        now: Micros,
        lease: Micros,
        (void_from, cell): (Micros, Micros),
        void: Vec<Entry>,
    ) {
        self.void = void.into();
        let before = self.generation.number;
        self.generation = Generation { number: now.0.max(before + 1), void_from, before };
        (self.cell, self.until) = (cell, void_from + lease);
    }

    /// Returns the first booking without a place.
    pub fn first_void(&self) -> Option<Entry> {
        self.void.front().copied()
    }

    /// Returns whether the first booking without a place may have been made at an instant, before which there are none.
    pub fn is_void(&self, at: Micros) -> bool {
        self.first_void().is_some_and(|entry| cell_start(entry.at, self.cell) <= at)
    }

    /// Gives the first permits without a place one.
    pub fn place(&mut self, permits: u64, to: Micros) {
        let Some(entry) = self.void.front_mut() else { return };
        self.unclaimed.push(Rescheduled { from: entry.at, to, permits });
        entry.permits = entry.permits.saturating_sub(permits);
        if entry.permits == 0 {
            self.void.pop_front();
        }
    }

    /// Returns how many permits the first bookings without a place have from an instant on, until they are `most`, and the instant of the last
    /// of these.
    pub fn void_from(&self, from: Micros, most: u64) -> (u64, Micros) {
        let (mut permits, mut until) = (0, Micros::ZERO);
        for entry in self.void.iter().filter(|entry| entry.at >= from) {
            if permits < most {
                (permits, until) = (permits + entry.permits, entry.at);
            }
        }
        (permits, until)
    }

    /// Returns the permits of the bookings without a place.
    pub fn void_permits(&self) -> u64 {
        self.void.iter().map(|entry| entry.permits).sum()
    }

    /// Drops the bookings without a place.
    pub fn drop_void(&mut self) {
        self.void.clear();
    }

    /// Returns whether permits that were booked under a generation are still there.
    pub fn knows(&self, generation: u64) -> bool {
        generation == self.generation.number || generation == self.generation.before
    }

    /// Returns a cursor over the permits that were booked at `slot` under a generation. A caller that has had no answer yet knows none, and gives
    /// back what was used: that stands where it was booked, unless a change is being followed.
    pub fn cursor(&self, slot: Micros, generation: u64) -> Cursor {
        let Generation { number, void_from, before } = self.generation;
        let is_unknown = generation == UNKNOWN_GENERATION;
        let is_before = (is_unknown || generation == before) && slot < void_from;
        if generation == number || is_before || (is_unknown && !self.is_pending()) {
            return Cursor::Here { slot };
        }
        if generation != before {
            return Cursor::Lost;
        }
        let first = self.unclaimed.partition_point(|moved| moved.from < slot);
        let is_there = |moved: &&Rescheduled| cell_start(moved.from, self.cell) <= slot;
        let rows = self.unclaimed[first..].iter().take_while(is_there);
        let (count, left) = rows.fold((0, 0), |(count, left), moved| (count + 1, left + moved.permits));
        Cursor::Moved(Rows { first, end: first + count, left, index: first, passed: 0, taken: 0 })
    }

    /// Moves a cursor on to the permit behind `offset` others that were not claimed at first. Returns its place, if `permits` are
    /// left there.
    pub fn seek(&self, cursor: &mut Cursor, offset: u64, permits: u64) -> Option<Micros> {
        let Cursor::Moved(rows) = cursor else { return None };
        while rows.index < rows.end {
            let moved = self.unclaimed.get(rows.index)?;
            let passed = rows.passed + rows.taken + moved.permits;
            if offset < passed {
                return (moved.permits >= permits).then_some(moved.to);
            }
            (rows.passed, rows.taken, rows.index) = (passed, 0, rows.index + 1);
        }
        None
    }

    /// Marks permits where a cursor stands as claimed by their holder. They stay charged there.
    pub fn claim(&mut self, cursor: &mut Cursor, permits: u64) {
        if let Cursor::Moved(rows) = cursor
            && let Some(moved) = self.unclaimed.get_mut(rows.index)
        {
            moved.permits = moved.permits.saturating_sub(permits);
            rows.taken += permits;
        }
    }

    /// Takes back permits from where a cursor stands, and if none are left there from the first ones of the slot; `uncharge`
    /// removes them from the timeline. Returns the first place to which a change had moved them.
    ///
    /// Permits that were moved and not claimed in time stay charged, and are not taken from others.
    pub fn give_back(
        &mut self,
        cursor: &mut Cursor,
        permits: u64,
        mut uncharge: impl FnMut(Micros, u64),
    ) -> Option<Micros> {
        let rows = match cursor {
            Cursor::Here { slot } => {
                uncharge(*slot, permits);
                return None;
            }
            Cursor::Lost => return None,
            Cursor::Moved(rows) => rows,
        };
        let (mut place, mut left) = (None, permits);
        let mut take = |moved: &mut Rescheduled, left: u64| {
            let taken = moved.permits.min(left);
            if taken > 0 {
                uncharge(moved.to, taken);
                place = place.or(Some(moved.to));
                moved.permits -= taken;
            }
            taken
        };
        while left > 0 && rows.index < rows.end {
            let taken = take(&mut self.unclaimed[rows.index], left);
            left -= taken;
            rows.taken += taken;
            if left > 0 {
                (rows.passed, rows.taken, rows.index) = (rows.passed + rows.taken, 0, rows.index + 1);
            }
        }
        for moved in &mut self.unclaimed[rows.first..rows.end] {
            left -= take(moved, left);
        }
        place
    }
}

/// The void bookings of one state, and the search for their places.
pub(in crate::limiter::arithmetic) struct Moving<'a> {
    pub(in crate::limiter::arithmetic) void: &'a mut Reschedule,
    pub(in crate::limiter::arithmetic) search: Search<'a>,
}

impl<'a> Borrow<Search<'a>> for &mut Moving<'a> {
    fn borrow(&self) -> &Search<'a> {
        &self.search
    }
}

impl<'a> BorrowMut<Search<'a>> for &mut Moving<'a> {
    fn borrow_mut(&mut self) -> &mut Search<'a> {
        &mut self.search
    }
}
