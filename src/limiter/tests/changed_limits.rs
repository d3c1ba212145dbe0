//! A state keeps its use where its bucket changes, and takes in permits that come back late.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::cell::cell_start;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Remaining, UNKNOWN_GENERATION};
use crate::limiter::tests::oracle::{LEASE, SLIDING, START, rule};

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
fn permits_taken_at_the_instant_of_a_change_count() {
    let (mut state, slow, fast) = (LimiterState::default(), bucket(8), bucket(80));
    state.open(START, &slow, LEASE, 1);
    state.charge(START, 1);
    let now = START + Micros(SECOND / 10);
    assert_eq!(drain(&mut state, &fast, now), 19);
    assert_eq!(drain(&mut state, &fast, now), 0);
}

#[test]
fn a_bucket_that_shrinks_begins_empty_and_not_below() {
    let of = |burst| -> Arc<[Rule]> { [rule(10, SECOND, 1, Kind::Bucket(Bucket { burst }))].into() };
    for small in [10, 1] {
        let (mut state, large, small) = (LimiterState::default(), of(1000), of(small));
        assert_eq!(drain(&mut state, &large, START), 1000);
        let now = START + Micros(SECOND / 10);
        assert_eq!(drain(&mut state, &small, now), 0);
        // A bucket for one permit may have lent a whole window of them.
        let free = state.search(now).earliest(1).at - now;
        assert!(free <= Micros(SECOND + SECOND / 10), "{free:?}");
    }
}

/// Two windows of a minute and of a day, whose bookings stand in cells of 0.25 and of 300 s.
#[test]
fn permits_that_come_back_after_the_shorter_window_are_taken_back_from_the_longer_one() {
    let minute = rule(1000, 60 * SECOND, SECOND / 4, SLIDING);
    let day = rule(100_000, 86_400 * SECOND, 300 * SECOND, SLIDING);
    let rules: Arc<[Rule]> = [minute, day].into();
    let mut state = LimiterState::default();
    let start = cell_start(START, Micros(300 * SECOND));
    let after = |seconds: u64| start + Micros(seconds * SECOND);
    let left_of_day = |state: &LimiterState, seconds| state.available(after(seconds), &rules)[1];
    for (seconds, permits) in [(1, 500), (29, 7), (70, 30)] {
        state.open(after(seconds), &rules, LEASE, 1);
        state.charge(after(seconds), permits);
    }
    let generation = state.generation().number;
    let give_back = |state: &mut LimiterState, seconds, permits| {
        let mut cursor = state.cursor(after(seconds), generation);
        state.give_back(&mut cursor, permits);
    };
    state.open(after(91), &rules, LEASE, 1);
    assert_eq!(left_of_day(&state, 91), 100_000 - 537);
    give_back(&mut state, 1, 470);
    assert_eq!(left_of_day(&state, 91), 100_000 - 67);
    // Those of others, which the minute still holds apart, stay.
    give_back(&mut state, 1, 470);
    assert_eq!(left_of_day(&state, 91), 100_000 - 30);
    give_back(&mut state, 1, 470);
    assert_eq!(left_of_day(&state, 91), 100_000 - 30);
}

#[test]
fn the_use_of_others_is_known_under_another_rate() {
    let rules = |rate, guard| -> Arc<[Rule]> { [rule(rate, 60 * SECOND + guard, 1, SLIDING)].into() };
    let (before, mut state) = (rules(60, 10_000), LimiterState::default());
    state.open(START, &before, LEASE, 1);
    state.charge(START, 28);
    let per = Micros(60 * SECOND);
    let remaining = Remaining { permits: 2, per, slot: START, took: Micros(10_000) };
    let now = START + Micros(SECOND);
    state.observe_remaining(now, &before[0], &remaining);
    state.follow_external_usage(now, LEASE);
    let now = now + Micros(SECOND);
    assert_eq!(
        drain(&mut state.clone(), &before, now),
        0,
        "28 of ours and 30 of others, with a margin, are 60"
    );
    for after in [rules(50, 10_000), rules(60, 500_000)] {
        assert_eq!(drain(&mut state.clone(), &after, now), 0);
    }
    // A window of another length is another quota.
    let hour: Arc<[Rule]> = [rule(60, 3600 * SECOND, 1, SLIDING)].into();
    assert_eq!(drain(&mut state, &hour, now + LEASE + Micros(SECOND)), 32);
}

#[test]
fn callers_that_come_and_go_do_not_put_a_change_off() {
    let of = |rate| -> Arc<[Rule]> { [rule(rate, SECOND, 1, SLIDING)].into() };
    let (mut state, [first, second, third]) = (LimiterState::default(), [2, 3, 4].map(of));
    state.open(START, &first, LEASE, 1);
    state.charge(START + Micros(60 * SECOND), 1);
    state.open(START, &second, LEASE, 1);
    // The holder of the permit that has moved is gone. Those who call now have nothing to claim.
    for passed in 1..100 {
        let now = START + Micros(passed * SECOND / 10);
        state.open(now, &third, LEASE, 1);
        state.keep_places(UNKNOWN_GENERATION, now + LEASE);
    }
    assert_eq!(state.rules(), &third[..]);
}
