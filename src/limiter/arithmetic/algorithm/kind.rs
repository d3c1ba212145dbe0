//! The list of algorithms, and the dispatch of every function to the one of a rule.
//!
//! Nothing outside this room asks which algorithm a limit or a rule has.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::fixed_window::FixedWindow;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::algorithm::warm_up::WarmUp;
use crate::limiter::arithmetic::algorithm::{Algorithm, Position};
use crate::limiter::arithmetic::cell::Entry;
use crate::limiter::arithmetic::quota::Quota;
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::Bound;
use crate::limiter::model::calendar_windows::{CalendarWindows, window_of};
use crate::limiter::model::limit::{self, Limit, Limiter, Permits};
use crate::usage::Refill;

/// The algorithm of a rule, with its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Every interval of the window's length holds at most `rate` permits.
    SlidingWindow(SlidingWindow),
    /// A bucket that is filled at `rate` per window.
    Bucket(Bucket),
    /// Windows aligned to a calendar.
    FixedWindow(FixedWindow),
    /// A leaky bucket that is slow when it is cold.
    WarmUp(WarmUp),
}

/// The instants kept apart in the window of a ceiling.
const CEILING_PRECISION: NonZeroU32 = NonZeroU32::MIN.saturating_add(255);

/// Returns the part of a limit, in millionths and rounded down to a permit at least, that some callers together may use in every interval of
/// its window.
pub fn ceiling(limit: &Limit, ppm: u32) -> Limit {
    let rate = u128::from(limit.rate.get()) * u128::from(ppm) / 1_000_000;
    let rate = u64::try_from(rate).ok().and_then(Permits::new).unwrap_or(Permits::ONE);
    let algorithm = limit::Algorithm::SlidingWindow { precision: CEILING_PRECISION };
    Limit { rate, algorithm, ..limit.clone() }
}

/// The bookings that a rule was shown, as its algorithm keeps them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checkpoint {
    /// The checkpoint of a sliding window.
    SlidingWindow(<SlidingWindow as Algorithm>::Checkpoint),
    /// The checkpoint of a bucket.
    Bucket(<Bucket as Algorithm>::Checkpoint),
    /// The checkpoint of a fixed window.
    FixedWindow(<FixedWindow as Algorithm>::Checkpoint),
    /// The checkpoint of a warm-up.
    WarmUp(<WarmUp as Algorithm>::Checkpoint),
}

/// Declares the macros that evaluate an expression for each algorithm.
macro_rules! algorithms {
    ($d:tt $($name:ident),+ $(,)?) => {
        $(impl From<$name> for Kind {
            fn from(own: $name) -> Kind {
                Kind::$name(own)
            }
        })+

        /// Evaluates an expression for the algorithm of a kind, or for the algorithm of a kind and its checkpoints.
        macro_rules! each {
            ($d kind:expr, |$d own:ident| $d body:expr) => {
                match $d kind { $(Kind::$name($d own) => $d body),+ }
            };
            ($d kind:expr, $d checkpoint:expr, |$d own:ident, $d seen:ident| $d body:expr, else $d other:expr) => {
                match ($d kind, $d checkpoint) {
                    $((Kind::$name($d own), Checkpoint::$name($d seen)) => $d body,)+
                    _ => $d other,
                }
            };
            ($d kind:expr, $d checkpoint:expr, $d second:expr, |$d own:ident, $d seen:ident, $d other_seen:ident| $d body:expr, else $d other:expr) => {
                match ($d kind, $d checkpoint, $d second) {
                    $((Kind::$name($d own), Checkpoint::$name($d seen), Checkpoint::$name($d other_seen)) => $d body,)+
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
    SlidingWindow,
    Bucket,
    FixedWindow,
    WarmUp,
}

impl Kind {
    /// Returns the rule of a limit whose slots stay good for `guard`, at `now`, and the instant until which it holds;
    /// `None`: for ever.
    pub fn of(limit: &Limit, guard: Micros, now: Micros) -> (Quota, Kind, Option<Micros>) {
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
            limit::Algorithm::WarmUp { warm_up, cold } => {
                let (quota, own) = WarmUp::new(limit, guard, Micros::from(*warm_up), u64::from(cold.get()));
                (quota, own.into())
            }
        };
        (quota, kind, None)
    }
}

/// Returns how a limit gets permits back; `None` if it has none to spend, because it spaces them.
pub fn refill(limit: &Limit, now: Micros) -> Option<Refill> {
    match &limit.algorithm {
        limit::Algorithm::SlidingWindow { .. } => Some(Refill::Rolling),
        limit::Algorithm::TokenBucket { .. } => Some(Refill::Steady),
        limit::Algorithm::FixedWindow { windows } => {
            let (_, end) = window_of(&windows.schedule(now).stretches, now);
            Some(Refill::At((end - now).to_duration().as_secs_f64()))
        }
        limit::Algorithm::LeakyBucket | limit::Algorithm::WarmUp { .. } => None,
    }
}

/// Passes every call on to the rule's algorithm. A checkpoint of another algorithm, which no caller has, limits nothing.
impl Algorithm for Kind {
    type Checkpoint = Checkpoint;

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

    fn share(&self, share: Share) -> Kind {
        each_as!(Kind, self, |own| own.share(share))
    }

    fn empty_checkpoint(&self) -> Checkpoint {
        each_as!(Checkpoint, self, |own| own.empty_checkpoint())
    }

    fn advance(&self, quota: Quota, checkpoint: &mut Checkpoint, position: Position<'_>, before: usize) {
        each!(self, checkpoint, |own, seen| own.advance(quota, seen, position, before), else ());
    }

    fn room(
        &self,
        quota: Quota,
        checkpoint: &Checkpoint,
        position: Position<'_>,
        cost: u64,
    ) -> Result<u64, Micros> {
        each!(self, checkpoint, |own, seen| own.room(quota, seen, position, cost), else Ok(u64::MAX))
    }

    fn take(&self, quota: Quota, checkpoint: &mut Checkpoint, at: Micros, permits: u64) {
        each!(self, checkpoint, |own, seen| own.take(quota, seen, at, permits), else ());
    }

    fn fold(&self, quota: Quota, checkpoint: &mut Checkpoint, entries: &[Entry], until: Micros) {
        each!(self, checkpoint, |own, seen| own.fold(quota, seen, entries, until), else ());
    }

    fn folded(&self, checkpoint: &Checkpoint) -> Micros {
        each!(self, checkpoint, |own, seen| own.folded(seen), else Micros::ZERO)
    }

    fn folded_cell(&self, quota: Quota) -> Micros {
        each!(self, |own| own.folded_cell(quota))
    }

    fn available(
        &self,
        quota: Quota,
        checkpoint: &Checkpoint,
        entries: &[Entry],
        external: u64,
        now: Micros,
    ) -> u64 {
        each!(self, checkpoint, |own, seen| own.available(quota, seen, entries, external, now), else 0)
    }

    fn expires(&self, quota: Quota, checkpoint: &Checkpoint, entries: &[Entry]) -> Micros {
        each!(self, checkpoint, |own, seen| own.expires(quota, seen, entries), else Micros::ZERO)
    }

    fn missing(&self, quota: Quota, checkpoint: &Checkpoint) -> Option<(u64, Micros)> {
        each!(self, checkpoint, |own, seen| own.missing(quota, seen), else None)
    }

    fn lacking(&self, quota: Quota, at: Micros, permits: u64) -> Checkpoint {
        each_as!(Checkpoint, self, |own| own.lacking(quota, at, permits))
    }

    fn is_emptier(&self, one: &Checkpoint, other: &Checkpoint) -> bool {
        each!(self, one, other, |own, one, other| own.is_emptier(one, other), else true)
    }
}

impl limit::Algorithm {
    /// Returns the name in a configuration.
    pub const fn as_str(&self) -> &'static str {
        match self {
            limit::Algorithm::SlidingWindow { .. } => "sliding_window",
            limit::Algorithm::TokenBucket { .. } => "token_bucket",
            limit::Algorithm::LeakyBucket => "leaky_bucket",
            limit::Algorithm::FixedWindow { .. } => "fixed_window",
            limit::Algorithm::WarmUp { .. } => "warm_up",
        }
    }

    /// Returns what tells a limit of this algorithm from one that counts in the usual way: the zone of its calendar, or its name.
    pub fn distinction(&self) -> Option<&str> {
        match self {
            limit::Algorithm::SlidingWindow { .. } => None,
            own => Some(own.calendar().and_then(|windows| windows.zone.iana_name()).unwrap_or(own.as_str())),
        }
    }

    /// Returns the calendar to which windows are aligned, if they are.
    pub fn calendar(&self) -> Option<&CalendarWindows> {
        if let limit::Algorithm::FixedWindow { windows } = self { Some(windows) } else { None }
    }
}

impl Limit {
    /// Returns the largest cost that the limit can ever hold.
    pub fn cost_max(&self) -> Permits {
        if let limit::Algorithm::TokenBucket { burst } = self.algorithm { burst } else { self.rate }
    }

    /// Returns the length of the windows while no clock is changed; `None` where they differ, as months do.
    pub fn window(&self) -> Option<Duration> {
        self.algorithm.calendar().map_or(Some(self.per), CalendarWindows::nominal)
    }
}

impl Limiter {
    /// Returns the largest cost that every window can hold.
    pub fn cost_max(&self) -> Permits {
        self.limits.iter().map(Limit::cost_max).min().unwrap_or(Permits::ONE)
    }

    /// Returns the largest cost that some classes of its callers can ever be granted.
    pub fn cost_max_within(&self, bound: &Bound) -> Permits {
        self.limits.iter().map(|limit| ceiling(limit, bound.ppm).rate).min().unwrap_or(Permits::ONE)
    }

    /// Returns the largest cost that every window can hold in any partition.
    pub fn cost_max_anywhere(&self) -> Permits {
        self.overrides().map(|limiter| limiter.cost_max()).fold(self.cost_max(), Permits::max)
    }
}
