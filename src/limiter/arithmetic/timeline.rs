//! The bookings of one limiter by instant, and how many permits each holds.
//!
//! Bookings of one cell are one entry, kept at the latest of them. So the size of a timeline depends on how many instants
//! matter, never on how many permits were granted. Pure. The twin is `lua/timeline.lua`.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::Algorithm;
use crate::limiter::arithmetic::algorithm::kind::Checkpoint;
use crate::limiter::arithmetic::cell::{Entry, cell_start};
use crate::limiter::arithmetic::rule::{Rule, finest_cell, is_one};
use crate::limiter::model::{Step, stepped};

/// Bookings in ascending order, at most one entry a cell.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Timeline {
    entries: Vec<Entry>,
}

impl From<Vec<Entry>> for Timeline {
    /// Takes bookings that are ascending.
    fn from(entries: Vec<Entry>) -> Timeline {
        Timeline { entries }
    }
}

impl Timeline {
    /// Returns the bookings, ascending.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the last booked instant.
    pub fn last(&self) -> Option<Micros> {
        self.entries.last().map(|entry| entry.at)
    }

    /// Drops entries that no rule can see any more, and merges those that only rules with wide cells can see, and those that are in
    /// the checkpoints of all that can. `seen_for` returns how long a rule, by its place, sees a booking.
    ///
    /// Two entries become one, at the later instant, only when both have left every window that needed them apart. So a limit
    /// over a second stays exact beside a limit over a day, and the day costs no more than its own precision.
    pub fn prune(
        &mut self,
        now: Micros,
        rules: &[Rule],
        checkpoints: &[Checkpoint],
        seen_for: impl Fn(usize, &Rule) -> Micros,
    ) {
        let seen_for = |(index, rule): (usize, &Rule)| seen_for(index, rule);
        let longest = rules.iter().enumerate().map(seen_for).max().unwrap_or_default();
        let gone = self.entries.partition_point(|entry| entry.at + longest <= now);
        self.entries.drain(..gone);
        let is_fixed = |rule: &Rule| checkpoints.is_empty() || rule.folded_cell() == rule.cell;
        if rules.iter().all(|rule| is_fixed(rule) && rule.cell == rules[0].cell) {
            return;
        }
        let cell_of = |at: Micros, (index, rule): (usize, &Rule)| {
            let checkpoint = checkpoints.get(index);
            let is_folded = checkpoint.is_some_and(|checkpoint| at <= rule.kind.folded(checkpoint));
            if is_folded { rule.folded_cell() } else { rule.cell }
        };
        let mut kept = 0;
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            let seen_by = rules.iter().enumerate().filter(|rule| entry.at + seen_for(*rule) > now);
            let cell = seen_by.map(|rule| cell_of(entry.at, rule)).min().unwrap_or(Micros::ONE);
            if kept > 0 && is_one(rules, cell, self.entries[kept - 1].at, entry.at) {
                self.entries[kept - 1].at = entry.at;
                self.entries[kept - 1].permits += entry.permits;
            } else {
                self.entries[kept] = entry;
                kept += 1;
            }
        }
        self.entries.truncate(kept);
    }

    /// Prunes a timeline of grants, which a rule sees for its window. It keeps the bookings ahead of `now` one by one: those that have
    /// come are merged, each with the others of its cell.
    pub fn prune_past(&mut self, now: Micros, rules: &[Rule]) {
        let ahead = self.split_off(now + Micros::ONE);
        self.prune(now, rules, &[], |_, rule| rule.window);
        let cell = finest_cell(rules);
        if cell > Micros::ONE {
            self.entries.dedup_by(|later, kept| {
                let is_one = is_one(rules, cell, kept.at, later.at);
                if is_one {
                    (kept.at, kept.permits) = (later.at, kept.permits + later.permits);
                }
                is_one
            });
        }
        self.entries.extend(ahead);
    }

    /// Books `permits` at `at`. The cells of the first `after` entries start at `at` or before; `is_one` decides whether an
    /// entry's instant and `at` are kept as one. Returns whether a new entry was made among the first.
    pub fn charge(
        &mut self,
        after: usize,
        at: Micros,
        permits: u64,
        is_one: impl Fn(Micros) -> bool,
    ) -> bool {
        // Entries stay ascending: one of the same cell may lie behind the end of the calendar window that holds `at`.
        let mut place = after;
        while let Some(entry) = place.checked_sub(1).and_then(|index| self.entries.get(index))
            && entry.at > at
            && !is_one(entry.at)
        {
            place -= 1;
        }
        if let Some(entry) = place.checked_sub(1).and_then(|index| self.entries.get_mut(index))
            && is_one(entry.at)
        {
            entry.at = entry.at.max(at);
            entry.permits += permits;
            return false;
        }
        self.entries.insert(place, Entry { at, permits });
        true
    }

    /// Takes back up to `permits` that were booked at `at`. Returns how many.
    pub fn uncharge(&mut self, at: Micros, permits: u64, rules: &[Rule]) -> u64 {
        self.uncharge_merged(at, permits, rules, |_| finest_cell(rules))
    }

    /// Takes back up to `permits` that were booked at `at`, and may have been merged with later ones since: `cell_of` returns the width of the
    /// cell in which an entry is kept. Returns how many.
    pub fn uncharge_merged(
        &mut self,
        at: Micros,
        permits: u64,
        rules: &[Rule],
        cell_of: impl Fn(Micros) -> Micros,
    ) -> u64 {
        let index = self.entries.partition_point(|entry| entry.at < at);
        let is_own = |entry: &&mut Entry| is_one(rules, cell_of(entry.at), at, entry.at);
        let Some(entry) = self.entries.get_mut(index).filter(is_own) else { return 0 };
        let taken = entry.permits.min(permits);
        entry.permits -= taken;
        if entry.permits == 0 {
            self.entries.remove(index);
        }
        taken
    }

    /// Removes and returns the bookings from `at` on.
    pub fn split_off(&mut self, at: Micros) -> Vec<Entry> {
        let index = self.entries.partition_point(|entry| entry.at < at);
        self.entries.split_off(index)
    }

    /// Moves all bookings with a step of the clock.
    pub fn step(&mut self, step: Step) {
        self.entries.iter_mut().for_each(|entry| entry.at = stepped(entry.at, step));
    }

    /// Removes and returns the entries whose cell starts at `at` or before: part of their permits may be booked for then.
    pub fn take_until(&mut self, at: Micros, rules: &[Rule]) -> Vec<Entry> {
        let cell = finest_cell(rules);
        let index = self.entries.partition_point(|entry| cell_start(entry.at, cell) <= at);
        self.entries.drain(..index).collect()
    }
}
