//! The state of one limiter, or of one of its partitions: its calendar, whose limits are in force,
//! and bookings that are being re-timed after a change of the limits.
//!
//! While replicas run different configurations, every set of limits declared within the last lease is in
//! force, so the strictest rules until the last replica has followed; a set that only the caller has declared goes at once. A change re-times what is booked
//! from an instant one lease ahead: those bookings are void, the i-th void permit gets the i-th place under the
//! new limits, and a place stays charged until the replica that holds the void slot fetches it. Until that
//! instant the old slots stay good, and by then every replica has heard.
//!
//! Pure: the instant is an argument. `lua/calendar.lua` is the twin.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::Search;
use crate::limiter::arithmetic::algorithm::bucket::{self, TatCheckpoint};
use crate::limiter::arithmetic::external_usage::{self, ExternalUsage};
use crate::limiter::arithmetic::pause::Pause;
use crate::limiter::arithmetic::rule::{Kind, Rule, cell_from, cell_start, finest_cell, window_of};
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::model::call::Generation;
use crate::limiter::model::pause::{Lasting, PauseRequest};
use crate::limiter::model::upstream_report::Remaining;

/// The most sets of limits in force at once; a further one takes the place of the one declared longest ago.
pub const DECLARED_MAX: usize = 4;

/// How far ahead a change of the limits moves bookings: a little over the longest wait of a request. Whoever would come later
/// has left by then, or will be refused.
pub(crate) const RETIMED_MAX: Micros = Micros::from_millis(25 * 3_600_000);

/// Void permits and their new place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Where they were booked.
    pub from: Micros,
    /// Where they are booked now, in the name of whoever held them.
    pub to: Micros,
    /// How many.
    pub permits: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Declared {
    rules: Arc<[Rule]>,
    seen: Micros,
    /// The only replica that has declared them; `None` for several.
    by: Option<u64>,
}

/// Where permits stood that were given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Returned {
    /// Where their holder thought.
    Here,
    /// A change of the limits had moved them here.
    Moved(Micros),
    /// Nowhere: a change moved them, and they were not fetched in time.
    Lost,
}

/// The state of one limiter.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct LimiterState {
    calendar: Timeline,
    declared: Vec<Declared>,
    /// Every rule in force, the union of what is declared.
    rules: Vec<Rule>,
    /// For each of them: what its bucket remembers, if it is one.
    bases: Vec<TatCheckpoint>,
    /// For each of them: what others use of it.
    others: Vec<ExternalUsage>,
    generation: Generation,
    /// The cells in which the generation before was kept, whose slots `moved` translates.
    moved_cell: Micros,
    /// Void permits that wait to be fetched, in the order of their old places.
    moved: Vec<Moved>,
    /// Until when they are kept, and no other change moves bookings.
    moved_until: Micros,
    /// Before that nothing is booked, whether there is room or not. A state of the store has none: it begins with all there is.
    opens_at: Micros,
    /// A reset that has still to be followed: what was used until then is forgotten.
    reset_at: Option<Micros>,
    /// What the upstream asked for.
    pause: Pause,
}

impl LimiterState {
    /// Brings the state to `now` under the caller's limits, which count as declared now.
    pub fn open(&mut self, now: Micros, rules: &Arc<[Rule]>, lease: Micros, replica: u64) {
        self.moved.retain(|moved| moved.permits > 0 && self.moved_until > now);
        self.declare(now, rules, lease, replica);
        for (others, rule) in self.others.iter_mut().zip(&self.rules) {
            others.forget(now, rule.window, self.pause.until());
        }
        let union = self.union();
        if self.rules.is_empty() {
            self.put_in_force(union);
        } else if union != self.rules && self.moved.is_empty() {
            self.retime(now, now + lease, lease, union);
        }
        if self.moved.is_empty() && self.follow_reset() {
            self.retime(now, now + lease, lease, self.rules.clone());
        }
        self.follow_pause(now, lease);
        self.follow_others(now, lease);
        self.calendar.prune(now, &self.rules, &mut self.bases, &self.others);
    }

    fn declare(&mut self, now: Micros, rules: &Arc<[Rule]>, lease: Micros, replica: u64) {
        if let [only] = &mut self.declared[..] {
            if only.rules == *rules {
                only.by = only.by.filter(|by| *by == replica);
                return;
            }
            // A set that stood alone was in force until now, whenever it was declared last.
            only.seen = now;
        }
        let is_replaced = |other: &Declared| other.by == Some(replica) || other.seen + lease <= now;
        self.declared.retain(|declared| declared.rules == *rules || !is_replaced(declared));
        match self.declared.iter_mut().find(|declared| declared.rules == *rules) {
            Some(declared) => {
                declared.seen = now;
                declared.by = declared.by.filter(|by| *by == replica);
            }
            None => self.declared.push(Declared { rules: rules.clone(), seen: now, by: Some(replica) }),
        }
        if self.declared.len() > DECLARED_MAX {
            let oldest = self.declared.iter().enumerate().min_by_key(|(_, declared)| declared.seen);
            if let Some((oldest, _)) = oldest {
                self.declared.remove(oldest);
            }
        }
    }

    fn union(&self) -> Vec<Rule> {
        self.declared.iter().flat_map(|declared| declared.rules.iter().cloned()).collect()
    }

    /// Puts rules in force. Bookings stay as they are; a bucket that was not there before misses what the emptiest one missed.
    fn put_in_force(&mut self, rules: Vec<Rule>) {
        let before = |rule: &Rule| {
            if !matches!(rule.kind, Kind::Bucket { .. }) {
                return TatCheckpoint::default();
            }
            let old = self.rules.iter().zip(&self.bases);
            if let Some((_, base)) = old.clone().find(|(old, _)| *old == rule) {
                return *base;
            }
            let buckets = old.filter(|(old, _)| matches!(old.kind, Kind::Bucket { .. }));
            buckets
                .map(|(old, base)| base.converted(old, rule))
                .max_by_key(|base| base.level)
                .unwrap_or_default()
        };
        self.bases = rules.iter().map(before).collect();
        let known = |rule: &Rule| self.rules.iter().position(|old| old == rule);
        let others = |rule| known(rule).and_then(|index| self.others.get(index)).cloned().unwrap_or_default();
        self.others = rules.iter().map(others).collect();
        self.rules = rules;
    }

    /// Puts `rules` in force and moves the bookings from an instant on to their places under them.
    fn retime(&mut self, now: Micros, from: Micros, lease: Micros, rules: Vec<Rule>) {
        self.moved_cell = finest_cell(&self.rules);
        // A cell is moved whole or not at all: what stays behind of it must stay charged.
        let void_from = cell_from(from, self.moved_cell);
        self.put_in_force(rules);
        self.others.iter_mut().for_each(ExternalUsage::heed);
        self.pause.restart(now);
        let void = self.calendar.split_off(void_from);
        let search = Search::new(&mut self.calendar, &self.rules, &self.bases, void_from);
        let mut search = search.heeding(&mut self.pause, &self.others);
        let permits = void.iter().map(|entry| (entry.at, entry.permits));
        'moved: for (from, mut left) in permits {
            while left > 0 {
                let found = search.earliest(1);
                if found.at > now + RETIMED_MAX {
                    break 'moved;
                }
                let permits = left.min(found.room);
                search.charge(permits);
                self.moved.push(Moved { from, to: found.at, permits });
                left -= permits;
            }
        }
        let before = self.generation.number;
        self.generation = Generation { number: now.0.max(before + 1), void_from, before };
        self.moved_until = void_from + lease;
    }

    /// Moves what is booked for the time of a pause to its end, and everything behind it along, in order. Nobody may use those
    /// slots, so they are void at once: whoever has not heard of the pause hears of it with its next answer.
    fn follow_pause(&mut self, now: Micros, lease: Micros) {
        let (from, until) = (now + Micros::ONE, self.pause.until());
        // What stands in the cell of this moment stays there.
        let booked = cell_from(from, finest_cell(&self.rules))..until;
        if self.moved.is_empty() && self.calendar.entries().iter().any(|entry| booked.contains(&entry.at)) {
            self.retime(now, from, lease, self.rules.clone());
        }
    }

    /// Hears from a replica that the upstream asks for a pause. Returns whether anything has changed.
    pub fn ask_pause(&mut self, now: Micros, lease: Micros, request: &PauseRequest, replica: u64) -> bool {
        let has_changed = self.pause.ask(now, request, replica, &self.rules);
        self.follow_pause(now, lease);
        has_changed
    }

    /// Follows what was done by hand at an instant, over a replica: paused until another one, or no longer paused; then what is
    /// booked moves up, as after a change of the limits.
    pub fn pause_by_hand(&mut self, now: Micros, lease: Micros, at: Micros, until: Micros, replica: u64) {
        let is_followed = self.pause.follow(now, at, until, replica, &self.rules);
        self.follow_pause(now, lease);
        let is_ahead = self.calendar.last().is_some_and(|last| last > now + lease);
        if is_followed && until <= now && is_ahead && self.moved.is_empty() {
            self.retime(now, now + lease, lease, self.rules.clone());
        }
    }

    /// Until when nothing is booked; zero if it is not paused.
    pub fn paused_until(&self, now: Micros) -> Micros {
        Some(self.pause.until()).filter(|until| *until > now).unwrap_or_default()
    }

    /// The pause that it is in, and why.
    pub fn pause(&self, now: Micros) -> Option<Lasting> {
        self.pause.lasting(now)
    }

    /// Hears how much the upstream left of one of the caller's rules. What others use of it is left to them, of a bucket
    /// once. Returns how many permits fewer there are by that.
    pub fn hear_remaining(&mut self, now: Micros, rule: &Rule, remaining: &Remaining) -> u64 {
        let Some(index) = self.rules.iter().position(|other| other == rule) else { return 0 };
        let (slot, apart) = (remaining.slot, external_usage::overtaken(remaining, rule.window));
        if matches!(rule.kind, Kind::Bucket { .. }) {
            let drift = self.left((slot + apart).min(now), rule).saturating_sub(remaining.permits);
            if drift > 0 {
                self.charge(now, drift);
            }
            return drift;
        }
        if slot + rule.window <= now {
            // What it would be compared with is not there any more.
            return 0;
        }
        let from = match rule.kind {
            Kind::Fixed { .. } => window_before(slot, rule),
            Kind::Sliding | Kind::Bucket { .. } => slot + Micros::ONE - remaining.per,
        };
        let (from, until) = (from - apart, slot + apart);
        let used = rule.rate.saturating_sub(remaining.permits);
        let own = self.held(from, until).saturating_sub(self.others[index].refused(from, until));
        self.others[index].observe(now, rule.window, used.saturating_sub(own))
    }

    /// Hears that the upstream refused permits of these slots, and how many, and does not count them. They stay booked: it is
    /// asked no more often for that.
    pub fn hear_refused(&mut self, now: Micros, slots: &[(Micros, u64)]) {
        for (others, rule) in self.others.iter_mut().zip(&self.rules) {
            if !matches!(rule.kind, Kind::Bucket { .. }) {
                others.refuse(now, rule.window, slots);
            }
        }
    }

    /// Moves what is booked ahead to where it should stand beside what others use, as after a change of the limits, and as soon as
    /// an earlier one has been followed.
    pub fn follow_others(&mut self, now: Micros, lease: Micros) {
        let are_unheeded = |(others, rule): (&ExternalUsage, &Rule)| others.are_unheeded(rule.rate);
        if !self.moved.is_empty() || !self.others.iter().zip(&self.rules).any(are_unheeded) {
            return;
        }
        if self.calendar.last().is_some_and(|last| last > now + lease) {
            self.retime(now, now + lease, lease, self.rules.clone());
        }
        self.others.iter_mut().for_each(ExternalUsage::heed);
    }

    /// Forgets what was used until an instant, when the state is opened next: what is booked for later moves up, as after a change
    /// of the limits.
    pub fn reset(&mut self, at: Micros) {
        self.reset_at = Some(at);
        self.opens_at = Micros::ZERO;
    }

    /// Forgets what was used before a reset. Returns whether there was one.
    pub(in crate::limiter) fn follow_reset(&mut self) -> bool {
        let Some(at) = self.reset_at.take() else { return false };
        self.calendar = self.calendar.split_off(at + Micros::ONE).into();
        self.bases.fill(TatCheckpoint::default());
        true
    }

    /// Every rule in force.
    pub(in crate::limiter) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The last change of the limits.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Takes back permits that were booked at `slot` under the generation `known` to their holder.
    ///
    /// What a change has moved and nobody fetched in time is gone: it stays charged, and is not taken from others.
    pub fn give_back(&mut self, slot: Micros, permits: u64, known: u64) -> Returned {
        let Generation { number, void_from, before } = self.generation;
        if known == number || (known == before && slot < void_from) {
            self.calendar.uncharge(slot, permits, &self.rules);
            return Returned::Here;
        }
        if known != before {
            return Returned::Lost;
        }
        let mut place = None;
        let mut left = permits;
        while left > 0 {
            let Some(moved) = self.first_moved(slot, 0).and_then(|index| self.moved.get_mut(index)) else {
                break;
            };
            let taken = moved.permits.min(left);
            self.calendar.uncharge(moved.to, taken, &self.rules);
            place = Some(moved.to);
            moved.permits -= taken;
            left -= taken;
        }
        place.map_or(Returned::Lost, Returned::Moved)
    }

    /// The void permits that were booked in the cell of `slot`, by their place among those that are moved.
    fn moved_of(&self, slot: Micros) -> impl Iterator<Item = (usize, &Moved)> {
        let first = self.moved.partition_point(|moved| moved.from < slot);
        let in_cell = move |(_, moved): &(usize, &Moved)| cell_start(moved.from, self.moved_cell) <= slot;
        self.moved.iter().enumerate().skip(first).take_while(in_cell)
    }

    /// The first of them that have not been fetched, after so many.
    fn first_moved(&self, slot: Micros, mut skipped: u64) -> Option<usize> {
        let mut there = self.moved_of(slot).filter(|(_, moved)| moved.permits > 0);
        let found = there.find(|(_, moved)| {
            let is_behind = skipped < moved.permits;
            skipped = skipped.saturating_sub(moved.permits);
            is_behind
        });
        found.map(|(index, _)| index)
    }

    /// How many permits that were booked at `slot` have not been fetched.
    pub fn unfetched(&self, slot: Micros) -> u64 {
        self.moved_of(slot).map(|(_, moved)| moved.permits).sum()
    }

    /// Where a change of the limits has put permits that were booked at `slot`, after so many others, if all of them lie together.
    pub fn place(&self, slot: Micros, permits: u64, known: u64, skipped: u64) -> Option<Micros> {
        let Generation { number, void_from, before } = self.generation;
        if known == number || known != before || slot < void_from {
            return None;
        }
        let moved = self.moved.get(self.first_moved(slot, skipped)?)?;
        (moved.permits >= permits).then_some(moved.to)
    }

    /// Hands the permits at that place to their holder. They stay charged there.
    pub fn fetch(&mut self, slot: Micros, permits: u64, skipped: u64) {
        if let Some(moved) = self.first_moved(slot, skipped).and_then(|index| self.moved.get_mut(index)) {
            moved.permits = moved.permits.saturating_sub(permits);
        }
    }

    /// A search for room from `from` on.
    pub fn search(&mut self, from: Micros) -> Search<'_> {
        let from = from.max(self.opens_at);
        let search = Search::new(&mut self.calendar, &self.rules, &self.bases, from);
        search.heeding(&mut self.pause, &self.others)
    }

    /// Grants nothing before an instant.
    pub fn close_until(&mut self, at: Micros) {
        self.opens_at = self.opens_at.max(at);
    }

    /// Books permits whose place is not in question, because they are used there whether there is room or not.
    pub fn charge(&mut self, at: Micros, permits: u64) {
        Search::new(&mut self.calendar, &self.rules, &self.bases, at).charge(permits);
    }

    /// Sees to it that so many permits count as used at an instant or since.
    ///
    /// What was booked before that may be among them, and says nothing of when the others were used: it would leave its
    /// windows sooner than they do. So it moves up to the instant first. A bucket knows only how full it is, whenever that was.
    /// What is in use by `now` says nothing of an instant that lies ahead.
    pub fn charge_missing(&mut self, now: Micros, at: Micros, permits: u64) {
        let lies_ahead = at > now;
        let only_buckets = self.rules.iter().all(|rule| matches!(rule.kind, Kind::Bucket { .. }));
        let known = if lies_ahead {
            self.held(at, Micros(u64::MAX))
        } else if only_buckets {
            let in_use = self.rules.iter().map(|rule| rule.holds().saturating_sub(self.left(now, rule)));
            in_use.max().unwrap_or_default()
        } else {
            self.held(at, now)
        };
        let missing = permits.saturating_sub(known);
        if missing == 0 {
            return;
        }
        if !lies_ahead && !only_buckets {
            let before = self.calendar.entries().iter().rev().filter(|entry| entry.at < at);
            let before: Vec<_> = before.map(|entry| (entry.at, entry.permits)).collect();
            let mut moving = missing;
            for (from, held) in before {
                self.calendar.uncharge(from, held.min(moving), &self.rules);
                moving = moving.saturating_sub(held);
            }
        }
        self.charge(at, missing);
    }

    /// Permits that could be used at `now` under each of the caller's rules.
    pub fn available(&self, now: Micros, rules: &[Rule]) -> Vec<u64> {
        rules.iter().map(|rule| self.left(now, rule)).collect()
    }

    fn left(&self, now: Micros, rule: &Rule) -> u64 {
        let known = self.rules.iter().position(|other| other == rule);
        match &rule.kind {
            Kind::Sliding | Kind::Fixed { .. } => {
                let others = known.and_then(|index| self.others.get(index)).map_or(0, ExternalUsage::permits);
                rule.rate.saturating_sub(others).saturating_sub(self.held(window_before(now, rule), now))
            }
            Kind::Bucket { burst } => {
                let mut base = known.and_then(|index| self.bases.get(index)).copied().unwrap_or_default();
                base.fold(rule, self.calendar.entries(), now);
                bucket::available(rule, *burst, base.level, now)
            }
        }
    }

    /// What is booked from an instant to another one.
    fn held(&self, from: Micros, until: Micros) -> u64 {
        let inside = self.calendar.entries().iter().filter(|entry| from <= entry.at && entry.at <= until);
        inside.map(|entry| entry.permits).sum()
    }

    /// When nothing in the state can matter any more.
    pub fn expires(&self) -> Micros {
        let last = self.calendar.last();
        let left = self.rules.iter().zip(&self.bases).map(|(rule, base)| {
            let mut base = *base;
            if let (Kind::Bucket { .. }, Some(last)) = (&rule.kind, last) {
                base.fold(rule, self.calendar.entries(), last);
            }
            let full = base.level.micros + Micros(u64::from(base.level.rest > 0));
            full.max(last.map_or(Micros::ZERO, |last| last + rule.window))
        });
        left.max().unwrap_or_default().max(self.opens_at).max(self.pause.expires())
    }

    /// The place among the caller's rules of a rule in force; the first where it is another caller's.
    pub fn own_limit(&self, index: usize, rules: &[Rule]) -> usize {
        let violated = self.rules.get(index);
        rules.iter().position(|rule| Some(rule) == violated).unwrap_or_default()
    }

    /// The bookings, for tests and for what is shown.
    pub fn calendar(&self) -> &Timeline {
        &self.calendar
    }
}

/// Where the window of a rule, that is no bucket, begins that ends at an instant.
fn window_before(at: Micros, rule: &Rule) -> Micros {
    match &rule.kind {
        Kind::Fixed { stretches, .. } => window_of(stretches, at).0,
        Kind::Sliding | Kind::Bucket { .. } => at + Micros::ONE - rule.window,
    }
}
