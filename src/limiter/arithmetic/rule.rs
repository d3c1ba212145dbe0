//! A limit in the form in which a calendar is searched: whole microseconds, widened by the guard.
//!
//! Pure. `lua/calendar.lua` is the twin.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::model::calendar_windows::Stretch;
use crate::limiter::model::limit::{Algorithm, Limit, PRECISION_DEFAULT};

/// How far beyond the true delay a refusal may send a caller, unless its window is longer.
pub const SPREAD_MIN: Micros = Micros::from_millis(60_000);

/// What a refused caller is put apart from the next where a whole window's permits come back at one instant.
const FIXED_SPACING: Micros = Micros::from_millis(10);

/// The longest span that is reckoned with, over a hundred years: sums stay below 2^53.
pub(crate) const SPAN_MAX: Micros = Micros(4_000_000_000_000_000);

/// A limit in the form in which a calendar is searched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Permits in a window.
    pub rate: u64,
    /// The window, widened by the guard: how long bookings matter.
    pub window: Micros,
    /// The width of the instants that this rule needs kept apart.
    pub cell: Micros,
    /// How it counts.
    pub kind: Kind,
}

/// How a rule counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Every interval of the window's length holds at most `rate` permits.
    Sliding,
    /// A bucket that holds `burst` permits and is filled at `rate` per window.
    Bucket {
        /// One where permits are evenly spaced.
        burst: u64,
    },
    /// Windows aligned to a calendar.
    Fixed {
        /// The end of each window in which nothing is booked, because it might be sent in the next one.
        guard: Micros,
        /// Where they lie.
        stretches: Arc<[Stretch]>,
    },
}

impl Rule {
    /// The rule of a limit whose slots stay good for `guard`, at `now`, and until when it holds if not for ever.
    pub fn new(limit: &Limit, guard: Micros, now: Micros) -> (Rule, Option<Micros>) {
        let per = Micros::from(limit.per);
        let rate = limit.rate.get();
        let cell = |permits: u64, precision: u64| {
            if permits <= precision { Micros::ONE } else { Micros((per.0 / precision).max(1)) }
        };
        let usual = u64::from(PRECISION_DEFAULT);
        let bucket = |burst: u64| {
            let cell = cell(if burst > 1 { rate + burst } else { rate }, 2 * usual);
            // A bucket may be ahead of itself by a cell, and by another one where room between bookings is filled.
            Rule { rate, window: per + guard + cell + cell, cell, kind: Kind::Bucket { burst } }
        };
        let rule = match &limit.algorithm {
            Algorithm::SlidingWindow { precision } => {
                let cell = cell(rate, u64::from(precision.get()));
                Rule { rate, window: per + guard, cell, kind: Kind::Sliding }
            }
            Algorithm::TokenBucket { burst } => bucket(burst.get()),
            Algorithm::LeakyBucket => bucket(1),
            Algorithm::FixedWindow { windows } => {
                let schedule = windows.schedule(now);
                let kind = Kind::Fixed { guard, stretches: schedule.stretches };
                let rule = Rule { rate, window: per + guard, cell: cell(rate, usual), kind };
                return (rule, schedule.valid_until);
            }
        };
        (rule, None)
    }

    /// The most that it ever gives at once.
    pub fn holds(&self) -> u64 {
        match self.kind {
            Kind::Sliding | Kind::Fixed { .. } => self.rate,
            Kind::Bucket { burst } => burst,
        }
    }

    /// For how long a permit matters after it was used.
    pub fn seen_for(&self) -> Micros {
        match self.kind {
            Kind::Sliding | Kind::Fixed { .. } => self.window,
            Kind::Bucket { burst } => self.window.max(self.span(burst) + Micros::ONE),
        }
    }

    /// How long the limit takes to allow that many permits.
    pub fn span(&self, permits: u64) -> Micros {
        Micros(self.span_exact(permits).0).min(SPAN_MAX)
    }

    /// The same as whole microseconds and a rest in parts of `rate`.
    pub(in crate::limiter) fn span_exact(&self, permits: u64) -> (u64, u64) {
        let (rate, window) = (u128::from(self.rate), u128::from(self.window.0));
        let product = u128::from(permits) * window;
        match u64::try_from(product / rate) {
            Ok(whole) if whole <= SPAN_MAX.0 => (whole, u64::try_from(product % rate).unwrap_or_default()),
            _ => (SPAN_MAX.0, 0),
        }
    }

    /// How far apart refused callers of that many permits are sent.
    pub fn spacing(&self, permits: u64) -> Micros {
        match self.kind {
            Kind::Sliding | Kind::Bucket { .. } => self.span(permits),
            // Their permits come all at once.
            Kind::Fixed { .. } => {
                self.span(permits).min(Micros(FIXED_SPACING.0.saturating_mul(permits))).min(SPAN_MAX)
            }
        }
    }

    /// How far beyond the true delay a refusal may send a caller.
    pub fn spread_max(&self) -> Micros {
        self.window.max(SPREAD_MIN)
    }

    /// What is told after somebody who needs `permits` was told an instant in place of the slot: later by their spacing, and from
    /// the slot on anew where that would be too far.
    pub fn told_next(&self, slot: Micros, told: Micros, permits: u64) -> Micros {
        slot + Micros((told - slot + self.spacing(permits)).0 % self.spread_max().0)
    }

    /// Permits within a span of at most some seconds.
    pub(in crate::limiter) fn permits_within(&self, span: Micros) -> u64 {
        span.0.saturating_mul(self.rate) / self.window.0.max(1)
    }

    /// Whether a permit at `first` and one at `later` must not be taken together for a rounding's sake.
    pub fn parts(&self, first: Micros, later: Micros) -> bool {
        match &self.kind {
            Kind::Sliding | Kind::Bucket { .. } => false,
            Kind::Fixed { stretches, .. } => {
                first != later && window_of(stretches, first) != window_of(stretches, later)
            }
        }
    }
}

/// The window that holds an instant: its start and its end.
pub fn window_of(stretches: &[Stretch], at: Micros) -> (Micros, Micros) {
    let later = stretches.partition_point(|stretch| stretch.start <= at);
    let next = stretches.get(later).map(|stretch| stretch.start);
    let Some(stretch) = later.checked_sub(1).and_then(|index| stretches.get(index)) else {
        return (Micros::ZERO, next.unwrap_or(SPAN_MAX));
    };
    let into = (at - stretch.start).0 % stretch.length.0.max(1);
    let start = at - Micros(into);
    let end = start + stretch.length;
    (start, next.map_or(end, |next| end.min(next)))
}

/// The width of the cells in which a calendar under these rules is kept.
pub fn finest_cell(rules: &[Rule]) -> Micros {
    rules.iter().map(|rule| rule.cell).min().unwrap_or(Micros::ONE)
}

/// The first instant of the cell that holds `at`.
pub fn cell_start(at: Micros, cell: Micros) -> Micros {
    Micros(at.0 - at.0 % cell.0.max(1))
}

/// The first instant of a cell from `at` on.
pub fn cell_from(at: Micros, cell: Micros) -> Micros {
    cell_start(at + cell - Micros::ONE, cell)
}

/// Whether bookings at two instants, the later second, are kept as one.
pub fn is_one(rules: &[Rule], cell: Micros, first: Micros, later: Micros) -> bool {
    cell_start(first, cell) == cell_start(later, cell) && !rules.iter().any(|rule| rule.parts(first, later))
}
