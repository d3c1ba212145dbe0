//! Limits that change: what flowed into a bucket before did so at the pace of the limits before.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::tests::oracle::{LEASE, START, rule};

const SECOND: u64 = 1_000_000;

/// A bucket of 20 permits.
fn bucket(rate: u64) -> Arc<[Rule]> {
    [rule(rate, 8 * SECOND, 1, Kind::Bucket(Bucket { burst: 20 }))].into()
}

/// Takes all that a limit has at an instant.
fn drain(state: &mut LimiterState, rules: &Arc<[Rule]>, now: Micros) -> u64 {
    state.open(now, rules, LEASE, 1);
    let mut taken = 0;
    while state.search(now).earliest(1).at == now {
        state.charge(now, 1);
        taken += 1;
    }
    taken
}

#[test]
fn a_bucket_in_use_that_is_filled_faster_holds_no_more_at_once() {
    let (mut state, slow, fast) = (LimiterState::default(), bucket(8), bucket(80));
    assert_eq!(drain(&mut state, &slow, START), 20);
    let after = |seconds: u64| START + Micros(seconds * SECOND);
    for seconds in 1..=20 {
        assert_eq!(drain(&mut state, &slow, after(seconds)), 1);
    }
    assert_eq!(drain(&mut state, &fast, after(20)), 0, "nothing of the time before");
    // A bucket lacks whole permits after a change: a part of one counts as one.
    assert_eq!(drain(&mut state, &fast, after(21)), 9);
}

#[test]
fn what_is_taken_at_the_instant_of_a_change_counts() {
    let (mut state, slow, fast) = (LimiterState::default(), bucket(8), bucket(80));
    state.open(START, &slow, LEASE, 1);
    state.charge(START, 1);
    let now = START + Micros(SECOND / 10);
    assert_eq!(drain(&mut state, &fast, now), 19);
    assert_eq!(drain(&mut state, &fast, now), 0);
}
