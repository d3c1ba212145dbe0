//! Moves bookings after a change: of the limits, by a pause, by a reset, or by what others use.
//!
//! A change voids the bookings from an instant on. The i-th void permit gets the i-th place under the rules in force. The place
//! stays charged until the replica that holds the void slot claims it. Until that instant the old slots stay good, and by then
//! every replica has heard of the change. Pure. The twin is `lua/reschedule.lua`.

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::{Entry, cell_start};
use crate::limiter::arithmetic::search::Search;
use crate::limiter::model::Generation;

/// How far ahead a change moves bookings: a little over the longest wait of a request. Requests of later bookings have left by
/// then, or will be refused.
pub(crate) const RESCHEDULE_MAX: Micros = Micros::from_millis(25 * 3_600_000);

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

    /// Returns whether places wait to be claimed; no other change may move bookings meanwhile.
    pub fn is_pending(&self) -> bool {
        !self.unclaimed.is_empty()
    }

    /// Forgets the places that were claimed, and at the end of their time all of them.
    pub fn forget(&mut self, now: Micros) {
        self.unclaimed.retain(|moved| moved.permits > 0 && self.until > now);
    }

    /// Keeps the places until an instant, for a holder of permits that were booked under an earlier generation.
    pub fn keep_places(&mut self, generation: u64, until: Micros) {
        if self.is_pending() && generation != self.generation.number {
            self.until = self.until.max(until);
        }
    }

    /// Books the places of void permits by `search`, from `void_from` on, and begins a generation. `cell` is the width of the
    /// cells of the generation before.
    pub fn start(
        &mut self,
        now: Micros,
        lease: Micros,
        (void_from, cell): (Micros, Micros),
        void: &[Entry],
        mut search: Search<'_>,
    ) {
        'void: for entry in void {
            let mut left = entry.permits;
            while left > 0 {
                let found = search.earliest(1);
                if found.at > now + RESCHEDULE_MAX {
                    break 'void;
                }
                let permits = left.min(found.room);
                search.charge(permits);
                self.unclaimed.push(Rescheduled { from: entry.at, to: found.at, permits });
                left -= permits;
            }
        }
        let before = self.generation.number;
        self.generation = Generation { number: now.0.max(before + 1), void_from, before };
        (self.cell, self.until) = (cell, void_from + lease);
    }

    /// Returns whether permits that were booked under a generation are still there.
    pub fn knows(&self, generation: u64) -> bool {
        generation == self.generation.number || generation == self.generation.before
    }

    /// Returns a cursor over the permits that were booked at `slot` under a generation.
    pub fn cursor(&self, slot: Micros, generation: u64) -> Cursor {
        let Generation { number, void_from, before } = self.generation;
        if generation == number || (generation == before && slot < void_from) {
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
