//! The state of one limiter (and, later, of one of its partitions): its calendar, whose limits are in force,
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
use crate::limiter::algorithm::Search;
use crate::limiter::algorithm::sliding_window::finest_cell;
use crate::limiter::calendar::{Calendar, Rule, cell_start};

/// The most sets of limits in force at once; a further one takes the place of the one declared longest ago.
pub const DECLARED_MAX: usize = 4;

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

/// A change of the limits, as a caller must know it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Generation {
    /// The instant of the change in microseconds, so that no number comes twice; zero before the first.
    pub number: u64,
    /// Slots from here on that were booked under the generation before are void.
    pub void_from: Micros,
    /// The number of the generation before. Slots that were booked under a still older one are void altogether:
    /// their holder has missed a change, and other permits may stand in their places.
    pub before: u64,
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
pub struct Book {
    calendar: Calendar,
    declared: Vec<Declared>,
    /// Every rule in force, the union of what is declared.
    rules: Vec<Rule>,
    generation: Generation,
    /// The cells in which the generation before was kept, whose slots `moved` translates.
    moved_cell: Micros,
    /// Void permits that wait to be fetched, in the order of their old places.
    moved: Vec<Moved>,
    /// Until when they are kept, and no other change moves bookings.
    moved_until: Micros,
}

impl Book {
    /// Brings the book to `now` under the caller's limits, which count as declared now.
    pub fn open(&mut self, now: Micros, rules: &Arc<[Rule]>, lease: Micros, replica: u64) {
        self.moved.retain(|moved| moved.permits > 0 && self.moved_until > now);
        self.declare(now, rules, lease, replica);
        let union = self.union();
        if self.rules.is_empty() {
            self.rules = union;
        } else if union != self.rules && self.moved.is_empty() {
            self.retime(now, lease, union);
        }
        self.calendar.prune(now, &self.rules);
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
            self.declared.remove(0);
        }
    }

    fn union(&self) -> Vec<Rule> {
        self.declared.iter().flat_map(|declared| declared.rules.iter().copied()).collect()
    }

    /// Puts `rules` in force and moves the bookings from one lease ahead on to their places under them.
    fn retime(&mut self, now: Micros, lease: Micros, rules: Vec<Rule>) {
        let void_from = now + lease;
        self.moved_cell = finest_cell(&self.rules);
        self.rules = rules;
        let void = self.calendar.split_off(void_from);
        let mut search = Search::new(&mut self.calendar, &self.rules, void_from);
        for entry in &void {
            let mut left = entry.permits;
            while left > 0 {
                let found = search.earliest(1);
                let permits = left.min(found.room);
                search.charge(permits);
                self.moved.push(Moved { from: entry.at, to: found.at, permits });
                left -= permits;
            }
        }
        let before = self.generation.number;
        self.generation = Generation { number: now.0.max(before + 1), void_from, before };
        self.moved_until = void_from + lease;
    }

    /// The last change of the limits.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Takes back permits that were booked at `slot` under the generation `known` to their holder.
    ///
    /// What a change has moved and nobody fetched in time is gone: it stays charged, and is not taken from others.
    pub fn give_back(&mut self, slot: Micros, permits: u64, known: u64) -> Returned {
        let cell = finest_cell(&self.rules);
        let Generation { number, void_from, before } = self.generation;
        if known == number || (known == before && slot < void_from) {
            self.calendar.uncharge(slot, permits, cell);
            return Returned::Here;
        }
        if known != before {
            return Returned::Lost;
        }
        let mut place = None;
        let mut left = permits;
        while left > 0 {
            let Some(moved) = self.first_moved(slot).and_then(|index| self.moved.get_mut(index)) else {
                break;
            };
            let taken = moved.permits.min(left);
            self.calendar.uncharge(moved.to, taken, cell);
            place = Some(moved.to);
            moved.permits -= taken;
            left -= taken;
        }
        place.map_or(Returned::Lost, Returned::Moved)
    }

    /// The first void permits that were booked in the cell of `slot` and have not been fetched.
    fn first_moved(&self, slot: Micros) -> Option<usize> {
        let first = self.moved.partition_point(|moved| moved.from < slot);
        let in_cell = |moved: &&Moved| cell_start(moved.from, self.moved_cell) <= slot;
        let mut there = self.moved[first..].iter().take_while(in_cell);
        there.position(|moved| moved.permits > 0).map(|offset| first + offset)
    }

    /// Where a change of the limits has put permits that were booked at `slot`, if all of them lie together.
    pub fn place(&self, slot: Micros, permits: u64, known: u64) -> Option<Micros> {
        let Generation { number, void_from, before } = self.generation;
        if known == number || known != before || slot < void_from {
            return None;
        }
        let moved = self.moved.get(self.first_moved(slot)?)?;
        (moved.permits >= permits).then_some(moved.to)
    }

    /// Hands the permits at that place to their holder. They stay charged there.
    pub fn fetch(&mut self, slot: Micros, permits: u64) {
        if let Some(moved) = self.first_moved(slot).and_then(|index| self.moved.get_mut(index)) {
            moved.permits = moved.permits.saturating_sub(permits);
        }
    }

    /// A search for room from `from` on.
    pub fn search(&mut self, from: Micros) -> Search<'_> {
        Search::new(&mut self.calendar, &self.rules, from)
    }

    /// Books permits whose place is not in question, because they are used there whether there is room or not.
    pub fn charge(&mut self, at: Micros, permits: u64) {
        self.search(at).charge(permits);
    }

    /// Permits that could be used at `now` under each of the caller's rules.
    pub fn available(&self, now: Micros, rules: &[Rule]) -> Vec<u64> {
        let held = |rule: &Rule| -> u64 {
            let inside = |at: Micros| at + rule.window > now && at <= now;
            self.calendar.entries().iter().filter(|entry| inside(entry.at)).map(|entry| entry.permits).sum()
        };
        rules.iter().map(|rule| rule.rate.saturating_sub(held(rule))).collect()
    }

    /// When nothing in the book can matter any more.
    pub fn expires(&self) -> Micros {
        let longest = self.rules.iter().map(|rule| rule.window).max().unwrap_or_default();
        self.calendar.last().map_or(Micros::ZERO, |last| last + longest)
    }

    /// The place among the caller's rules of a rule in force; the first where it is another caller's.
    pub fn own_limit(&self, index: usize, rules: &[Rule]) -> usize {
        let violated = self.rules.get(index);
        rules.iter().position(|rule| Some(rule) == violated).unwrap_or_default()
    }

    /// The bookings, for tests and for what is shown.
    pub fn calendar(&self) -> &Calendar {
        &self.calendar
    }
}
