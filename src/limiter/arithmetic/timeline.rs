//! What has been booked under one limiter: instants, and how many permits each holds.
//!
//! Instants that fall into the same cell of the grid are one entry, kept at the latest of them, so the
//! calendar's size depends on how many instants matter and never on how many permits were granted. It
//! knows no limits: [`crate::limiter::algorithm`] reads it, [`crate::limiter::book`] writes it. `lua/calendar.lua` is its twin.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::{REFUND_PART, TatCheckpoint};
use crate::limiter::arithmetic::external_usage::ExternalUsage;
use crate::limiter::arithmetic::rule::{Kind, Rule, cell_start, finest_cell, is_one};
use crate::limiter::model::clock_step::{Step, stepped};

/// Permits booked in one cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The latest instant booked in the cell: what was booked earlier in it counts as booked here, so it
    /// leaves a window later than it might, never earlier.
    pub at: Micros,
    /// How many.
    pub permits: u64,
}

/// Bookings in ascending order, at most one entry a cell.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Timeline {
    entries: Vec<Entry>,
}

impl From<Vec<Entry>> for Timeline {
    /// Bookings that are ascending.
    fn from(entries: Vec<Entry>) -> Timeline {
        Timeline { entries }
    }
}

impl Timeline {
    /// The bookings, ascending.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The last booked instant.
    pub fn last(&self) -> Option<Micros> {
        self.entries.last().map(|entry| entry.at)
    }

    /// Drops what no rule can see any more, and merges what only rules with wide cells can still see. What a bucket can no
    /// longer see apart goes into its base.
    ///
    /// Two entries become one, at the later instant, only when both have left every window that needed
    /// them apart; so a limit over a second stays exact beside a limit over a day, and the day costs
    /// no more than its own precision. What is compared with what an upstream tells is kept for longer.
    pub fn prune(
        &mut self,
        now: Micros,
        rules: &[Rule],
        bases: &mut [TatCheckpoint],
        others: &[ExternalUsage],
    ) {
        let kept_for = |(index, rule): (usize, &Rule)| {
            others.get(index).map_or(rule.window, |others| others.compared_for(rule.window))
        };
        let longest = rules.iter().enumerate().map(kept_for).max().unwrap_or_default();
        let gone = self.entries.partition_point(|entry| entry.at + longest <= now);
        for (base, rule) in bases.iter_mut().zip(rules) {
            if matches!(rule.kind, Kind::Bucket { .. }) {
                base.fold(rule, &self.entries, now - Micros(rule.window.0 / REFUND_PART));
            }
        }
        self.entries.drain(..gone);
        if rules.len() < 2 {
            return;
        }
        let mut kept = 0;
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            let seen_by = rules.iter().enumerate().filter(|rule| entry.at + kept_for(*rule) > now);
            let cell = seen_by.map(|(_, rule)| rule.cell).min().unwrap_or(Micros::ONE);
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

    /// Books `permits` at `at`, where `after` is the number of entries whose cell starts at `at` or
    /// before, and `is_one` says whether an entry's instant and `at` are kept as one. Returns whether a new
    /// entry was made, among them.
    pub fn charge(
        &mut self,
        after: usize,
        at: Micros,
        permits: u64,
        is_one: impl Fn(Micros) -> bool,
    ) -> bool {
        // Entries stay ascending: one of the same cell may lie behind the end of the window of a calendar that holds `at`.
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

    /// Takes back up to `permits` that were booked at `at`.
    pub fn uncharge(&mut self, at: Micros, permits: u64, rules: &[Rule]) {
        let index = self.entries.partition_point(|entry| entry.at < at);
        let cell = finest_cell(rules);
        let Some(entry) = self.entries.get_mut(index).filter(|entry| is_one(rules, cell, at, entry.at))
        else {
            return;
        };
        entry.permits -= entry.permits.min(permits);
        if entry.permits == 0 {
            self.entries.remove(index);
        }
    }

    /// Removes and returns the bookings from `at` on.
    pub fn split_off(&mut self, at: Micros) -> Vec<Entry> {
        let index = self.entries.partition_point(|entry| entry.at < at);
        self.entries.split_off(index)
    }

    /// Moves everything with the clock.
    pub fn step(&mut self, step: Step) {
        self.entries.iter_mut().for_each(|entry| entry.at = stepped(entry.at, step));
    }

    /// Takes out the entries in which something may have been booked for an instant or before.
    pub fn take_until(&mut self, at: Micros, rules: &[Rule]) -> Vec<Entry> {
        let cell = finest_cell(rules);
        let index = self.entries.partition_point(|entry| cell_start(entry.at, cell) <= at);
        self.entries.drain(..index).collect()
    }
}
