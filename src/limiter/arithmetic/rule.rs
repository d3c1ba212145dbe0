//! Rules: limits in the form in which the earliest instant with room is searched. The list of algorithms is here.
//!
//! Pure. The twins are `lua/rule.lua` and `lua/algorithm.lua`.

use std::fmt::Write;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::fixed_window::FixedWindow;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::algorithm::{Algorithm, Position};
use crate::limiter::arithmetic::cell::{Entry, cell_start};
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::model::limit::{self, Limit};

/// How far beyond the true delay a refusal may send a caller, unless its window is longer.
pub const SPREAD_MIN: Micros = Micros::from_millis(60_000);

/// Declares the algorithms: an enum of their parameters, one of their sights, and the functions of both.
macro_rules! algorithms {
    ($d:tt $($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// How a rule counts.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Kind { $($(#[$doc])* $name($name)),+ }

        /// What a rule keeps of bookings, by its algorithm.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Sight { $($(#[$doc])* $name(<$name as Algorithm>::Sight)),+ }

        $(impl From<$name> for Kind {
            fn from(own: $name) -> Kind {
                Kind::$name(own)
            }
        })+

        /// Evaluates an expression for the algorithm of a kind, or for the algorithm of a kind and its sights.
        macro_rules! each {
            ($d kind:expr, |$d own:ident| $d body:expr) => {
                match $d kind { $(Kind::$name($d own) => $d body),+ }
            };
            ($d kind:expr, $d sight:expr, |$d own:ident, $d seen:ident| $d body:expr, else $d other:expr) => {
                match ($d kind, $d sight) {
                    $((Kind::$name($d own), Sight::$name($d seen)) => $d body,)+
                    _ => $d other,
                }
            };
            ($d kind:expr, $d sight:expr, $d second:expr, |$d own:ident, $d seen:ident, $d other_seen:ident| $d body:expr, else $d other:expr) => {
                match ($d kind, $d sight, $d second) {
                    $((Kind::$name($d own), Sight::$name($d seen), Sight::$name($d other_seen)) => $d body,)+
                    _ => $d other,
                }
            };
        }

        /// Evaluates an expression for the algorithm of a kind, as a variant of another enum.
        macro_rules! each_as {
            ($d result:ident, $d kind:expr, |$d own:ident| $d body:expr) => {
                match $d kind { $(Kind::$name($d own) => $d result::$name($d body)),+ }
            };
        }
    };
}

algorithms! { $
    /// Every interval of the window's length holds at most `rate` permits.
    SlidingWindow,
    /// A bucket that is filled at `rate` per window.
    Bucket,
    /// Windows aligned to a calendar.
    FixedWindow,
}

impl Kind {
    /// Returns the rule of a limit whose slots stay good for `guard`, at `now`, and until when it holds if not for ever.
    fn of(limit: &Limit, guard: Micros, now: Micros) -> (Quota, Kind, Option<Micros>) {
        let (quota, kind): (Quota, Kind) = match &limit.algorithm {
            limit::Algorithm::SlidingWindow { precision } => {
                let (quota, own) = SlidingWindow::new(limit, guard, u64::from(precision.get()));
                (quota, own.into())
            }
            limit::Algorithm::TokenBucket { burst } => {
                let (quota, own) = Bucket::new(limit, guard, burst.get());
                (quota, own.into())
            }
            limit::Algorithm::LeakyBucket => {
                let (quota, own) = Bucket::new(limit, guard, 1);
                (quota, own.into())
            }
            limit::Algorithm::FixedWindow { windows } => {
                let (quota, own, valid_until) = FixedWindow::new(limit, guard, windows, now);
                return (quota, own.into(), valid_until);
            }
        };
        (quota, kind, None)
    }
}

/// Every function goes to the algorithm. A sight of another algorithm, which no caller has, limits nothing.
impl Algorithm for Kind {
    type Sight = Sight;

    fn letter(&self) -> char {
        each!(self, |own| own.letter())
    }

    fn write(&self, text: &mut String) {
        each!(self, |own| own.write(text));
    }

    fn capacity(&self, quota: Quota) -> u64 {
        each!(self, |own| own.capacity(quota))
    }

    fn seen_for(&self, quota: Quota) -> Micros {
        each!(self, |own| own.seen_for(quota))
    }

    fn spacing(&self, quota: Quota, permits: u64) -> Micros {
        each!(self, |own| own.spacing(quota, permits))
    }

    fn separates(&self, first: Micros, later: Micros) -> bool {
        each!(self, |own| own.separates(first, later))
    }

    fn window_start(&self, at: Micros, length: Micros) -> Option<Micros> {
        each!(self, |own| own.window_start(at, length))
    }

    fn share(&self, parts: u64) -> Kind {
        each_as!(Kind, self, |own| own.share(parts))
    }

    fn sight(&self) -> Sight {
        each_as!(Sight, self, |own| own.sight())
    }

    fn advance(&self, quota: Quota, sight: &mut Sight, position: Position<'_>, before: usize) {
        each!(self, sight, |own, seen| own.advance(quota, seen, position, before), else ());
    }

    fn room(&self, quota: Quota, sight: &Sight, position: Position<'_>, cost: u64) -> Result<u64, Micros> {
        each!(self, sight, |own, seen| own.room(quota, seen, position, cost), else Ok(u64::MAX))
    }

    fn take(&self, quota: Quota, sight: &mut Sight, at: Micros, permits: u64) {
        each!(self, sight, |own, seen| own.take(quota, seen, at, permits), else ());
    }

    fn fold(&self, quota: Quota, checkpoint: &mut Sight, entries: &[Entry], until: Micros) {
        each!(self, checkpoint, |own, seen| own.fold(quota, seen, entries, until), else ());
    }

    fn available(
        &self,
        quota: Quota,
        checkpoint: &Sight,
        entries: &[Entry],
        external: u64,
        now: Micros,
    ) -> u64 {
        each!(self, checkpoint, |own, seen| own.available(quota, seen, entries, external, now), else 0)
    }

    fn expires(&self, quota: Quota, checkpoint: &Sight, entries: &[Entry]) -> Micros {
        each!(self, checkpoint, |own, seen| own.expires(quota, seen, entries), else Micros::ZERO)
    }

    fn missing(&self, quota: Quota, checkpoint: &Sight) -> Option<(u64, Micros)> {
        each!(self, checkpoint, |own, seen| own.missing(quota, seen), else None)
    }

    fn lacking(&self, quota: Quota, at: Micros, permits: u64) -> Sight {
        each_as!(Sight, self, |own| own.lacking(quota, at, permits))
    }

    fn is_emptier(&self, one: &Sight, other: &Sight) -> bool {
        each!(self, one, other, |own, one, other| own.is_emptier(one, other), else true)
    }
}

/// A limit in the form in which room is searched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Permits in a window.
    pub rate: u64,
    /// The window, widened by the guard: how long bookings matter.
    pub window: Micros,
    /// The width of the cells that this rule needs kept apart.
    pub cell: Micros,
    /// How it counts.
    pub kind: Kind,
}

impl Rule {
    /// Returns the rule of a limit whose slots stay good for `guard`, at `now`, and until when it holds if not for ever.
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

    /// Returns the rule that one of `parts` replicas may use by itself: the rate divided and rounded down. Below one permit it
    /// is one permit in a window that is longer by as much.
    #[must_use]
    pub fn share(&self, parts: u64) -> Rule {
        if self.rate >= parts {
            return Rule { rate: self.rate / parts, kind: self.kind.share(parts), ..self.clone() };
        }
        let window = Micros((self.window.0 * parts).div_ceil(self.rate));
        Rule { rate: 1, window, cell: self.cell, kind: SlidingWindow.into() }
    }

    /// Returns the most permits that are granted at one instant.
    pub fn capacity(&self) -> u64 {
        self.kind.capacity(self.quota())
    }

    /// Returns how long a permit matters after it was used.
    pub fn seen_for(&self) -> Micros {
        self.kind.seen_for(self.quota())
    }

    /// Whether the rule counts in windows; otherwise it is a level that is charged.
    pub fn has_windows(&self) -> bool {
        self.kind.window_start(Micros::ZERO, self.window).is_some()
    }

    /// Returns how far apart refused callers of that many permits are sent.
    pub fn spacing(&self, permits: u64) -> Micros {
        self.kind.spacing(self.quota(), permits)
    }

    /// Returns how far beyond the true delay a refusal may send a caller.
    pub fn spread_max(&self) -> Micros {
        self.window.max(SPREAD_MIN)
    }

    /// Returns the instant that the next refused caller is advised, after one that needs `permits` was advised `advised` in
    /// place of `slot`: later by the spacing, and from the slot on anew where that would be too far.
    pub fn advised_next(&self, slot: Micros, advised: Micros, permits: u64) -> Micros {
        slot + Micros((advised - slot + self.spacing(permits)).0 % self.spread_max().0)
    }
}

/// Returns the width of the cells in which the bookings under these rules are kept.
pub fn finest_cell(rules: &[Rule]) -> Micros {
    rules.iter().map(|rule| rule.cell).min().unwrap_or(Micros::ONE)
}

/// Whether bookings at two instants, the later one second, are kept as one.
pub fn is_one(rules: &[Rule], cell: Micros, first: Micros, later: Micros) -> bool {
    cell_start(first, cell) == cell_start(later, cell)
        && !rules.iter().any(|rule| rule.kind.separates(first, later))
}
