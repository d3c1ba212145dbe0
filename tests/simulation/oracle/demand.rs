//! Judges what is used of the room that the windows leave, where there is enough demand and nothing was disturbed.
//!
//! Room is what an ideal limiter had sent to the requests that came, from a given instant on: it knows all that was sent
//! before, keeps each window free as widened by the guard, and lets nobody wait for longer than half a second.

use super::event::Algorithm;
use super::finding::Evidence;
use super::limiters::{Limiter, Rule};
use super::usage::{StateUse, TICK, TICKS_MAX};

/// The interval of which a part must be used.
const INTERVAL: u64 = 10_000_000;
/// How long after its window the rate must be back after a fault, and the shortest time in which that is judged.
pub(crate) const BACK: u64 = 2_000_000;
/// The shortest wait of requests that make demand.
pub(crate) const WAIT_MIN: u64 = 1_000_000;
/// The time that a call and its answer may take at the end of an interval.
const CALL: u64 = 200_000;

/// The permits used, and the room for them, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Share {
    /// The permits used.
    pub(crate) used: u128,
    /// The permits that there was room for.
    pub(crate) room: u128,
}

/// How far back histories must reach.
pub(crate) fn horizon(window: u64) -> u64 {
    2 * window.max(BACK) + INTERVAL + 4 * TICK
}

/// Returns whether a limiter is judged by its use at all.
fn is_judged(limiter: &Limiter) -> bool {
    limiter.model.judges_room
        && limiter.model.wait_max.is_some_and(|wait| wait >= WAIT_MIN)
        && !limiter.rules.is_empty()
        && (horizon(limiter.window()) / TICK) < TICKS_MAX as u64
}

/// Returns since when a limiter has not been disturbed, if the whole fleet has not since `calm_since`.
fn calm_since(limiter: &Limiter, calm_since: Option<u64>) -> Option<u64> {
    let calm = calm_since.filter(|_| limiter.paused.is_empty())?;
    Some(calm.max(limiter.resumed.unwrap_or(0)))
}

/// The verdicts at the end of a tick; `None`: not judged.
#[derive(Default)]
pub(crate) struct Verdicts {
    /// Of ten calm seconds.
    pub(crate) unused: Option<Option<Evidence>>,
    /// Of the time in which the rate must be back.
    pub(crate) not_back: Option<Option<Evidence>>,
}

/// Judges the use of one state at the end of a tick, `now`.
pub(crate) fn judge(
    state: &StateUse,
    limiter: &Limiter,
    now: u64,
    calm: Option<u64>,
    share: &mut Share,
    percent: u64,
) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let Some(calm) = calm_since(limiter, calm).filter(|_| is_judged(limiter)) else { return verdicts };
    let calm = calm.max(state.orphaned_until);
    let window = limiter.window();
    let is_alone_since =
        |from: u64| state.shared_at.is_none_or(|shared| shared.saturating_add(window) < from);
    let from = now.saturating_sub(INTERVAL);
    if calm + 2 * window <= from && is_alone_since(from) && has_demand(state, limiter, from, now) {
        verdicts.unused = Some(shortfall(state, limiter, from, now, percent));
        count_share(state, limiter, now, share);
    }
    let back_from = (calm + window + BACK).next_multiple_of(TICK);
    let back_until = back_from + window.max(BACK).next_multiple_of(TICK);
    if now == back_until && is_alone_since(back_from) && has_demand(state, limiter, back_from, now) {
        verdicts.not_back = Some(shortfall(state, limiter, back_from, now, percent));
    }
    verdicts
}

/// Adds what was used in the last window of the strictest limit to the share that is used, once in a tick. Where requests cost more
/// than one permit, a window may hold more than those of the highest cost can fill: then there was room for what was used.
fn count_share(state: &StateUse, limiter: &Limiter, now: u64, share: &mut Share) {
    let is_warm_up = |rule: &Rule| matches!(rule.limit.algorithm, Algorithm::WarmUp { .. });
    if limiter.rules.iter().any(is_warm_up) {
        return;
    }
    let pace = |rule: &&Rule| (u128::from(usable(rule, state)) << 40) / u128::from(rule.limit.per);
    let Some(rule) = limiter.rules.iter().min_by_key(pace) else { return };
    let per = rule.limit.per;
    let end = match (rule.limit.algorithm, state.store_ahead) {
        (Algorithm::FixedWindow, Some(ahead)) => now - now.saturating_add_signed(ahead) % per,
        _ => now,
    };
    if !has_demand(state, limiter, now.saturating_sub(2 * per), now) {
        return;
    }
    // The permits that a bucket had left from before are no use of this window.
    let used = state.history.used(end.saturating_sub(per), end).min(rule.last().rate);
    let of_tick = |permits: u64| u128::from(permits) * 1000 * u128::from(TICK) / u128::from(per);
    share.room += of_tick(used.max(usable(rule, state)));
    share.used += of_tick(used);
}

/// Returns the permits of a window that requests of the highest cost can fill.
fn usable(rule: &Rule, state: &StateUse) -> u64 {
    rule.last().rate.saturating_sub(state.cost_max.saturating_sub(1)).max(1)
}

/// Returns how many permits the strictest limit gives in some time, in the long run.
fn allowance(limiter: &Limiter, time: u64) -> u64 {
    let gives = |rule: &Rule| u128::from(rule.last().rate) * u128::from(time) / u128::from(rule.limit.per);
    let least = limiter.rules.iter().map(gives).min().unwrap_or(0);
    u64::try_from(least).unwrap_or(u64::MAX)
}

/// Returns whether the demand was at least 1.2 times what the limits give, over all and in each second.
fn has_demand(state: &StateUse, limiter: &Limiter, from: u64, until: u64) -> bool {
    let (first, end) = (from / TICK, until / TICK);
    let is_enough = |demand: u64, time: u64| demand * 10 >= allowance(limiter, time) * 12;
    let sum: u64 = (first..end).map(|tick| state.demand(tick)).sum();
    let each_second = || {
        (first..end.saturating_sub(1))
            .all(|tick| is_enough(state.demand(tick) + state.demand(tick + 1), 2 * TICK))
    };
    sum > 0 && is_enough(sum, until - from) && each_second()
}

/// Returns the evidence if less than `percent` of the room was used.
fn shortfall(state: &StateUse, limiter: &Limiter, from: u64, until: u64, percent: u64) -> Option<Evidence> {
    // Before the first request there was nothing to use, and within its tick it is not known when it came.
    let (first, end) = (from / TICK, until / TICK);
    let begun = (first..end).find(|tick| state.demand(*tick) > 0).unwrap_or(end);
    let has_begun = begun.checked_sub(1).is_some_and(|before| state.demand(before) == 0);
    let from = if has_begun { (begun + 1).min(end) * TICK } else { from };
    let room = ideal(state, limiter, from, until);
    let sent = state.history.used(from, until);
    ((sent + state.cost_max.max(1)) * 100 <= room * percent).then(|| Evidence {
        sent,
        limit: room,
        detail: format!("from {from} to {until} us"),
    })
}

/// Returns what an ideal limiter had sent in an interval of whole ticks.
fn ideal(state: &StateUse, limiter: &Limiter, from: u64, until: u64) -> u64 {
    let (first, end) = (from / TICK, until / TICK);
    let call = CALL + limiter.window() / 50;
    let (mut sent, mut waiting) = (0, 0);
    for tick in first..end {
        let demand = state.demand(tick);
        let judged_until = ((tick + 1) * TICK).saturating_sub(call).max(from);
        let room =
            limiter.rules.iter().map(|rule| capacity(state, rule, from, judged_until)).min().unwrap_or(0);
        let goes = room.saturating_sub(sent).min(waiting + demand);
        sent += goes;
        waiting = demand.saturating_sub(goes.saturating_sub(waiting));
    }
    sent
}

/// Returns how many permits fit from one instant to another after all that was sent before.
fn capacity(state: &StateUse, rule: &Rule, from: u64, until: u64) -> u64 {
    let (rate, width, time) = (usable(rule, state), rule.widened(), until - from);
    let flows = |width: u64| {
        u64::try_from(u128::from(rule.last().rate) * u128::from(time) / u128::from(width)).unwrap_or(u64::MAX)
    };
    match rule.limit.algorithm {
        // Whole windows hold the rate each; what was sent before counts in the rest of one.
        Algorithm::SlidingWindow => {
            let rest = time % width;
            let used = state.history.used((from + rest).saturating_sub(width), from);
            (time / width) * rate + if rest > 0 { rate.saturating_sub(used) } else { 0 }
        }
        Algorithm::FixedWindow => fixed_capacity(state, rule, rate, from, until),
        // As if the bucket had been emptied before.
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket => flows(width),
        Algorithm::WarmUp { cold } => flows(width.saturating_mul(cold.max(1))),
    }
}

fn fixed_capacity(state: &StateUse, rule: &Rule, rate: u64, from: u64, until: u64) -> u64 {
    let per = rule.limit.per;
    let Some(ahead) = state.store_ahead else { return 0 };
    let (Some(from_clock), Some(until_clock)) =
        (from.checked_add_signed(ahead), until.checked_add_signed(ahead))
    else {
        return 0;
    };
    let begin = from.saturating_sub(from_clock % per);
    let further = until_clock / per - from_clock / per;
    // The end of a window stays empty.
    let first_closes = begin + per - (rule.widened() - per);
    let first = if until.min(first_closes) > from + CALL {
        rate.saturating_sub(state.history.used(begin, from))
    } else {
        0
    };
    first + further * rate
}
