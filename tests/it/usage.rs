//! The use of quotas: by client in the metrics, and of the whole fleet in `/api/usage` and `weir usage`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::weir::run;
use crate::support::{PATIENCE, Pending, RedisServer, Request, Upstream, Weir, client, eventually, lane};

fn config(store: &str, upstream: &Upstream) -> String {
    let url = upstream.url();
    format!(
        "store: {store}\n\
         clients: {{billing: {{tokens: [b]}}, reports: {{tokens: [r]}}, idle: {{tokens: [i]}}}}\n\
         limiters:\n  api: {{limits: [6/1h]}}\n  free: {{limits: [1000/1s]}}\n\
         routes:\n  - {{name: scarce, match: {{path: /scarce}}, upstream: \"{url}\", limiter: api, \
         cost: {{header: weir-cost, default: 1, max: 9}}}}\n  \
         - {{name: all, match: {{path: /}}, upstream: \"{url}\", limiters: [free]}}\n"
    )
}

/// Sends a request and returns the status.
async fn call(weir: &Weir, token: &str, target: &str, cost: u32) -> u16 {
    let request = Request::get(target)
        .header("weir-authorization", &format!("Bearer {token}"))
        .header("weir-cost", &cost.to_string());
    client::send(&weir.url(target), request).await.expect("an answer").status
}

/// Returns granted and refused of each name.
async fn usage(weir: &Weir, query: &str) -> BTreeMap<String, (u64, u64)> {
    let answer = weir.ask(&format!("/api/usage?{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let document = answer.json();
    let by = document["by"].as_str().expect("a text");
    let rows = document["usage"].as_array().expect("a list").iter();
    let count = |row: &Value, name: &str| row[name].as_u64().expect("a count");
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in rows {
        let (granted, refused) = sums.entry(row[by].as_str().expect("a name").to_owned()).or_default();
        *granted += count(row, "granted");
        *refused += count(row, "refused");
    }
    sums
}

fn named(rows: &[(&str, (u64, u64))]) -> BTreeMap<String, (u64, u64)> {
    rows.iter().map(|(name, counts)| ((*name).to_owned(), *counts)).collect()
}

#[tokio::test]
async fn each_permit_counts_for_the_client_that_asked_for_it() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&config("memory", &upstream)).await;
    for (token, target, cost, status) in [
        ("b", "/scarce", 2, 200),
        ("b", "/all", 1, 200),
        ("r", "/scarce", 4, 200),
        ("r", "/scarce", 1, 429),
        ("wrong", "/scarce", 1, 401),
    ] {
        assert_eq!(call(&weir, token, target, cost).await, status, "{token} {target}");
    }
    eventually("all requests counted", async || weir.metrics().await.sum("weir_requests_total", &[]) >= 5.0)
        .await;
    let metrics = weir.metrics().await;
    let permits = |client, limiter, result| {
        let labels = [("client", client), ("limiter", limiter), ("result", result)];
        metrics.sum("weir_client_permits_total", &labels)
    };
    assert_eq!((permits("billing", "api", "granted"), permits("billing", "free", "granted")), (2.0, 1.0));
    assert_eq!((permits("reports", "api", "granted"), permits("reports", "api", "refused")), (4.0, 1.0));
    for result in ["granted", "refused", "cancelled"] {
        let all = metrics.sum("weir_permits_total", &[("limiter", "api"), ("result", result)]);
        let by_client = metrics.sum("weir_client_permits_total", &[("limiter", "api"), ("result", result)]);
        assert_eq!(by_client, all, "{result}");
    }
    let requests = |client, code| metrics.sum("weir_requests_total", &[("client", client), ("code", code)]);
    assert_eq!(
        (requests("billing", "200"), requests("reports", "429"), requests("other", "401")),
        (2.0, 1.0, 1.0)
    );
    assert_eq!(usage(&weir, "").await, named(&[("billing", (3, 0)), ("reports", (4, 1))]));
    assert_eq!(usage(&weir, "by=limiter").await, named(&[("api", (6, 1)), ("free", (1, 0))]));
    assert_eq!(usage(&weir, "by=route&per=1d").await, named(&[("all", (1, 0)), ("scarce", (6, 1))]));

    // A client that is no longer configured is no longer in the metrics, and stays in the counts.
    weir.reload(&config("memory", &upstream).replace("reports: {tokens: [r]}, ", "")).await;
    let metrics = weir.metrics().await;
    assert_eq!(metrics.sum("weir_requests_total", &[("client", "billing")]), 2.0);
    for family in ["weir_requests_total", "weir_client_permits_total"] {
        assert!(
            metrics.samples_of(family).iter().all(|sample| sample.labels["client"] != "reports"),
            "{family}"
        );
    }
    assert_eq!(usage(&weir, "").await, named(&[("billing", (3, 0)), ("reports", (4, 1))]));
}

#[tokio::test]
async fn the_fleets_counts_equal_those_of_the_upstream_and_survive_their_replicas() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let mut fleet = Weir::fleet(2, &config(&redis.store(), &upstream)).await;
    for (replica, token, count) in [(0, "b", 5), (1, "b", 3), (1, "r", 4)] {
        for _ in 0..count {
            assert_eq!(call(&fleet[replica], token, "/", 1).await, 200);
        }
    }
    // Pending counts are written at the end.
    for replica in &mut fleet {
        replica.sigterm();
        assert!(replica.wait_exit(PATIENCE).await.success());
    }
    let seen = upstream.count() as u64;
    let weir = Weir::start(&config(&redis.store(), &upstream)).await;
    let by_client = usage(&weir, "per=1d").await;
    assert_eq!(by_client.values().map(|(granted, _)| granted).sum::<u64>(), seen);
    assert_eq!(by_client, named(&[("billing", (8, 0)), ("reports", (4, 0))]));
    let table = run(&["usage", "--by", "route", "--per", "1d", "--admin", &weir.admin("")]).await;
    table.assert_code(0);
    assert!(table.output().contains("ROUTE") && table.output().contains("whole since"), "{}", table.output());
    let csv = run(&["usage", "--per", "1d", "--csv", "--admin", &weir.admin("")]).await;
    assert!(
        csv.output().starts_with("client,from,granted,refused,waited,cancelled\nbilling,"),
        "{}",
        csv.output()
    );

    // A store that has lost its memory says from when on its counts are whole.
    let since = async || weir.ask("/api/usage").await.json()["since"].as_str().map(str::to_owned);
    let before = since().await;
    redis.command(&["FLUSHALL"]).await;
    eventually("counts are whole from later on", async || since().await > before).await;
    for wrong in ["by=tenant", "per=1m", "from=yesterday", "what=1"] {
        assert_eq!(weir.ask(&format!("/api/usage?{wrong}")).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn every_replica_shows_what_the_whole_fleet_uses_and_when_a_limit_is_spent() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let url = upstream.url();
    let config = format!(
        "store: {}\n\
         limiters:\n  api: {{limits: [10/1h, 1000/1s]}}\n  idle: {{limits: [10/1h]}}\n  wait: {{limits: [1/1h], queue: {{timeout: 3h}}}}\n\
         routes:\n  - {{name: idle, match: {{path: /idle}}, upstream: \"{url}\", limiter: idle}}\n  \
         - {{name: wait, match: {{path: /wait}}, upstream: \"{url}\", limiter: wait}}\n  \
         - {{name: all, match: {{path: /}}, upstream: \"{url}\", limiter: api}}\n",
        redis.store()
    );
    let fleet = Weir::fleet(2, &config).await;
    for call in 0..10 {
        assert_eq!(fleet[call % 2].get("/").await.status, 200);
    }
    for replica in &fleet {
        let seconds = async |limiter, limit| {
            replica
                .metrics()
                .await
                .sum("weir_limiter_exhausted_in_seconds", &[("limiter", limiter), ("limit", limit)])
        };
        eventually("the limit is spent", async || {
            let samples = replica.metrics().await;
            let shown = samples.samples_of("weir_limiter_exhausted_in_seconds");
            !shown.is_empty() && seconds("api", "10/1h").await == 0.0
        })
        .await;
        assert!(seconds("idle", "10/1h").await.is_infinite());
        let metrics = replica.metrics().await;
        let shown = metrics.samples_of("weir_limiter_exhausted_in_seconds");
        assert!(
            shown.iter().all(|sample| sample.labels["limit"] != "1000/1s"),
            "only windows of an hour or more"
        );
    }
    // Of a limiter with a key nobody can tell, and the last figure does not stay.
    let keyed =
        config.replace("idle: {limits: [10/1h]}", "idle: {limits: [10/1h], key: [\"header:x-tenant\"]}");
    Weir::reload_all(&fleet, &keyed).await;
    for replica in &fleet {
        eventually("no figure of the keyed limiter", async || {
            let metrics = replica.metrics().await;
            let shown = metrics.samples_of("weir_limiter_exhausted_in_seconds");
            shown.iter().all(|sample| sample.labels["limiter"] != "idle")
        })
        .await;
    }
    Weir::reload_all(&fleet, &config).await;
    // The grants and waiting requests of one replica are seen at the other.
    let other = &fleet[1];
    let of = async |limiter: &str| other.ask(&format!("/api/limiters/{limiter}")).await.json();
    let waiting: Vec<_> = (0..3).map(|_| Pending::get(&fleet[0].url("/wait"))).collect();
    eventually("two wait in the fleet", async || of("wait").await["fleet"]["waiting"] == 2).await;
    assert_eq!(of("wait").await["waiting"], 0);
    let api = of("api").await;
    assert_eq!(api["limits"][0]["exhausted_in_seconds"], 0.0, "{api}");
    assert!(api["limits"][1].get("exhausted_in_seconds").is_none(), "{api}");
    assert!(of("idle").await["limits"][0]["exhausted_in_seconds"].is_null());
    drop(waiting);
}
