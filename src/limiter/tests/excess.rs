//! Permits that were used beyond those that had been taken: those who come next leave them out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::clock::{Clock, Micros};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::search::Found;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Algorithm, Limit, Limiter, OnStoreFailure, Permits, TrueCost};
use crate::limiter::store::Store;
use crate::limiter::tests::latent_store::LatentStore;
use crate::limiter::tests::limiter_set::{fleet, of, partitioned};
use crate::limiter::tests::oracle::{LEASE, START};
use crate::limiter::tests::{enter, granted, limiter, limiter_set};
use crate::limiter::{Entered, Limiters};
use crate::telemetry::Metrics;

const SECOND: Micros = Micros::from_millis(1000);

fn state(rate: u64, algorithm: Algorithm) -> LimiterState {
    let limit = Limit {
        rate: Permits::new(rate).unwrap(),
        per: Duration::from_secs(1),
        algorithm,
        label: "limit".into(),
    };
    let rules: Arc<[Rule]> = [Rule::new(&limit, Micros::ZERO, START).0].into();
    let mut state = LimiterState::default();
    state.open(START, &rules, LEASE, 1);
    state
}

fn sliding(rate: u64) -> LimiterState {
    state(rate, Algorithm::SlidingWindow { precision: 1_000_000.try_into().unwrap() })
}

#[test]
fn an_excess_takes_the_first_room_of_a_window() {
    let mut state = sliding(10);
    state.charge(START, 7);
    let now = START + Micros(SECOND.0 / 2);
    state.charge_excess(now, 2);
    assert_eq!(state.search(now).earliest(1), Found { at: now, room: 1, limited_by: None });
    // One has room, ten of the rest have some when all others have left, and the last ones in the window behind it.
    state.charge_excess(now, 1 + 10 + 4);
    let booked: Vec<_> = state.timeline().entries().iter().map(|entry| (entry.at, entry.permits)).collect();
    assert_eq!(booked, [(START, 7), (now, 3), (now + SECOND, 10), (now + SECOND + SECOND, 4)]);
    let free = state.search(now).earliest(1);
    assert_eq!((free.at, free.room), (now + SECOND + SECOND, 6));
}

#[test]
fn an_excess_of_very_many_windows_is_booked_at_few_instants() {
    let mut state = sliding(10);
    state.charge_excess(START, 1_000_000);
    let booked: Vec<u64> = state.timeline().entries().iter().map(|entry| entry.permits).collect();
    assert_eq!(booked, [10, 10, 10, 1_000_000 - 30]);
}

#[test]
fn an_excess_of_a_bucket_empties_it_further_at_once() {
    let mut state = state(10, Algorithm::TokenBucket { burst: Permits::new(10).unwrap() });
    state.charge(START, 10);
    state.charge_excess(START, 20);
    let free_after = state.search(START).earliest(1).at - START;
    assert_eq!(free_after.0 / 1000, 2100);
}

#[test]
fn estimates_that_are_much_too_low_use_no_more_than_the_limit() {
    const RATE: u64 = 1000;
    const TAKEN: u64 = 4;
    const USED: u64 = 10;
    let answers_after = Micros::from_millis(120);
    let mut state = sliding(RATE);
    let mut under_way: VecDeque<Micros> = VecDeque::new();
    let (mut used, mut most_under_way) = (Vec::new(), 0);
    for millis in 0..60_000 {
        let now = START + Micros::from_millis(millis);
        while under_way.front().is_some_and(|sent| *sent + answers_after <= now) {
            under_way.pop_front();
            state.charge_excess(now, USED - TAKEN);
        }
        // Three times as many come as the limit lets through.
        for _ in 0..3 {
            let mut search = state.search(now);
            if search.earliest(TAKEN).at == now {
                search.charge(TAKEN);
                under_way.push_back(now);
                used.push(now);
            }
        }
        most_under_way = most_under_way.max(under_way.len() as u64 * USED);
    }
    let within =
        |until: Micros| used.iter().filter(|at| until < **at + SECOND && **at <= until).count() as u64;
    let worst = used.iter().map(|at| within(*at) * USED).max().unwrap();
    assert!(worst <= RATE + most_under_way, "{worst} used in a window, {most_under_way} under way");
    let all = used.len() as u64 * USED;
    assert!((55 * RATE..=61 * RATE).contains(&all), "{all} used in a minute");
}

/// The store goes as the response tells what it has cost.
#[tokio::test(start_paused = true)]
async fn a_cost_beyond_its_estimate_is_told_when_the_store_is_back() {
    let clock = Clock::of_runtime();
    let store = LatentStore::new(clock, Duration::ZERO);
    let limiters = Limiters::new(store.clone(), clock, 1, Metrics::new());
    let own = limiter(100, Duration::from_secs(60), Duration::from_secs(1));
    let own = Limiter { on_store_failure: OnStoreFailure::Reject, ..Limiter::clone(&own) };
    limiters.apply(&[Arc::new(own)]);
    let limiter_set = limiter_set(&limiters, &["api"]);
    let receipt = granted(&limiter_set).await.commit().unwrap();
    store.set_away(true);
    limiter_set.settle(&[], &receipt, |_| Some(TrueCost { permits: 8, is_refunded: true }));
    sleep(Duration::from_secs(1)).await;
    store.set_away(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.written_back() == 0 {
        assert!(Instant::now() < deadline, "nothing is told");
        sleep(Duration::from_millis(100)).await;
        drop(enter(&limiter_set).await);
    }
    assert_eq!(store.written_back(), 7);
}

/// The store stands still as the response tells what it has cost, and then carries out what it was told.
#[tokio::test(start_paused = true)]
async fn a_cost_beyond_its_estimate_is_charged_once_where_the_answer_comes_late() {
    let clock = Clock::of_runtime();
    // Before the store counts as away, and behind that.
    for late_by in [Duration::from_millis(200), Duration::from_secs(2)] {
        let store = LatentStore::new(clock, Duration::ZERO);
        let limiters = Limiters::new(store.clone(), clock, 1, Metrics::new());
        let own = limiter(100, Duration::from_secs(60), Duration::from_secs(1));
        limiters.apply(std::slice::from_ref(&own));
        let limiter_set = limiter_set(&limiters, &["api"]);
        let receipt = granted(&limiter_set).await.commit().unwrap();
        store.set_late_by(late_by);
        limiter_set.settle(&[], &receipt, |_| Some(TrueCost { permits: 8, is_refunded: true }));
        // Its queue makes no other call meanwhile.
        sleep(late_by + Duration::from_millis(100)).await;
        store.set_late_by(Duration::ZERO);
        drop(enter(&limiter_set).await);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(store.written_back(), 0, "{late_by:?}");
        let limiter_ref = LimiterRef::new(&own, None, clock.now());
        assert_eq!(store.inspect(&limiter_ref).await.unwrap().available, [92]);
    }
}

/// A queue ends before the response comes, and others fill the partitions.
#[tokio::test(start_paused = true)]
async fn a_cost_beyond_its_estimate_is_told_where_the_partitions_are_full() {
    let linger = Duration::from_millis(10);
    let own = limiter(100, Duration::from_secs(60), Duration::from_secs(1));
    let fleet = fleet(&[partitioned(Limiter::clone(&own), 1)], Duration::ZERO, linger);
    let set = limiter_set(&fleet.limiters, &["api"]);
    let (slow, other) = ([of(1)], [of(2)]);
    let receipt = limiter_set::granted(&set, &slow).await.commit().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Refused until the first queue has ended.
    let kept = loop {
        assert!(Instant::now() < deadline, "the queue does not end");
        match limiter_set::enter(&set, &other).await {
            Ok(entered) => break entered,
            Err(_) => sleep(linger).await,
        }
    };
    assert_eq!(limiter_set::refused_by(&set, &slow).await, "api", "the partitions are not full");
    set.settle(&slow, &receipt, |_| Some(TrueCost { permits: 8, is_refunded: true }));
    while fleet.left("api", slow[0]).await != Some(92) {
        assert!(Instant::now() < deadline, "nothing is told");
        sleep(linger).await;
    }
    drop(kept);
}

/// The last responses settle while the store is slow, and the queues close.
#[tokio::test(start_paused = true)]
async fn a_cost_beyond_its_estimate_is_told_before_a_queue_closes() {
    let own = Limiter::clone(&limiter(100, Duration::from_secs(60), Duration::from_secs(1)));
    let fleet = fleet(&[own], Duration::from_millis(100), Duration::from_secs(1));
    let set = limiter_set(&fleet.limiters, &["api"]);
    let receipt = async || match enter(&set).await.unwrap() {
        Entered::Granted(permit) => permit.commit().unwrap(),
        Entered::Waiting(ticket) => ticket.turn().await.unwrap().commit().unwrap(),
    };
    let receipts = [receipt().await, receipt().await];
    for receipt in &receipts {
        set.settle(&[], receipt, |_| Some(TrueCost { permits: 8, is_refunded: true }));
        // The first report is on its way, and the second one has still to be sent.
        sleep(Duration::from_millis(10)).await;
    }
    fleet.limiters.close().await;
    assert_eq!(fleet.left("api", None).await, Some(84));
}
