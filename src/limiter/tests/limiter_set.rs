//! Sets of several limiters, and partitions, on paused time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::clock::Clock;
use crate::limiter::model::{Limiter, LimiterName, Partitioned, Permits};
use crate::limiter::tests::latent_store::LatentStore;
use crate::limiter::tests::{self, limiter_set};
use crate::limiter::{Demand, Entered, LimiterSet, Limiters, Partition, Permit, Refusal};
use crate::telemetry::Metrics;

const SECOND: Duration = Duration::from_secs(1);

/// Limiters over a store that can be slow or away.
pub(in crate::limiter) struct Fleet {
    pub(in crate::limiter) limiters: Limiters,
    store: Arc<LatentStore>,
    pub(in crate::limiter) metrics: Metrics,
}

pub(in crate::limiter) fn fleet(limiters: &[Limiter], delay: Duration, linger: Duration) -> Fleet {
    let (clock, metrics) = (Clock::of_runtime(), Metrics::new());
    let store = LatentStore::new(clock, delay);
    let fleet = Limiters::lingering(store.clone(), clock, 1, metrics.clone(), linger);
    let fleet = Fleet { limiters: fleet, store, metrics };
    fleet.apply(limiters);
    fleet
}

impl Fleet {
    /// Returns another replica with the same limiters over the same store.
    pub(in crate::limiter) fn another(&self, limiters: &[Limiter]) -> Fleet {
        let (clock, metrics, store) = (Clock::of_runtime(), Metrics::new(), self.store.clone());
        let replica = Limiters::lingering(store.clone(), clock, 2, metrics.clone(), SECOND);
        let fleet = Fleet { limiters: replica, store, metrics };
        fleet.apply(limiters);
        fleet
    }

    pub(in crate::limiter) fn apply(&self, limiters: &[Limiter]) {
        let limiters: Vec<_> = limiters.iter().cloned().map(Arc::new).collect();
        self.limiters.apply(&limiters);
    }

    pub(in crate::limiter) fn set_away(&self, is_away: bool) {
        self.store.set_away(is_away);
    }

    pub(in crate::limiter) fn set_epoch(&self, epoch: u64) {
        self.store.set_epoch(epoch);
    }

    pub(in crate::limiter) fn set_late_by(&self, late_by: Duration) {
        self.store.set_late_by(late_by);
    }

    pub(in crate::limiter) fn set_forgetful(&self) {
        self.store.set_forgetful();
    }

    pub(in crate::limiter) fn calls(&self) -> u64 {
        self.store.calls()
    }

    pub(in crate::limiter) async fn left(&self, name: &str, partition: Option<Partition>) -> Option<u64> {
        let name = LimiterName::parse(name).unwrap();
        let state = self.limiters.find(&name, partition).unwrap().inspect().await;
        state.available.map(|available| available[0])
    }

    pub(in crate::limiter) fn shows(&self, series: &str) -> bool {
        self.limiters.refresh_metrics();
        self.metrics.render().lines().any(|line| line == series)
    }
}

/// A limiter of `rate` permits a second whose requests wait for at most `seconds`.
pub(in crate::limiter) fn limiter(name: &str, rate: u64, seconds: u32) -> Limiter {
    let limiter = Limiter::clone(&tests::limiter(rate, SECOND, SECOND * seconds));
    Limiter { name: LimiterName::parse(name).unwrap(), ..limiter }
}

pub(in crate::limiter) fn partitioned(limiter: Limiter, max_partitions: u32) -> Limiter {
    Limiter { partitioned: Some(Partitioned::new(max_partitions)), ..limiter }
}

pub(in crate::limiter) fn of(value: u64) -> Option<Partition> {
    Some(Partition::of([Some(&value.to_be_bytes()[..])]))
}

pub(in crate::limiter) async fn enter(
    set: &LimiterSet,
    partitions: &[Option<Partition>],
) -> Result<Entered, Refusal> {
    set.enter(partitions, Demand::of(Permits::ONE)).await
}

pub(in crate::limiter) async fn granted(set: &LimiterSet, partitions: &[Option<Partition>]) -> Permit {
    match enter(set, partitions).await {
        Ok(Entered::Granted(permit)) => permit,
        Ok(Entered::Waiting(_)) => panic!("it waits"),
        Err(refusal) => panic!("{refusal}"),
    }
}

pub(in crate::limiter) async fn pass(
    set: &LimiterSet,
    partitions: &[Option<Partition>],
) -> Result<Instant, Refusal> {
    let permit = match enter(set, partitions).await? {
        Entered::Granted(permit) => permit,
        Entered::Waiting(ticket) => ticket.turn().await?,
    };
    permit.commit();
    Ok(Instant::now())
}

pub(in crate::limiter) async fn refused_by(set: &LimiterSet, partitions: &[Option<Partition>]) -> String {
    match enter(set, partitions).await {
        Err(refusal) => refusal.limiter().to_string(),
        Ok(_) => panic!("it was let in"),
    }
}

const SHORT: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn a_refusal_charges_no_limiter_of_the_set() {
    let fleet = fleet(&[limiter("wide", 10, 0), limiter("narrow", 2, 0)], Duration::ZERO, SECOND);
    let both = limiter_set(&fleet.limiters, &["wide", "narrow"]);
    granted(&both, &[None, None]).await.commit();
    granted(&both, &[None, None]).await.commit();
    for _ in 0..5 {
        assert_eq!(refused_by(&both, &[None, None]).await, "narrow");
    }
    assert_eq!(fleet.left("wide", None).await, Some(8));
    assert_eq!(fleet.left("narrow", None).await, Some(0));
    assert!(fleet.shows(r#"weir_permits_total{limiter="narrow",result="refused"} 5"#));
    assert!(fleet.shows(r#"weir_permits_total{limiter="wide",result="refused"} 0"#));
    assert!(fleet.shows(r#"weir_permits_total{limiter="wide",result="granted"} 2"#));
}

#[tokio::test(start_paused = true)]
async fn neither_the_order_of_names_nor_a_name_twice_matters() {
    let keyed = partitioned(limiter("b", 1, 10), 10);
    let fleet = fleet(&[limiter("a", 1, 10), keyed], Duration::ZERO, SECOND);
    let one = limiter_set(&fleet.limiters, &["a", "b"]);
    let other = limiter_set(&fleet.limiters, &["b", "b", "a"]);
    granted(&one, &[None, of(1)]).await.commit();
    let first = enter(&other, &[of(1), of(1), None]).await;
    assert!(matches!(first, Ok(Entered::Waiting(_))));
    assert_eq!(fleet.limiters.queues(), 1);
    let second = tokio::spawn(async move { pass(&one, &[None, of(1)]).await });
    tokio::task::yield_now().await;
    assert!(fleet.shows(r#"weir_queue_waiting{limiter="a"} 2"#));
    drop(first);
    second.await.unwrap().unwrap();
    tokio::task::yield_now().await;
    assert!(fleet.shows(r#"weir_queue_waiting{limiter="a"} 0"#));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_a_backlog_delays_no_other_tenant() {
    let tenants = partitioned(limiter("tenants", 2, 60), 10);
    let fleet = fleet(&[limiter("overall", 100, 60), tenants], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["overall", "tenants"]);
    let passes = |tenant| {
        let set = set.clone();
        async move { pass(&set, &[None, of(tenant)]).await.unwrap() }
    };
    let busy: Vec<_> = (0..60).map(|_| tokio::spawn(passes(1))).collect();
    sleep(SHORT).await;
    assert!(fleet.shows(r#"weir_queue_waiting{limiter="tenants"} 58"#));
    let start = Instant::now();
    granted(&set, &[None, of(2)]).await.commit();
    granted(&set, &[None, of(2)]).await.commit();
    let third = pass(&set, &[None, of(2)]).await.unwrap();
    assert!(third - start < SECOND * 12 / 10, "{:?}", third - start);
    for task in busy {
        task.await.unwrap();
    }
    assert!(start.elapsed() > 28 * SECOND);
    tokio::task::yield_now().await;
    assert!(fleet.shows(r#"weir_queue_waiting{limiter="tenants"} 0"#));
    assert!(fleet.shows(r#"weir_queue_waiting{limiter="overall"} 0"#));
}

#[tokio::test(start_paused = true)]
async fn partitions_are_independent_and_the_tightest_is_shown() {
    let fleet = fleet(&[partitioned(limiter("keyed", 3, 0), 10)], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    for tenant in 0..3 {
        for _ in 0..=tenant {
            granted(&set, &[of(tenant)]).await.commit();
        }
    }
    assert!(matches!(enter(&set, &[of(2)]).await, Err(Refusal::RateLimited { .. })));
    granted(&set, &[of(0)]).await.commit();
    // Requests without a value are a partition too.
    granted(&set, &[None]).await.commit();
    assert_eq!(fleet.left("keyed", of(0)).await, Some(1));
    assert_eq!(fleet.left("keyed", of(2)).await, Some(0));
    assert_eq!(fleet.left("keyed", None).await, None);
    assert!(fleet.shows(r#"weir_limiter_available_permits{limit="3/1s",limiter="keyed"} 0"#));
    // The tightest partition has permits again.
    sleep(SECOND * 11 / 10).await;
    granted(&set, &[of(2)]).await.commit();
    assert!(fleet.shows(r#"weir_limiter_available_permits{limit="3/1s",limiter="keyed"} 2"#));
}

#[tokio::test(start_paused = true)]
async fn a_partition_above_the_maximum_is_refused_until_another_has_left() {
    let fleet = fleet(&[partitioned(limiter("keyed", 10, 1), 2)], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    granted(&set, &[of(1)]).await.commit();
    granted(&set, &[of(2)]).await.commit();
    let Err(Refusal::QueueFull { retry_after, .. }) = enter(&set, &[of(3)]).await else { panic!() };
    assert!(fleet.shows(r#"weir_permits_total{limiter="keyed",result="refused"} 1"#));
    granted(&set, &[of(1)]).await.commit();
    sleep(retry_after.to_duration() + SHORT).await;
    assert_eq!(fleet.limiters.queues(), 0);
    granted(&set, &[of(3)]).await.commit();
}

#[tokio::test(start_paused = true)]
async fn an_idle_queue_ends_but_not_while_it_is_needed() {
    let fleet = fleet(&[limiter("fixed", 1, 60), partitioned(limiter("keyed", 1, 60), 9)], SHORT, SECOND);
    let (fixed, keyed) = (limiter_set(&fleet.limiters, &["fixed"]), limiter_set(&fleet.limiters, &["keyed"]));
    granted(&fixed, &[]).await.commit();
    let permit = granted(&keyed, &[of(1)]).await;
    sleep(5 * SECOND).await;
    assert_eq!(fleet.limiters.queues(), 2, "a permit is out, and a set holds the other");
    drop(permit);
    sleep(5 * SECOND).await;
    assert_eq!(fleet.limiters.queues(), 1);
    granted(&keyed, &[of(1)]).await.commit();
    let waits = tokio::spawn(async move { pass(&keyed, &[of(1)]).await });
    waits.await.unwrap().unwrap();
    drop(fixed);
    sleep(5 * SECOND).await;
    assert_eq!(fleet.limiters.queues(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_is_lost_while_workers_end() {
    let keyed = partitioned(limiter("keyed", 1_000_000, 60), 1000);
    let fleet = fleet(&[keyed], Duration::ZERO, Duration::ZERO);
    let keyed = limiter_set(&fleet.limiters, &["keyed"]);
    let enters = |task: u64| {
        let keyed = keyed.clone();
        async move {
            for round in 0..3000 {
                // On real time a slot may come late; the request then waits for another.
                let permit = match enter(&keyed, &[of((task + round) % 5)]).await.unwrap() {
                    Entered::Granted(permit) => permit,
                    Entered::Waiting(ticket) => ticket.turn().await.unwrap(),
                };
                if round % 3 == 0 { drop(permit) } else { drop(permit.commit()) }
            }
        }
    };
    let tasks: Vec<_> = (0..8).map(|task| tokio::spawn(enters(task))).collect();
    let all = futures_util::future::try_join_all(tasks);
    tokio::time::timeout(60 * SECOND, all).await.expect("somebody waits for ever").unwrap();
    assert!(fleet.shows(r#"weir_permits_total{limiter="keyed",result="granted"} 16000"#));
    tokio::time::timeout(60 * SECOND, async {
        while fleet.limiters.queues() > 0 {
            sleep(SHORT).await;
        }
    })
    .await
    .expect("a queue stays");
}

/// The state of all limiters is one page's, whose reader does not wait for as long as hundreds of calls take.
#[tokio::test(start_paused = true)]
async fn the_state_of_many_limiters_is_asked_for_at_once() {
    let limiters: Vec<_> = (0..300).map(|index| limiter(&format!("l{index}"), 10, 0)).collect();
    let fleet = fleet(&limiters, 10 * SECOND / 1000, SECOND);
    let begin = Instant::now();
    let statuses = fleet.limiters.inspect().await;
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
    let names = statuses.iter().map(|status| &status.limiter.name);
    assert!(names.eq(limiters.iter().map(|limiter| &limiter.name)), "in the order of the configuration");
    assert!(statuses.iter().all(|status| status.available.is_some()));
}
