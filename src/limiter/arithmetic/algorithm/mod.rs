//! Finding the earliest instant with room under all rules of a limiter, whatever their algorithms.
//!
//! Pure functions over a [`Timeline`]: no clock, no store, no tasks. One file per algorithm says what room is; the
//! [`Search`] moves over all of them at once. `lua/calendar.lua` is the twin.

pub mod bucket;
mod fixed_window;
mod sliding_window;

use self::bucket::{Tat, TatCheckpoint};
use self::fixed_window::Frame;
use self::sliding_window::Window;
use crate::clock::Micros;
use crate::limiter::arithmetic::external_usage::ExternalUsage;
use crate::limiter::arithmetic::pause::Pause;
use crate::limiter::arithmetic::rule::{Kind, Rule, cell_start, finest_cell, is_one};
use crate::limiter::arithmetic::timeline::Timeline;

/// A search that only moves forward in time, over all rules at once.
///
/// Bookings of a batch are mostly in order, so each entry is passed once for the whole batch.
pub struct Search<'a> {
    calendar: &'a mut Timeline,
    rules: &'a [Rule],
    /// The finest cell of all rules: how the calendar is kept.
    cell: Micros,
    /// Where the search stands.
    at: Micros,
    /// Entries whose cell starts at `at` or before.
    entered: usize,
    /// What each rule sees from there.
    sights: Vec<Sight>,
    /// What is left open by a pause; `None` where it does not matter.
    pause: Option<&'a mut Pause>,
    /// What others use of each rule.
    others: &'a [ExternalUsage],
}

/// What a rule sees from where a search stands.
#[derive(Clone, Copy)]
enum Sight {
    Sliding(Window),
    /// The level, and up to where bookings were in it from the start.
    Bucket(Tat, Micros),
    Fixed(Frame),
}

/// What a search found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The earliest instant with room.
    pub at: Micros,
    /// How many permits have room there; at least the number that was asked for.
    pub room: u64,
    /// The rule that moved the search to this instant, if any did.
    pub limited_by: Option<usize>,
}

impl<'a> Search<'a> {
    /// A search that begins at `from`. `bases` are what the rules' buckets remember.
    pub fn new(
        calendar: &'a mut Timeline,
        rules: &'a [Rule],
        bases: &[TatCheckpoint],
        from: Micros,
    ) -> Search<'a> {
        let cell = finest_cell(rules);
        let sight = |(rule, base): (&Rule, &TatCheckpoint)| match rule.kind {
            Kind::Sliding => Sight::Sliding(Window::default()),
            Kind::Bucket { .. } => Sight::Bucket(base.level, base.folded),
            Kind::Fixed { .. } => Sight::Fixed(Frame::default()),
        };
        let sights = rules.iter().zip(bases).map(sight).collect();
        let mut search =
            Search { calendar, rules, cell, at: Micros::ZERO, entered: 0, sights, pause: None, others: &[] };
        search.advance(from);
        search
    }

    /// The same search, for what a pause and others leave open.
    pub(in crate::limiter) fn heeding(
        mut self,
        pause: &'a mut Pause,
        others: &'a [ExternalUsage],
    ) -> Search<'a> {
        self.pause = Some(pause);
        self.others = others;
        self
    }

    /// The rules that it looks at.
    pub(in crate::limiter) fn rules(&self) -> &'a [Rule] {
        self.rules
    }

    /// Where the search stands.
    pub fn at(&self) -> Micros {
        self.at
    }

    /// Moves forward to `at`; an earlier instant changes nothing.
    pub fn advance(&mut self, at: Micros) {
        self.at = self.at.max(at);
        let entries = self.calendar.entries();
        while let Some(entry) = entries.get(self.entered)
            && cell_start(entry.at, self.cell) <= self.at
        {
            for (sight, rule) in self.sights.iter_mut().zip(self.rules) {
                match sight {
                    Sight::Sliding(window) => window.held += entry.permits,
                    Sight::Bucket(level, folded) if entry.at > *folded => {
                        *level = level.take(rule, entry.at, entry.permits);
                    }
                    Sight::Bucket(..) => {}
                    Sight::Fixed(_) => {}
                }
            }
            self.entered += 1;
        }
        for (sight, rule) in self.sights.iter_mut().zip(self.rules) {
            match (sight, &rule.kind) {
                (Sight::Sliding(window), _) => window.advance(rule, &entries[..self.entered], self.at),
                (Sight::Fixed(frame), Kind::Fixed { stretches, .. }) => {
                    frame.advance(stretches, entries, self.at);
                }
                (Sight::Bucket(..) | Sight::Fixed(_), _) => {}
            }
        }
    }

    /// The earliest instant, from where the search stands, with room for `cost` permits under every rule.
    ///
    /// A rule that can never hold `cost` (another replica's, during a reload) lets it pass where it holds nothing else.
    pub fn earliest(&mut self, cost: u64) -> Found {
        let mut limited_by = None;
        if let Some(pause) = &self.pause {
            self.advance(pause.floor(self.at));
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
            if self.pause.as_ref().is_some_and(|pause| pause.is_paced(self.at)) {
                room = cost;
            }
            return Found { at: self.at, room: room.max(cost), limited_by };
        }
    }

    /// Room under one rule where the search stands, or the next instant worth trying, always a later one.
    fn room(&self, index: usize, cost: u64) -> Result<u64, Micros> {
        let (entries, rule, at) = (self.calendar.entries(), &self.rules[index], self.at);
        let rate = rule.rate.saturating_sub(self.others.get(index).map_or(0, ExternalUsage::permits));
        match (&self.sights[index], &rule.kind) {
            (Sight::Sliding(window), _) => {
                window.room((rule.window, rate), entries, self.entered, at, self.cell, cost)
            }
            (Sight::Bucket(level, _), Kind::Bucket { burst }) => {
                bucket::room(rule, *burst, *level, at, &entries[self.entered..], self.cell, cost)
            }
            (Sight::Fixed(frame), Kind::Fixed { guard, .. }) => frame.room(rate, *guard, at, cost),
            (Sight::Bucket(..) | Sight::Fixed(_), _) => Ok(u64::MAX),
        }
    }

    /// Books `permits` where the search stands.
    pub fn charge(&mut self, permits: u64) {
        let (at, rules, cell) = (self.at, self.rules, self.cell);
        let is_one = |entry| is_one(rules, cell, at.min(entry), at.max(entry));
        if self.calendar.charge(self.entered, at, permits, is_one) {
            self.entered += 1;
        }
        if let Some(pause) = &mut self.pause {
            pause.booked(at, permits);
        }
        for (sight, rule) in self.sights.iter_mut().zip(rules) {
            match sight {
                Sight::Sliding(window) => window.held += permits,
                Sight::Bucket(level, _) => *level = level.take(rule, at, permits),
                Sight::Fixed(frame) => frame.held += permits,
            }
        }
    }
}
