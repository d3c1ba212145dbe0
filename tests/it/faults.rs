//! Redis loses its data under load: no window goes over its limit, and every request gets an answer.

use std::time::Duration;

use tokio::time::sleep;

use crate::support::load::Load;
use crate::support::measure::occupancy;
use crate::support::wall_clock::SteppedClock;
use crate::support::{
    PATIENCE, RedisOptions, RedisServer, Request, Upstream, Weir, eventually, eventually_within, lane,
    one_limiter,
};

const WINDOW: Duration = Duration::from_secs(2);
const LIMIT: usize = 40;

/// A fault of a server under load.
enum Fault {
    Command(&'static [&'static str]),
    /// The server ends, and starts again without data.
    Restart,
    /// The server answers nobody for this long.
    Freeze(Duration),
    /// The server's clock is ahead by this many milliseconds from then on.
    Clock(i64),
}

/// Runs three replicas, each with clients that ask again at once, and lets each fault happen a window and a half after
/// the last one; judges a window and a half after the last fault.
async fn nothing_goes_over(policy: &str, faults: &[Fault]) {
    lane::calm(async || {
        let clock = SteppedClock::new();
        let options = || RedisOptions { clock: Some(clock.clone()), ..RedisOptions::default() };
        let (mut redis, upstream) = (Some(RedisServer::start_with(options()).await), Upstream::start());
        let store = redis.as_ref().map(RedisServer::store).expect("it has been started");
        let store = store.replace("timeout: 1s", "timeout: 200ms, fleet_size: 3");
        let limiter = format!(
            "{{limits: [{LIMIT}/{}s], on_store_failure: {policy}, queue: {{timeout: 30s, max_waiting: 1000}}}}",
            WINDOW.as_secs()
        );
        let fleet = Weir::fleet(3, &one_limiter(&store, &limiter, &upstream)).await;
        let loads: Vec<Load> = fleet.iter().map(|weir| Load::start(weir, 20, &Request::get("/"))).collect();
        for fault in faults {
            upstream.wait_for(upstream.count() + LIMIT + LIMIT / 2, PATIENCE).await;
            let server = redis.take().expect("it runs");
            redis = Some(match fault {
                Fault::Command(command) => {
                    server.command(command).await;
                    server
                }
                Fault::Freeze(time) => {
                    server.freeze(true);
                    sleep(*time).await;
                    server.freeze(false);
                    server
                }
                Fault::Clock(ahead_ms) => {
                    clock.set_ahead_ms(*ahead_ms);
                    let before = upstream.count();
                    // One window, and the time in which replicas write back; the machine may be slow.
                    eventually_within("every client is served", WINDOW + Duration::from_secs(2), async || {
                        upstream.count() >= before + LIMIT
                    })
                    .await;
                    server
                }
                Fault::Restart => {
                    let port = Some(server.port());
                    drop(server);
                    RedisServer::start_with(RedisOptions { port, ..options() }).await
                }
            });
        }
        upstream.wait_for(upstream.count() + 2 * LIMIT, PATIENCE).await;
        let statuses: Vec<_> = loads.iter().map(Load::statuses).collect();
        let instants = upstream.instants();
        println!(
            "fullest window {}, {:.1} % used, {statuses:?}",
            upstream.fullest_window(WINDOW),
            occupancy(&instants, LIMIT, WINDOW) * 100.0
        );
        upstream.assert_within(LIMIT, WINDOW);
        for status in statuses.iter().flat_map(|statuses| statuses.keys()) {
            assert!(matches!(status, 200 | 503), "{statuses:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_flushed_redis_lets_no_window_go_over() {
    nothing_goes_over("local", &[Fault::Command(&["FLUSHALL"]), Fault::Command(&["FLUSHALL", "ASYNC"])])
        .await;
}

#[tokio::test]
async fn flushed_scripts_let_no_window_go_over() {
    nothing_goes_over("local", &[Fault::Command(&["SCRIPT", "FLUSH"]), Fault::Command(&["FLUSHALL"])]).await;
}

#[tokio::test]
async fn a_stepped_clock_of_redis_lets_no_window_go_over() {
    const HOUR: i64 = 3_600_000;
    nothing_goes_over(
        "reject",
        &[Fault::Clock(HOUR), Fault::Clock(0), Fault::Clock(-HOUR), Fault::Clock(-HOUR + 700)],
    )
    .await;
}

#[tokio::test]
async fn a_redis_restarted_without_data_lets_no_window_go_over() {
    nothing_goes_over("reject", &[Fault::Restart, Fault::Restart]).await;
}

#[tokio::test]
async fn a_redis_restarted_without_data_lets_no_window_go_over_with_local_policy() {
    nothing_goes_over("local", &[Fault::Restart, Fault::Restart]).await;
}

#[tokio::test]
async fn a_frozen_redis_lets_no_window_go_over_with_local_policy() {
    nothing_goes_over(
        "local",
        &[Fault::Freeze(Duration::from_millis(3300)), Fault::Freeze(Duration::from_millis(700))],
    )
    .await;
}

#[tokio::test]
async fn one_deleted_key_lets_no_window_go_over() {
    const DELETE: Fault = Fault::Command(&["DEL", "weir:{api}:v2:limiter:api"]);
    nothing_goes_over("reject", &[DELETE, DELETE, Fault::Command(&["UNLINK", "weir:v2:epoch"])]).await;
}

#[tokio::test]
async fn two_deleted_keys_let_no_window_go_over() {
    const LIST: Fault = Fault::Command(&["DEL", "weir:v2:live"]);
    const DELETE: Fault = Fault::Command(&["DEL", "weir:{api}:v2:limiter:api"]);
    const BOTH: Fault = Fault::Command(&["DEL", "weir:v2:live", "weir:{api}:v2:limiter:api"]);
    nothing_goes_over("reject", &[BOTH, LIST, DELETE]).await;
}

async fn statuses(weir: &Weir, count: usize) -> Vec<u16> {
    weir.connect().await.statuses(&Request::get("/"), count).await
}

/// All replicas forget the usage from before a reset, and none writes it back, whatever data the server loses.
#[tokio::test]
async fn a_reset_limiter_stays_reset() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [6/60s], on_store_failure: reject}";
    let fleet = Weir::fleet(3, &one_limiter(&redis.store(), limiter, &upstream)).await;
    for weir in &fleet {
        assert_eq!(statuses(weir, 2).await, [200, 200]);
    }
    assert_eq!(statuses(&fleet[0], 1).await, [429]);
    let answer = fleet[1].tell("/api/limiters/api/reset").await;
    assert_eq!((answer.status, answer.json()["limits"][0]["available"].as_u64()), (200, Some(6)));
    for weir in &fleet {
        weir.wait_for_log(&["reset: "]).await;
    }
    redis.command(&["FLUSHALL"]).await;
    eventually("Redis has begun anew", async || fleet[2].get("/").await.status == 200).await;
    assert_eq!(statuses(&fleet[0], 6).await, [200, 200, 200, 200, 200, 429]);
    // Usage since the reset is kept.
    redis.command(&["FLUSHALL"]).await;
    eventually("it is written back", async || {
        fleet[1].get("/").await;
        fleet[1].available("api").await == [0]
    })
    .await;
    drop(redis);
    let answer = fleet[0].tell("/api/limiters/api/reset").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("nothing has changed"), "{}", answer.text());
}

/// The key of the epoch outlives the state that it protects, and expires in the end.
#[tokio::test]
async fn a_replica_that_comes_alone_waits_for_nobody() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let config = one_limiter(&redis.store(), "{limits: [1/1s]}", &upstream);
    let first = Weir::start(&config).await;
    assert_eq!(first.get("/").await.status, 200);
    drop(first);
    // A restarted weir finds the old epoch and the earlier usage.
    let second = Weir::start(&config).await;
    eventually("its permit is free again", async || second.get("/").await.status == 200).await;
    let expiry: i64 = redis::from_redis_value(redis.command(&["PTTL", "weir:v2:epoch"]).await).unwrap();
    assert!((10_000..=30_000).contains(&expiry), "{expiry}");
}

/// More partitions than fit into the minimum settling time of an epoch.
#[tokio::test]
async fn every_partition_is_written_back() {
    let _lane = lane::shared().await;
    const TENANTS: usize = 3000;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [1/60s], key: [\"header:tenant\"], on_store_failure: reject}";
    let weir = Weir::start(&one_limiter(&redis.store(), limiter, &upstream)).await;
    let mut client = weir.connect().await;
    let tenant = |tenant: usize| Request::get("/").header("tenant", &tenant.to_string());
    for index in 0..TENANTS {
        assert_eq!(client.ask(&tenant(index)).await.status, 200);
    }
    // A foreign value under one of the keys must not keep the other partitions from being written.
    let keys = redis.keys().await;
    let foreign = keys.iter().find(|key| key.contains(":limiter:")).expect("a limiter's key");
    let flush = "redis.call('FLUSHALL') redis.call('SET', KEYS[1], 'something else')";
    redis.command(&["EVAL", flush, "1", foreign]).await;
    eventually("Redis has heard of all again", async || redis.size().await >= TENANTS as u64).await;
    let mut unavailable = 0;
    for index in 0..TENANTS {
        match client.ask(&tenant(index)).await.status {
            503 => unavailable += 1,
            status => assert_eq!(status, 429, "{index}"),
        }
    }
    assert_eq!(unavailable, 1, "the one whose key is not weir's");
}

/// Waits until each replica has granted some of its share without Redis, and no request was refused.
async fn shares_are_granted(fleet: &[Weir], loads: &[Load]) {
    for weir in fleet {
        eventually("its share is granted", async || {
            weir.metrics().await.sum("weir_permits_total", &[("result", "local")]) >= 4.0
        })
        .await;
    }
    for load in loads {
        assert_eq!(load.statuses().into_keys().collect::<Vec<_>>(), [200]);
    }
}

/// Others may have been granted all of the short limit right before.
#[tokio::test]
async fn a_limit_that_is_soon_whole_again_closes_no_long_one_beside_it() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    // The bucket spaces the requests, so that the hour's permits last.
    let limits = "[{rate: 8, per: 1s, algorithm: token_bucket, burst: 4}, 100/1s, 60/1h]";
    let limiter = format!("{{limits: {limits}, queue: {{timeout: 1m, max_waiting: 100}}}}");
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), &limiter, &upstream)).await;
    let loads: Vec<Load> = fleet.iter().map(|weir| Load::start(weir, 2, &Request::get("/"))).collect();
    // Both know of each other by now.
    upstream.wait_for(16, PATIENCE).await;
    drop(redis);
    shares_are_granted(&fleet, &loads).await;
    upstream.assert_within(8 + 4, Duration::from_secs(1));
}

/// A call that takes a second to fail is a part of the outage, and no time in which others may have used up the limit.
#[tokio::test]
async fn a_share_of_an_hour_is_granted_where_calls_take_a_second_to_fail() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    assert!(redis.store().contains("timeout: 1s"), "{}", redis.store());
    // The bucket spaces the requests, and so the calls. With the window alone all go at once each second, and a replica that has heard
    // nothing of the hour for 0.9 s grants nothing of it.
    let limits = "[{rate: 8, per: 1s, algorithm: token_bucket, burst: 4}, 8/1s, 2000/1h]";
    let limiter = format!("{{limits: {limits}, queue: {{timeout: 1m, max_waiting: 100}}}}");
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), &limiter, &upstream)).await;
    let loads: Vec<Load> = fleet.iter().map(|weir| Load::start(weir, 4, &Request::get("/"))).collect();
    // Both know of each other by now.
    upstream.wait_for(30, PATIENCE).await;
    redis.freeze(true);
    shares_are_granted(&fleet, &loads).await;
    upstream.assert_within(8, Duration::from_secs(1));
}
