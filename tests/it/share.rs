//! Callers that share a quota by classes and weights, over several replicas: judged by the upstream's record.

use std::collections::BTreeMap;
use std::time::Instant;

use rustix::process::Signal;

use crate::support::weir::run;
use crate::support::{
    Answer, Pending, RedisServer, Request, SECOND, Upstream, Weir, client, configuration, eventually_within,
    lane,
};

/// A configuration of one limiter, `api`, whose callers are named by the header `x-caller`.
fn shared(store: &str, limits: &str, share: &str, upstream: &Upstream) -> String {
    let queue = "{timeout: 60s, max_waiting: 5000}";
    let limiter = format!("{{limits: [{limits}], queue: {queue}{share}}}");
    configuration(store, &[("api", &limiter)], &[("path: /", "limiter: api")], upstream)
}

/// Sends requests of a caller, and does not wait for their answers.
fn begin(weir: &Weir, caller: &str, count: usize) -> Vec<Pending> {
    let request = || Request::get(&format!("/{caller}")).header("x-caller", caller);
    (0..count).map(|_| Pending::send(&weir.url(""), request())).collect()
}

/// Counts requests by their callers, which their targets name.
fn by_caller<'a>(targets: impl IntoIterator<Item = &'a String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for target in targets {
        *counts.entry(target.trim_start_matches('/').to_owned()).or_default() += 1;
    }
    counts
}

/// Returns how many requests of each caller were forwarded between two places of the record.
fn forwarded(upstream: &Upstream, from: usize, to: usize) -> BTreeMap<String, usize> {
    by_caller(&upstream.targets()[from..to])
}

/// Returns how many requests of each caller were forwarded in the time between two moments.
fn between(upstream: &Upstream, from: Instant, until: Instant) -> BTreeMap<String, usize> {
    let seen = upstream.seen();
    by_caller(seen.iter().filter(|seen| (from..until).contains(&seen.at)).map(|seen| &seen.target))
}

const EVEN: &str = "{rate: 100, per: 1s, algorithm: leaky_bucket}";

#[tokio::test]
async fn weights_hold_over_replicas_with_uneven_backlogs() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let share = ", share: {by: header:x-caller, weights: {a: 3}}";
        let fleet = Weir::fleet(3, &shared(&redis.store(), EVEN, share, &upstream)).await;
        let mut pending = Vec::new();
        for (weir, counts) in fleet.iter().zip([[250, 40, 220], [150, 160, 40], [60, 40, 40]]) {
            for (caller, count) in ["a", "b", "c"].iter().zip(counts) {
                pending.extend(begin(weir, caller, count));
            }
        }
        upstream.wait_for(500, 30 * SECOND).await;
        let first = forwarded(&upstream, 100, 500);
        assert!(first["a"].abs_diff(240) <= 12 && first["b"].abs_diff(80) <= 12, "{first:?}");
        client::assert_all_ok(&client::answers(pending).await);
        upstream.assert_within(100, SECOND);
    })
    .await;
}

#[tokio::test]
async fn the_first_class_goes_before_a_backlog_of_other_replicas() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let share =
            ", share: {by: header:x-caller, classes: [{name: interactive, of: [web]}, {name: batch}]}";
        let fleet = Weir::fleet(3, &shared(&redis.store(), EVEN, share, &upstream)).await;
        let backlog: Vec<Pending> = fleet[..2].iter().flat_map(|weir| begin(weir, "etl", 400)).collect();
        for weir in &fleet[..2] {
            weir.wait_for_waiting(200).await;
        }
        // One after the other, so that only the backlog can be in the way.
        for _ in 0..10 {
            let before = upstream.count();
            for answer in client::answers(begin(&fleet[2], "web", 1)).await {
                assert_eq!(answer.status, 200);
                // Where a stall of the machine has left a slot unused, it goes at once, and is told nothing of waiting.
                assert_eq!(answer.header("weir-class"), answer.header("weir-wait-ms").map(|_| "interactive"));
            }
            let passed = forwarded(&upstream, before, upstream.count());
            let others = passed.get("etl").copied().unwrap_or_default();
            // Slots are dealt 250 ms ahead, which are 25.
            assert!(others <= 25 + 15, "{others} of the batch went first");
        }
        drop(backlog);
        upstream.assert_within(100, SECOND);
    })
    .await;
}

#[tokio::test]
async fn a_ceiling_leaves_the_rest_of_each_window_to_others() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let share = ", share: {by: header:x-caller, classes: [{name: interactive, of: [web]}, {name: batch, ceiling: 70%}]}";
    let fleet = Weir::fleet(2, &shared(&redis.store(), "100/1h", share, &upstream)).await;
    let batch: Vec<Pending> = fleet.iter().flat_map(|weir| begin(weir, "etl", 60)).collect();
    upstream.wait_for(70, 10 * SECOND).await;
    // The window has room, and the batch none.
    client::assert_all_ok(&client::answers(begin(&fleet[0], "web", 30)).await);
    assert_eq!(forwarded(&upstream, 0, upstream.count())["etl"], 70);
    drop(batch);
}

#[tokio::test]
async fn reloads_that_add_change_and_remove_a_share_lose_nobody() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let config = |share: &str| shared(&redis.store(), EVEN, share, &upstream);
        let fleet = Weir::fleet(2, &config("")).await;
        let mut pending = Vec::new();
        for weir in &fleet {
            for caller in ["a", "b"] {
                pending.extend(begin(weir, caller, 100));
            }
        }
        let shares = [
            ", share: {by: header:x-caller, weights: {a: 3}}",
            ", share: {by: header:x-caller, classes: [{name: first, of: [b]}, {name: rest, ceiling: 50%}]}",
            "",
        ];
        for (place, share) in shares.iter().enumerate() {
            upstream.wait_for(60 * (place + 1), 20 * SECOND).await;
            Weir::reload_all(&fleet, &config(share)).await;
        }
        client::assert_all_ok(&client::answers(pending).await);
        assert_eq!(upstream.count(), 400);
        upstream.assert_within(100, SECOND);
    })
    .await;
}

#[tokio::test]
async fn an_even_limit_takes_requests_of_several_permits() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = format!("{{limits: [{EVEN}], queue: {{timeout: 60s}}, share: {{by: header:x-caller}}}}");
    let routes = [("path: /", "limiter: api, cost: 10")];
    let weir = Weir::start(&configuration(&redis.store(), &[("api", &limiter)], &routes, &upstream)).await;
    client::assert_all_ok(&client::answers(begin(&weir, "a", 5)).await);
    // One each 100 ms.
    upstream.assert_within(3, SECOND / 5);
}

#[tokio::test]
async fn a_request_that_left_the_line_is_not_sent() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let share = ", share: {by: header:x-caller}";
    let weir = Weir::start(&shared(&redis.store(), "10/1s", share, &upstream)).await;
    let (staying, leaving) = (begin(&weir, "stays", 20), begin(&weir, "leaves", 40));
    weir.wait_for_waiting(40).await;
    let before = forwarded(&upstream, 0, upstream.count()).get("leaves").copied().unwrap_or_default();
    drop(leaving);
    client::assert_all_ok(&client::answers(staying).await);
    eventually_within("an empty queue", 10 * SECOND, async || weir.waiting().await == 0.0).await;
    let after = forwarded(&upstream, 0, upstream.count()).get("leaves").copied().unwrap_or_default();
    // Those whose slots had been dealt by then.
    assert!(after <= before + 10, "{before} before, {after} in the end");
}

#[tokio::test]
async fn a_caller_can_be_named_by_the_body() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let share = ", share: {by: json:team, classes: [{name: first, of: [a]}, {name: rest, ceiling: 50%}]}";
    let weir = Weir::start(&shared("memory", "4/1h", share, &upstream)).await;
    let send = |team: &str| {
        let request = Request::post("/", format!(r#"{{"team": "{team}"}}"#).as_bytes());
        Pending::send(&weir.url(""), request.header("content-type", "application/json"))
    };
    client::assert_all_ok(&client::answers(vec![send("b"), send("c")]).await);
    let refused = client::answers(vec![send("b")]).await;
    assert_eq!((refused[0].status, refused[0].header("weir-class")), (429, Some("rest")));
    client::assert_all_ok(&client::answers(vec![send("a"), send("a")]).await);
}

#[tokio::test]
async fn a_class_has_its_own_queue_and_refusals() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let share = ", share: {by: header:x-caller, classes: [{name: first, of: [a]}, \
                 {name: rest, queue: {timeout: 500ms, max_waiting: 2}}]}";
    let weir = Weir::start(&shared("memory", "2/1h", share, &upstream)).await;
    client::assert_all_ok(&client::answers(begin(&weir, "a", 2)).await);
    let started = Instant::now();
    for answer in client::answers(begin(&weir, "b", 3)).await {
        assert_eq!((answer.status, answer.weir_error()), (429, Some("rate_limited")), "{}", answer.text());
        assert_eq!(answer.header("weir-class"), Some("rest"));
        assert!(answer.retry_after() > 1000 * SECOND, "{:?}", answer.retry_after());
    }
    assert!(started.elapsed() < 10 * SECOND, "nobody of it waits for an hour");
}

#[tokio::test]
async fn waiting_requests_are_shown_by_class_and_caller() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let share = ", share: {by: header:x-caller, classes: [{name: interactive, of: [web], floor: 20%}, {name: batch}]}";
    let weir = Weir::start(&shared(&redis.store(), "100/1s", share, &upstream)).await;
    weir.tell_with("/api/limiters/api/pause", "{\"for\": \"30s\"}").await;
    let mut etl = begin(&weir, "etl", 1);
    weir.wait_for_waiting(1).await;
    // Behind the one that came before.
    etl.extend(begin(&weir, "etl", 4));
    weir.wait_for_waiting(5).await;
    let web = begin(&weir, "web", 2);
    weir.wait_for_waiting(7).await;

    let limiter = weir.ask("/api/limiters/api").await.json();
    let share = &limiter["share"];
    let of_classes: Vec<_> = share["classes"].as_array().unwrap().iter().collect();
    assert_eq!((&of_classes[0]["class"], &of_classes[0]["waiting"]), (&"interactive".into(), &2.into()));
    assert_eq!((&of_classes[0]["floor"], &of_classes[0]["ceiling"]), (&0.2.into(), &().into()));
    assert_eq!((&of_classes[1]["class"], &of_classes[1]["waiting"]), (&"batch".into(), &5.into()));
    let flows = share["flows"].as_array().unwrap();
    // `web` is named by the configuration, and `etl` by its caller alone.
    assert_eq!((&flows[0]["name"], &flows[0]["waiting"]), (&().into(), &5.into()));
    assert_eq!((&flows[1]["name"], &flows[1]["class"]), (&"web".into(), &"interactive".into()));
    assert!(flows[0]["longest_wait_ms"].as_u64() >= flows[1]["longest_wait_ms"].as_u64(), "{share}");

    let metrics = weir.metrics().await;
    let of = |class| [("limiter", "api"), ("class", class)];
    assert_eq!(metrics.sum("weir_queue_waiting", &of("interactive")), 2.0);
    assert_eq!(metrics.sum("weir_queue_waiting", &of("batch")), 5.0);
    assert_eq!(metrics.sum("weir_queue_waiting", &[("limiter", "api")]), 7.0);
    let printed = run(&["limiters", "api", "--admin", &weir.admin("")]).await.output();
    assert!(printed.contains("interactive  2 ") && printed.contains("CALLER"), "{printed}");

    weir.tell("/api/limiters/api/resume").await;
    let positions = |answers: &[Answer]| -> Vec<u64> {
        let position = |answer: &Answer| answer.header("weir-queue-position").and_then(|it| it.parse().ok());
        answers.iter().filter_map(position).collect()
    };
    let (of_etl, of_web) = (positions(&client::answers(etl).await), positions(&client::answers(web).await));
    assert!(of_etl[0] == 1 && of_etl.iter().all(|place| (1..=7).contains(place)), "{of_etl:?}");
    // They go before the batch. Who is told of only when the pause is over has no wait.
    assert!(!of_web.is_empty() && of_web.iter().all(|place| (1..=2).contains(place)), "{of_web:?}");
    let metrics = weir.metrics().await;
    for (class, granted) in [("interactive", 2.0), ("batch", 5.0)] {
        let labels = [("class", class), ("result", "granted")];
        assert_eq!(metrics.sum("weir_permits_total", &labels), granted, "{class}");
        assert_eq!(metrics.sum("weir_queue_wait_seconds_count", &[("class", class)]), granted, "{class}");
    }
}

#[tokio::test]
async fn a_killed_replica_costs_half_a_second_of_the_quota_at_most() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let share = ", share: {by: header:x-caller, weights: {a: 3}}";
        let mut fleet = Weir::fleet(3, &shared(&redis.store(), EVEN, share, &upstream)).await;
        let begin_all = |weir: &Weir| ["a", "b"].map(|caller| begin(weir, caller, 300));
        let pending: Vec<_> = fleet.iter().flat_map(begin_all).collect();
        upstream.wait_for(100, 20 * SECOND).await;
        let killed = Instant::now();
        fleet.remove(0).signal(Signal::KILL);
        upstream.wait_for(400, 20 * SECOND).await;
        let until = killed + 2 * SECOND;
        let sent: usize = between(&upstream, killed, until).values().sum();
        // 200 but for what the dead one held for half a second, and some for the machine.
        assert!(sent >= 145, "{sent} in two seconds");
        upstream.assert_within(100, SECOND);
        drop(pending);
    })
    .await;
}

#[tokio::test]
async fn shares_are_right_again_a_second_after_redis_has_lost_its_memory() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let share = ", share: {by: header:x-caller, weights: {a: 3}}";
        let fleet = Weir::fleet(2, &shared(&redis.store(), EVEN, share, &upstream)).await;
        let begin_all = |weir: &Weir| ["a", "b"].map(|caller| begin(weir, caller, 400));
        let pending: Vec<_> = fleet.iter().flat_map(begin_all).collect();
        upstream.wait_for(100, 20 * SECOND).await;
        redis.command(&["FLUSHALL"]).await;
        let lost = upstream.count();
        upstream.wait_for(lost + 30, 10 * SECOND).await;
        let again = Instant::now() + SECOND;
        upstream.wait_for(lost + 400, 20 * SECOND).await;
        let sent = between(&upstream, again, again + 2 * SECOND);
        assert!(sent["a"].abs_diff(3 * sent["b"]) <= 24, "{sent:?}");
        upstream.assert_within(100, SECOND);
        drop(pending);
    })
    .await;
}

#[tokio::test]
async fn leavers_cost_nothing() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let share = ", share: {by: header:x-caller}";
        let fleet = Weir::fleet(3, &shared(&redis.store(), EVEN, share, &upstream)).await;
        let mut leaving = Vec::new();
        let mut staying = Vec::new();
        for (place, weir) in fleet.iter().enumerate() {
            staying.extend(begin(weir, "a", 210));
            if place == 0 {
                leaving.extend(begin(weir, "b", 270));
            }
        }
        upstream.wait_for(50, 20 * SECOND).await;
        drop(leaving);
        let left = Instant::now();
        upstream.wait_for(450, 20 * SECOND).await;
        let sent: usize = between(&upstream, left, left + 3 * SECOND).values().sum();
        // All of three seconds but for two percent, and some for the machine.
        assert!(sent >= 288, "{sent} in three seconds");
        upstream.assert_within(100, SECOND);
        drop(staying);
    })
    .await;
}

#[tokio::test]
async fn a_line_asks_the_store_seldom() {
    lane::calm(async || {
        for (rate, count, most) in [(100, 600, 1.5), (2000, 6000, 0.3)] {
            let (redis, upstream) = (RedisServer::start().await, Upstream::start());
            let share = ", share: {by: header:x-caller, weights: {a: 3}}";
            let limits = format!("{{rate: {rate}, per: 1s}}");
            let fleet = Weir::fleet(2, &shared(&redis.store(), &limits, share, &upstream)).await;
            let callers = ["a", "b"];
            let begin_all = |weir: &Weir| callers.map(|caller| begin(weir, caller, count / 4));
            let pending: Vec<_> = fleet.iter().flat_map(begin_all).flatten().collect();
            upstream.wait_for(count, 60 * SECOND).await;
            let mut calls = 0.0;
            for weir in &fleet {
                calls += weir.metrics().await.sum("weir_store_calls_total", &[("op", "deal")]);
            }
            let of_each = calls / f64::from(u32::try_from(count).unwrap());
            assert!(of_each <= most, "{of_each} calls a permit at {rate}/s");
            drop(pending);
        }
    })
    .await;
}
