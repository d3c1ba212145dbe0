//! Finds the earliest instant with room under all rules of a limiter, whatever their algorithms.
//!
//! Pure. Each algorithm decides for its rule; the search moves all of them on. The twin is `lua/search.lua`.

use std::borrow::BorrowMut;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::kind::Checkpoint;
use crate::limiter::arithmetic::algorithm::{Algorithm, Position};
use crate::limiter::arithmetic::cell::cell_start;
use crate::limiter::arithmetic::external_usage::ExternalUsage;
use crate::limiter::arithmetic::pause::Pause;
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::arithmetic::rule::{Rule, finest_cell, is_one};
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::model::Violated;

/// A search that only moves forward in time, over all rules at once.
///
/// Bookings of a batch are mostly in order, so each entry is passed once for the whole batch.
pub struct Search<'a> {
    timeline: &'a mut Timeline,
    rules: &'a [Rule],
    /// The checkpoint of each rule at the beginning.
    checkpoints: &'a [Checkpoint],
    /// The width of the timeline's cells: the finest of all rules.
    cell: Micros,
    /// The present instant of the search.
    at: Micros,
    /// The number of entries whose cell starts at `at` or before.
    entered: usize,
    /// The checkpoint of each rule at the present instant.
    running: Vec<Checkpoint>,
    /// The pause to heed; `None` where it does not matter.
    pause: Option<&'a mut Pause>,
    /// True if the pause spaces the permits that follow it.
    is_paced: bool,
    /// The external usage of each rule; empty where it does not matter.
    external_usage: &'a [ExternalUsage],
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The earliest instant with room.
    pub at: Micros,
    /// The permits that have room there, at least as many as were asked for.
    pub room: u64,
    /// The rule that moved the search to this instant, if any did.
    pub limited_by: Option<usize>,
}

/// The earliest instant at which every limiter has room.
#[derive(Clone, Copy)]
pub(in crate::limiter::arithmetic) struct Earliest {
    pub(in crate::limiter::arithmetic) at: Micros,
    /// The permits that have room there.
    pub(in crate::limiter::arithmetic) room: u64,
    /// The limit that moved the searches there last.
    pub(in crate::limiter::arithmetic) violated: Violated,
}

/// Moves searches of several limiters to the earliest instant at which all have room: each moves the others on until none moves.
pub(in crate::limiter::arithmetic) fn earliest_of<'a, S: BorrowMut<Search<'a>>>(
    searches: &mut [S],
    cost: u64,
) -> Earliest {
    let mut violated = Violated::default();
    let mut at = searches.iter().map(|search| search.borrow().at()).max().unwrap_or_default();
    loop {
        let (mut room, mut has_moved) = (u64::MAX, false);
        for (limiter, search) in searches.iter_mut().enumerate() {
            let search = search.borrow_mut();
            search.advance(at);
            let found = search.earliest(cost);
            if let Some(limit) = found.limited_by {
                violated = Violated { limiter, limit };
            }
            has_moved |= found.at > at;
            at = found.at;
            room = room.min(found.room);
        }
        if !has_moved {
            return Earliest { at, room, violated };
        }
    }
}

impl<'a> Search<'a> {
    /// Begins a search at `from`. `checkpoints` are those of the rules.
    pub fn new(
        timeline: &'a mut Timeline,
        rules: &'a [Rule],
        checkpoints: &'a [Checkpoint],
        from: Micros,
    ) -> Search<'a> {
        let mut search = Search {
            timeline,
            rules,
            checkpoints,
            cell: finest_cell(rules),
            at: Micros::ZERO,
            entered: 0,
            running: checkpoints.to_vec(),
            pause: None,
            is_paced: false,
            external_usage: &[],
        };
        search.advance(from);
        search
    }

    /// Returns the same search, which also heeds a pause and leaves external usage free.
    pub(in crate::limiter) fn heeding(
        mut self,
        pause: &'a mut Pause,
        external_usage: &'a [ExternalUsage],
    ) -> Search<'a> {
        self.pause = Some(pause);
        self.is_paced = true;
        self.external_usage = external_usage;
        self
    }

    /// Returns the same search, which leaves external usage free.
    pub(in crate::limiter) fn beside(mut self, external_usage: &'a [ExternalUsage]) -> Search<'a> {
        self.external_usage = external_usage;
        self
    }

    /// Returns the same search for permits whose places are spaced already: nothing is booked before the end of the pause.
    pub(in crate::limiter) fn unpaced(mut self) -> Search<'a> {
        self.is_paced = false;
        self
    }

    /// Returns the rules of the search.
    pub(in crate::limiter) fn rules(&self) -> &'a [Rule] {
        self.rules
    }

    /// Returns the present instant of the search.
    pub fn at(&self) -> Micros {
        self.at
    }

    /// Returns the last instant at which anything is booked.
    pub(in crate::limiter) fn last_booked(&self) -> Option<Micros> {
        self.timeline.last()
    }

    /// Moves forward to `at`; an earlier instant changes nothing.
    pub fn advance(&mut self, at: Micros) {
        self.at = self.at.max(at);
        let before = self.entered;
        let entries = self.timeline.entries();
        while entries.get(self.entered).is_some_and(|entry| cell_start(entry.at, self.cell) <= self.at) {
            self.entered += 1;
        }
        let position = Position { entries, entered: self.entered, at: self.at, cell: self.cell };
        for (checkpoint, rule) in self.running.iter_mut().zip(self.rules) {
            rule.kind.advance(rule.quota(), checkpoint, position, before);
        }
    }

    /// Moves to the earliest instant with room for `cost` permits under every rule.
    ///
    /// A rule that can never hold `cost` (another replica's, during a reload) lets it pass where it holds nothing else.
    pub fn earliest(&mut self, cost: u64) -> Found {
        let mut limited_by = None;
        if let Some(pause) = &self.pause {
            self.advance(if self.is_paced { pause.floor(self.at) } else { pause.until() });
        }
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
            if self.is_paced && self.pause.as_ref().is_some_and(|pause| pause.is_paced(self.at)) {
                room = cost;
            }
            return Found { at: self.at, room: room.max(cost), limited_by };
        }
    }

    /// Returns the room for `cost` at the present instant of the search; `None` if there is none.
    pub(in crate::limiter::arithmetic) fn room_here(&self, cost: u64) -> Option<u64> {
        let floor = |pause: &&mut Pause| if self.is_paced { pause.floor(self.at) } else { pause.until() };
        if self.pause.as_ref().is_some_and(|pause| floor(pause) > self.at) {
            return None;
        }
        let mut rooms = (0..self.rules.len()).map(|index| self.room(index, cost).ok());
        let room = rooms.try_fold(u64::MAX, |least, room| Some(least.min(room?)))?;
        Some(room.max(cost))
    }

    /// Returns the first rule that has no room for `cost` at an instant, which may lie before the search; `None` if all have.
    pub(in crate::limiter) fn limiting(&self, at: Micros, cost: u64) -> Option<usize> {
        let entries = self.timeline.entries();
        let entered = entries.partition_point(|entry| cell_start(entry.at, self.cell) <= at);
        let position = Position { entries, entered, at, cell: self.cell };
        (0..self.rules.len()).find(|index| {
            let (rule, mut checkpoint) = (&self.rules[*index], self.checkpoints[*index]);
            rule.kind.advance(rule.quota(), &mut checkpoint, position, 0);
            rule.kind.room(self.quota(*index), &checkpoint, position, cost).is_err()
        })
    }

    /// Returns the room under one rule at the present instant of the search, or the next instant worth trying, always a
    /// later one.
    fn room(&self, index: usize, cost: u64) -> Result<u64, Micros> {
        let entries = self.timeline.entries();
        let position = Position { entries, entered: self.entered, at: self.at, cell: self.cell };
        self.rules[index].kind.room(self.quota(index), &self.running[index], position, cost)
    }

    /// Returns what a rule leaves to this fleet.
    fn quota(&self, index: usize) -> Quota {
        let external = self.external_usage.get(index).map_or(0, ExternalUsage::permits);
        let quota = self.rules[index].quota();
        Quota { rate: quota.rate.saturating_sub(external), ..quota }
    }

    /// Books `permits` at the present instant of the search.
    pub fn charge(&mut self, permits: u64) {
        let (at, rules, cell) = (self.at, self.rules, self.cell);
        let is_one = |entry| is_one(rules, cell, at.min(entry), at.max(entry));
        if self.timeline.charge(self.entered, at, permits, is_one) {
            self.entered += 1;
        }
        if self.is_paced
            && let Some(pause) = &mut self.pause
        {
            pause.booked(at, permits);
        }
        for (checkpoint, rule) in self.running.iter_mut().zip(rules) {
            rule.kind.take(rule.quota(), checkpoint, at, permits);
        }
    }
}
