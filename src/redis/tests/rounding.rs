//! Where the twins may come out apart, by less than a cell.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::call::{Answer, Outcome};
use crate::limiter::model::pause::PauseRequest;
use crate::redis::tests::TestStore;
use crate::redis::tests::lua_parity::{Model, Step, run};

/// Returns whether two answers differ in the instants of slots alone, and in what a bucket lacks behind them, by less than a cell, beside
/// two buckets of which one has wide cells.
///
/// A bucket passes bookings that are too near to each other in one move in Lua, and one by one in Rust. There the other bucket is asked at
/// each of them, and may move the search on to its next cell, beyond an instant that suits both.
pub(super) fn are_rounded_apart(answer: &Answer, expected: &Answer, states: &[LimiterState]) -> bool {
    let is_bucket = |rule: &&Rule| matches!(rule.kind, Kind::Bucket(_) | Kind::WarmUp(_));
    let buckets = states.iter().flat_map(LimiterState::rules).filter(is_bucket);
    let (count, widest) =
        buckets.fold((0, Micros::ONE), |(count, widest), rule| (count + 1, widest.max(rule.cell)));
    if answer == expected || count < 2 || widest == Micros::ONE {
        return false;
    }
    let near = |one: Micros, other: Micros| one.0.abs_diff(other.0) < widest.0;
    let permits_of_cell = |rule: &Rule| rule.rate * rule.cell.0 / rule.window.0 + 1;
    let permits_apart =
        states.iter().flat_map(LimiterState::rules).map(permits_of_cell).max().unwrap_or_default();
    let lacking = answer.lacking.iter().zip(&expected.lacking);
    let rescheduled = answer.rescheduled.iter().zip(&expected.rescheduled);
    let outcomes = answer.outcomes.iter().zip(&expected.outcomes);
    answer.rescheduled.len() == expected.rescheduled.len()
        && answer.outcomes.len() == expected.outcomes.len()
        && rescheduled.into_iter().all(|(one, other)| match (one, other) {
            ((count, Some(one)), (others, Some(other))) => count == others && near(*one, *other),
            (one, other) => one == other,
        })
        && outcomes.into_iter().all(|(one, other)| match (one, other) {
            ((count, Outcome::Booked(one)), (others, Outcome::Booked(other))) => {
                count == others && near(*one, *other)
            }
            (one, other) => one == other,
        })
        && near(answer.last, expected.last)
        && lacking.into_iter().all(|(one, other)| one.abs_diff(*other) <= permits_apart)
        && Answer {
            rescheduled: expected.rescheduled.clone(),
            outcomes: expected.outcomes.clone(),
            last: expected.last,
            lacking: expected.lacking.clone(),
            ..answer.clone()
        } == *expected
}

/// A `warm_up` limit with cells of 5 ms, and a bucket that another replica has declared.
#[test]
fn two_buckets_may_be_rounded_apart() {
    let pause = PauseRequest {
        wait: Some(Micros(4_924_973)),
        fallback: Micros(700_000),
        max: Micros(20_000_000),
        sent_ago: Micros::ZERO,
        jitter: 148,
        status: 429,
        made_ago: Micros::ZERO,
    };
    let reserve = |runs, queue_slots_left| Step::Reserve {
        limiter_refs: 1,
        runs,
        not_new: (0, 0),
        lead: 0,
        queue_slots_left,
        refusal_budget: 0,
    };
    let steps = [
        Step::Report { limiter_ref: 0, pause: Some(pause), refused: Vec::new(), cost: 0, remaining: None },
        reserve(vec![(3, 5_370_000, 3)], 3),
        Step::Replica(2),
        Step::Change(5),
        reserve(vec![(1, 60_000_000, 11)], 11),
    ];
    let (mut store, mut model) = (TestStore::start(), Model::new(20));
    run(&mut model, &mut store, &steps);
}
