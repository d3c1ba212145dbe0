//! Queues through the public interface of `limiter`, on the memory store and on paused time.

mod bursts;
mod ceilings;
mod changed_limits;
mod excess;
mod interleavings;
pub(in crate::limiter) mod latent_store;
mod limiter_set;
mod line;
mod local_pauses;
mod modes;
mod moved_order;
mod oracle;
mod outages;
mod overrides;
mod prefetch;
mod shared_quota;
mod spreading;
mod unheard_pause;
mod warm_up;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::{Clock, Micros};
use crate::limiter::model::{
    Algorithm, Limit, Limiter, LimiterName, OnStoreFailure, PauseRequest, Permits, QueueLimits,
};
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::tests::latent_store::LatentStore;
use crate::limiter::{Demand, Entered, LimiterSet, Limiters, Permit, Refusal};
use crate::telemetry::Metrics;

pub(in crate::limiter) fn limiter(rate: u64, per: Duration, timeout: Duration) -> Arc<Limiter> {
    let limits = vec![Limit {
        rate: Permits::new(rate).unwrap(),
        per,
        algorithm: Algorithm::SlidingWindow { precision: 256.try_into().unwrap() },
        label: format!("{rate}/{per:?}").into(),
    }];
    Arc::new(Limiter {
        queue: Some(QueueLimits { timeout, max_waiting: 1000 }).filter(|_| timeout > Duration::ZERO),
        ..Limiter::new(LimiterName::parse("api").unwrap(), limits)
    })
}

fn limiters(limiter: &Arc<Limiter>) -> (Limiters, LimiterSet) {
    let clock = Clock::of_runtime();
    let limiters = Limiters::new(Arc::new(MemoryStore::new(clock)), clock, 1, Metrics::new());
    limiters.apply(std::slice::from_ref(limiter));
    let limiter_set = limiter_set(&limiters, &["api"]);
    (limiters, limiter_set)
}

pub(in crate::limiter) fn limiter_set(limiters: &Limiters, names: &[&str]) -> LimiterSet {
    let names: Vec<_> = names.iter().map(|name| LimiterName::parse(name).unwrap()).collect();
    limiters.limiter_set(&names).unwrap().unwrap()
}

async fn enter(limiter_set: &LimiterSet) -> Result<Entered, Refusal> {
    limiter_set.enter(&[], Demand::of(Permits::ONE)).await
}

async fn granted(limiter_set: &LimiterSet) -> Permit {
    match enter(limiter_set).await {
        Ok(Entered::Granted(permit)) => permit,
        Ok(Entered::Waiting(_)) => panic!("it waits"),
        Err(refusal) => panic!("{refusal}"),
    }
}

/// Enters, waits and sends; returns the instant of sending.
async fn pass(limiter_set: LimiterSet) -> Result<Instant, Refusal> {
    let permit = match enter(&limiter_set).await? {
        Entered::Granted(permit) => permit,
        Entered::Waiting(ticket) => ticket.turn().await?,
    };
    permit.commit();
    Ok(Instant::now())
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_request_is_refused_until_the_advised_instant_and_granted_at_it() {
    let (_limiters, limiter_set) = limiters(&limiter(3, 2 * SECOND, Duration::ZERO));
    for _ in 0..3 {
        granted(&limiter_set).await.commit();
    }
    let Err(Refusal::RateLimited { retry_after, limit: 0, .. }) = enter(&limiter_set).await else { panic!() };
    // Tokio's clock moves in whole milliseconds.
    sleep(Duration::from_millis(retry_after.millis_up() - 2)).await;
    assert!(enter(&limiter_set).await.is_err());
    sleep(Duration::from_millis(2)).await;
    granted(&limiter_set).await.commit();
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_pass_in_order_and_at_the_rate() {
    let (_limiters, limiter_set) = limiters(&limiter(10, SECOND, 10 * SECOND));
    let start = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..45 {
        tasks.push(tokio::spawn(pass(limiter_set.clone())));
        tokio::task::yield_now().await;
    }
    let mut passed = Vec::new();
    for task in tasks {
        passed.push(task.await.unwrap().unwrap() - start);
    }
    assert!(passed.is_sorted(), "{passed:?}");
    for (first, later) in passed.iter().zip(&passed[10..]) {
        assert!(*later - *first >= SECOND, "{passed:?}");
    }
    assert!(passed[44] < Duration::from_millis(4 * 1010 + 20), "{passed:?}");
}

#[tokio::test(start_paused = true)]
async fn later_requests_move_up_when_one_leaves() {
    let (_limiters, limiter_set) = limiters(&limiter(1, SECOND, 10 * SECOND));
    granted(&limiter_set).await.commit();
    let Ok(Entered::Waiting(leaves)) = enter(&limiter_set).await else { panic!() };
    let second = tokio::spawn(pass(limiter_set.clone()));
    tokio::task::yield_now().await;
    let start = Instant::now();
    drop(leaves);
    assert!(second.await.unwrap().unwrap() - start < Duration::from_millis(1100));
    // The last slot was given back, so the next request gets that and not a later one.
    let third = pass(limiter_set.clone()).await.unwrap();
    assert!(third - start < Duration::from_millis(2200), "{:?}", third - start);
}

#[tokio::test(start_paused = true)]
async fn an_unused_permit_is_given_back() {
    let (_limiters, limiter_set) = limiters(&limiter(1, SECOND, Duration::ZERO));
    drop(granted(&limiter_set).await);
    tokio::task::yield_now().await;
    granted(&limiter_set).await.commit();
    assert!(enter(&limiter_set).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_late_permit_is_exchanged_for_a_present_one() {
    let (_limiters, limiter_set) = limiters(&limiter(1, SECOND, 10 * SECOND));
    let mut permit = granted(&limiter_set).await;
    sleep(SECOND / 2).await;
    permit.confirm().await.unwrap();
    let used = Instant::now();
    permit.commit();
    let next = pass(limiter_set).await.unwrap();
    assert!(next - used >= SECOND, "{:?}", next - used);
}

#[tokio::test(start_paused = true)]
async fn a_late_permit_does_not_refuse_a_request_without_a_wait() {
    let (_limiters, limiter_set) = limiters(&limiter(2, 10 * SECOND, Duration::ZERO));
    let mut permit = granted(&limiter_set).await;
    // As with a busy processor or a slow connection: permits are left all the time.
    sleep(SECOND / 2).await;
    permit.confirm().await.unwrap();
    permit.commit();
}

#[tokio::test(start_paused = true)]
async fn changed_limits_reschedule_waiting_requests() {
    let (limiters, limiter_set) = limiters(&limiter(100, SECOND, 60 * SECOND));
    let tasks: Vec<_> = (0..400).map(|_| tokio::spawn(pass(limiter_set.clone()))).collect();
    sleep(SECOND * 3 / 2).await;
    let reload = Instant::now();
    limiters.apply(&[limiter(20, SECOND, 60 * SECOND)]);
    sleep_until(reload + 5 * SECOND).await;
    limiters.apply(&[limiter(100, SECOND, 60 * SECOND)]);
    let mut passed = Vec::new();
    for task in tasks {
        passed.push(task.await.unwrap().unwrap());
    }
    passed.sort();
    let within = |from: Instant, to: Instant| passed.iter().filter(|at| **at >= from && **at < to).count();
    for tenth in 0..=30 {
        let from = reload + SECOND + SECOND * tenth / 10;
        assert!(within(from, from + SECOND) <= 20, "{}", within(from, from + SECOND));
    }
    let slow = within(reload + SECOND, reload + 5 * SECOND);
    assert!((60..=80).contains(&slow), "{slow} at 20/s");
    let fast = within(reload + 5 * SECOND + SECOND / 20, reload + 6 * SECOND);
    assert!(fast >= 80, "{fast} in the second in which 100/s was back");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_no_longer_fits_into_its_wait_is_refused_at_once() {
    let (limiters, limiter_set) = limiters(&limiter(10, SECOND, 5 * SECOND));
    let tasks: Vec<_> = (0..50).map(|_| tokio::spawn(pass(limiter_set.clone()))).collect();
    sleep(SECOND / 2).await;
    let reload = Instant::now();
    limiters.apply(&[limiter(1, SECOND, 5 * SECOND)]);
    let (mut refused, mut served) = (0, 0);
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => served += 1,
            Err(Refusal::RateLimited { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 30 && served >= 13, "{refused} refused, {served} served");
    assert!(reload.elapsed() < 6 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded() {
    let mut small = Limiter::clone(&limiter(1, SECOND, 10 * SECOND));
    small.queue = Some(QueueLimits { timeout: 10 * SECOND, max_waiting: 2 });
    let (_limiters, limiter_set) = limiters(&Arc::new(small));
    granted(&limiter_set).await.commit();
    let first = enter(&limiter_set).await;
    let second = enter(&limiter_set).await;
    assert!(matches!((&first, &second), (Ok(Entered::Waiting(_)), Ok(Entered::Waiting(_)))));
    assert!(matches!(enter(&limiter_set).await, Err(Refusal::QueueFull { .. })));
    drop(first);
    tokio::task::yield_now().await;
    assert!(matches!(enter(&limiter_set).await, Ok(Entered::Waiting(_))));
}

#[tokio::test(start_paused = true)]
async fn closing_refuses_waiting_requests() {
    let (limiters, limiter_set) = limiters(&limiter(1, SECOND, 10 * SECOND));
    granted(&limiter_set).await.commit();
    let waits = tokio::spawn(pass(limiter_set.clone()));
    tokio::task::yield_now().await;
    limiters.close().await;
    assert!(matches!(waits.await.unwrap(), Err(Refusal::Closed { .. })));
    assert!(matches!(enter(&limiter_set).await, Err(Refusal::Closed { .. })));
}

async fn without_store(policy: OnStoreFailure, fleet_size: u32) -> Vec<Result<Entered, Refusal>> {
    let mut limiter = Limiter::clone(&limiter(9, SECOND, Duration::ZERO));
    limiter.on_store_failure = policy;
    let clock = Clock::of_runtime();
    let limiters = Limiters::new(LatentStore::away(clock), clock, fleet_size, Metrics::new());
    limiters.apply(&[Arc::new(limiter)]);
    assert!(limiters.readiness().iter().all(|(_, ready)| *ready == (policy != OnStoreFailure::Reject)));
    let limiter_set = limiter_set(&limiters, &["api"]);
    let mut outcomes = Vec::new();
    for _ in 0..20 {
        let outcome = enter(&limiter_set).await;
        outcomes.push(outcome);
    }
    outcomes
}

#[tokio::test(start_paused = true)]
async fn without_a_store_the_policy_decides() {
    let shared = without_store(OnStoreFailure::Local, 3).await;
    assert_eq!(shared.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    let refused = without_store(OnStoreFailure::Reject, 3).await;
    assert!(refused.iter().all(|outcome| matches!(outcome, Err(Refusal::StoreUnavailable { .. }))));
    let allowed = without_store(OnStoreFailure::Allow, 3).await;
    assert!(allowed.iter().all(|outcome| matches!(outcome, Ok(Entered::Granted(_)))));
}

#[tokio::test(start_paused = true)]
async fn a_replica_without_a_share_grants_nothing_while_the_store_is_away() {
    for (fleet_size, has_share) in [(2, true), (3, false)] {
        let clock = Clock::of_runtime();
        let limiters = Limiters::new(LatentStore::away(clock), clock, fleet_size, Metrics::new());
        limiters.apply(&[limiter(2, SECOND, 60 * SECOND)]);
        let outcome = enter(&limiter_set(&limiters, &["api"])).await;
        match outcome {
            Ok(_) => assert!(has_share),
            Err(refusal) => {
                assert!(!has_share && matches!(refusal, Refusal::StoreUnavailable { .. }), "{refusal}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_upstream_delays_no_other_request() {
    let (_limiters, queue) = limiters(&limiter(1000, SECOND, SECOND));
    let mut sent = Vec::new();
    for _ in 0..500 {
        let mut permit = granted(&queue).await;
        permit.confirm().await.unwrap();
        // The response is still to come.
        sent.push(permit);
    }
    sent.into_iter().for_each(|permit| drop(permit.commit()));
}

#[tokio::test(start_paused = true)]
async fn a_slow_connection_delays_no_other_request() {
    let (_limiters, queue) = limiters(&limiter(1000, SECOND, SECOND));
    let mut connecting = Vec::new();
    for _ in 0..500 {
        let mut permit = granted(&queue).await;
        permit.set_aside();
        connecting.push(permit);
    }
    for mut permit in connecting {
        permit.confirm().await.unwrap();
        permit.commit();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_connection_goes_behind_one_that_has_one() {
    let (_limiters, queue) = limiters(&limiter(1, SECOND, 10 * SECOND));
    let start = Instant::now();
    let mut connecting = granted(&queue).await;
    assert!(!connecting.set_aside(), "nobody else could use the slot");
    let ready = tokio::spawn(pass(queue.clone()));
    let later = tokio::spawn(async move {
        sleep(SECOND / 2).await;
        pass(queue).await
    });
    tokio::task::yield_now().await;
    assert!(connecting.set_aside());
    assert!(ready.await.unwrap().unwrap() - start < SECOND / 10, "it has the slot");
    sleep(SECOND / 2).await;
    connecting.confirm().await.unwrap();
    assert!((SECOND..SECOND * 11 / 10).contains(&start.elapsed()), "{:?}", start.elapsed());
    connecting.commit();
    let later = later.await.unwrap().unwrap() - start;
    assert!((2 * SECOND..SECOND * 23 / 10).contains(&later), "the first to arrive goes first: {later:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_while_it_is_set_aside_leaves_nothing() {
    let (limiters, queue) = limiters(&limiter(1, SECOND, 10 * SECOND));
    let mut connecting = granted(&queue).await;
    let ready = tokio::spawn(pass(queue.clone()));
    tokio::task::yield_now().await;
    assert!(connecting.set_aside());
    ready.await.unwrap().unwrap();
    drop(connecting);
    let next = tokio::time::timeout(SECOND * 11 / 10, pass(queue)).await;
    next.expect("nobody else holds the next slot").unwrap();
    tokio::time::timeout(SECOND, limiters.close()).await.expect("no permit is out");
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_a_share_is_refused_while_the_store_is_away() {
    let clock = Clock::of_runtime();
    let limiters = Limiters::new(LatentStore::away(clock), clock, 3, Metrics::new());
    limiters.apply(&[limiter(10, SECOND, 5 * SECOND)]);
    let limiter_set = limiter_set(&limiters, &["api"]);
    let ask = |cost| {
        let demand = Demand::of(Permits::new(cost).unwrap());
        limiter_set.enter(&[], demand)
    };
    // Three replicas that each let five pass would send fifteen.
    assert!(matches!(ask(5).await, Err(Refusal::StoreUnavailable { .. })));
    assert!(matches!(ask(3).await, Ok(Entered::Granted(_))));
}

/// Returns the pause that an upstream's 429 asks for, of a minute at most.
pub(in crate::limiter) fn pause_of(wait: Micros) -> PauseRequest {
    PauseRequest {
        wait: Some(wait),
        fallback: Micros::from_millis(1000),
        max: Micros::from_millis(60_000),
        sent_ago: Micros::ZERO,
        jitter: 0,
        status: 429,
        made_ago: Micros::ZERO,
    }
}
