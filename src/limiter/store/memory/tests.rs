use std::time::Duration;

use super::*;
use crate::limiter::model::{Limiter, Outcome, Run};
use crate::limiter::tests::limiter;

const SECOND: Duration = Duration::from_secs(1);

fn partition(limiter: &Limiter, value: u64) -> LimiterRef {
    LimiterRef::new(limiter, Some(Partition::of([Some(&value.to_be_bytes()[..])])), Micros::ZERO)
}

#[tokio::test(start_paused = true)]
async fn there_are_no_more_partitions_than_may_be() {
    let store = MemoryStore::new(Clock::of_runtime());
    let limiter = limiter(5, SECOND, Duration::ZERO);
    let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }];
    let call = Call { generations: vec![0], runs, ..Call::default() };
    let has_room = |value: u64| {
        let partition = partition(&limiter, value).partition.unwrap();
        store.has_room(&limiter.name, partition, 3)
    };
    for value in 0..3 {
        assert!(has_room(value), "{value}");
        store.reserve_now(&[partition(&limiter, value)], &call);
    }
    assert!(has_room(0) && !has_room(3), "one that is there goes on");
    // Nobody calls any more, and what has expired makes room all the same.
    tokio::time::advance(2 * SECOND).await;
    assert!(has_room(3));
}

#[tokio::test]
async fn expired_states_are_forgotten_by_calls_for_others() {
    let (clock, limiter) = (Clock::of_runtime(), limiter(2, SECOND, SECOND));
    let store = MemoryStore::new(clock);
    let run = Run { cost: 1, wait_max: Micros::ZERO, count: 1 };
    let call = Call { generations: vec![0], runs: vec![run], ..Call::default() };
    let now = clock.now();
    for value in 0..5000 {
        store.reserve_at(now, &[partition(&limiter, value)], &call);
    }
    assert_eq!(store.len(), 5000);
    // Three partitions stay in use; each call for them forgets a few of the expired states.
    let later = now + Micros::from_millis(1500);
    for value in 0..1000 {
        store.reserve_at(later, &[partition(&limiter, value % 3)], &call);
    }
    assert_eq!(store.len(), 3);
    let contents = store.lock();
    assert!(contents.states.places() < 1000);
}

#[tokio::test]
async fn external_use_is_charged_once() {
    let (clock, limiter) = (Clock::of_runtime(), limiter(10, SECOND, SECOND));
    let (store, now) = (MemoryStore::new(clock), clock.now());
    let limiter_ref = partition(&limiter, 1);
    let left = || store.inspect_at(now, &limiter_ref).available[0];
    store.charge_at(now, &limiter_ref, (now, 4), 1);
    store.charge_at(now, &limiter_ref, (now, 4), 1);
    assert_eq!(left(), 6);
    store.charge_at(now, &limiter_ref, (now, 7), 1);
    assert_eq!(left(), 3);
}

#[tokio::test]
async fn external_use_leaves_its_window_no_sooner_for_earlier_bookings() {
    let (clock, limiter) = (Clock::of_runtime(), limiter(10, SECOND, SECOND));
    let (store, now) = (MemoryStore::new(clock), clock.now());
    let limiter_ref = partition(&limiter, 1);
    let after = |millis| now + Micros::from_millis(millis);
    let left = |at| store.inspect_at(at, &limiter_ref).available[0];
    let run = Run { cost: 1, wait_max: Micros::ZERO, count: 5 };
    let call = Call { queue_slots_left: 5, runs: vec![run], ..Call::default() };
    store.reserve_at(now, std::slice::from_ref(&limiter_ref), &call);
    // The five booked permits may be among the seven: it is unknown when those were used, but not after 800 ms.
    store.charge_at(after(900), &limiter_ref, (after(800), 7), 1);
    assert_eq!(left(after(900)), 3);
    assert_eq!(left(now + limiter_ref.rules[0].window + Micros::from_millis(100)), 3);
    assert_eq!(left(after(800) + limiter_ref.rules[0].window + Micros::ONE), 10);
}

#[tokio::test]
async fn nothing_is_granted_before_external_bookings() {
    let (clock, limiter) = (Clock::of_runtime(), limiter(10, SECOND, SECOND));
    let (store, now) = (MemoryStore::new(clock), clock.now());
    let limiter_ref = partition(&limiter, 1);
    let ahead = now + Micros::from_millis(3500);
    store.charge_at(now, &limiter_ref, (ahead, 7), 1);
    let run = Run { cost: 1, wait_max: Micros::from_millis(60_000), count: 4 };
    let call = Call { queue_slots_left: 4, runs: vec![run], ..Call::default() };
    let answer = store.reserve_at(now, std::slice::from_ref(&limiter_ref), &call);
    let (first, then) = (answer.outcomes[0], answer.outcomes[1]);
    assert_eq!(first, (3, Outcome::Booked(ahead)));
    let window = limiter_ref.rules[0].window;
    assert_eq!(then, (1, Outcome::Booked(ahead + window)));
}

#[tokio::test]
async fn use_until_now_is_not_compared_with_bookings_ahead() {
    let (clock, limiter) = (Clock::of_runtime(), limiter(10, SECOND, SECOND));
    let (store, now) = (MemoryStore::new(clock), clock.now());
    let limiter_ref = partition(&limiter, 1);
    let run = Run { cost: 1, wait_max: Micros::from_millis(60_000), count: 1 };
    let call = Call { queue_slots_left: 1, runs: vec![run], ..Call::default() };
    let after = |millis| now + Micros::from_millis(millis);
    // A first outage, and a window later another one, in which the limiter's queues report slightly different instants.
    store.charge_at(now, &limiter_ref, (after(900), 10), 1);
    for ahead in [3000, 3200, 3100] {
        store.charge_at(after(1000), &limiter_ref, (after(ahead), 10), 1);
    }
    let answer = store.reserve_at(after(1000), std::slice::from_ref(&limiter_ref), &call);
    let window = limiter_ref.rules[0].window;
    assert_eq!(answer.outcomes, [(1, Outcome::Booked(after(3200) + window))]);
}

/// As where the limits change in an outage: the worker after that charges what was used before the outage.
#[tokio::test]
async fn grants_since_external_use_count_under_changed_limits_and_in_a_pause() {
    let clock = Clock::of_runtime();
    let now = clock.now();
    let after = |millis| now + Micros::from_millis(millis);
    let of_rate = |rate| partition(&limiter(rate, SECOND, SECOND), 1);
    let run = Run { cost: 1, wait_max: Micros::ZERO, count: 9 };
    let call = Call { queue_slots_left: 9, runs: vec![run], ..Call::default() };
    for (rate, is_paused) in [(9, false), (10, true)] {
        let store = MemoryStore::new(clock);
        store.charge_at(now, &of_rate(10), (now, 1), 1);
        store.reserve_at(after(700), &[of_rate(10)], &call);
        if is_paused {
            let pause = PauseByHand { lasting: Micros::from_millis(60), ago: Micros::ZERO, replica: 1 };
            store.pause_at(after(710), &of_rate(10), &pause).unwrap();
            store.reserve_at(after(711), &[of_rate(10)], &call);
        }
        store.charge_at(after(720), &of_rate(rate), (now, 1), 1);
        let left = store.inspect_at(after(1300), &of_rate(rate)).available[0];
        assert_eq!(left, rate - 9, "{rate}");
    }
}

#[tokio::test(start_paused = true)]
async fn charges_leave_no_expired_states() {
    let (clock, limiter) = (Clock::of_runtime(), limiter(2, SECOND, SECOND));
    let store = MemoryStore::for_outages(clock);
    let now = clock.now();
    for value in 0..5000 {
        let at = now + Micros::from_millis(value);
        store.charge_at(at, &partition(&limiter, value), (at, 1), 1);
    }
    assert!(store.len() < 1100, "{} of the last second", store.len());
}
