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

/// The place that permits had when they were given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Returned {
    /// The permits stood in the slot that their holder knew.
    Here,
    /// The permits stood in this place, to which a change had moved them.
    Moved(Micros),
    /// The permits are gone: a change moved them, and they were not claimed in time.
    Lost,
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

    /// Takes back permits that were booked at `slot` under a generation; `uncharge` removes them from the timeline.
    ///
    /// Permits that were moved and not claimed in time stay charged, and are not taken from others.
    pub fn give_back(
        &mut self,
        slot: Micros,
        permits: u64,
        generation: u64,
        mut uncharge: impl FnMut(Micros, u64),
    ) -> Returned {
        let Generation { number, void_from, before } = self.generation;
        if generation == number || (generation == before && slot < void_from) {
            uncharge(slot, permits);
            return Returned::Here;
        }
        if generation != before {
            return Returned::Lost;
        }
        let mut place = None;
        let mut left = permits;
        while left > 0 {
            let Some(index) = self.first_unclaimed(slot, 0) else { break };
            let moved = &mut self.unclaimed[index];
            let taken = moved.permits.min(left);
            uncharge(moved.to, taken);
            place = Some(moved.to);
            moved.permits -= taken;
            left -= taken;
        }
        place.map_or(Returned::Lost, Returned::Moved)
    }

    /// Returns the void permits that were booked in the cell of `slot`, with their indices.
    fn of_slot(&self, slot: Micros) -> impl Iterator<Item = (usize, &Rescheduled)> {
        let first = self.unclaimed.partition_point(|moved| moved.from < slot);
        let in_cell = move |(_, moved): &(usize, &Rescheduled)| cell_start(moved.from, self.cell) <= slot;
        self.unclaimed.iter().enumerate().skip(first).take_while(in_cell)
    }

    /// Returns the index of the first unclaimed void permits of `slot`, after skipping `skipped` permits.
    fn first_unclaimed(&self, slot: Micros, mut skipped: u64) -> Option<usize> {
        let mut there = self.of_slot(slot).filter(|(_, moved)| moved.permits > 0);
        let found = there.find(|(_, moved)| {
            let is_behind = skipped < moved.permits;
            skipped = skipped.saturating_sub(moved.permits);
            is_behind
        });
        found.map(|(index, _)| index)
    }

    /// Returns how many permits that were booked at `slot` are not claimed.
    pub fn unclaimed(&self, slot: Micros) -> u64 {
        self.of_slot(slot).map(|(_, moved)| moved.permits).sum()
    }

    /// Returns the place of permits that were booked at `slot` under a generation, after skipping `skipped` others; `None`
    /// if no change has moved them, or has moved them apart.
    pub fn place_of(&self, slot: Micros, permits: u64, generation: u64, skipped: u64) -> Option<Micros> {
        let Generation { number, void_from, before } = self.generation;
        if generation == number || generation != before || slot < void_from {
            return None;
        }
        let moved = self.unclaimed.get(self.first_unclaimed(slot, skipped)?)?;
        (moved.permits >= permits).then_some(moved.to)
    }

    /// Marks the permits at [`Reschedule::place_of`] as claimed by their holder. They stay charged there.
    pub fn claim(&mut self, slot: Micros, permits: u64, skipped: u64) {
        if let Some(moved) =
            self.first_unclaimed(slot, skipped).and_then(|index| self.unclaimed.get_mut(index))
        {
            moved.permits = moved.permits.saturating_sub(permits);
        }
    }
}
