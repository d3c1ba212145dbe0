//! Judges each request at the instant of its write: does a window hold more than its limit?
//!
//! - Sliding window: the permits of the last `per`, this one included, against `rate`.
//! - Fixed window: the permits since the store's clock began the window, against `rate`.
//! - Buckets: in an interval of length T that is a window or longer, the burst (or the cost of the last request, if that is more)
//!   and `rate * T / per`. Within a window a permit may be used a guard after its slot, and weir promises a bucket for slots
//!   alone: there T is longer by that, and so is the window.
//!
//! All in integers: a meter counts in permits times the window.

use std::collections::VecDeque;

use super::event::Algorithm;
use super::faults::Faults;
use super::finding::Evidence;
use super::limiters::{Bounds, Limiter, Rule};
use super::usage::StateUse;

/// Above so many permits in a window, weir's buckets lie on a grid of this many instants, or of half a guard where that is finer.
const GRID: u64 = 512;

/// The use of a limit, where it does not follow from the last window of the history.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// A bucket.
    Bucket(Bucket),
}

/// The level of a bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bucket {
    /// The largest bounds that were in force in the last window.
    bounds: Bounds,
    /// Drains at `rate` per `per`, as the upstream's does.
    nominal: Level,
    /// Drains at `rate` per window as weir keeps it free.
    widened: Level,
    /// All permits so far.
    total: u64,
    /// The requests of the last window, and the one before.
    poured: VecDeque<Poured>,
    /// Drains as `widened`, and counts what nobody can vouch for as used.
    vouched: Level,
}

/// A request that was poured into a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Poured {
    at: u64,
    /// All permits before it.
    before: u64,
    /// All permits with it.
    with: u64,
    /// The nominal level with it.
    level: u128,
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

    fn take(&mut self, cost: u64) {
        self.amount = self.amount.saturating_sub(u128::from(cost) * u128::from(self.width));
    }

    /// Returns the level in whole permits, rounded up.
    fn permits(&self) -> u64 {
        u64::try_from(self.amount.div_ceil(u128::from(self.width.max(1)))).unwrap_or(u64::MAX)
    }
}

/// Returns by how much longer than its slot's the instant of a permit may be in a bucket: the guard and two cells of weir's grid.
fn lateness(bounds: Bounds, per: u64) -> u64 {
    let kept_apart = bounds.rate + if bounds.burst > 1 { bounds.burst } else { 0 };
    let cell = if kept_apart <= GRID { 1 } else { (per / GRID).min(bounds.guard / 2).max(1) };
    bounds.guard + 2 * cell
}

impl Meter {
    /// Takes back permits, as far as they still count.
    pub(crate) fn settle(&mut self, sent_at: u64, less: u64) {
        match self {
            Meter::Fixed { begin, sent, .. } if sent_at >= *begin => *sent = sent.saturating_sub(less),
            Meter::Fixed { .. } => {}
            Meter::Bucket(bucket) => bucket.settle(sent_at, less),
        }
    }
}

impl Bucket {
    fn new(bounds: Bounds) -> Bucket {
        let [nominal, widened, vouched] = [Level::default(); 3];
        Bucket { bounds, nominal, widened, total: 0, poured: VecDeque::new(), vouched }
    }

    fn settle(&mut self, sent_at: u64, less: u64) {
        self.nominal.take(less);
        self.widened.take(less);
        self.vouched.take(less);
        self.total = self.total.saturating_sub(less);
        let nominal = u128::from(less) * u128::from(self.nominal.width);
        for poured in self.poured.iter_mut().filter(|poured| poured.at >= sent_at) {
            poured.with = poured.with.saturating_sub(less);
            poured.level = poured.level.saturating_sub(nominal);
            if poured.at > sent_at {
                poured.before = poured.before.saturating_sub(less);
            }
        }
    }

    /// Drains until an instant, from which on other bounds hold.
    fn drain(&mut self, at: u64, per: u64, new: Bounds) {
        // A limit that has been raised since the last request drained faster from then on.
        self.nominal.drain(at, self.bounds.rate.max(new.rate), per);
        self.widened.drain(at, self.bounds.rate, per + lateness(new, per));
        self.vouched.drain(at, self.bounds.rate, per + lateness(new, per));
        if new.rate < self.bounds.rate || new.burst < self.bounds.burst {
            // Intervals that begin before the change may hold more; the others do not see what was sent then.
            (self.nominal.amount, self.widened.amount) = (0, 0);
            self.poured.clear();
            // It has drained faster than weir's bucket.
            self.bounds = new;
            self.doubt(at, 0);
        }
        self.bounds = new;
    }

    /// Takes in that nobody can vouch for what was used until now: all of it may have been.
    pub(crate) fn doubt(&mut self, at: u64, lease: u64) {
        let (Bounds { rate, burst, .. }, width) = (self.bounds, u128::from(self.vouched.width));
        self.vouched.amount =
            self.vouched.at(at, rate).max(u128::from(burst) * width) + flow(rate, 2 * lease);
        self.vouched.at = at;
    }

    /// Takes a request in. Returns the evidence if an interval that ends with it holds too much: so many permits may go at once there, and
    /// the burst. A request whose slot was first may be written behind it, so that what goes at once there is what others of that time take.
    fn pour(&mut self, at: u64, per: u64, new: Bounds, (cost, at_once): (u64, u64)) -> Option<Evidence> {
        self.drain(at, per, new);
        let before = self.total;
        self.total += cost;
        self.nominal.add(cost);
        self.widened.add(cost);
        self.vouched.add(cost);
        self.poured.push_back(Poured { at, before, with: self.total, level: self.nominal.amount });
        while self.poured.get(1).is_some_and(|poured| poured.at + per <= at) {
            self.poured.pop_front();
        }
        let late = lateness(new, per);
        let lately = self.poured.iter().rev().take_while(|poured| poured.at + late >= at);
        let at_once = lately.map(|poured| poured.with.saturating_sub(poured.before)).fold(at_once, u64::max);
        let held = new.burst.max(at_once);
        let is_over =
            self.is_over_beyond_a_window(at, per, held) || self.is_over_within_a_window(at, per, held);
        is_over.then(|| Evidence {
            sent: self.nominal.permits(),
            limit: held,
            detail: format!("the bucket of {} per {per} us is beyond its burst", new.rate),
        })
    }

    fn is_over_beyond_a_window(&self, at: u64, per: u64, held: u64) -> bool {
        // Of all earlier intervals the level of the last request before the window is the fullest.
        self.poured.front().filter(|poured| poured.at + per <= at).is_some_and(|poured| {
            let since = u128::from(self.total - poured.with) * u128::from(per);
            poured.level + since > u128::from(held) * u128::from(per) + flow(self.bounds.rate, at - poured.at)
        })
    }

    fn is_over_within_a_window(&self, at: u64, per: u64, held: u64) -> bool {
        let late = lateness(self.bounds, per);
        let width = u128::from(per + late);
        let holds = |time: u64| u128::from(held) * width + flow(self.bounds.rate, time);
        // The level is the fullest of all intervals: mostly there is nothing to look for.
        self.widened.amount > holds(late)
            && self.poured.iter().any(|poured| {
                let time = at - poured.at;
                time < per && u128::from(self.total - poured.before) * width > holds(time + late)
            })
    }
}

/// Returns what flows out in some time, in permits times the window.
fn flow(rate: u64, time: u64) -> u128 {
    u128::from(rate) * u128::from(time)
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

/// Judges a bucket; it begins empty where it could not be judged, and all of it may be in use.
fn fill(state: &mut StateUse, rule: &Rule, at: u64, cost: u64, percent: Option<u64>) -> Option<Evidence> {
    let per = rule.limit.per;
    let begin = (at + 1).saturating_sub(per);
    let Some(percent) = percent.filter(|_| begin >= rule.since) else {
        state.meters.retain(|(id, _)| *id != rule.id);
        let mut unknown = Bucket::new(rule.bounds(begin));
        unknown.drain(at, per, unknown.bounds);
        unknown.doubt(at, 0);
        unknown.vouched.add(cost.saturating_sub(unknown.bounds.burst));
        state.meters.push((rule.id, Meter::Bucket(unknown)));
        return None;
    };
    let bounds = rule.bounds(begin).raised(percent);
    // Where permits are spaced, each who grants by itself lets a request of several go as soon as one may.
    let at_once = match rule.limit.algorithm {
        Algorithm::LeakyBucket | Algorithm::WarmUp { .. } if percent > 0 => {
            (1 + percent.div_ceil(100)) * state.cost_max
        }
        _ => cost,
    };
    let Meter::Bucket(bucket) = meter(state, rule.id, || Meter::Bucket(Bucket::new(bounds))) else {
        return None;
    };
    bucket.pour(at, per, bounds, (cost, at_once))
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
        let percent = limiter.excess(faults, begin);
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
    let meter = state.meters.iter().find_map(|(id, meter)| match meter {
        Meter::Bucket(bucket) if *id == rule.id => Some(bucket),
        _ => None,
    });
    // Where more than the limit is excused, the meter drains faster than weir's bucket.
    let is_unsure = |bucket: &Bucket| bucket.bounds.rate > rule.limit.rate;
    if meter.is_some_and(is_unsure) {
        return (false, 0);
    }
    let level = meter.map(|Bucket { bounds, vouched, .. }| (vouched.at(at, bounds.rate), vouched.width));
    let (level, width) = level.unwrap_or((0, 1));
    let width = u128::from(width.max(1));
    let in_use = level + u128::from(pending) * width;
    let holds = u128::from(bounds.burst.max(cost)) * width;
    let has_room = in_use + u128::from(cost) * width <= holds
        && in_use * 100 <= u128::from(bounds.burst) * width * u128::from(percent);
    (has_room, u64::try_from((in_use + u128::from(cost) * width).div_ceil(width)).unwrap_or(u64::MAX))
}
