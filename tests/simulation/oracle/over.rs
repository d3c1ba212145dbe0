//! Judges each request at the instant of its write: does a window hold more than its limit?
//!
//! - Sliding window: the permits of the last `per`, this one included, against `rate`.
//! - Fixed window: the permits since the store's clock began the window, against `rate`.
//! - Buckets: an upstream's own meter, to which each request adds its cost and which drains at `rate` per `per`. It may hold the burst,
//!   or the cost of one request. A permit may be used a guard after its slot, so weir promises a bucket for slots alone; a
//!   second meter, with the window and the bucket longer by that, must be over as well. In a whole window or more the second one is the stricter.
//!
//! All in integers: a meter counts in permits times the window.

use super::event::Algorithm;
use super::faults::Faults;
use super::finding::Evidence;
use super::limiters::{Bounds, Limiter, Rule};
use super::usage::StateUse;

/// Above so many permits in a window, weir's buckets lie on a grid of this many instants.
const GRID: u64 = 512;

/// What a limit has in use, where that does not follow from the last window of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meter {
    /// The permits of a fixed window.
    Fixed {
        /// The number of the window since zero of the store's clock.
        window: u64,
        /// The instant of true time at which it began.
        begin: u64,
        /// The permits sent in it.
        sent: u64,
    },
    /// A bucket as the upstream counts, and one for slots.
    Bucket {
        /// The largest bounds that were in force in the last window.
        bounds: Bounds,
        /// Drains at `rate` per `per`.
        nominal: Level,
        /// Drains at `rate` per window as weir keeps it free.
        widened: Level,
    },
}

/// The level of a bucket: what has flowed in and has not drained.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Level {
    at: u64,
    /// The window.
    width: u64,
    /// Permits times the window.
    amount: u128,
}

impl Level {
    /// Returns the level at an instant, in permits times the window.
    fn at(&self, at: u64, rate: u64) -> u128 {
        self.amount.saturating_sub(u128::from(at.saturating_sub(self.at)) * u128::from(rate))
    }

    /// Drains until an instant, and from then on counts with another window.
    fn drain(&mut self, at: u64, rate: u64, width: u64) {
        self.amount = self.at(at, rate);
        if self.width != width && self.width > 0 {
            self.amount = self.amount * u128::from(width) / u128::from(self.width);
        }
        (self.at, self.width) = (at, width);
    }

    fn add(&mut self, cost: u64) {
        self.amount += u128::from(cost) * u128::from(self.width);
    }

    /// Returns the level in whole permits, rounded up.
    fn permits(&self) -> u64 {
        u64::try_from(self.amount.div_ceil(u128::from(self.width.max(1)))).unwrap_or(u64::MAX)
    }
}

/// Returns by how much longer than its slot's the instant of a permit may be in a bucket: the guard and two cells of weir's grid.
fn lateness(bounds: Bounds, per: u64) -> u64 {
    let kept_apart = bounds.rate + if bounds.burst > 1 { bounds.burst } else { 0 };
    let cell = if kept_apart <= GRID { 1 } else { (per / GRID).max(1) };
    bounds.guard + 2 * cell
}

impl Meter {
    /// Takes back permits, as far as they still count.
    pub(crate) fn settle(&mut self, sent_at: u64, less: u64) {
        match self {
            Meter::Fixed { begin, sent, .. } if sent_at >= *begin => *sent = sent.saturating_sub(less),
            Meter::Fixed { .. } => {}
            Meter::Bucket { nominal, widened, .. } => {
                for level in [nominal, widened] {
                    level.amount = level.amount.saturating_sub(u128::from(less) * u128::from(level.width));
                }
            }
        }
    }

    fn empty_bucket(bounds: Bounds) -> Meter {
        Meter::Bucket { bounds, nominal: Level::default(), widened: Level::default() }
    }
}

/// Takes a request into a bucket. Returns the evidence if both meters are over.
fn pour(meter: &mut Meter, at: u64, per: u64, new: Bounds, cost: u64) -> Option<Evidence> {
    let Meter::Bucket { bounds, nominal, widened } = meter else { return None };
    let width = per + lateness(new, per);
    let held = new.burst.max(cost);
    let holds = |width: u64, late: u64| {
        u128::from(held) * u128::from(width) + u128::from(late) * u128::from(new.rate)
    };
    nominal.drain(at, bounds.rate, per);
    widened.drain(at, bounds.rate, width);
    if *bounds != new {
        // What was allowed before is not held against weir now.
        nominal.amount = nominal.amount.min(u128::from(new.burst) * u128::from(per));
        widened.amount = widened.amount.min(u128::from(new.burst) * u128::from(width));
        *bounds = new;
    }
    nominal.add(cost);
    widened.add(cost);
    let is_over = nominal.amount > holds(per, 0) && widened.amount > holds(width, lateness(new, per));
    is_over.then(|| Evidence {
        sent: nominal.permits(),
        limit: held,
        detail: format!("the bucket of {} per {per} us is beyond its burst", new.rate),
    })
}

/// Takes a request into a fixed window. Returns the evidence if the window holds too many.
fn count(
    state: &mut StateUse,
    rule: &Rule,
    request: Request,
    percent: Option<u64>,
    stepped: u64,
) -> Option<Evidence> {
    let Request { at, cost, store_clock } = request;
    let per = rule.limit.per;
    let (number, begin) = (store_clock / per, at.saturating_sub(store_clock % per));
    let meter = meter(state, rule.id, || Meter::Fixed { window: number, begin, sent: 0 });
    let Meter::Fixed { window, begin: began, sent } = meter else { return None };
    if *window != number {
        (*window, *began, *sent) = (number, begin, 0);
    }
    *sent += cost;
    let sent = *sent;
    let bounds = rule.bounds(begin).raised(percent?);
    let is_whole = begin >= rule.since && (begin >= stepped || stepped == 0);
    (is_whole && sent > bounds.rate).then(|| Evidence {
        sent,
        limit: bounds.rate,
        detail: format!("in the fixed window {number} of {per} us by the store's clock"),
    })
}

/// Judges a sliding window that ends now.
fn slide(state: &StateUse, rule: &Rule, at: u64, percent: Option<u64>) -> Option<Evidence> {
    let per = rule.limit.per;
    let begin = (at + 1).saturating_sub(per);
    let bounds = rule.bounds(begin).raised(percent?);
    let sent = state.history.used(begin, at + 1);
    (begin >= rule.since && sent > bounds.rate).then(|| Evidence {
        sent,
        limit: bounds.rate,
        detail: format!("within {per} us from {begin} on"),
    })
}

/// Judges a bucket; it begins empty where it could not be judged.
fn fill(state: &mut StateUse, rule: &Rule, at: u64, cost: u64, percent: Option<u64>) -> Option<Evidence> {
    let per = rule.limit.per;
    let begin = (at + 1).saturating_sub(per);
    let Some(percent) = percent.filter(|_| begin >= rule.since) else {
        state.meters.retain(|(id, _)| *id != rule.id);
        return None;
    };
    let bounds = rule.bounds(begin).raised(percent);
    pour(meter(state, rule.id, || Meter::empty_bucket(bounds)), at, per, bounds, cost)
}

fn meter(state: &mut StateUse, rule: u32, new: impl FnOnce() -> Meter) -> &mut Meter {
    let index = state.meters.iter().position(|(id, _)| *id == rule).unwrap_or_else(|| {
        state.meters.push((rule, new()));
        state.meters.len() - 1
    });
    &mut state.meters[index].1
}

/// A request that is written now.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// The true time.
    pub(crate) at: u64,
    /// Its cost.
    pub(crate) cost: u64,
    /// The store's clock.
    pub(crate) store_clock: u64,
}

/// Judges a request, which the history of its state holds already, by all limits of a limiter.
pub(crate) fn judge(
    state: &mut StateUse,
    limiter: &Limiter,
    faults: &Faults,
    request: Request,
    stepped: u64,
) -> Option<Evidence> {
    let Request { at, cost, store_clock } = request;
    let mut worst: Option<Evidence> = None;
    for rule in &limiter.rules {
        let per = rule.limit.per;
        let begin = match rule.limit.algorithm {
            Algorithm::FixedWindow => at.saturating_sub(store_clock % per),
            _ => (at + 1).saturating_sub(per),
        };
        let percent = faults.excess(limiter.model.policy, begin);
        let evidence = match rule.limit.algorithm {
            Algorithm::SlidingWindow => slide(state, rule, at, percent),
            Algorithm::FixedWindow => count(state, rule, request, percent, stepped),
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket | Algorithm::WarmUp { .. } => {
                fill(state, rule, at, cost, percent)
            }
        };
        if evidence.as_ref().is_some_and(|new| worst.as_ref().is_none_or(|old| beyond(new) > beyond(old))) {
            worst = evidence;
        }
    }
    worst
}

fn beyond(evidence: &Evidence) -> u64 {
    evidence.sent.saturating_sub(evidence.limit)
}

/// Returns whether a bucket has room for permits at an instant with at most `percent` of it in use, and what is in use.
pub(crate) fn bucket_room(
    state: &StateUse,
    rule: &Rule,
    at: u64,
    pending: u64,
    cost: u64,
    percent: u64,
) -> (bool, u64) {
    let bounds = rule.last();
    let level = state.meters.iter().find_map(|(id, meter)| match meter {
        Meter::Bucket { bounds, widened, .. } if *id == rule.id => {
            Some((widened.at(at, bounds.rate), widened.width))
        }
        _ => None,
    });
    let (level, width) = level.unwrap_or((0, 1));
    let width = u128::from(width.max(1));
    let in_use = level + u128::from(pending) * width;
    let holds = u128::from(bounds.burst.max(cost)) * width;
    let has_room = in_use + u128::from(cost) * width <= holds
        && in_use * 100 <= u128::from(bounds.burst) * width * u128::from(percent);
    (has_room, u64::try_from((in_use + u128::from(cost) * width).div_ceil(width)).unwrap_or(u64::MAX))
}
