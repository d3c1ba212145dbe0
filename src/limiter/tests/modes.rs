//! Scopes, modes, store policies and reloads of limiter sets on paused time, and the size of a queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::clock::Clock;
use crate::limiter::model::{
    Algorithm, Flow, Limiter, LimiterName, Mode, OnStoreFailure, Order, Permits, QueueLimits, Scope, TrueCost,
};
use crate::limiter::tests::latent_store::LatentStore;
use crate::limiter::tests::limiter_set;
use crate::limiter::tests::limiter_set::{
    Fleet, enter, fleet, granted, limiter, of, partitioned, pass, refused_by,
};
use crate::limiter::{Demand, Entered, LimiterSetError, Limiters, Refusal};
use crate::telemetry::Metrics;

const SECOND: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(10);

fn per_replica(limiter: Limiter) -> Limiter {
    Limiter { scope: Scope::PerReplica, ..limiter }
}

fn shadow(limiter: Limiter) -> Limiter {
    Limiter { mode: Mode::Shadow, ..limiter }
}

fn without_store(limiter: Limiter, on_store_failure: OnStoreFailure) -> Limiter {
    Limiter { on_store_failure, ..limiter }
}

#[tokio::test(start_paused = true)]
async fn a_limiter_per_replica_needs_no_store() {
    let own = without_store(per_replica(limiter("own", 2, 5)), OnStoreFailure::Reject);
    let fleet = fleet(&[own, limiter("shared", 2, 1)], Duration::ZERO, SECOND);
    fleet.set_away(true);
    assert!(fleet.limiters.readiness().iter().all(|(_, ready)| *ready));
    let own = limiter_set(&fleet.limiters, &["own"]);
    granted(&own, &[]).await.commit();
    granted(&own, &[]).await.commit();
    assert!(matches!(enter(&own, &[]).await, Ok(Entered::Waiting(_))));
    assert_eq!(fleet.left("own", None).await, Some(0));
    assert_eq!(fleet.calls(), 0);
    let names = ["shared", "own"].map(|name| LimiterName::parse(name).unwrap());
    let Err(error) = fleet.limiters.limiter_set(&names) else { panic!("they go together") };
    assert!(matches!(&error, LimiterSetError::Scopes(..)));
    assert!(error.to_string().contains("different scopes"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_shadow_counts_and_never_delays() {
    let fleet = fleet(&[limiter("acts", 20, 0), shadow(limiter("counts", 2, 1))], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["counts", "acts"]);
    // A request that is not sent is charged nowhere.
    drop(granted(&set, &[]).await);
    for _ in 0..10 {
        granted(&set, &[]).await.commit();
    }
    sleep(SHORT).await;
    // Two at once and two within its wait of a second, if the guard lets them.
    let state = fleet.limiters.find(&LimiterName::parse("counts").unwrap(), None).unwrap().inspect().await;
    assert!((2..=4).contains(&state.granted), "{}", state.granted);
    let refused = 10 - state.granted;
    assert!(
        fleet.shows(&format!(r#"weir_permits_total{{limiter="counts",result="shadow_refused"}} {refused}"#))
    );
    assert!(fleet.shows(r#"weir_permits_total{limiter="counts",result="refused"} 0"#));
    assert!(fleet.shows(r#"weir_queue_waiting{limiter="counts"} 0"#));
    assert!(fleet.shows(r#"weir_permits_total{limiter="acts",result="granted"} 10"#));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_without_a_queue_shortens_no_wait() {
    let fleet = fleet(&[limiter("acts", 1, 5), shadow(limiter("counts", 1, 0))], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["counts", "acts"]);
    assert_eq!(set.wait_max(Flow::default()), 5 * SECOND);
    fleet.apply(&[limiter("acts", 1, 5), limiter("counts", 1, 0)]);
    assert_eq!(set.wait_max(Flow::default()), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_set_of_shadows_grants_everything_at_once() {
    let fleet = fleet(&[shadow(partitioned(limiter("counts", 3, 0), 1))], SECOND, SECOND);
    let set = limiter_set(&fleet.limiters, &["counts"]);
    let start = Instant::now();
    for _ in 0..5 {
        let mut permit = granted(&set, &[of(1)]).await;
        permit.confirm().await.unwrap();
        permit.commit();
    }
    // One partition more than there may be.
    granted(&set, &[of(2)]).await.commit();
    let demand = Demand::of(Permits::new(50).unwrap());
    let Ok(Entered::Granted(costly)) = set.enter(&[of(1)], demand).await else { panic!() };
    costly.commit();
    assert_eq!(start.elapsed(), Duration::ZERO, "the store takes a second to answer");
    sleep(3 * SECOND).await;
    assert!(fleet.shows(r#"weir_permits_total{limiter="counts",result="granted"} 3"#));
    assert!(fleet.shows(r#"weir_permits_total{limiter="counts",result="shadow_refused"} 53"#));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_is_bounded_when_the_store_is_slow() {
    let fleet = fleet(&[shadow(limiter("counts", 1_000_000, 0))], 600 * SECOND, SECOND);
    let set = limiter_set(&fleet.limiters, &["counts"]);
    for _ in 0..20_000 {
        granted(&set, &[]).await.commit();
    }
    let name = LimiterName::parse("counts").unwrap();
    let state = fleet.limiters.find(&name, None).unwrap().inspect().await;
    assert_eq!((state.waiting, state.refused), (0, 0));
    let text = fleet.metrics.render();
    let series = r#"weir_permits_total{limiter="counts",result="shadow_refused"} "#;
    let refused = text.lines().find_map(|line| line.strip_prefix(series)).unwrap();
    assert!((2000..4000).contains(&refused.parse().unwrap()), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_mode_changes_with_a_reload() {
    let fleet = fleet(&[limiter("api", 1, 0)], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["api"]);
    granted(&set, &[]).await.commit();
    assert!(enter(&set, &[]).await.is_err());
    fleet.apply(&[shadow(limiter("api", 1, 0))]);
    granted(&set, &[]).await.commit();
    fleet.apply(&[limiter("api", 1, 0)]);
    assert!(enter(&set, &[]).await.is_err());
}

/// As many are enforced as before.
#[tokio::test(start_paused = true)]
async fn a_cost_is_settled_at_no_other_limiter_where_two_change_their_modes() {
    let fleet = fleet(&[limiter("one", 100, 0), shadow(limiter("two", 100, 0))], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["one", "two"]);
    let demand = Demand::of(Permits::new(9).unwrap());
    let Ok(Entered::Granted(permit)) = set.enter(&[], demand).await else { panic!() };
    let receipt = permit.commit().unwrap();
    fleet.apply(&[shadow(limiter("one", 100, 0)), limiter("two", 100, 0)]);
    let used = |place| Some(TrueCost { permits: if place == 0 { 9 } else { 1 }, is_refunded: true });
    set.settle(&[], &receipt, used);
    sleep(SHORT).await;
    assert_eq!(fleet.left("one", None).await, Some(91));
}

#[tokio::test(start_paused = true)]
async fn a_changed_scope_or_key_is_for_new_limiter_sets() {
    let fleet = fleet(&[limiter("api", 1, 5)], Duration::ZERO, SECOND);
    let before = limiter_set(&fleet.limiters, &["api"]);
    granted(&before, &[]).await.commit();
    let Ok(Entered::Waiting(ticket)) = enter(&before, &[]).await else { panic!() };
    fleet.apply(&[per_replica(partitioned(limiter("api", 1, 5), 10))]);
    let after = limiter_set(&fleet.limiters, &["api"]);
    let calls = fleet.calls();
    granted(&after, &[of(1)]).await.commit();
    granted(&after, &[of(2)]).await.commit();
    assert_eq!(fleet.calls(), calls);
    assert!(fleet.shows(r#"weir_queue_waiting{limiter="api"} 1"#));
    drop(before);
    ticket.turn().await.unwrap().commit();
    sleep(5 * SECOND).await;
    assert_eq!(fleet.limiters.queues(), 0);
    assert!(fleet.shows(r#"weir_queue_waiting{limiter="api"} 0"#));
    assert!(fleet.shows(r#"weir_permits_total{limiter="api",result="granted"} 4"#));
}

#[tokio::test(start_paused = true)]
async fn a_removed_limiter_serves_its_last_request() {
    let fleet = fleet(&[limiter("goes", 1, 5)], Duration::ZERO, SECOND);
    let goes = limiter_set(&fleet.limiters, &["goes"]);
    granted(&goes, &[]).await.commit();
    let Ok(Entered::Waiting(ticket)) = enter(&goes, &[]).await else { panic!() };
    fleet.apply(&[]);
    drop(goes);
    ticket.turn().await.unwrap().commit();
    sleep(5 * SECOND).await;
    assert_eq!(fleet.limiters.queues(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_removed_limiter_whose_last_response_is_settled_shows_nothing_for_good() {
    let fleet = fleet(&[limiter("goes", 9, 5), limiter("stays", 9, 5)], Duration::ZERO, SECOND);
    let goes = limiter_set(&fleet.limiters, &["goes"]);
    let receipt = granted(&goes, &[]).await.commit().unwrap();
    let stays = [limiter("stays", 9, 5)];
    fleet.apply(&stays);
    assert!(!series(&fleet).contains("\"goes\""));
    goes.settle(&[], &receipt, |_| Some(TrueCost { permits: 2, is_refunded: true }));
    assert!(series(&fleet).contains("\"goes\""), "its first true cost");
    fleet.apply(&stays);
    assert!(!series(&fleet).contains("\"goes\""), "{}", series(&fleet));
    assert!(series(&fleet).contains("\"stays\""));
}

/// The metrics of weir, without those of the process.
fn series(fleet: &Fleet) -> String {
    let text = fleet.metrics.render();
    text.lines().filter(|line| line.starts_with("weir_")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn prepared_limiters_change_nothing_before_the_commit() {
    let keyed = |rate| partitioned(limiter("keyed", rate, 60), 10);
    let running = [limiter("api", 1, 60), keyed(5), limiter("leaves", 5, 0)];
    let fleet = fleet(&running, Duration::ZERO, SECOND);
    let (api, tenants) = (limiter_set(&fleet.limiters, &["api"]), limiter_set(&fleet.limiters, &["keyed"]));
    granted(&tenants, &[of(1)]).await.commit();
    granted(&api, &[]).await.commit();
    let Ok(Entered::Waiting(ticket)) = enter(&api, &[]).await else { panic!() };
    sleep(SHORT).await;
    let (metrics, calls, queues) = (series(&fleet), fleet.calls(), fleet.limiters.queues());

    let next = [limiter("api", 1000, 60), limiter("keyed", 5, 0), limiter("comes", 5, 0)].map(Arc::new);
    let names = ["keyed", "comes", "leaves"].map(|name| LimiterName::parse(name).unwrap());
    let prepared = fleet.limiters.prepare(&next);
    let set = prepared.limiter_set(&names[..2]).unwrap().unwrap();
    assert!(matches!(prepared.limiter_set(&names), Err(LimiterSetError::Unknown(_))));
    sleep(SHORT).await;
    assert_eq!(series(&fleet), metrics);
    assert_eq!((fleet.calls(), fleet.limiters.queues()), (calls, queues), "no worker has moved");

    drop(fleet.limiters.prepare(&[]));
    prepared.commit();
    ticket.turn().await.unwrap().commit();
    granted(&set, &[]).await.commit();
    assert!(fleet.shows(r#"weir_permits_total{limiter="comes",result="granted"} 1"#));
    assert!(fleet.shows(r#"weir_permits_total{limiter="keyed",result="granted"} 2"#));
    assert!(!fleet.metrics.render().contains("leaves"));
}

#[tokio::test(start_paused = true)]
async fn the_smallest_of_every_bound_holds() {
    let bounded = |name, seconds, max_waiting| Limiter {
        queue: Some(QueueLimits { timeout: SECOND * seconds, max_waiting }),
        ..limiter(name, 1, 0)
    };
    let limiters = [bounded("patient", 60, 2), bounded("hasty", 10, 50), limiter("never", 1, 0)];
    let fleet = fleet(&limiters, Duration::ZERO, SECOND);
    let waiting = limiter_set(&fleet.limiters, &["patient", "hasty"]);
    granted(&waiting, &[]).await.commit();
    let first = enter(&waiting, &[]).await.unwrap();
    let _second = enter(&waiting, &[]).await.unwrap();
    assert!(matches!(enter(&waiting, &[]).await, Err(Refusal::QueueFull { .. })));
    drop(first);
    let never = limiter_set(&fleet.limiters, &["patient", "never"]);
    assert!(matches!(enter(&never, &[]).await, Err(Refusal::RateLimited { .. })));
    let demand = Demand::of(Permits::new(2).unwrap());
    assert!(matches!(waiting.enter(&[], demand).await, Err(Refusal::CostExceedsLimit { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_spaces_permits_takes_requests_of_several() {
    let cold = 3.try_into().unwrap();
    for algorithm in [Algorithm::LeakyBucket, Algorithm::WarmUp { warm_up: SECOND, cold }] {
        for order in [Order::Booked, Order::Dealt] {
            let mut even = Limiter { order: order.clone(), ..limiter("even", 10, 5) };
            even.limits[0].algorithm = algorithm.clone();
            let fleet = fleet(&[even], Duration::ZERO, SECOND);
            let set = limiter_set(&fleet.limiters, &["even"]);
            let take = async |cost| -> Result<(), Refusal> {
                let permit = match set.enter(&[], Demand::of(Permits::new(cost).unwrap())).await? {
                    Entered::Granted(permit) => permit,
                    Entered::Waiting(ticket) => ticket.turn().await?,
                };
                permit.commit();
                Ok(())
            };
            for is_away in [false, true] {
                fleet.set_away(is_away);
                let which = format!("{algorithm:?}, {order:?}, store away: {is_away}");
                for _ in 0..2 {
                    take(4).await.unwrap_or_else(|refusal| panic!("{which}: {refusal}"));
                }
                assert!(matches!(take(11).await, Err(Refusal::CostExceedsLimit { .. })), "{which}");
            }
        }
    }
}

/// A replica that goes on by itself knows how long the last request keeps the limit closed.
#[tokio::test(start_paused = true)]
async fn a_request_of_several_permits_keeps_a_limit_that_spaces_them_closed_in_an_outage() {
    let cold = 3.try_into().unwrap();
    for algorithm in [Algorithm::LeakyBucket, Algorithm::WarmUp { warm_up: SECOND, cold }] {
        // Ten seconds for ten: longer than what counts as soon.
        let mut even = limiter("even", 10, 0);
        even.limits[0].per = 10 * SECOND;
        even.limits[0].algorithm = algorithm.clone();
        let fleet = fleet(&[even.clone()], Duration::ZERO, SECOND);
        let other = fleet.another(&[even]);
        let take = async |replica: &Fleet, cost| {
            let set = limiter_set(&replica.limiters, &["even"]);
            match set.enter(&[], Demand::of(Permits::new(cost).unwrap())).await {
                Ok(Entered::Granted(permit)) => drop(permit.commit()),
                Ok(Entered::Waiting(_)) => panic!("it waits"),
                Err(_) => return false,
            }
            true
        };
        assert!(take(&fleet, 1).await);
        sleep(2 * SECOND).await;
        // Another replica gets the eight. This one knows of them by the refusal alone.
        assert!(take(&other, 8).await);
        assert!(!take(&fleet, 1).await);
        let first = Instant::now();
        fleet.set_away(true);
        while !take(&fleet, 1).await {
            sleep(SHORT).await;
        }
        let closed_for = first.elapsed();
        assert!(closed_for >= 8 * SECOND, "{algorithm:?}: {closed_for:?}");
    }
}

async fn outcomes(fleet: &Fleet, names: &[&str]) -> Vec<Result<Entered, Refusal>> {
    let set = limiter_set(&fleet.limiters, names);
    let mut outcomes = Vec::new();
    for _ in 0..10 {
        outcomes.push(enter(&set, &[]).await);
    }
    outcomes
}

#[tokio::test(start_paused = true)]
async fn each_limiter_follows_its_own_policy_without_a_store() {
    use OnStoreFailure::{Allow, Local, Reject};
    let of = |name, rate, policy| without_store(limiter(name, rate, 0), policy);
    let limiters =
        [of("wide", 5, Local), of("narrow", 3, Local), of("free", 1, Allow), of("strict", 9, Reject)];
    let fleet = fleet(&limiters, Duration::ZERO, SECOND);
    fleet.set_away(true);
    assert!(fleet.limiters.readiness().iter().any(|(_, ready)| !ready));
    // `free` is not enforced, the others are, together; what one refuses costs the other nothing.
    let local = outcomes(&fleet, &["free", "wide", "narrow"]).await;
    assert_eq!(local.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    let Some(Err(refusal)) = local.last() else { panic!() };
    assert_eq!(refusal.limiter().as_str(), "narrow");
    local.into_iter().flatten().for_each(|entered| {
        let Entered::Granted(permit) = entered else { panic!() };
        permit.commit();
    });
    assert!(fleet.shows(r#"weir_permits_total{limiter="free",result="allowed"} 3"#));
    assert!(fleet.shows(r#"weir_permits_total{limiter="wide",result="local"} 3"#));
    assert_eq!(outcomes(&fleet, &["wide"]).await.iter().filter(|outcome| outcome.is_ok()).count(), 2);
    let rejected = limiter_set(&fleet.limiters, &["wide", "free", "strict"]);
    assert_eq!(refused_by(&rejected, &[]).await, "strict");
    assert!(matches!(enter(&rejected, &[]).await, Err(Refusal::StoreUnavailable { .. })));
    assert!(outcomes(&fleet, &["free"]).await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn usage_outlives_the_worker_that_granted_it() {
    let long = |partition| {
        let mut long = partitioned(limiter("keyed", 10, 0), partition);
        long.limits[0].per = 60 * SECOND;
        long
    };
    let fleet = fleet(&[long(10)], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    for _ in 0..8 {
        granted(&set, &[of(1)]).await.commit();
    }
    sleep(5 * SECOND).await;
    assert_eq!(fleet.limiters.queues(), 0);
    fleet.set_away(true);
    granted(&set, &[of(1)]).await.commit();
    granted(&set, &[of(1)]).await.commit();
    assert!(matches!(enter(&set, &[of(1)]).await, Err(Refusal::RateLimited { .. })));
    for _ in 0..10 {
        pass(&set, &[of(2)]).await.unwrap();
    }
}

/// Nobody else can have been granted anything meanwhile.
#[tokio::test(start_paused = true)]
async fn a_replica_alone_has_in_a_second_outage_what_it_had_in_the_first() {
    let long = |name| {
        let mut long = limiter(name, 10, 0);
        long.limits[0].per = 60 * SECOND;
        long
    };
    let fleet = fleet(&[long("idle"), long("busy")], Duration::ZERO, SECOND);
    let (idle, busy) = (limiter_set(&fleet.limiters, &["idle"]), limiter_set(&fleet.limiters, &["busy"]));
    granted(&idle, &[]).await.commit();
    for _ in 0..2 {
        fleet.set_away(true);
        granted(&busy, &[]).await.commit();
        granted(&idle, &[]).await.commit();
        fleet.set_away(false);
        sleep(SECOND).await;
        granted(&busy, &[]).await.commit();
    }
    fleet.set_away(true);
    for _ in 0..7 {
        granted(&idle, &[]).await.commit();
    }
    assert!(matches!(enter(&idle, &[]).await, Err(Refusal::RateLimited { .. })));
}

/// Others may have been granted all since. The store itself is there, and so tells of no outage.
#[tokio::test(start_paused = true)]
async fn usage_that_was_not_heard_lately_leaves_nothing_in_an_outage_of_one_queue_alone() {
    for (idle, passes) in [(SECOND / 2, true), (10 * SECOND, false)] {
        let clock = Clock::of_runtime();
        let store = LatentStore::new(clock, Duration::ZERO);
        store.set_epoch(1);
        let limiters = Limiters::new(store.clone(), clock, 2, Metrics::new());
        let mut long = limiter("api", 100, 5);
        long.limits[0].per = 60 * SECOND;
        limiters.apply(&[Arc::new(long)]);
        let set = limiter_set(&limiters, &["api"]);
        granted(&set, &[]).await.commit();
        sleep(idle).await;
        store.set_unreadable();
        let (asked, outcome) = (Instant::now(), pass(&set, &[]).await);
        assert_eq!(outcome.is_ok(), passes, "idle for {idle:?}");
        if let Err(refusal) = outcome {
            // Nobody can say when to come back. It has waited for the store.
            assert!(matches!(refusal, Refusal::StoreUnavailable { .. }), "{refusal}");
            assert!(asked.elapsed() >= 5 * SECOND, "{:?}", asked.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bookings_of_a_late_answer_are_given_back() {
    let mut slow = limiter("api", 10, 0);
    slow.limits[0].per = 60 * SECOND;
    let fleet = fleet(&[slow], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["api"]);
    granted(&set, &[]).await.commit();
    fleet.set_late_by(5 * SECOND);
    granted(&set, &[]).await.commit();
    // One call until the store counts as away, which is carried out.
    assert_eq!(fleet.left("api", None).await, Some(8));
    fleet.set_late_by(Duration::ZERO);
    sleep(4 * SECOND).await;
    assert_eq!(fleet.left("api", None).await, Some(8), "and not answered yet");
    sleep(2 * SECOND).await;
    assert_eq!(fleet.left("api", None).await, Some(9));
}

/// Ignored among the other tests, because it measures the whole process. Run it with `--ignored --nocapture`.
#[tokio::test]
#[ignore = "measures the whole process"]
async fn an_idle_queue_is_small() {
    const QUEUES: u64 = 100_000;
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let keyed = partitioned(limiter("keyed", 10, 10), u32::MAX);
    let fleet = fleet(&[keyed], Duration::ZERO, 600 * SECOND);
    fleet.set_forgetful();
    let set = limiter_set(&fleet.limiters, &["keyed"]);
    let (before, start) = (resident(), Instant::now());
    for partition in 0..QUEUES {
        granted(&set, &[of(partition)]).await.commit();
    }
    assert_eq!(fleet.limiters.queues(), 100_000);
    let bytes = (resident() - before) / QUEUES;
    println!("{bytes} bytes for each queue, {:?} to make one", start.elapsed() / 100_000);
    assert!(bytes < 4096, "{bytes}");
}
