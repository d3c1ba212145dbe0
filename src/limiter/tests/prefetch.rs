//! Prefetched permits, on paused time: the calls that they save, and the limits that they keep.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::clock::{Clock, Micros};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Limiter, Permits};
use crate::limiter::store::Store;
use crate::limiter::tests::latent_store::LatentStore;
use crate::limiter::{Demand, Entered, LimiterSet, Limiters, tests};
use crate::telemetry::Metrics;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
/// The delay of the store.
const DELAY: Duration = Duration::from_millis(1);

fn limiter(rate: u64, timeout: Duration) -> Arc<Limiter> {
    let limiter = Limiter::clone(&tests::limiter(rate, SECOND, timeout));
    Arc::new(Limiter { guard: 20 * MILLISECOND, ..limiter })
}

fn replica(limiter: &Arc<Limiter>, clock: Clock, store: &Arc<LatentStore>) -> (Limiters, LimiterSet) {
    let limiters = Limiters::new(store.clone(), clock, 1, Metrics::new());
    limiters.apply(std::slice::from_ref(limiter));
    let limiter_set = tests::limiter_set(&limiters, &["api"]);
    (limiters, limiter_set)
}

/// Returns when a request was let through; `None` if it was refused.
async fn pass(limiter_set: LimiterSet) -> Option<Instant> {
    let mut permit = match limiter_set.enter(&[], Demand::of(Permits::ONE)).await.ok()? {
        Entered::Granted(permit) => permit,
        Entered::Waiting(ticket) => ticket.turn().await.ok()?,
    };
    permit.confirm().await.ok()?;
    permit.commit();
    Some(Instant::now())
}

/// Sends `count` requests in each of `milliseconds` milliseconds; returns when each was let through.
async fn pace(limiter_set: &LimiterSet, count: usize, milliseconds: u32) -> Vec<Instant> {
    let begin = Instant::now();
    let mut asking = Vec::new();
    for tick in 0..milliseconds {
        sleep_until(begin + MILLISECOND * tick).await;
        asking.extend((0..count).map(|_| tokio::spawn(pass(limiter_set.clone()))));
    }
    let mut passed = Vec::new();
    for asked in asking {
        passed.extend(asked.await.unwrap());
    }
    passed.sort_unstable();
    passed
}

fn fullest(passed: &[Instant], per: Duration) -> usize {
    let within = |first: usize| passed[first..].iter().take_while(|at| **at < passed[first] + per).count();
    (0..passed.len()).map(within).max().unwrap_or_default()
}

async fn available(store: &LatentStore, limiter: &Limiter) -> u64 {
    store.inspect(&LimiterRef::new(limiter, None, Micros::ZERO)).await.unwrap().available[0]
}

#[tokio::test(start_paused = true)]
async fn a_steady_pace_is_served_by_prefetched_permits() {
    let (limiter, clock) = (limiter(100_000, Duration::ZERO), Clock::of_runtime());
    let store = LatentStore::new(clock, DELAY);
    let (_limiters, limiter_set) = replica(&limiter, clock, &store);
    let passed = pace(&limiter_set, 10, 500).await;
    assert_eq!(passed.len(), 5000);
    // Without prefetching there would be a call in each millisecond, the delay of the store.
    assert!(store.calls() < 150, "{} calls", store.calls());
    // Unused permits are given back.
    sleep(SECOND / 10).await;
    assert_eq!(available(&store, &limiter).await, 95_000);
    let calls = store.calls();
    sleep(SECOND / 2).await;
    assert_eq!(store.calls() - calls, 0, "without requests nothing is prefetched");
}

#[tokio::test(start_paused = true)]
async fn a_sparse_pace_prefetches_nothing() {
    let (limiter, clock) = (limiter(100_000, Duration::ZERO), Clock::of_runtime());
    let store = LatentStore::new(clock, DELAY);
    let (_limiters, limiter_set) = replica(&limiter, clock, &store);
    let passed = pace(&limiter_set, 1, 200).await;
    assert_eq!(passed.len(), 200);
    assert_eq!(available(&store, &limiter).await, 99_800);
}

#[tokio::test(start_paused = true)]
async fn two_replicas_that_prefetch_keep_the_limit_and_use_it() {
    let (limiter, clock) = (limiter(10_000, 10 * SECOND), Clock::of_runtime());
    let store = LatentStore::new(clock, DELAY);
    let (_first, one) = replica(&limiter, clock, &store);
    let (_second, other) = replica(&limiter, clock, &store);
    // Twice the limit: permits are prefetched at first, then no longer, and then requests wait.
    let (mut passed, others) = tokio::join!(pace(&one, 10, 1000), pace(&other, 10, 1000));
    passed.extend(others);
    passed.sort_unstable();
    let served = passed.len();
    assert!(served >= 11_900, "{served}");
    let fullest = fullest(&passed, SECOND);
    assert!(fullest <= 10_000, "{fullest} in a second");
    let first_second = passed.partition_point(|at| *at < passed[0] + SECOND);
    assert!(first_second >= 9_800, "{first_second} in the first second");
}

#[tokio::test(start_paused = true)]
async fn a_burst_at_one_replica_keeps_no_permits_from_a_burst_at_another() {
    let clock = Clock::of_runtime();
    let per_minute = Limiter::clone(&tests::limiter(100, 60 * SECOND, Duration::ZERO));
    let limiter = Arc::new(Limiter { guard: 20 * MILLISECOND, ..per_minute });
    let store = LatentStore::new(clock, DELAY);
    let (_first, one) = replica(&limiter, clock, &store);
    let (_second, other) = replica(&limiter, clock, &store);
    // Steps of 5 ms with more requests than a pace needs.
    assert_eq!(pace(&one, 3, 14).await.len(), 42);
    assert_eq!(pace(&other, 58, 1).await.len(), 58);
}

#[tokio::test(start_paused = true)]
async fn a_lowered_limit_gives_prefetched_permits_back() {
    let (before, clock) = (limiter(100_000, Duration::ZERO), Clock::of_runtime());
    let store = LatentStore::new(clock, DELAY);
    let (limiters, limiter_set) = replica(&before, clock, &store);
    let passed = pace(&limiter_set, 20, 100).await;
    assert_eq!(passed.len(), 2000);
    let after = limiter(2000, Duration::ZERO);
    limiters.apply(std::slice::from_ref(&after));
    sleep(2 * MILLISECOND).await;
    assert_eq!(pace(&limiter_set, 20, 50).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn closing_gives_prefetched_permits_back() {
    let (limiter, clock) = (limiter(100_000, Duration::ZERO), Clock::of_runtime());
    let store = LatentStore::new(clock, DELAY);
    let (limiters, limiter_set) = replica(&limiter, clock, &store);
    let passed = pace(&limiter_set, 20, 100).await.len() as u64;
    limiters.close().await;
    assert_eq!(available(&store, &limiter).await, 100_000 - passed);
}

#[tokio::test(start_paused = true)]
async fn closing_under_load_ends_and_gives_prefetched_permits_back() {
    // At any point of a step of the pace.
    for after in 100..120 {
        let (limiter, clock) = (limiter(100_000, Duration::ZERO), Clock::of_runtime());
        let store = LatentStore::new(clock, DELAY);
        let (limiters, limiter_set) = replica(&limiter, clock, &store);
        let asking = tokio::spawn(async move { pace(&limiter_set, 20, 200).await.len() as u64 });
        sleep(MILLISECOND * after + MILLISECOND / 2).await;
        assert!(timeout(SECOND, limiters.close()).await.is_ok(), "the worker does not end");
        let passed = asking.await.unwrap();
        assert_eq!(available(&store, &limiter).await, 100_000 - passed);
    }
}
