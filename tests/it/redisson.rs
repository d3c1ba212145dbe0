//! The behaviour that Redisson's own tests of `RRateLimiter` ask for, and the faults that its users report.

use std::time::{Duration, Instant};

use crate::support::load::leavers;
use crate::support::measure::{jain, occupancy};
use crate::support::{
    Load, PATIENCE, RedisServer, Request, SECOND, Upstream, Weir, configuration, eventually_within, lane,
    one_limiter, wait_until,
};

/// The guard of a window of one second or less; a longer window's guard is at most 20 ms.
const GUARD: Duration = Duration::from_millis(20);

/// The time for which a replica may go on with slots that it got before a reload.
const LEASE: Duration = Duration::from_millis(500);

/// The delay that the machine may add to a promised instant.
const SLACK: Duration = Duration::from_secs(1);

/// Runs the test over each store, both at once.
async fn on_both_stores(test: impl AsyncFn(&str)) {
    let redis = RedisServer::start().await;
    let store = redis.store();
    tokio::join!(test("memory"), test(&store));
}

#[tokio::test]
async fn ten_grants_then_ten_refusals_three_windows_in_a_row() {
    lane::calm(async || {
        on_both_stores(async |store| {
            let upstream = Upstream::start();
            let weir = Weir::start(&one_limiter(store, "{limits: [10/1s]}", &upstream)).await;
            let (mut client, request) = (weir.connect().await, Request::get("/"));
            for window in 1..=3 {
                let began = Instant::now();
                assert_eq!(client.statuses(&request, 10).await, [200; 10], "window {window} in {store}");
                let granted = Instant::now();
                assert_eq!(client.statuses(&request, 10).await, [429; 10], "window {window} in {store}");
                assert!(began.elapsed() < SECOND, "twenty requests took {:?}", began.elapsed());
                wait_until(granted + SECOND + GUARD).await;
            }
            upstream.assert_within(10, SECOND);
            assert_eq!(upstream.count(), 30);
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_changed_rate_keeps_the_usage() {
    let _lane = lane::shared().await;
    on_both_stores(async |store| {
        let upstream = Upstream::start();
        let at = |limit: &str| one_limiter(store, &format!("{{limits: [{limit}]}}"), &upstream);
        let weir = Weir::start(&at("10/5s")).await;
        let began = Instant::now();
        assert_eq!(weir.connect().await.statuses(&Request::get("/"), 3).await, [200; 3]);
        assert_eq!(weir.available("api").await, [7], "in {store}");
        for (limit, left) in [("20/5s", 17), ("5/5s", 2)] {
            weir.reload(&at(limit)).await;
            assert_eq!(weir.available("api").await, [left], "{limit} in {store}");
        }
        let mut client = weir.connect().await;
        assert_eq!(client.statuses(&Request::get("/"), 3).await, [200, 200, 429], "in {store}");
        assert!(began.elapsed() < 5 * SECOND, "all of it belongs into one window");
    })
    .await;
}

#[tokio::test]
async fn a_rate_below_the_usage_leaves_nothing_until_the_window_has_passed() {
    lane::calm(async || {
        const PER: Duration = Duration::from_secs(2);
        on_both_stores(async |store| {
            let upstream = Upstream::start();
            let at = |limit: &str| one_limiter(store, &format!("{{limits: [{limit}]}}"), &upstream);
            let weir = Weir::start(&at("10/2s")).await;
            let (mut client, request) = (weir.connect().await, Request::get("/"));
            let first = Instant::now();
            assert_eq!(client.statuses(&request, 8).await, [200; 8]);
            weir.reload(&at("5/2s")).await;

            let mut looks = 0;
            let mut pace = tokio::time::interval(Duration::from_millis(50));
            loop {
                pace.tick().await;
                let (left, status) = (weir.available("api").await, client.ask(&request).await.status);
                // An answer after this instant proves nothing.
                if first.elapsed() >= PER {
                    break;
                }
                assert_eq!(
                    (left, status),
                    (vec![0], 429),
                    "{:?} after the first in {store}",
                    first.elapsed()
                );
                looks += 1;
            }
            assert!(looks > 10, "looked only {looks} times");
            // The last request may have taken a permit, which expires with the window too.
            wait_until(Instant::now() + PER + GUARD).await;
            assert_eq!(weir.available("api").await, [5], "in {store}");
            assert_eq!(client.statuses(&request, 6).await, [200, 200, 200, 200, 200, 429], "in {store}");
            upstream.assert_within(8, PER);
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_shorter_window_drops_usage_that_has_expired() {
    let _lane = lane::shared().await;
    on_both_stores(async |store| {
        let upstream = Upstream::start();
        let at = |limit: &str| one_limiter(store, &format!("{{limits: [{limit}]}}"), &upstream);
        let weir = Weir::start(&at("10/1m")).await;
        let (mut client, request) = (weir.connect().await, Request::get("/"));
        let began = Instant::now();
        assert_eq!(client.statuses(&request, 10).await, [200; 10]);
        wait_until(Instant::now() + SECOND + GUARD).await;
        assert_eq!(client.ask(&request).await.status, 429, "the window is still the longer one");
        weir.reload(&at("10/1s")).await;
        assert!(began.elapsed() < 60 * SECOND, "the longer window has not passed by itself");
        assert_eq!(weir.available("api").await, [10], "in {store}");
        assert_eq!(client.statuses(&request, 10).await, [200; 10], "in {store}");
        assert_eq!(client.ask(&request).await.status, 429, "in {store}");
    })
    .await;
}

#[tokio::test]
async fn an_idle_limiter_leaves_no_key_behind() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [10/500ms], queue: {timeout: 10s, max_waiting: 100}}";
    let weir = Weir::start(&one_limiter(&redis.store(), limiter, &upstream)).await;
    for pending in weir.begin(25, "/") {
        assert_eq!(pending.answer().await.status, 200);
    }
    let last = *upstream.instants().last().expect("25 requests");
    let size = redis.size().await;
    if last.elapsed() < SECOND / 2 {
        assert!(size > 0, "the last window is still open");
    }
    // A key is kept for a second longer than it can matter.
    let deadline = SECOND / 2 + GUARD + SECOND + SLACK;
    eventually_within("no key is left", deadline, async || redis.size().await == 0).await;
    println!("no key left {:?} after the last request, window 500ms", last.elapsed());
    // weir runs all the time, and knows that nothing is used.
    assert_eq!(weir.available("api").await, [10]);
    assert_eq!(redis.size().await, 0, "looking makes no key");
}

#[tokio::test]
async fn reading_the_available_permits_never_writes() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [10/1h, 100/1d]}";
    let weir = Weir::start(&one_limiter(&redis.store(), limiter, &upstream)).await;
    assert_eq!(weir.connect().await.statuses(&Request::get("/"), 3).await, [200; 3]);

    // A heartbeat writes the epoch now and then, by itself: it does so in few of these rounds, and reading would in each.
    let (calls, before) = (redis.script_calls().await, dump_of_limiters(&redis).await);
    let mut unchanged = 0;
    for _ in 0..10 {
        let changes = redis.changes().await;
        for _ in 0..3 {
            assert_eq!(weir.available("api").await, [7, 97]);
            assert_eq!(weir.ask("/api/limiters").await.status, 200);
            assert_eq!(weir.ask("/metrics").await.status, 200);
        }
        unchanged += usize::from(changes == redis.changes().await);
    }
    assert_eq!(dump_of_limiters(&redis).await, before);
    assert!(redis.script_calls().await >= calls + 30, "the state is read from the store");
    assert!(unchanged > 0, "each round wrote to Redis");
}

/// Returns every key but that of the epoch, which heartbeats write, and those of the usage, which are written each few seconds, with its
/// value in Redis's DUMP format.
async fn dump_of_limiters(redis: &RedisServer) -> Vec<(String, redis::Value)> {
    let mut keys = redis.keys().await;
    keys.retain(|key| !key.ends_with(":epoch") && !key.contains("{usage}"));
    keys.sort_unstable();
    let mut dump = Vec::with_capacity(keys.len());
    for key in keys {
        let value = redis.command(&["DUMP", &key]).await;
        dump.push((key, value));
    }
    dump
}

#[tokio::test]
async fn a_wrong_cost_is_an_error_and_leaves_the_state_alone() {
    let _lane = lane::shared().await;
    on_both_stores(async |store| {
        let upstream = Upstream::start();
        let limiter = "{limits: [10/1h], queue: {timeout: 2h, max_waiting: 10}}";
        let route = "limiter: api, cost: {header: weir-cost, default: 1, max: 50}";
        let config = configuration(store, &[("api", limiter)], &[("path: /", route)], &upstream);
        let weir = Weir::start(&config).await;
        let mut client = weir.connect().await;
        assert_eq!(client.ask(&Request::get("/").header("weir-cost", "2")).await.status, 200);
        assert_eq!(client.ask(&Request::get("/")).await.status, 200);

        let cost = |value: &str| Request::get("/").header("weir-cost", value);
        let mut wrong: Vec<(Request, &str)> =
            ["0", "-1", "4294967296", "51", "many", "", "1.5", "0x2", "2 3", "99999999999999999999999"]
                .map(|value| (cost(value), "bad_request"))
                .into();
        wrong.push((cost("2").header("weir-cost", "2"), "bad_request"));
        // A cost above what any window can hold: waiting would not help.
        wrong.push((cost("11"), "cost_exceeds_limit"));
        for (request, code) in &wrong {
            let answer = client.ask(request).await;
            assert_eq!((answer.status, answer.weir_error()), (400, Some(*code)), "{request:?} in {store}");
            assert_eq!(answer.json()["code"], *code);
            assert_eq!(weir.available("api").await, [7], "{request:?} in {store}");
        }
        assert_eq!(weir.waiting().await, 0.0);
        assert_eq!(client.ask(&cost("7")).await.status, 200);
        assert_eq!(weir.available("api").await, [0]);
        assert_eq!(upstream.count(), 3);
    })
    .await;
}

#[tokio::test]
async fn permits_that_are_given_back_never_make_a_window_overflow() {
    saturated_after_many_have_left(5 * SECOND).await;
}

#[tokio::test]
#[ignore = "long: 20 s of saturation"]
async fn permits_that_are_given_back_never_make_a_window_overflow_for_long() {
    saturated_after_many_have_left(20 * SECOND).await;
}

async fn saturated_after_many_have_left(saturated: Duration) {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [10/1s], queue: {timeout: 1m, max_waiting: 1000}}";
        let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
        let staying: Vec<_> = fleet.iter().map(|weir| Load::start(weir, 21, &Request::get("/"))).collect();
        let leaving: Vec<_> = fleet.iter().map(|weir| leavers(weir, 9, 3 * SECOND)).collect();
        wait_until(Instant::now() + 3 * SECOND).await;
        drop(leaving);
        let left = Instant::now();
        wait_until(left + saturated).await;

        let metrics = [fleet[0].metrics().await, fleet[1].metrics().await];
        let cancelled: f64 =
            metrics.iter().map(|scrape| scrape.sum("weir_requests_total", &[("outcome", "cancelled")])).sum();
        let used = occupancy(&upstream.instants_since(left), 10, SECOND);
        println!(
            "{cancelled} have left; fullest second {}, {:.1} % of the quota used afterwards",
            upstream.fullest_window(SECOND),
            used * 100.0
        );
        assert!(cancelled >= 18.0, "only {cancelled} have left");
        upstream.assert_within(10, SECOND);
        assert!(used >= 0.95, "{:.1} % of the quota used", used * 100.0);
        for load in &staying {
            assert_eq!(load.statuses().keys().collect::<Vec<_>>(), [&200]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_lower_rate_holds_from_the_next_window_on_under_saturation() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let at = |limit: &str| {
            let limiter = format!("{{limits: [{limit}], queue: {{timeout: 5m, max_waiting: 1000}}}}");
            one_limiter(&redis.store(), &limiter, &upstream)
        };
        let fleet = Weir::fleet(2, &at("10/1s")).await;
        let _load: Vec<_> = fleet.iter().map(|weir| Load::start(weir, 20, &Request::get("/"))).collect();
        upstream.wait_for(20, PATIENCE).await;
        Weir::reload_all(&fleet, &at("3/1s")).await;
        let settled = Instant::now() + SECOND + LEASE;
        wait_until(settled + 2 * SECOND).await;
        let after = upstream.instants_since(settled).len();
        println!("{after} in 2 s at 3/s");
        upstream.assert_within_since(Some(settled), 3, SECOND);
        upstream.assert_within(10, SECOND);
        assert!(after >= 5, "the lower rate is used: {after} in 2 s");
    })
    .await;
}

#[tokio::test]
async fn wall_clocks_that_differ_change_nothing() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [20/500ms], guard: 20ms, queue: {timeout: 30s, max_waiting: 1000}}";
        let config = one_limiter(&redis.store(), limiter, &upstream);
        let hour = Duration::from_secs(3600);
        let fleet = [
            Weir::start(&config).await,
            Weir::start_ahead(&config, SECOND / 2).await,
            Weir::start_ahead(&config, hour).await,
        ];
        let ahead = logged_at(&fleet[2]).as_second() - logged_at(&fleet[0]).as_second();
        assert!((3590..3660).contains(&ahead), "the third one's clock is ahead by {ahead} s");

        let paths = ["/0", "/1", "/2"];
        let load: Vec<_> =
            fleet.iter().zip(paths).map(|(weir, path)| Load::start(weir, 15, &Request::get(path))).collect();
        upstream.wait_for(135, PATIENCE).await;
        // The first permits went to the clients that came first; then every client's turn comes round twice.
        let (instants, targets) = (upstream.instants(), upstream.targets().split_off(45));
        let targets = &targets[..90];
        let shares = paths.map(|path| targets.iter().filter(|target| *target == path).count());
        let used = occupancy(&instants, 20, SECOND / 2);
        println!("shares {shares:?}, {:.1} % of the quota used", used * 100.0);
        upstream.assert_within(20, SECOND / 2);
        // The guard costs 4 % of so short a window.
        assert!(used >= 0.9, "{:.1} % of the quota used", used * 100.0);
        // Fair enough to show that no replica is ahead of the others; another test measures fairness.
        assert!(jain(&shares) >= 0.9, "{shares:?}");
        for load in load {
            assert_eq!(load.statuses().keys().collect::<Vec<_>>(), [&200]);
        }
    })
    .await;
}

/// Returns the time of a replica's last log line, by the replica's clock.
fn logged_at(weir: &Weir) -> jiff::Timestamp {
    let log = weir.log();
    let line: serde_json::Value = serde_json::from_str(log.lines().last().expect("a line")).expect("JSON");
    line["timestamp"].as_str().expect("a timestamp").parse().expect("a time")
}
