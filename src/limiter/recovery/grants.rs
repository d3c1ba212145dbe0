//! The permits that a call to a store has granted, and the windows in which they matter. Pure.

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::cell_start;
use crate::limiter::arithmetic::rule::{Rule, finest_cell, is_one};
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::model::{Answer, Call, Outcome};

/// Returns the instant and the permits of everything that a call has booked at one of its limiters: rescheduled slots first, then new
/// requests, then what a line has dealt.
pub(in crate::limiter) fn granted_of(
    call: &Call,
    answer: &Answer,
    limiter: usize,
) -> impl Iterator<Item = (Micros, u64)> {
    let dealt = answer.line.iter().flat_map(|line| &line.dealt);
    let dealt = dealt
        .map(move |dealt| (dealt.slot, dealt.count * dealt.costs.get(limiter).copied().unwrap_or_default()));
    granted(call, answer).chain(dealt.filter(|(_, permits)| *permits > 0))
}

/// Returns the instant and the permits of everything that a call has booked without a line.
pub(in crate::limiter) fn granted(call: &Call, answer: &Answer) -> impl Iterator<Item = (Micros, u64)> {
    let reschedule = call.reschedule.iter().map(|holding| (holding.count, holding.cost));
    let rescheduled = pair(reschedule, answer.rescheduled.iter().copied());
    let moved = rescheduled.filter_map(|(count, cost, at)| Some((at?, count * cost)));
    moved.chain(booked(call, answer))
}

/// Returns the instant and the permits of what a call has booked for its new requests.
pub(in crate::limiter) fn booked(call: &Call, answer: &Answer) -> impl Iterator<Item = (Micros, u64)> {
    let runs = call.runs.iter().map(|run| (run.count, run.cost));
    pair(runs, answer.outcomes.iter().copied()).filter_map(|(count, cost, outcome)| match outcome {
        Outcome::Booked(at) => Some((at, count * cost)),
        Outcome::TooFar(_) | Outcome::Full(_) => None,
    })
}

/// Joins two run-length encoded sequences over the same requests, (count, cost) and (count, outcome), into
/// (count, cost, outcome).
fn pair<T: Copy>(
    mut costs: impl Iterator<Item = (u64, u64)>,
    outcomes: impl Iterator<Item = (u64, T)>,
) -> impl Iterator<Item = (u64, u64, T)> {
    let mut of_one = (0, 0);
    outcomes.flat_map(move |(mut count, outcome)| {
        let mut parts = Vec::new();
        while count > 0 {
            if of_one.0 == 0 {
                let Some(next) = costs.next() else { break };
                of_one = next;
                continue;
            }
            let part = count.min(of_one.0);
            parts.push((part, of_one.1, outcome));
            of_one.0 -= part;
            count -= part;
        }
        parts
    })
}

/// Adds permits to a timeline that is kept as precisely as these windows need.
pub(in crate::limiter) fn charge(timeline: &mut Timeline, windows: &[Rule], at: Micros, permits: u64) {
    let cell = finest_cell(windows);
    let after = timeline.entries().partition_point(|entry| cell_start(entry.at, cell) <= at);
    let is_one = |other: Micros| is_one(windows, cell, at.min(other), at.max(other));
    timeline.charge(after, at, permits, is_one);
}

/// Returns a limit as the window in which a grant matters to it. Grants are remembered no more precisely than the past is.
pub(in crate::limiter) fn window(rule: &Rule) -> Rule {
    Rule { window: rule.seen_for(), cell: rule.folded_cell(), ..rule.clone() }
}
