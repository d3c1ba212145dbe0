//! Judges refusals: was a request refused for want of a permit while its limits had room at that instant?
//!
//! Permits that nobody has used may be prefetched in some replica. So a limit has room only if at most a given part of it is
//! in use: sent in the last window, or asked for and not answered. It is not judged while a pause or what it left may hold
//! permits back, for a lease after a reload, nor for a window after a fault that loses knowledge. Of a long window such a fault
//! may take no more than what nobody can vouch for.

use super::event::{Algorithm, LimitModel};
use super::faults::Faults;
use super::finding::Evidence;
use super::limiters::{Limiter, Limiters, Rule};
use super::over::bucket_room;
use super::usage::StateUse;

/// A window of this length outlives faults that lose knowledge.
const LONG: u64 = 1_000_000_000;

/// Such a fault takes at most these of the permits of a long window: those of so much time, of so many replicas one each, and one in so many of
/// all, which were prefetched.
const UNKNOWN_FOR: u64 = 65_000_000;
const REPLICAS_MAX: u64 = 2;
const PREFETCHED: u64 = 20;

/// A request that is refused now.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    /// The true time.
    pub(crate) at: u64,
    /// The instant at which there must have been room, no later: nobody can decide after it.
    pub(crate) decided: u64,
    /// Its cost.
    pub(crate) cost: u64,
    /// Its arrival.
    pub(crate) arrived: u64,
    /// Its replica.
    pub(crate) replica: usize,
    /// The store's clock.
    pub(crate) store_clock: u64,
}

/// Returns whether refusals by a limiter are judged at an instant.
pub(crate) fn is_judged(
    limiter: &Limiter,
    limiters: &Limiters,
    faults: &Faults,
    refused: Refused,
    lease: u64,
) -> bool {
    let window_ago = refused.at.saturating_sub(limiter.window());
    let outlived = limiter.rules.iter().filter(|rule| rule.limit.per < LONG).map(Rule::widened).max();
    limiter.model.judges_room
        && limiter.known_from <= window_ago
        && limiter.is_unpaused_since(window_ago)
        && faults.all_known_since(refused.at.saturating_sub(outlived.unwrap_or_default()))
        && limiters.are_unchanged_since(refused.at.saturating_sub(lease))
        && !faults.stood_still_since(refused.replica, refused.arrived)
}

/// Returns the evidence of room if all limits of a limiter have room for a refused request, which no longer counts as pending.
pub(crate) fn room(
    state: &mut StateUse,
    limiter: &Limiter,
    refused: Refused,
    percent: u64,
    losses: u64,
) -> Option<Evidence> {
    let pending = state.pending(refused.at);
    let mut fullest: Option<Evidence> = None;
    for rule in &limiter.rules {
        let unknown = losses * lost_at_most(rule);
        let (has_room, in_use) = rule_room(state, rule, refused, pending + unknown, percent);
        if !has_room {
            return None;
        }
        let limit = match rule.limit.algorithm {
            Algorithm::TokenBucket { burst } => burst.max(refused.cost),
            Algorithm::LeakyBucket | Algorithm::WarmUp { .. } => refused.cost,
            Algorithm::SlidingWindow | Algorithm::FixedWindow => rule.limit.rate,
        };
        let left = limit.saturating_sub(in_use);
        if fullest.as_ref().is_none_or(|old| left < old.limit.saturating_sub(old.sent)) {
            let detail = format!(
                "cost {}, {pending} permits pending, {unknown} unknown, in {} us",
                refused.cost, rule.limit.per
            );
            fullest = Some(Evidence { sent: in_use, limit, detail });
        }
    }
    fullest
}

/// Returns how many permits of a limit a fault that loses knowledge takes at most for as long as it has windows.
fn lost_at_most(rule: &Rule) -> u64 {
    let LimitModel { rate, per, .. } = rule.limit;
    if per < LONG { 0 } else { rate * UNKNOWN_FOR / per + REPLICAS_MAX + rate / PREFETCHED }
}

/// Returns whether a limit has room, and what is in use with the request.
fn rule_room(state: &StateUse, rule: &Rule, refused: Refused, pending: u64, percent: u64) -> (bool, u64) {
    let Refused { at, decided, cost, store_clock, .. } = refused;
    let (from, store_clock) = ((decided + 1).saturating_sub(rule.widened()), store_clock - (at - decided));
    if from < rule.since || from < state.history.known_from {
        return (false, 0);
    }
    let (rate, per) = (rule.limit.rate, rule.limit.per);
    let in_use = state.history.used(from, at + 1) + pending;
    let has_room = in_use + cost <= rate && in_use * 100 <= rate * percent;
    match rule.limit.algorithm {
        Algorithm::SlidingWindow => (has_room, in_use + cost),
        // The last guard of a fixed window stays empty.
        Algorithm::FixedWindow => {
            let is_early =
                store_clock % per + (at - decided) + rule.last().guard + rule.widened() - per < per;
            (has_room && is_early, in_use + cost)
        }
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket => {
            bucket_room(state, rule, decided, pending, cost, percent)
        }
        // The oracle does not know the price of a permit of a cold limit.
        Algorithm::WarmUp { .. } => (false, 0),
    }
}
