//! The ceiling of a class on a limiter with partitions, on paused time.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::clock::Clock;
use crate::limiter::model::{
    Algorithm, Class, Limiter, LimiterName, Order, Permits, QueueLimits, QuotaShare, TrueCost,
};
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::tests::limiter_set;
use crate::limiter::tests::limiter_set::{Fleet, enter, fleet, limiter, of, partitioned, pass};
use crate::limiter::{Demand, Entered, LimiterSet, Limiters, Permit, Refusal};
use crate::telemetry::Metrics;

const SECOND: Duration = Duration::from_secs(1);

/// A limiter of 40 permits a second for each partition, of which its only class may have a twentieth: two.
fn shared(max_partitions: u32) -> Limiter {
    let queue = QueueLimits { timeout: SECOND / 2, max_waiting: 10 };
    let batch = Class { name: "batch".into(), floor_ppm: 0, ceiling_ppm: Some(50_000), queue };
    let share = QuotaShare {
        classes: [batch].into(),
        members: Arc::default(),
        names: Arc::default(),
        ahead: Duration::from_millis(250),
    };
    Limiter { order: Order::Shared(share), ..partitioned(limiter("api", 40, 1), max_partitions) }
}

fn fleet_of(limiter: Limiter) -> Fleet {
    fleet(&[limiter], Duration::ZERO, SECOND)
}

#[tokio::test(start_paused = true)]
async fn the_reset_of_a_partition_resets_its_ceilings() {
    let fleet = fleet_of(shared(10));
    let set = limiter_set(&fleet.limiters, &["api"]);
    for partition in [1, 2] {
        pass(&set, &[of(partition)]).await.unwrap();
        pass(&set, &[of(partition)]).await.unwrap();
        pass(&set, &[of(partition)]).await.unwrap_err();
    }
    let name = LimiterName::parse("api").unwrap();
    fleet.limiters.find(&name, of(1)).unwrap().reset().await.unwrap();
    pass(&set, &[of(1)]).await.unwrap();
    pass(&set, &[of(2)]).await.unwrap_err();
}

/// As tokens do, of which the response tells more than were estimated.
#[tokio::test(start_paused = true)]
async fn a_ceiling_is_charged_with_what_a_response_costs_beyond_its_estimate() {
    let fleet = fleet_of(shared(10));
    let set = limiter_set(&fleet.limiters, &["api"]);
    let Entered::Waiting(ticket) = enter(&set, &[of(1)]).await.unwrap() else { panic!("slots are dealt") };
    let receipt = ticket.turn().await.unwrap().commit().unwrap();
    set.settle(&[of(1)], &receipt, |_| Some(TrueCost { permits: 2, is_refunded: true }));
    sleep(SECOND / 10).await;
    pass(&set, &[of(1)]).await.unwrap_err();
    pass(&set, &[of(2)]).await.unwrap();
}

/// Returns a limiter of 40 000 permits a day for each partition, of which neither the limit nor the ceiling of its only class tells two of a
/// day apart.
fn daily(ceiling_ppm: Option<u32>) -> Limiter {
    let mut limits = limiter("api", 40_000, 1).limits;
    limits[0].per = 24 * 3600 * SECOND;
    limits[0].algorithm = Algorithm::SlidingWindow { precision: NonZeroU32::MIN };
    let mut own = Limiter { limits, ..shared(10) };
    if let Order::Shared(share) = &mut own.order {
        share.classes = share.classes.iter().map(|class| Class { ceiling_ppm, ..class.clone() }).collect();
    }
    own
}

async fn permit(set: &LimiterSet, cost: u64) -> Result<Permit, Refusal> {
    let demand = Demand { wait_max: Some(SECOND / 50), ..Demand::of(Permits::new(cost).unwrap()) };
    match set.enter(&[of(1)], demand).await? {
        Entered::Granted(permit) => Ok(permit),
        Entered::Waiting(ticket) => ticket.turn().await,
    }
}

/// A response costs less than was estimated, and its caller has got another class meanwhile.
#[tokio::test(start_paused = true)]
async fn a_ceiling_gets_nothing_back_that_it_was_not_charged_with() {
    // The queue that gave the permit may have ended before the reload.
    for has_ended in [false, true] {
        let linger = if has_ended { SECOND / 100 } else { SECOND };
        let fleet = fleet(&[daily(None)], Duration::ZERO, linger);
        let set = limiter_set(&fleet.limiters, &["api"]);
        sleep(SECOND).await;
        let receipt = permit(&set, 100).await.unwrap().commit().unwrap();
        sleep(SECOND / 10).await;
        assert_eq!(fleet.limiters.queues(), usize::from(!has_ended));
        fleet.apply(&[daily(Some(50_000))]);
        permit(&set, 2000).await.unwrap().commit();
        assert!(permit(&set, 50).await.is_err(), "the ceiling has 2000");
        set.settle(&[of(1)], &receipt, |_| Some(TrueCost { permits: 1, is_refunded: true }));
        sleep(SECOND / 100).await;
        assert!(permit(&set, 50).await.is_err(), "the other class had no ceiling; {has_ended}");
    }
}

/// No reload has changed how callers share the quota since the queue ended.
#[tokio::test(start_paused = true)]
async fn a_ceiling_gets_back_what_a_queue_has_charged_that_has_ended() {
    let fleet = fleet(&[daily(Some(50_000))], Duration::ZERO, SECOND / 100);
    let set = limiter_set(&fleet.limiters, &["api"]);
    sleep(SECOND).await;
    let receipt = permit(&set, 2000).await.unwrap().commit().unwrap();
    assert!(permit(&set, 50).await.is_err(), "the ceiling has 2000");
    sleep(SECOND / 10).await;
    assert_eq!(fleet.limiters.queues(), 0);
    set.settle(&[of(1)], &receipt, |_| Some(TrueCost { permits: 1, is_refunded: true }));
    sleep(SECOND / 100).await;
    permit(&set, 50).await.unwrap().commit();
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_is_no_partition() {
    // Over a store that has room for so many partitions and no more.
    let clock = Clock::of_runtime();
    let limiters = Limiters::new(Arc::new(MemoryStore::new(clock)), clock, 1, Metrics::new());
    limiters.apply(&[Arc::new(shared(2))]);
    let set = limiter_set(&limiters, &["api"]);
    pass(&set, &[of(1)]).await.unwrap();
    pass(&set, &[of(2)]).await.unwrap();
    let refusal = pass(&set, &[of(3)]).await.unwrap_err();
    assert!(matches!(refusal, Refusal::QueueFull { .. }), "{refusal}");
}
