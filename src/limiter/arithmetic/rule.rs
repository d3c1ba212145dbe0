//! Rules: limits in the form in which the earliest instant with room is searched. Pure. The twin is `lua/rule.lua`.

use std::fmt::Write;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::Algorithm;
use crate::limiter::arithmetic::algorithm::kind::{Checkpoint, Kind};
use crate::limiter::arithmetic::cell::cell_start;
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::Limit;

/// How far beyond the true delay a refusal may send a caller, unless its window is longer.
pub const SPREAD_MIN: Micros = Micros::from_millis(120_000);

/// The longest time for which a replica without a store grants nothing because others may have been granted everything right before.
pub const SOON: Micros = Micros::from_millis(6000);

/// A limit in the form in which room is searched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Permits in a window.
    pub rate: u64,
    /// The window, widened by the guard: how long bookings matter.
    pub window: Micros,
    /// The width of the cells that this rule needs kept apart.
    pub cell: Micros,
    /// The algorithm, with its parameters.
    pub kind: Kind,
}

impl Rule {
    /// Returns the rule of a limit whose slots stay good for `guard`, at `now`, and the instant until which it holds;
    /// `None`: for ever.
    pub fn new(limit: &Limit, guard: Micros, now: Micros) -> (Rule, Option<Micros>) {
        let (quota, kind, valid_until) = Kind::of(limit, guard, now);
        (Rule::of(quota, kind), valid_until)
    }

    fn of(Quota { rate, window, cell }: Quota, kind: Kind) -> Rule {
        Rule { rate, window, cell, kind }
    }

    /// Returns the rule without its algorithm.
    pub fn quota(&self) -> Quota {
        Quota { rate: self.rate, window: self.window, cell: self.cell }
    }

    /// Returns the rule as the Lua twin reads it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let Rule { rate, window, cell, kind } = self;
        // Writing to a string does not fail.
        let _ = write!(text, "{} {rate} {} {}", kind.letter(), window.0, cell.0);
        kind.write(&mut text);
        text
    }

    /// Returns the rule that one replica may use by itself.
    #[must_use]
    pub fn share(&self, share: Share) -> Rule {
        Rule { rate: share.of(self.rate), kind: self.kind.share(share), ..self.clone() }
    }

    /// Returns the most permits that are granted at one instant.
    pub fn capacity(&self) -> u64 {
        self.kind.capacity(self.quota())
    }

    /// Returns at least the most permits that are granted within a span, whenever it begins.
    pub fn most_within(&self, span: Micros) -> u64 {
        if self.has_windows() {
            self.capacity().saturating_mul(span.0 / self.window.0.max(1) + 2)
        } else {
            self.capacity().saturating_add(self.quota().permits_within(span) + 1)
        }
    }

    /// Returns how long a permit matters after it was used.
    pub fn seen_for(&self) -> Micros {
        self.kind.seen_for(self.quota())
    }

    /// Returns the width of the cells in which bookings are kept that are in a checkpoint.
    pub fn folded_cell(&self) -> Micros {
        self.kind.folded_cell(self.quota())
    }

    /// Returns whether the rule counts in windows; a bucket has only a level.
    pub fn has_windows(&self) -> bool {
        self.kind.window_start(Micros::ZERO, self.window).is_some()
    }

    /// Returns whether permits come one by one. A request of several is granted as soon as one is, and what follows comes so much later.
    pub fn is_spaced(&self) -> bool {
        self.capacity() == 1 && !self.has_windows()
    }

    /// Returns the most permits that the rule lacks when it has granted all that it may.
    pub fn lacking_max(&self) -> u64 {
        if self.is_spaced() { self.rate } else { self.capacity() }
    }

    /// Returns the permits of a limit that is used up and has them again soon, within [`SOON`]: all, or those that a limit grants one by one
    /// until then. `None` if it has not.
    pub fn soon_whole(&self) -> Option<u64> {
        let spacing = self.window.0 / self.rate.max(1);
        let within = SOON.0 / spacing.max(1);
        let all = if self.has_windows() { self.rate } else { self.capacity() };
        (all <= within).then(|| self.lacking_max().min(within))
    }

    /// Returns the time for which a limit that is soon whole again grants nothing at most; `None` if it is none of these.
    pub fn soon_whole_after(&self) -> Option<Micros> {
        self.soon_whole().map(|permits| self.quota().span(permits))
    }

    /// Returns the distance between the advised instants of refused callers that need `permits` each.
    pub fn spacing(&self, permits: u64) -> Micros {
        self.kind.spacing(self.quota(), permits)
    }

    /// Returns how far beyond the true delay a refusal may send a caller.
    pub fn spread_max(&self) -> Micros {
        self.window.max(SPREAD_MIN)
    }

    /// Returns the instant to advise to the refused caller after one that needs `permits`, has its true slot at
    /// `slot` and was advised `advised`: later by the spacing, as far as that is not too far behind `slot`.
    pub fn advised_next(&self, slot: Micros, advised: Micros, permits: u64) -> Micros {
        (advised + self.spacing(permits)).min(slot + self.spread_max())
    }
}

/// Returns the width of the cells in which the bookings under these rules are kept.
pub fn finest_cell(rules: &[Rule]) -> Micros {
    rules.iter().map(|rule| rule.cell).min().unwrap_or(Micros::ONE)
}

/// Returns whether bookings at two instants, the later one second, are kept as one.
pub fn is_one(rules: &[Rule], cell: Micros, first: Micros, later: Micros) -> bool {
    cell_start(first, cell) == cell_start(later, cell)
        && !rules.iter().any(|rule| rule.kind.separates(first, later))
}

/// Returns the checkpoint with which a rule begins that follows others: it lacks what the emptiest of them lacked, and no more than it can hold.
/// A smaller bucket is empty, and not closed until it has made up for the larger one.
pub fn checkpoint_after<'a>(
    before: impl Iterator<Item = (&'a Rule, &'a Checkpoint)>,
    rule: &Rule,
) -> Checkpoint {
    let missing = before.filter_map(|(old, checkpoint)| old.kind.missing(old.quota(), checkpoint));
    let lacking =
        missing.map(|(permits, at)| rule.kind.lacking(rule.quota(), at, permits.min(rule.lacking_max())));
    let emptier = |one, other| if rule.kind.is_emptier(&other, &one) { other } else { one };
    lacking.reduce(emptier).unwrap_or_else(|| rule.kind.empty_checkpoint())
}
