//! Interleavings of requests with a slow or unreachable store, a reload or a shutdown, on paused time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::clock::{Clock, Micros};
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::moving::place_void;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Limiter, Permits};
use crate::limiter::store::Store;
use crate::limiter::tests::latent_store::LatentStore;
use crate::limiter::{Demand, Entered, LimiterSet, Limiters, Permit, Refusal, tests};
use crate::telemetry::Metrics;

const SECOND: Duration = Duration::from_secs(1);

/// The limiter of the other tests, with a queue that is never full here.
fn limiter(rate: u64, per: Duration, timeout: Duration) -> Arc<Limiter> {
    let mut limiter = Limiter::clone(&tests::limiter(rate, per, timeout));
    if let Some(queue) = &mut limiter.queue {
        queue.max_waiting = 100_000;
    }
    Arc::new(limiter)
}

fn limiters(limiter: &Arc<Limiter>, delay: Duration) -> (Limiters, LimiterSet, Arc<LatentStore>) {
    let clock = Clock::of_runtime();
    let store = LatentStore::new(clock, delay);
    let limiters = Limiters::new(store.clone(), clock, 1, Metrics::new());
    limiters.apply(std::slice::from_ref(limiter));
    let limiter_set = tests::limiter_set(&limiters, &["api"]);
    (limiters, limiter_set, store)
}

async fn enter(limiter_set: &LimiterSet, cost: u64) -> Result<Entered, Refusal> {
    limiter_set.enter(&[], Demand::of(Permits::new(cost).unwrap())).await
}

async fn granted(limiter_set: &LimiterSet) -> Permit {
    match enter(limiter_set, 1).await {
        Ok(Entered::Granted(permit)) => permit,
        Ok(Entered::Waiting(_)) => panic!("it waits"),
        Err(refusal) => panic!("{refusal}"),
    }
}

async fn pass(limiter_set: LimiterSet, cost: u64) -> Result<Instant, Refusal> {
    let permit = match enter(&limiter_set, cost).await? {
        Entered::Granted(permit) => permit,
        Entered::Waiting(ticket) => ticket.turn().await?,
    };
    permit.commit();
    Ok(Instant::now())
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_during_an_outage_stops_no_other() {
    let (_limiters, limiter_set, store) = limiters(&limiter(2, SECOND, 10 * SECOND), Duration::ZERO);
    granted(&limiter_set).await.commit();
    granted(&limiter_set).await.commit();
    let Ok(Entered::Waiting(leaves)) = enter(&limiter_set, 1).await else { panic!() };
    store.set_away(true);
    drop(leaves);
    let next = timeout(5 * SECOND, pass(limiter_set.clone(), 1)).await;
    next.expect("the worker must still answer").unwrap();
    store.set_away(false);
    sleep(2 * SECOND).await;
    granted(&limiter_set).await.commit();
}

#[tokio::test(start_paused = true)]
async fn a_slot_beyond_the_deadline_is_used_once_it_has_come() {
    // Each answer takes longer than a slot may lie beyond its request's deadline.
    let (_limiters, limiter_set, _) = limiters(&limiter(2, 10 * SECOND, Duration::ZERO), SECOND / 5);
    let mut permit = granted(&limiter_set).await;
    sleep(SECOND).await;
    permit.confirm().await.unwrap();
    permit.commit();
}

#[tokio::test(start_paused = true)]
async fn a_refused_cost_leaves_its_permits_to_a_smaller_one_in_the_same_call() {
    let (_limiters, limiter_set, _) = limiters(&limiter(10, SECOND, Duration::ZERO), SECOND / 200);
    for _ in 0..5 {
        granted(&limiter_set).await.commit();
    }
    // A call is under way; these two share the next one.
    let first = tokio::spawn(pass(limiter_set.clone(), 1));
    tokio::task::yield_now().await;
    let large = tokio::spawn(pass(limiter_set.clone(), 8));
    tokio::task::yield_now().await;
    let small = tokio::spawn(pass(limiter_set.clone(), 1));
    first.await.unwrap().unwrap();
    assert!(matches!(large.await.unwrap(), Err(Refusal::RateLimited { .. })));
    small.await.unwrap().expect("four permits are left");
}

#[tokio::test(start_paused = true)]
async fn a_late_permit_is_refused_when_the_limiter_closes() {
    let (limiters, limiter_set, _) = limiters(&limiter(1, SECOND, 10 * SECOND), Duration::ZERO);
    let mut permit = granted(&limiter_set).await;
    sleep(SECOND / 2).await;
    limiters.close().await;
    let confirmed = timeout(60 * SECOND, permit.confirm()).await.expect("the worker must answer");
    assert!(matches!(confirmed, Err(Refusal::Closed { .. })));
}

#[tokio::test(start_paused = true)]
async fn closing_gives_every_slot_back() {
    let clock = Clock::of_runtime();
    let store = LatentStore::new(clock, Duration::ZERO);
    let limiter = limiter(100, SECOND, 600 * SECOND);
    let closes = Limiters::new(store.clone(), clock, 1, Metrics::new());
    closes.apply(std::slice::from_ref(&limiter));
    let limiter_set = tests::limiter_set(&closes, &["api"]);
    let mut waiting = Vec::new();
    // Spread, so that the slots differ.
    for index in 0..3000 {
        waiting.push(tokio::spawn(pass(limiter_set.clone(), 1)));
        if index < 100 {
            sleep(SECOND / 1000).await;
        }
    }
    sleep(SECOND / 10).await;
    closes.close().await;
    for task in waiting {
        let _ = task.await.unwrap();
    }
    let left = store.inspect(&LimiterRef::new(&limiter, None, Micros::ZERO)).await.unwrap();
    assert!(left.last <= left.now, "booked for no request until {:?} from now", left.last - left.now);
}

#[tokio::test(start_paused = true)]
async fn a_second_change_during_a_reschedule_loses_no_request() {
    // A guard that is longer than the store takes.
    let slow = |rate| {
        Arc::new(Limiter { guard: SECOND / 4, ..Limiter::clone(&limiter(rate, SECOND, 600 * SECOND)) })
    };
    let (limiters, limiter_set, _) = limiters(&slow(1000), 120 * SECOND / 1000);
    let tasks: Vec<_> = (0..5000).map(|_| tokio::spawn(pass(limiter_set.clone(), 1))).collect();
    sleep(SECOND).await;
    limiters.apply(&[slow(900)]);
    sleep(SECOND / 3).await;
    limiters.apply(&[slow(800)]);
    for task in tasks {
        timeout(700 * SECOND, task).await.expect("a request waits for ever").unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_a_changed_limit_is_refused() {
    let (limiters, limiter_set, _) = limiters(&limiter(10, SECOND, 60 * SECOND), Duration::ZERO);
    let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(pass(limiter_set.clone(), 5))).collect();
    sleep(SECOND / 2).await;
    limiters.apply(&[limiter(3, SECOND, 60 * SECOND)]);
    let changed = Instant::now();
    for task in tasks {
        match task.await.unwrap() {
            Ok(at) => assert!(at < changed + SECOND, "five permits at {:?} under 3/1s", at - changed),
            Err(refusal) => assert!(matches!(refusal, Refusal::CostExceedsLimit { .. }), "{refusal}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn late_permits_keep_their_order() {
    let (_limiters, limiter_set, _) = limiters(&limiter(5, SECOND, 60 * SECOND), Duration::ZERO);
    let mut permits = Vec::new();
    for _ in 0..5 {
        permits.push(granted(&limiter_set).await);
    }
    sleep(SECOND / 2).await;
    let confirmed = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (index, mut permit) in permits.into_iter().enumerate() {
        let confirmed = confirmed.clone();
        tasks.push(tokio::spawn(async move {
            permit.confirm().await.unwrap();
            confirmed.lock().unwrap().push(index);
            permit.commit();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let confirmed = confirmed.lock().unwrap().clone();
    assert_eq!(confirmed, [0, 1, 2, 3, 4]);
}

/// A replica that missed a change of the limits gives back a slot that another replica holds by now.
#[test]
fn a_slot_from_before_a_missed_change_frees_no_other_booking() {
    let second = |count: u64| Micros(1_800_000_000_000_000 + count * 100_000);
    let lease = Micros::from_millis(500);
    let rules = |window| -> Arc<[Rule]> {
        [Rule {
            rate: 1,
            window: Micros(window),
            cell: Micros::ONE,
            kind: Kind::SlidingWindow(SlidingWindow),
        }]
        .into()
    };
    let mut state = LimiterState::default();
    let book_at = |state: &mut LimiterState, tenths, window, replica, count| {
        state.open(second(tenths), &rules(window), lease, replica);
        place_void(second(tenths), &mut [(state, rules(window))]);
        let mut search = state.search(second(tenths));
        for _ in 0..count {
            search.earliest(1);
            search.charge(1);
        }
    };
    // Slots at 0, 2, 4, 6 and 8 s; then another replica changes the limit twice, and books 6, 7 and 8 s.
    book_at(&mut state, 0, 2_000_000, 1, 5);
    book_at(&mut state, 1, 1_000_000, 2, 0);
    book_at(&mut state, 15, 1_000_000, 2, 3);
    assert!(state.timeline().entries().iter().any(|entry| entry.at == second(60)));
    book_at(&mut state, 56, 1_500_000, 2, 0);
    let before = state.timeline().entries().to_vec();
    let mut lost = state.cursor(second(60), 0);
    assert_eq!(state.give_back(&mut lost, 1), None);
    assert_eq!(state.timeline().entries(), before);
}

#[tokio::test(start_paused = true)]
async fn a_long_cost_queue_that_is_booked_anew_refuses_no_request() {
    // Evenly spaced, so that each of three thousand slots is an instant of its own.
    let limits = vec![crate::limiter::model::limit::Limit {
        algorithm: crate::limiter::model::limit::Algorithm::LeakyBucket,
        ..limiter(200, SECOND, SECOND).limits[0].clone()
    }];
    let leaky = Limiter { limits, ..Limiter::clone(&limiter(200, SECOND, 16 * SECOND)) };
    let (_limiters, limiter_set, _) = limiters(&Arc::new(leaky), Duration::ZERO);
    let mut late = granted(&limiter_set).await;
    let tasks: Vec<_> = (0..3000).map(|_| tokio::spawn(pass(limiter_set.clone(), 1))).collect();
    sleep(SECOND / 10).await;
    late.confirm().await.unwrap();
    late.commit();
    for task in tasks {
        timeout(60 * SECOND, task).await.expect("a request waits for ever").unwrap().expect("refused");
    }
}
