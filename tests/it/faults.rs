//! Redis loses what it held, under load: no window goes over all the same, and every request gets an answer.

use std::time::Duration;

use tokio::time::sleep;

use crate::support::load::Load;
use crate::support::measure::occupancy;
use crate::support::wall_clock::SteppedClock;
use crate::support::{
    PATIENCE, RedisOptions, RedisServer, Request, Upstream, Weir, eventually, lane, one_limiter,
};

const WINDOW: Duration = Duration::from_secs(2);
const LIMIT: usize = 40;

/// What happens to a server under load.
enum Fault {
    Command(&'static [&'static str]),
    /// It ends, and starts again with nothing.
    Restart,
    /// It answers nobody for so long.
    Freeze(Duration),
    /// Its clock shows so many milliseconds more than the right time from then on.
    Clock(i64),
}

/// Three replicas, each with clients that come again at once; after a window and a half each fault, and a window and a
/// half after it.
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
                    eventually("nobody is locked out", WINDOW + Duration::from_secs(2), async || {
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
async fn flushed() {
    nothing_goes_over("local", &[Fault::Command(&["FLUSHALL"]), Fault::Command(&["FLUSHALL", "ASYNC"])])
        .await;
}

#[tokio::test]
async fn scripts_flushed() {
    nothing_goes_over("local", &[Fault::Command(&["SCRIPT", "FLUSH"]), Fault::Command(&["FLUSHALL"])]).await;
}

#[tokio::test]
async fn its_clock_is_stepped() {
    const HOUR: i64 = 3_600_000;
    nothing_goes_over(
        "reject",
        &[Fault::Clock(HOUR), Fault::Clock(0), Fault::Clock(-HOUR), Fault::Clock(-HOUR + 700)],
    )
    .await;
}

#[tokio::test]
async fn restarted_with_nothing() {
    nothing_goes_over("reject", &[Fault::Restart, Fault::Restart]).await;
}

#[tokio::test]
async fn restarted_with_nothing_and_served_meanwhile() {
    nothing_goes_over("local", &[Fault::Restart, Fault::Restart]).await;
}

#[tokio::test]
async fn frozen_and_served_meanwhile() {
    nothing_goes_over(
        "local",
        &[Fault::Freeze(Duration::from_millis(3300)), Fault::Freeze(Duration::from_millis(700))],
    )
    .await;
}

#[tokio::test]
async fn one_key_alone_is_deleted() {
    const DELETE: Fault = Fault::Command(&["DEL", "weir:{api}:v1:limiter:api"]);
    nothing_goes_over("reject", &[DELETE, DELETE, Fault::Command(&["UNLINK", "weir:v1:epoch"])]).await;
}

async fn statuses(weir: &Weir, count: usize) -> Vec<u16> {
    weir.connect().await.statuses(&Request::get("/"), count).await
}

/// All replicas forget, and none brings back what was used before, whatever the server forgets.
#[tokio::test]
async fn what_is_reset_stays_reset() {
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
        eventually("it has heard of the reset", PATIENCE, async || weir.log().contains("reset: ")).await;
    }
    redis.command(&["FLUSHALL"]).await;
    eventually("Redis has begun anew", PATIENCE, async || fleet[2].get("/").await.status == 200).await;
    assert_eq!(statuses(&fleet[0], 6).await, [200, 200, 200, 200, 200, 429]);
    // What was used since then is not forgotten.
    redis.command(&["FLUSHALL"]).await;
    eventually("it is written back", PATIENCE, async || {
        fleet[1].get("/").await;
        fleet[1].available("api").await == [0]
    })
    .await;
    drop(redis);
    let answer = fleet[0].tell("/api/limiters/api/reset").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("nothing has changed"), "{}", answer.text());
}

/// The epoch's key outlives what it speaks of, and goes in the end.
#[tokio::test]
async fn a_replica_that_comes_alone_waits_for_nobody() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let config = one_limiter(&redis.store(), "{limits: [1/1s]}", &upstream);
    let first = Weir::start(&config).await;
    assert_eq!(first.get("/").await.status, 200);
    drop(first);
    // Restarted, it finds the epoch of before, and what was used.
    let second = Weir::start(&config).await;
    eventually("its permit is free again", PATIENCE, async || second.get("/").await.status == 200).await;
    let expiry: i64 = redis::from_redis_value(redis.command(&["PTTL", "weir:v1:epoch"]).await).unwrap();
    assert!((10_000..=30_000).contains(&expiry), "{expiry}");
}

/// More partitions than can be written back while an epoch settles at least.
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
    // Somebody puts something else under one of the keys, which must not keep the others from being written.
    let keys = redis.keys().await;
    let foreign = keys.iter().find(|key| key.contains(":limiter:")).expect("a limiter's key");
    let flush = "redis.call('FLUSHALL') redis.call('SET', KEYS[1], 'something else')";
    redis.command(&["EVAL", flush, "1", foreign]).await;
    eventually("Redis has heard of all again", PATIENCE, async || redis.size().await >= TENANTS as u64).await;
    let mut unavailable = 0;
    for index in 0..TENANTS {
        match client.ask(&tenant(index)).await.status {
            503 => unavailable += 1,
            status => assert_eq!(status, 429, "{index}"),
        }
    }
    assert_eq!(unavailable, 1, "the one whose key is not weir's");
}
