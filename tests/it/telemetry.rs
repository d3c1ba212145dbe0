//! `/metrics` has the documented names, types and labels; `/api/limiters` shows live state and changes none.

use std::collections::BTreeSet;

use crate::support::{RedisServer, Reply, Upstream, Weir, eventually, lane};

/// Name, type, and labels (without a histogram's `le`).
const METRICS: &[(&str, &str, &[&str])] = &[
    ("weir_requests_total", "counter", &["route", "client", "code", "outcome"]),
    ("weir_client_connection_errors_total", "counter", &["reason"]),
    ("weir_request_duration_seconds", "histogram", &["route"]),
    ("weir_upstream_duration_seconds", "histogram", &["route"]),
    ("weir_upstream_rejections_total", "counter", &["route", "code"]),
    ("weir_upstream_invalid_quota_headers_total", "counter", &["route"]),
    ("weir_retries_total", "counter", &["route", "reason"]),
    ("weir_breaker_open", "gauge", &["route"]),
    ("weir_permits_total", "counter", &["limiter", "result"]),
    ("weir_client_permits_total", "counter", &["client", "limiter", "result"]),
    ("weir_queue_wait_seconds", "histogram", &["limiter"]),
    ("weir_queue_waiting", "gauge", &["limiter"]),
    ("weir_queue_capacity", "gauge", &["limiter"]),
    ("weir_slot_lateness_seconds", "histogram", &["limiter"]),
    ("weir_limiter_estimate_ratio", "histogram", &["limiter"]),
    ("weir_limiter_limit_permits", "gauge", &["limiter", "limit"]),
    ("weir_limiter_available_permits", "gauge", &["limiter", "limit"]),
    ("weir_limiter_exhausted_in_seconds", "gauge", &["limiter", "limit"]),
    ("weir_limiter_upstream_apart_permits", "gauge", &["limiter", "limit"]),
    ("weir_limiter_paused", "gauge", &["limiter"]),
    ("weir_limiter_ready", "gauge", &["limiter"]),
    ("weir_limiter_external_usage_permits_total", "counter", &["limiter"]),
    ("weir_store_calls_total", "counter", &["op", "result"]),
    ("weir_store_call_duration_seconds", "histogram", &["op"]),
    ("weir_store_batch_size", "histogram", &[]),
    ("weir_store_up", "gauge", &[]),
    ("weir_config_reloads_total", "counter", &["result"]),
    ("weir_config_last_reload_successful", "gauge", &[]),
    ("weir_config_last_success_timestamp_seconds", "gauge", &[]),
    ("weir_build_info", "gauge", &["version"]),
    ("weir_log_lines_dropped_total", "counter", &[]),
    ("weir_tasks", "gauge", &[]),
    ("process_resident_memory_bytes", "gauge", &[]),
    ("process_cpu_seconds_total", "counter", &[]),
    ("process_open_fds", "gauge", &[]),
];

fn config(store: &str, upstream: &Upstream) -> String {
    let url = upstream.url();
    format!(
        "store: {store}\n\
         limiters:\n  api: {{limits: [4/1s, 6/1h], queue: {{timeout: 5s, max_waiting: 10}}}}\n\
         routes:\n  - {{name: all, match: {{path: /}}, upstream: \"{url}\", limiter: api}}\n"
    )
}

#[tokio::test]
async fn every_metric_has_its_name_type_and_labels() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    upstream.reply("/refused", Reply::status(429));
    let counts = [("x-cost", "1"), ("x-ratelimit-limit", "6"), ("x-ratelimit-remaining", "5")];
    let reply = counts.into_iter().fold(Reply::status(200), |reply, (name, value)| reply.header(name, value));
    upstream.reply("/", reply);
    let settled =
        |config: String| config.replace("limiter: api", "limiter: api, cost: {settle: {header: x-cost}}");
    let weir = Weir::start(&settled(config(&redis.store(), &upstream))).await;
    // Forwarded at once, rejected by the upstream, forwarded after a wait, refused by weir.
    for (target, status) in
        [("/", 200), ("/", 200), ("/", 200), ("/refused", 429), ("/", 200), ("/", 200), ("/", 429)]
    {
        assert_eq!(weir.get(target).await.status, status);
    }
    weir.reload(&settled(config(&redis.store(), &upstream))).await;
    // It is reckoned every few seconds.
    eventually("a comparison with the upstream's count", async || {
        !weir.metrics().await.samples_of("weir_limiter_upstream_apart_permits").is_empty()
    })
    .await;

    let metrics = weir.metrics().await;
    for (name, kind, labels) in METRICS {
        assert_eq!(metrics.types.get(*name).map(String::as_str), Some(*kind), "type of {name}");
        assert!(metrics.helped.contains(*name), "help of {name}");
        let samples = metrics.samples_of(name);
        assert!(!samples.is_empty(), "{name} has no value");
        for sample in samples {
            let own: BTreeSet<&str> =
                sample.labels.keys().map(String::as_str).filter(|label| *label != "le").collect();
            assert_eq!(own, labels.iter().copied().collect(), "labels of {name}");
        }
    }
    let unknown: Vec<_> = metrics.types.keys().filter(|name| name.starts_with("weir_")).collect();
    for name in unknown {
        assert!(METRICS.iter().any(|(own, ..)| own == name), "{name} is not in the design's list");
    }
}

#[tokio::test]
async fn metrics_count_each_outcome() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    upstream.reply("/refused", Reply::status(429));
    let weir = Weir::start(&config("memory", &upstream)).await;
    for (target, status) in
        [("/", 200), ("/", 200), ("/", 200), ("/refused", 429), ("/", 200), ("/", 200), ("/", 429)]
    {
        assert_eq!(weir.get(target).await.status, status);
    }
    // A request is counted at the end of its response, which the client may see first.
    eventually("all requests counted", async || weir.metrics().await.sum("weir_requests_total", &[]) >= 7.0)
        .await;
    let metrics = weir.metrics().await;
    let requests = |outcome, code| {
        metrics.sum("weir_requests_total", &[("route", "all"), ("outcome", outcome), ("code", code)])
    };
    assert_eq!((requests("forwarded", "200"), requests("forwarded", "429")), (5.0, 1.0));
    assert_eq!((requests("refused", "429"), metrics.sum("weir_requests_total", &[])), (1.0, 7.0));
    let permits = |result| metrics.sum("weir_permits_total", &[("limiter", "api"), ("result", result)]);
    assert_eq!((permits("granted"), permits("refused")), (6.0, 1.0));
    assert_eq!(metrics.sum("weir_upstream_rejections_total", &[("route", "all"), ("code", "429")]), 1.0);
    assert_eq!(metrics.sum("weir_queue_capacity", &[("limiter", "api")]), 10.0);
    assert_eq!(metrics.sum("weir_limiter_limit_permits", &[("limiter", "api"), ("limit", "6/1h")]), 6.0);
    assert_eq!(metrics.sum("weir_limiter_available_permits", &[("limiter", "api"), ("limit", "6/1h")]), 0.0);
}

#[tokio::test]
async fn a_scrape_never_calls_the_store() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let weir = Weir::start(&config(&redis.store(), &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let before = redis.script_calls().await;
    for _ in 0..20 {
        weir.metrics().await;
    }
    // A heartbeat may fall into this time, twenty calls may not.
    assert!(redis.script_calls().await - before <= 3);
}

#[tokio::test]
async fn each_connection_is_a_task() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&config("memory", &upstream)).await;
    let tasks = async || weir.metrics().await.sum("weir_tasks", &[]);
    let before = tasks().await;
    let mut open = Vec::new();
    for _ in 0..50 {
        open.push(weir.connect().await);
    }
    eventually("a task for each", async || tasks().await >= before + 50.0).await;
    drop(open);
    eventually("they have ended", async || tasks().await < before + 50.0).await;
}

#[tokio::test]
async fn live_state_is_shown_and_not_changed_by_looking() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&config("memory", &upstream)).await;
    for _ in 0..2 {
        assert_eq!(weir.get("/").await.status, 200);
    }
    let shown = weir.ask("/api/limiters/api").await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    for _ in 0..10 {
        let all = weir.ask("/api/limiters").await;
        assert_eq!(all.status, 200);
        assert!(all.text().contains("\"api\"") && all.text().contains("6/1h"), "{}", all.text());
    }
    assert_eq!(weir.ask("/api/limiters/none").await.status, 404);
    // Two of the six permits are spent; four are left, of which the last two are granted after a wait.
    for status in [200, 200, 200, 200, 429] {
        assert_eq!(weir.get("/").await.status, status);
    }
}

#[tokio::test]
async fn the_upstreams_count_stands_beside_weirs() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    // Somebody else has used three of its permits.
    let told = Reply::status(200).header("x-ratelimit-limit", "6").header("x-ratelimit-remaining", "2");
    upstream.reply("/", told);
    let weir = Weir::start(&config("memory", &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let limit = [("limiter", "api"), ("limit", "6/1h")];
    eventually("a comparison", async || {
        weir.metrics().await.sum("weir_limiter_upstream_apart_permits", &limit) != 0.0
    })
    .await;
    assert_eq!(weir.metrics().await.sum("weir_limiter_upstream_apart_permits", &limit), 3.0);
    let shown = weir.ask("/api/limiters/api").await.json();
    let limits = shown["limits"].as_array().expect("a list");
    let count =
        |label: &str| limits.iter().find(|limit| limit["limit"] == label).map(|limit| &limit["upstream"]);
    assert_eq!(
        count("6/1h").map(|count| (&count["available"], &count["apart"])),
        Some((&2.into(), &3.into())),
        "{shown}"
    );
    assert!(count("4/1s").is_some_and(serde_json::Value::is_null), "{shown}");
}
