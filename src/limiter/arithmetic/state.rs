//! The state of one limiter, or of one of its partitions: its bookings, the limits in force, pauses, and what others use.
//!
//! Pure: the instant is an argument. The twins are `lua/state.lua` and `lua/open.lua`.

mod charges;

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::Algorithm;
use crate::limiter::arithmetic::algorithm::kind::Checkpoint;
use crate::limiter::arithmetic::cell::{cell_from, cell_start, held_between};
use crate::limiter::arithmetic::declared::Declarations;
use crate::limiter::arithmetic::external_usage::{ExternalUsage, overtaken};
use crate::limiter::arithmetic::pause::Pause;
use crate::limiter::arithmetic::reschedule::{Cursor, Moving, Reschedule};
use crate::limiter::arithmetic::rule::{Rule, checkpoint_after, finest_cell};
use crate::limiter::arithmetic::search::Search;
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::model::{Generation, Lasting, PauseRequest, Remaining};

/// Bookings are kept one by one for this part of a window (1/8) after their instant, and then only in a checkpoint. A permit
/// that is given back later is not refunded by a rule with a checkpoint.
const REFUND_PART: u64 = 8;

/// The most past bookings that are kept one by one for a rule with a checkpoint.
const REFUND_MAX: usize = 512;

/// A rule has the windows of another if these differ by so small a part at most (1/4), as by a guard.
const GUARD_PART: u64 = 4;

/// A limiter moves with another one if so large a part (3/4) of the permits that move there are booked in it, too.
const SAME_PART: (u64, u64) = (3, 4);

/// The state of one limiter.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct LimiterState {
    timeline: Timeline,
    declared: Declarations,
    /// Every rule in force, the union of what is declared.
    rules: Vec<Rule>,
    /// The checkpoint of each rule.
    checkpoints: Vec<Checkpoint>,
    /// The external usage of each rule.
    external_usage: Vec<ExternalUsage>,
    reschedule: Reschedule,
    /// The instant before which nothing is booked, even if there is room. A state in Redis has no such instant: it begins
    /// full of permits.
    opens_at: Micros,
    /// A reset that has still to be followed: bookings until then are forgotten.
    reset_at: Option<Micros>,
    /// The instant of the last reset that was followed.
    forgotten_until: Micros,
    pause: Pause,
    /// The instant as of which bookings were last merged.
    pruned_at: Micros,
    /// True where nobody hears that bookings have moved: they stay where they are. No state in Redis is so.
    is_unheard: bool,
}

/// Returns how long a rule, by its place, sees a booking.
fn seen_for(external: &[ExternalUsage], index: usize, rule: &Rule) -> Micros {
    external.get(index).map_or(rule.window, |external| external.compared_for(rule.window))
}

impl LimiterState {
    /// Brings the state to `now` under the caller's limits, which count as declared now.
    pub fn open(&mut self, now: Micros, rules: &Arc<[Rule]>, lease: Micros, replica: u64) {
        self.reschedule.forget(now);
        self.declared.declare(now, rules, lease, replica);
        for (external, rule) in self.external_usage.iter_mut().zip(&self.rules) {
            external.forget(now, rule.window, self.pause.until());
        }
        let union = self.declared.union();
        if self.rules.is_empty() {
            self.put_in_force(union, now);
        } else if union != self.rules && !self.reschedule.is_pending() {
            self.reschedule(now, now + lease, lease, union);
        }
        if !self.reschedule.is_pending() && self.follow_reset() {
            self.move_up(now, lease);
        }
        self.follow_pause(now, lease);
        self.follow_external_usage(now, lease);
        self.prune(now);
    }

    fn prune(&mut self, now: Micros) {
        let entries = self.timeline.entries();
        let past = entries.partition_point(|entry| entry.at <= now);
        let beyond_most = past.checked_sub(REFUND_MAX + 1).map(|index| entries[index].at).unwrap_or_default();
        for (checkpoint, rule) in self.checkpoints.iter_mut().zip(&self.rules) {
            let until = (now - Micros(rule.window.0 / REFUND_PART)).max(beyond_most);
            rule.kind.fold(rule.quota(), checkpoint, entries, until);
        }
        let external = &self.external_usage;
        let seen_for = |index: usize, rule: &Rule| seen_for(external, index, rule);
        self.timeline.prune(now, &self.rules, &self.checkpoints, seen_for);
        self.pruned_at = now;
    }

    /// Puts rules in force behind an instant. Bookings stay as they are; a new rule with a checkpoint begins with the lack of the
    /// emptiest checkpoint before.
    fn put_in_force(&mut self, rules: Vec<Rule>, till: Micros) {
        self.checkpoints = rules.iter().map(|rule| self.checkpoint_of(rule, till)).collect();
        let external = |rule: &Rule| {
            let usage = self.predecessor(rule).and_then(|index| {
                Some(self.external_usage.get(index)?.under(self.rules[index].rate, rule.rate))
            });
            usage.unwrap_or_default()
        };
        self.external_usage = rules.iter().map(external).collect();
        self.rules = rules;
    }

    /// Returns the checkpoint with which a rule comes into force. Until `till`, permits flowed in under the rules before.
    fn checkpoint_of(&self, rule: &Rule, till: Micros) -> Checkpoint {
        if let Some(checkpoint) = self.checkpoint(rule) {
            return checkpoint;
        }
        let mut before = self.checkpoints.clone();
        for (old, checkpoint) in self.rules.iter().zip(&mut before) {
            old.kind.fold(old.quota(), checkpoint, self.timeline.entries(), till);
        }
        checkpoint_after(self.rules.iter().zip(&before), rule)
    }

    /// Returns the place of a rule among those in force.
    fn position(&self, rule: &Rule) -> Option<usize> {
        self.rules.iter().position(|other| other == rule)
    }

    /// Returns the place of the rule in force whose windows are those of a new one, but for a guard: others use the same in them. A bucket
    /// counts no windows.
    fn predecessor(&self, rule: &Rule) -> Option<usize> {
        let apart = |other: &Rule| other.window.0.abs_diff(rule.window.0);
        let is_alike = |other: &Rule| {
            other.has_windows() && rule.has_windows() && apart(other) <= rule.window.0 / GUARD_PART
        };
        let alike = self.rules.iter().enumerate().filter(|(_, other)| is_alike(other));
        self.position(rule).or_else(|| alike.min_by_key(|(_, other)| apart(other)).map(|(index, _)| index))
    }

    /// Returns the checkpoint of a rule in force.
    fn checkpoint(&self, rule: &Rule) -> Option<Checkpoint> {
        self.position(rule).and_then(|index| self.checkpoints.get(index)).copied()
    }

    /// Puts `rules` in force and takes out the bookings from an instant on: the next call of a queue gives them their places under the rules. Where
    /// nobody hears of it they stay, and so nobody has to claim them before the next change.
    fn reschedule(&mut self, now: Micros, from: Micros, lease: Micros, rules: Vec<Rule>) {
        let cell = finest_cell(&self.rules);
        // A cell is moved whole or not at all: the part that stays must stay charged.
        let void_from = cell_from(from, cell);
        // From now on bookings count by the new rules.
        self.put_in_force(rules, now.min(void_from) - Micros::ONE);
        self.external_usage.iter_mut().for_each(ExternalUsage::heed);
        self.pause.restart(now);
        let void = if self.is_unheard { Vec::new() } else { self.timeline.split_off(void_from) };
        self.reschedule.start(now, lease, (void_from, cell), void);
    }

    /// Moves the bookings from an instant on, too, with another limiter that moves, if nearly all are of the same requests: so many permits
    /// of that one lie between the instant and another.
    pub(in crate::limiter::arithmetic) fn join(
        &mut self,
        now: Micros,
        from: Micros,
        lease: Micros,
        (permits, until): (u64, Micros),
    ) {
        let cell = finest_cell(&self.rules);
        let held = self.held(cell_from(from, cell), cell_start(until, cell) + cell - Micros::ONE);
        let (same, of) = SAME_PART;
        let is_same = held > 0 && same * held <= of * permits && of * held >= same * permits;
        if is_same && !self.reschedule.is_pending() {
            self.reschedule(now, from, lease, self.rules.clone());
        }
    }

    /// Returns the void bookings that have no place yet, and a search behind those that have theirs; `None` if there are none.
    pub(in crate::limiter::arithmetic) fn moving(&mut self) -> Option<Moving<'_>> {
        self.reschedule.first_void()?;
        // They are placed beside the external usage of now.
        self.external_usage.iter_mut().for_each(ExternalUsage::heed);
        let from = self.reschedule.generation().void_from.max(self.timeline.last().unwrap_or_default());
        let search = Search::new(&mut self.timeline, &self.rules, &self.checkpoints, from)
            .heeding(&mut self.pause, &self.external_usage);
        Some(Moving { void: &mut self.reschedule, search })
    }

    /// Moves bookings from a lease ahead on to the earliest places under the rules in force.
    fn move_up(&mut self, now: Micros, lease: Micros) {
        self.reschedule(now, now + lease, lease, self.rules.clone());
    }

    /// Moves the bookings that a pause covers to its end, and all later ones behind them, in order. Their slots are void at once: their
    /// holders learn of the pause with their next answer. Who has not heard of it uses its own for a lease, also behind a short pause. They are
    /// in order with all that was booked before, so that two leases behind the pause's begin no limit is over by them.
    fn follow_pause(&mut self, now: Micros, lease: Micros) {
        if self.is_unheard {
            return;
        }
        let (from, until) = (now + Micros::ONE, self.pause.until());
        // Bookings in the cell of this moment stay there.
        let paused = cell_from(from, finest_cell(&self.rules))..until;
        let first = self.timeline.entries().iter().map(|entry| entry.at).find(|at| paused.contains(at));
        let Some(first) = first.filter(|_| !self.reschedule.is_pending()) else { return };
        if first < now + lease {
            self.pause.hold(now + lease + lease);
        }
        self.reschedule(now, from, lease, self.rules.clone());
    }

    /// Pauses the limiter as an upstream asks a replica. Returns whether anything has changed.
    pub fn ask_pause(&mut self, now: Micros, lease: Micros, request: &PauseRequest, replica: u64) -> bool {
        let has_changed = self.pause.ask(now, request, replica, &self.rules);
        self.follow_pause(now, lease);
        has_changed
    }

    /// Lets bookings stay where they are whatever changes, or not: those who hold them do not hear of it.
    pub(in crate::limiter) fn set_unheard(&mut self, is_unheard: bool) {
        self.is_unheard = is_unheard;
    }

    /// Follows a pause by hand that was set at `at` through a replica, and lasts until `until`. A pause that was lifted
    /// moves bookings up.
    pub fn pause_by_hand(&mut self, now: Micros, lease: Micros, at: Micros, until: Micros, replica: u64) {
        let is_followed = self.pause.follow(now, at, until, replica, &self.rules);
        self.follow_pause(now, lease);
        let is_ahead = self.timeline.last().is_some_and(|last| last > now + lease);
        if is_followed && until <= now && is_ahead && !self.is_unheard && !self.reschedule.is_pending() {
            self.move_up(now, lease);
        }
    }

    /// Returns the end of the pause; zero if the limiter is not paused.
    pub fn paused_until(&self, now: Micros) -> Micros {
        Some(self.pause.until()).filter(|until| *until > now).unwrap_or_default()
    }

    /// Returns the pause in force, and its cause.
    pub fn pause(&self, now: Micros) -> Option<Lasting> {
        self.pause.lasting(now)
    }

    /// Takes the difference between an upstream's report on one of the caller's rules and the bookings as external usage: it
    /// is left to others in each window, or charged once where the rule has none. Returns how many permits of it are new.
    pub fn observe_remaining(&mut self, now: Micros, rule: &Rule, remaining: &Remaining) -> u64 {
        let Some(index) = self.position(rule) else { return 0 };
        let (slot, apart) = (remaining.slot, overtaken(remaining, rule.window));
        let Some(from) = rule.kind.window_start(slot, remaining.per) else {
            let missing = self.left((slot + apart).min(now), rule).saturating_sub(remaining.permits);
            if missing > 0 {
                self.charge(now, missing);
            }
            return missing;
        };
        if slot + rule.window <= now {
            // The bookings to compare with have been pruned.
            return 0;
        }
        let (from, until) = (from - apart, slot + apart);
        let used = rule.rate.saturating_sub(remaining.permits);
        let own = self.held(from, until).saturating_sub(self.external_usage[index].refused(from, until));
        self.external_usage[index].observe(now, rule.window, used.saturating_sub(own))
    }

    /// Notes that the upstream refused permits of these slots, and does not count them. They stay booked, so that the upstream is
    /// asked no more often.
    pub fn observe_refused(&mut self, now: Micros, slots: &[(Micros, u64)]) {
        for (external, rule) in self.external_usage.iter_mut().zip(&self.rules) {
            if rule.has_windows() {
                external.refuse(now, (rule.window, rule.cell), slots);
            }
        }
    }

    /// Moves the bookings ahead to their places beside changed external usage, as soon as an earlier change has been
    /// followed.
    pub fn follow_external_usage(&mut self, now: Micros, lease: Micros) {
        let is_unheeded = |(external, rule): (&ExternalUsage, &Rule)| external.is_unheeded(rule.rate);
        let is_any_unheeded = self.external_usage.iter().zip(&self.rules).any(is_unheeded);
        if self.reschedule.is_pending() || !is_any_unheeded {
            return;
        }
        if self.timeline.last().is_some_and(|last| last > now + lease) {
            self.move_up(now, lease);
        }
        self.external_usage.iter_mut().for_each(ExternalUsage::heed);
    }

    /// Makes the state forget bookings until an instant when it is opened next; later ones move up.
    pub fn reset(&mut self, at: Micros) {
        self.reset_at = Some(at);
        self.opens_at = Micros::ZERO;
    }

    /// Forgets the bookings before a reset. Returns whether there was one.
    pub(in crate::limiter) fn follow_reset(&mut self) -> bool {
        let Some(at) = self.reset_at.take() else { return false };
        self.forgotten_until = at;
        self.timeline = self.timeline.split_off(at + Micros::ONE).into();
        self.checkpoints = self.rules.iter().map(|rule| rule.kind.empty_checkpoint()).collect();
        true
    }

    /// Returns every rule in force.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns whether replicas declare different limits. All are in force only while each declares its own.
    pub fn is_disputed(&self) -> bool {
        self.declared.is_disputed()
    }

    /// Returns the last change of the limits.
    pub fn generation(&self) -> Generation {
        self.reschedule.generation()
    }

    /// Returns whether permits that were booked under a generation are still there.
    pub fn knows(&self, generation: u64) -> bool {
        self.reschedule.knows(generation)
    }

    /// Keeps the places of void permits for a caller that has still to follow the last change. See [`Reschedule::keep_places`].
    pub fn keep_places(&mut self, generation: u64, until: Micros) {
        self.reschedule.keep_places(generation, until);
    }

    /// Takes back permits that a call has claimed at an instant.
    pub fn uncharge(&mut self, at: Micros, permits: u64) {
        self.timeline.uncharge(at, permits, &self.rules);
    }

    /// Returns a cursor over the permits that were booked at `slot` under a generation.
    pub fn cursor(&self, slot: Micros, generation: u64) -> Cursor {
        self.reschedule.cursor(slot, generation)
    }

    /// Moves a cursor on. See [`Reschedule::seek`].
    pub fn seek(&self, cursor: &mut Cursor, offset: u64, permits: u64) -> Option<Micros> {
        self.reschedule.seek(cursor, offset, permits)
    }

    /// Marks permits where a cursor stands as claimed by their holder.
    pub fn claim(&mut self, cursor: &mut Cursor, permits: u64) {
        self.reschedule.claim(cursor, permits);
    }

    /// Takes back permits from where a cursor stands. See [`Reschedule::give_back`]. A reset has forgotten those until then, and others may
    /// stand in their cell.
    pub fn give_back(&mut self, cursor: &mut Cursor, permits: u64) -> Option<Micros> {
        let (timeline, rules, external, pruned_at, forgotten_until) =
            (&mut self.timeline, &self.rules, &self.external_usage, self.pruned_at, self.forgotten_until);
        let cell_of = |at: Micros| {
            let seen_by = rules
                .iter()
                .enumerate()
                .filter(|(index, rule)| at + seen_for(external, *index, rule) > pruned_at);
            seen_by.map(|(_, rule)| rule.cell).min().unwrap_or_else(|| finest_cell(rules))
        };
        self.reschedule.give_back(cursor, permits, |at, permits| {
            if at > forgotten_until {
                timeline.uncharge_merged(at, permits, rules, cell_of);
            }
        })
    }

    /// Returns how many permits of the first ones from an instant on that have no new place yet, and the instant of the last of them.
    pub(in crate::limiter::arithmetic) fn void_from(&self, from: Micros, most: u64) -> (u64, Micros) {
        self.reschedule.void_from(from, most)
    }

    /// Returns the permits of bookings that a change has voided and that have no new place yet.
    pub fn void_permits(&self) -> u64 {
        self.reschedule.void_permits()
    }

    /// Begins a search for room at `from`.
    pub fn search(&mut self, from: Micros) -> Search<'_> {
        let from = from.max(self.opens_at);
        let search = Search::new(&mut self.timeline, &self.rules, &self.checkpoints, from);
        search.heeding(&mut self.pause, &self.external_usage)
    }

    /// Lets nothing be booked before an instant.
    pub fn close_until(&mut self, at: Micros) {
        self.opens_at = self.opens_at.max(at);
    }

    /// Returns the instant before which nothing is booked; zero if there is none.
    pub fn opens_at(&self) -> Micros {
        self.opens_at
    }

    /// Returns the permits that could be used at `now` under each of the caller's rules.
    pub fn available(&self, now: Micros, rules: &[Rule]) -> Vec<u64> {
        rules.iter().map(|rule| self.left(now, rule)).collect()
    }

    fn left(&self, now: Micros, rule: &Rule) -> u64 {
        let external = self.position(rule).and_then(|index| self.external_usage.get(index));
        let external = external.map_or(0, ExternalUsage::permits);
        let checkpoint = self.checkpoint(rule).unwrap_or_else(|| rule.kind.empty_checkpoint());
        rule.kind.available(rule.quota(), &checkpoint, self.timeline.entries(), external, now)
    }

    /// Returns the permits booked from an instant to another one.
    fn held(&self, from: Micros, until: Micros) -> u64 {
        held_between(self.timeline.entries(), from, until)
    }

    /// Returns the instant from which nothing in the state matters.
    pub fn expires(&self) -> Micros {
        let entries = self.timeline.entries();
        let rules = self.rules.iter().zip(&self.checkpoints);
        let expires = rules.map(|(rule, checkpoint)| rule.kind.expires(rule.quota(), checkpoint, entries));
        let external = self.external_usage.iter().zip(&self.rules);
        let external = external.map(|(usage, rule)| usage.expires(rule.window, self.pause.until()));
        expires
            .chain(external)
            .max()
            .unwrap_or_default()
            .max(self.opens_at)
            .max(self.pause.expires())
            .max(self.reschedule.expires())
    }

    /// Returns the place among the caller's rules of a rule in force; the first where it is another caller's.
    pub fn own_limit(&self, index: usize, rules: &[Rule]) -> usize {
        let violated = self.rules.get(index);
        rules.iter().position(|rule| Some(rule) == violated).unwrap_or_default()
    }

    /// Returns the bookings.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }
}
