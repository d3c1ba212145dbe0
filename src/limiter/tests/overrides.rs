//! Limits of some partitions, in place of the limiter's own, on paused time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::limiter::model::{Limit, Limiter, LimiterName, Permits, Scope};
use crate::limiter::tests::limiter_set;
use crate::limiter::tests::limiter_set::{Fleet, enter, fleet, granted, limiter, of, partitioned, pass};
use crate::limiter::{Demand, Refusal};

const SECOND: Duration = Duration::from_secs(1);

fn limits(rate: u64) -> Vec<Limit> {
    limiter("any", rate, 0).limits
}

/// A limiter of two permits a second whose requests wait for at most `seconds`; the partitions named by numbers have other rates.
fn keyed(seconds: u32, overrides: &[(u64, u64)]) -> Limiter {
    let overrides = overrides
        .iter()
        .map(|(value, rate)| (of(*value).unwrap(), format!("value-{value}").into(), limits(*rate)));
    partitioned(limiter("keyed", 2, seconds), 100).overridden(overrides)
}

/// Uses all that is available of a partition now.
async fn spent(fleet: &Fleet, value: u64) -> usize {
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    let mut passed = 0;
    while let Ok(crate::limiter::Entered::Granted(permit)) = enter(&set, &[of(value)]).await {
        permit.commit();
        passed += 1;
    }
    passed
}

#[tokio::test(start_paused = true)]
async fn each_partition_has_the_limits_that_hold_for_it() {
    for scope in [Scope::Overall, Scope::PerReplica] {
        let fleet = fleet(&[Limiter { scope, ..keyed(0, &[(1, 5), (2, 1)]) }], Duration::ZERO, SECOND);
        assert_eq!([spent(&fleet, 1).await, spent(&fleet, 2).await, spent(&fleet, 3).await], [5, 1, 2]);
        let name = LimiterName::parse("keyed").unwrap();
        for (value, rate, shown) in [(1, 5, Some("value-1")), (3, 2, None)] {
            let status = fleet.limiters.find(&name, of(value)).unwrap().inspect().await;
            assert_eq!(status.limiter.limits, limits(rate));
            assert_eq!(status.limiter.value().map(|value| &**value), shown);
            assert_eq!((status.overrides, status.available), (2, Some(vec![0])));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_is_measured_by_the_limits_of_its_partition() {
    let fleet = fleet(&[keyed(0, &[(1, 5)])], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    let demand = Demand::of(Permits::new(4).unwrap());
    assert!(set.enter(&[of(1)], demand.clone()).await.is_ok());
    let Err(Refusal::CostExceedsLimit { cost_max, .. }) = set.enter(&[of(2)], demand).await else { panic!() };
    assert_eq!(cost_max.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_changed_override_keeps_what_was_used() {
    let fleet = fleet(&[keyed(0, &[])], Duration::ZERO, SECOND);
    assert_eq!(spent(&fleet, 1).await, 2);
    for (overrides, further) in [(&[(1, 5)][..], 3), (&[(1, 3)], 0), (&[], 0), (&[(1, 7), (2, 1)], 2)] {
        fleet.apply(&[keyed(0, overrides)]);
        assert_eq!(spent(&fleet, 1).await, further, "{overrides:?}");
    }
    sleep(2 * SECOND).await;
    assert_eq!(spent(&fleet, 1).await, 7);
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_move_with_their_override() {
    let fleet = fleet(&[keyed(60, &[(1, 1)])], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    granted(&set, &[of(1)]).await.commit();
    granted(&set, &[of(2)]).await.commit();
    let begun = Instant::now();
    let wait = |value| {
        let set = set.clone();
        async move { pass(&set, &[of(value)]).await.unwrap() }
    };
    let waiting: Vec<_> = (0..20).map(|_| tokio::spawn(wait(1))).collect();
    let other: Vec<_> = (0..20).map(|_| tokio::spawn(wait(2))).collect();
    sleep(SECOND).await;
    fleet.apply(&[keyed(60, &[(1, 10)])]);
    let mut last = begun;
    for waiting in waiting {
        last = last.max(waiting.await.unwrap());
    }
    assert!(last - begun < 4 * SECOND, "twenty at one a second, and then at ten: {:?}", last - begun);
    for waiting in other {
        last = last.max(waiting.await.unwrap());
    }
    assert!(last - begun > 9 * SECOND, "nobody else is faster: {:?}", last - begun);
}

#[tokio::test(start_paused = true)]
async fn the_queues_of_other_partitions_notice_no_change() {
    let fleet = fleet(&[keyed(60, &[(1, 1)])], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    let wait = |value: u64| {
        let set = set.clone();
        tokio::spawn(async move { pass(&set, &[of(value)]).await.unwrap() })
    };
    let waiting: Vec<_> = (2..50).flat_map(|value| [wait(value), wait(value), wait(value)]).collect();
    sleep(Duration::from_millis(10)).await;
    let before = fleet.calls();
    fleet.apply(&[keyed(60, &[(1, 5), (77, 3)])]);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(fleet.calls(), before);
    fleet.apply(&[keyed(60, &[(1, 5), (7, 3)])]);
    sleep(Duration::from_millis(1)).await;
    let calls = fleet.calls() - before;
    assert!((1..4).contains(&calls), "those of one queue, whose limits have changed: {calls}");
    for waiting in waiting {
        waiting.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_store_the_share_is_of_the_override() {
    let fleet = fleet(&[keyed(0, &[(1, 5)])], Duration::ZERO, SECOND);
    fleet.set_away(true);
    // The first requests wait until the store counts as away.
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    let _ = (enter(&set, &[of(1)]).await, enter(&set, &[of(2)]).await);
    sleep(3 * SECOND).await;
    assert_eq!([spent(&fleet, 1).await, spent(&fleet, 2).await], [5, 2]);
}

#[tokio::test(start_paused = true)]
async fn the_metrics_show_each_limit_by_its_tightest_partition() {
    let fleet = fleet(&[keyed(0, &[(1, 5), (2, 5), (3, 7)])], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    let shows = |series: &str| fleet.shows(&format!("weir_limiter_{series}"));
    for (limit, rate) in [("2/1s", 2), ("5/1s", 5), ("7/1s", 7)] {
        assert!(shows(&format!(r#"limit_permits{{limit="{limit}",limiter="keyed"}} {rate}"#)), "{limit}");
    }
    granted(&set, &[of(2)]).await.commit();
    granted(&set, &[of(9)]).await.commit();
    assert!(shows(r#"available_permits{limit="5/1s",limiter="keyed"} 4"#));
    assert_eq!(spent(&fleet, 1).await, 5);
    granted(&set, &[of(2)]).await.commit();
    assert!(shows(r#"available_permits{limit="5/1s",limiter="keyed"} 0"#));
    assert!(shows(r#"available_permits{limit="2/1s",limiter="keyed"} 1"#));
    assert!(!fleet.metrics.render().contains(r#"available_permits{limit="7/1s""#), "nobody has called");
    fleet.apply(&[keyed(0, &[])]);
    assert!(!fleet.metrics.render().contains(r#"{limit="5/1s""#));
}
