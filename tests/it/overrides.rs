//! Limits by the value of a limiter's key, over two replicas: in place and in a file that is followed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::weir::run;
use crate::support::{
    Answer, PATIENCE, Pending, RedisServer, Request, SECOND, Upstream, Weir, client, configuration,
    eventually, lane, replace_file,
};

/// A configuration of one limiter, `tenants`, by the header `x-tenant`.
fn by_tenant(store: &str, limits: &str, overrides: &str, rest: &str, upstream: &Upstream) -> String {
    let limiter = format!("{{limits: {limits}, key: [header:x-tenant], overrides: {overrides}{rest}}}");
    configuration(store, &[("tenants", &limiter)], &[("path: /", "limiter: tenants")], upstream)
}

fn of(tenant: &str) -> Request {
    Request::get("/").header("x-tenant", tenant)
}

async fn answer(weir: &Weir, tenant: &str) -> Answer {
    client::send(&weir.url("/"), of(tenant)).await.expect("an answer")
}

/// Sends requests of a tenant to the replicas in turn, and returns how many are forwarded.
async fn passed(fleet: &[Weir], tenant: &str, count: usize) -> usize {
    let mut passed = 0;
    for weir in fleet.iter().cycle().take(count) {
        passed += usize::from(answer(weir, tenant).await.status == 200);
    }
    passed
}

/// Asserts that this many further requests of a tenant are forwarded, and no more. The limits of before are in force for a lease.
async fn passes(fleet: &[Weir], tenant: &str, expected: usize) {
    let (mut count, what) = (0, format!("{expected} further requests of {tenant}"));
    eventually(&what, async || {
        count += passed(fleet, tenant, fleet.len()).await;
        count >= expected
    })
    .await;
    count += passed(fleet, tenant, 8).await;
    assert_eq!(count, expected, "{what}");
}

/// A file of overrides.
struct Plans {
    _directory: TempDir,
    path: PathBuf,
}

impl Plans {
    fn new(content: &str) -> Plans {
        let directory = TempDir::with_prefix("weir-plans").expect("a directory");
        let path = directory.path().join("plans.yaml");
        fs::write(&path, content).expect("written");
        Plans { _directory: directory, path }
    }

    fn reference(&self) -> String {
        format!("{{file: \"{}\"}}", self.path.display())
    }

    fn replace(&self, content: &str) {
        replace_file(&self.path, content);
    }
}

/// Waits until the limits of a tenant are these.
async fn follows(weir: &Weir, tenant: &str, limits: &[&str]) {
    let what = format!("{limits:?} for {tenant}");
    eventually(&what, async || shown_limits(weir, tenant).await == limits).await;
}

async fn shown_limits(weir: &Weir, tenant: &str) -> Vec<String> {
    let shown = weir.ask(&format!("/api/limiters/tenants?partition={tenant}")).await.json();
    let limits = shown["limits"].as_array().expect("limits").iter();
    limits.map(|limit| limit["limit"].as_str().expect("a label").to_owned()).collect()
}

#[tokio::test]
async fn each_value_has_its_limits_over_the_fleet() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let overrides = "{premium: [20/1h], trial: [2/1h, 100/1d]}";
    let fleet = Weir::fleet(2, &by_tenant(&redis.store(), "[5/1h]", overrides, "", &upstream)).await;
    for (tenant, expected) in [("premium", 20), ("trial", 2), ("acme", 5), ("other", 5)] {
        assert_eq!(passed(&fleet, tenant, 26).await, expected, "{tenant}");
    }
    assert_eq!(upstream.count(), 32);
    let keys = redis.keys().await;
    assert!(!keys.iter().any(|key| key.contains("premium") || key.contains("trial")), "{keys:?}");
}

#[tokio::test]
async fn an_estimate_is_cut_to_the_limits_that_hold() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [5000/1h], key: [header:x-tenant], overrides: {free: [1000/1h]}}";
    let route = "limiters: [{name: tenants, cost: {tokens: openai}}]";
    let weir =
        Weir::start(&configuration("memory", &[("tenants", limiter)], &[("path: /", route)], &upstream))
            .await;
    for (tenant, tokens, left) in [("free", 3000, 0), ("acme", 3000, 2000), ("other", 9000, 0)] {
        let request =
            Request::post("/", format!("{{\"max_tokens\": {tokens}}}").as_bytes()).header("x-tenant", tenant);
        assert_eq!(client::send(&weir.url("/"), request).await.unwrap().status, 200, "{tenant}");
        assert_eq!(weir.available_of("tenants", tenant).await, [left], "{tenant}");
    }
}

#[tokio::test]
async fn a_refusal_tells_the_limits_that_hold() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let overrides = "{trial: [2/1h, 100/1d]}";
    let weir = Weir::start(&by_tenant(&redis.store(), "[1/10s]", overrides, "", &upstream)).await;
    assert_eq!(passed(std::slice::from_ref(&weir), "trial", 2).await, 2);
    let refused = answer(&weir, "trial").await;
    assert_eq!(refused.status, 429);
    let policy = r#""tenants:2/1h";q=2;w=3600, "tenants:100/1d";q=100;w=86400"#;
    assert_eq!(refused.header("ratelimit-policy"), Some(policy));
    assert!(refused.header("ratelimit").is_some_and(|left| left.starts_with(r#""tenants:2/1h";r=0;t="#)));
    assert!(refused.retry_after() > Duration::from_secs(3500), "{:?}", refused.retry_after());
    answer(&weir, "acme").await;
    let refused = answer(&weir, "acme").await;
    assert_eq!(refused.header("ratelimit-policy"), Some(r#""tenants:1/10s";q=1;w=10"#));
    assert!(refused.retry_after() <= 11 * SECOND, "{:?}", refused.retry_after());
}

#[tokio::test]
async fn the_limits_that_hold_are_shown() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let overrides = "{trial: [2/1h, 100/1d]}";
    let weir = Weir::start(&by_tenant(&redis.store(), "[9/1h]", overrides, "", &upstream)).await;
    answer(&weir, "trial").await;
    let trial = weir.ask("/api/limiters/tenants?partition=trial").await.json();
    assert_eq!((&trial["override"], &trial["overrides"]), (&"trial".into(), &1.into()));
    assert_eq!(shown_limits(&weir, "trial").await, ["2/1h", "100/1d"]);
    assert_eq!(weir.available_of("tenants", "trial").await, [1, 99]);
    let acme = weir.ask("/api/limiters/tenants?partition=acme").await.json();
    assert!(acme["override"].is_null(), "{acme}");
    assert_eq!(weir.available_of("tenants", "acme").await, [9]);

    let explained = weir.ask("/api/explain?url=/&header=x-tenant:trial").await.json();
    let limiter = &explained["limiters"][0];
    assert_eq!(limiter["limits"], serde_json::json!(["2/1h", "100/1d"]));
    assert_eq!(
        (&limiter["override"], &limiter["now"]["limits"][0]["available"]),
        (&"trial".into(), &1.into())
    );

    let admin = weir.admin("");
    for (arguments, expected) in [
        (&["limiters", "tenants", "--partition", "trial"][..], &["OVERRIDE", "2/1h", "trial"][..]),
        (&["limiters", "tenants", "--partition", "acme"], &["OVERRIDE", "9/1h", "-\n"]),
        (&["explain", "GET", "/", "-H", "x-tenant: trial"], &["tenants: 2/1h, 100/1d (override trial)"]),
    ] {
        let shown = run(&[arguments, &["--admin", &admin]].concat()).await;
        shown.assert_code(0);
        assert!(expected.iter().all(|text| shown.stdout.contains(text)), "{arguments:?}: {}", shown.stdout);
    }
    // The tightest partition that was seen, for each limit.
    let metrics = weir.metrics().await;
    let labels = [("limiter", "tenants"), ("limit", "2/1h")];
    assert_eq!(metrics.sum("weir_limiter_available_permits", &labels), 1.0);
    assert_eq!(metrics.sum("weir_limiter_limit_permits", &labels), 2.0);
}

#[tokio::test]
async fn used_permits_stay_used_when_an_override_changes() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    for store in ["memory".to_owned(), redis.store()] {
        let upstream = Upstream::start();
        let with = |overrides: &str| by_tenant(&store, "[5/1h]", overrides, "", &upstream);
        let weir = Weir::start(&with("{}")).await;
        let mut count = 0;
        let steps =
            [("{}", 5), ("{a: [8/1h]}", 8), ("{a: [3/1h], b: [1/1h]}", 8), ("{}", 8), ("{a: [10/2h]}", 10)];
        for (overrides, expected) in steps {
            weir.reload(&with(overrides)).await;
            count += passed(std::slice::from_ref(&weir), "a", 12).await;
            assert_eq!(count, expected, "after {overrides} with {store}");
        }
        assert_eq!(upstream.count(), 10);
    }
}

#[tokio::test]
async fn waiting_requests_move_when_their_override_changes() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let queue = ", queue: {timeout: 1h, max_waiting: 100}";
        let with = |overrides: &str| by_tenant(&redis.store(), "[1/1m]", overrides, queue, &upstream);
        let fleet = Weir::fleet(2, &with("{a: [1/30s]}")).await;
        let begin = |weir: &Weir| Pending::send(&weir.url("/"), of("a"));
        let waiting: Vec<_> = (0..10).flat_map(|_| fleet.iter().map(begin)).collect();
        upstream.wait_for(1, PATIENCE).await;
        for weir in &fleet {
            weir.wait_for_waiting(9).await;
        }
        Weir::reload_all(&fleet, &with("{a: [10/1s]}")).await;
        let raised = Instant::now();
        client::assert_all_ok(&client::answers(waiting).await);
        assert!(raised.elapsed() < 15 * SECOND, "they moved up: {:?}", raised.elapsed());
        upstream.assert_within(10, SECOND);
    })
    .await;
}

#[tokio::test]
async fn a_file_is_followed_and_a_broken_one_changes_nothing() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let plans = Plans::new("a: [3/1h]\n");
    let config = by_tenant(&redis.store(), "[1/1h]", &plans.reference(), "", &upstream);
    let fleet = Weir::fleet(2, &config).await;
    passes(&fleet, "a", 3).await;
    plans.replace("a: [5/1h]\nb: [2/1h]\n");
    for weir in &fleet {
        follows(weir, "b", &["2/1h"]).await;
    }
    passes(&fleet, "a", 2).await;
    passes(&fleet, "b", 2).await;

    let before = fleet[0].reloads("error").await;
    plans.replace("a: [9/1h]\nb: [0/1h]\n");
    eventually("a counted failure", async || fleet[0].reloads("error").await > before).await;
    assert_eq!(fleet[0].metrics().await.sum("weir_config_last_reload_successful", &[]), 0.0);
    let place = "plans.yaml:2:5: b[0]: the rate must be from 1";
    fleet[0].wait_for_log(&[place]).await;
    let refused = fleet[0].tell("/api/reload").await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("plans.yaml"), "{}", refused.text());
    assert_eq!(shown_limits(&fleet[0], "a").await, ["5/1h"], "the whole file, or nothing of it");
    assert_eq!(passed(&fleet, "a", 4).await, 0);
    fs::remove_file(&plans.path).expect("removed");
    assert_eq!(fleet[0].tell("/api/reload").await.status, 422);
    assert_eq!(shown_limits(&fleet[0], "a").await, ["5/1h"]);

    plans.replace("a: [6/1h]\n");
    for weir in &fleet {
        follows(weir, "a", &["6/1h"]).await;
        follows(weir, "b", &["1/1h"]).await;
    }
    passes(&fleet, "a", 1).await;
    assert_eq!(fleet[0].metrics().await.sum("weir_config_last_reload_successful", &[]), 1.0);
}

/// Starts two replicas, each with a file of its own.
async fn apart(store: &str, first: &str, second: &str, upstream: &Upstream) -> (Vec<Weir>, [Plans; 2]) {
    let queue = ", queue: {timeout: 5m, max_waiting: 1000}";
    let plans = [first, second].map(Plans::new);
    let mut fleet = Vec::new();
    for plan in &plans {
        fleet.push(Weir::start(&by_tenant(store, "[1/1h]", &plan.reference(), queue, upstream)).await);
    }
    (fleet, plans)
}

#[tokio::test]
async fn replicas_with_different_files_stay_within_the_larger_limit() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let (fleet, plans) = apart(&redis.store(), "a: [20/1s]\n", "a: [40/1s]\n", &upstream).await;
        let begin = |weir: &Weir| Pending::send(&weir.url("/"), of("a"));
        let backlog: Vec<_> = (0..200).flat_map(|_| fleet.iter().map(begin)).collect();
        upstream.wait_for(60, PATIENCE).await;
        plans[0].replace("a: [40/1s]\n");
        plans[1].replace("a: [20/1s]\n");
        follows(&fleet[1], "a", &["20/1s"]).await;
        upstream.wait_for(150, PATIENCE).await;
        plans[1].replace("a: [40/1s]\n");
        client::assert_all_ok(&client::answers(backlog).await);
        assert_eq!(upstream.count(), 400);
        upstream.assert_within(40, SECOND);
    })
    .await;
}

#[tokio::test]
async fn replicas_with_different_files_lose_no_used_permit() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let config = |plans: &Plans| by_tenant(&redis.store(), "[1/1h]", &plans.reference(), "", &upstream);
    let plans = ["a: [5/1h]\n", "a: [9/1h]\n"].map(Plans::new);
    let fleet = [Weir::start(&config(&plans[0])).await, Weir::start(&config(&plans[1])).await];
    let count = passed(&fleet, "a", 30).await;
    assert!((5..=9).contains(&count), "{count}");
    plans[0].replace("a: [9/1h]\n");
    follows(&fleet[0], "a", &["9/1h"]).await;
    // All that were used count, and the rest is there.
    passes(&fleet, "a", 9 - count).await;
    assert_eq!(upstream.count(), 9);
}

#[tokio::test]
async fn the_key_may_be_the_client() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/1h], key: [client], overrides: {billing: [3/1h]}}";
    let routes = [("path: /", "limiter: tenants")];
    let config = configuration("memory", &[("tenants", limiter)], &routes, &upstream);
    let clients = "clients: {billing: {tokens: [b-token]}, etl: {tokens: [e-token]}}\n";
    let weir = Weir::start(&format!("{clients}{config}")).await;
    for (token, expected) in [("b-token", 3), ("e-token", 1)] {
        let request = Request::get("/").header("weir-authorization", &format!("Bearer {token}"));
        let statuses = weir.connect().await.statuses(&request, 5).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), expected, "{token}");
    }
}

#[tokio::test]
async fn values_that_may_be_credentials_are_never_shown() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let with = |overrides: &str| {
        let limiter = format!("{{limits: [1/1h], key: [header:x-api-key], overrides: {overrides}}}");
        let limiters = [("tenants", limiter.as_str())];
        configuration(&redis.store(), &limiters, &[("path: /", "limiter: tenants")], &upstream)
    };
    let weir = Weir::start(&with("{sk-secret: [2/1h]}")).await;
    let request = Request::get("/").header("x-api-key", "sk-secret");
    let statuses = weir.connect().await.statuses(&request, 4).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2);
    weir.reload(&with("{sk-secret: [3/1h]}")).await;
    weir.write_config(&with("{sk-secret: [0/1h]}"));
    assert_eq!(weir.tell("/api/reload").await.status, 422);
    let mut shown = weir.log() + &redis.keys().await.join(" ");
    for page in [
        "config",
        "limiters",
        "limiters/tenants?partition=sk-secret",
        "explain?url=/&header=x-api-key:sk-secret",
    ] {
        shown.push_str(&weir.ask(&format!("/api/{page}")).await.text());
    }
    assert!(!shown.contains("sk-secret"), "{shown}");
    assert!(shown.contains(r#""override": "***""#), "{shown}");
}

/// Writes ten thousand overrides, of which `changed` has this limit.
fn many(path: &Path, changed: &str) {
    let mut text = format!("changed: [{changed}]\n");
    for tenant in 0..10_000 {
        text.push_str(&format!("tenant-{tenant}: [{}/1s, 100000/1d]\n", 1 + tenant % 100));
    }
    replace_file(path, &text);
}

#[tokio::test]
async fn ten_thousand_overrides_are_reloaded_within_a_second() {
    lane::alone(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let plans = Plans::new("{}\n");
        many(&plans.path, "1/1h");
        let weir = Weir::start(&by_tenant(&redis.store(), "[1/1h]", &plans.reference(), "", &upstream)).await;
        let mut times = Vec::new();
        for rate in 2..7 {
            many(&plans.path, &format!("{rate}/1h"));
            let begun = Instant::now();
            let reloaded = weir.tell("/api/reload").await;
            times.push(begun.elapsed());
            assert_eq!(reloaded.status, 200, "{}", reloaded.text());
            assert_eq!(shown_limits(&weir, "changed").await, [format!("{rate}/1h")]);
        }
        times.sort_unstable();
        println!("reloads of 10 000 overrides: {times:?}");
        assert!(times[2] < SECOND, "{times:?}");
        assert_eq!(weir.ask("/api/limiters/tenants").await.json()["overrides"], 10_001);
    })
    .await;
}
