//! The permits that a call to a store has granted, and the windows in which they matter. Pure.

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::{Entry, cell_start};
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

/// Later than any instant.
pub(in crate::limiter) const FAR: Micros = Micros(u64::MAX);

/// Adds permits to a timeline that is kept as precisely as these windows need until `exact_from`, and instant by instant behind that.
pub(in crate::limiter) fn charge(
    timeline: &mut Timeline,
    windows: &[Rule],
    (at, permits): (Micros, u64),
    exact_from: Micros,
) {
    if at > exact_from {
        let after = timeline.entries().partition_point(|entry| entry.at <= at);
        timeline.charge(after, at, permits, |other| other == at);
        return;
    }
    let cell = finest_cell(windows);
    let is_before = |entry: &Entry| entry.at <= exact_from && cell_start(entry.at, cell) <= at;
    let after = timeline.entries().partition_point(is_before);
    let is_one = |other: Micros| is_one(windows, cell, at.min(other), at.max(other));
    timeline.charge(after, at, permits, is_one);
}

/// Returns a limit as the window in which a grant matters to it. Grants are remembered no more precisely than the past is.
pub(in crate::limiter) fn window(rule: &Rule) -> Rule {
    Rule { window: rule.seen_for(), cell: rule.folded_cell(), ..rule.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::model::{Dealt, Holding, LineAnswer, RetryDelay, Run};

    #[test]
    fn outcomes_are_of_the_requests_in_order_whatever_their_runs() {
        let run = |cost, count| Run { cost, wait_max: Micros::ZERO, count };
        let holding = |cost, count| Holding { slot: Micros(1), cost, count };
        let call = Call {
            reschedule: vec![holding(1, 2), holding(4, 1)],
            runs: vec![run(1, 3), run(5, 0), run(2, 2)],
            ..Call::default()
        };
        let refused = Outcome::TooFar(RetryDelay::default());
        let dealt =
            |slot, count, costs: [u64; 2]| Dealt { flow: 1, class: 0, slot, count, costs: costs.to_vec() };
        let dealt = vec![dealt(Micros(50), 3, [2, 0]), dealt(Micros(60), 1, [1, 7])];
        let answer = Answer {
            rescheduled: vec![(1, Some(Micros(10))), (1, None), (1, Some(Micros(11)))],
            // More than was asked for: the rest is of nobody.
            outcomes: vec![(2, Outcome::Booked(Micros(20))), (1, refused), (9, Outcome::Booked(Micros(30)))],
            line: Some(Box::new(LineAnswer { dealt, ..LineAnswer::default() })),
            ..Answer::default()
        };
        let new = [(Micros(20), 2), (Micros(30), 4)];
        assert_eq!(booked(&call, &answer).collect::<Vec<_>>(), new);
        let moved = [(Micros(10), 1), (Micros(11), 4)];
        let all = |limiter| granted_of(&call, &answer, limiter).collect::<Vec<_>>();
        assert_eq!(all(0), [&moved[..], &new, &[(Micros(50), 6), (Micros(60), 1)]].concat());
        assert_eq!(all(1), [&moved[..], &new, &[(Micros(60), 7)]].concat());
    }
}
