//! Redis with a password, over TLS, without its scripts, and unreachable.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{
    PATIENCE, RedisOptions, RedisServer, Request, Upstream, Weir, client, closed_port, configuration,
    eventually, eventually_within, lane, one_limiter,
};

const LIMITER: &str = "{limits: [4/1h]}";

/// Sends ten requests; returns the number of those that went upstream.
async fn passed_of_ten(weir: &Weir) -> usize {
    let mut passed = 0;
    for _ in 0..10 {
        let answer = weir.get("/").await;
        assert!(matches!(answer.status, 200 | 429), "{} {}", answer.status, answer.text());
        passed += usize::from(answer.status == 200);
    }
    passed
}

#[tokio::test]
async fn a_broken_connection_costs_no_permit_and_no_request() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let weir = Weir::start(&one_limiter(&redis.store(), "{limits: [20/1h]}", &upstream)).await;
    let mut client = weir.connect().await;
    for _ in 0..4 {
        assert_eq!(client.statuses(&Request::get("/"), 4).await, [200; 4]);
        redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    }
    assert_eq!(client.statuses(&Request::get("/"), 5).await, [200, 200, 200, 200, 429]);
    let local = weir.metrics().await.sum("weir_permits_total", &[("result", "local")]);
    assert_eq!(local, 0.0, "the store was asked for every permit");
}

#[tokio::test]
async fn the_password_is_sent() {
    let _lane = lane::shared().await;
    let options = RedisOptions { password: Some("s3cret"), ..RedisOptions::default() };
    let (redis, upstream) = (RedisServer::start_with(options).await, Upstream::start());
    let weir = Weir::start(&one_limiter(&redis.store(), LIMITER, &upstream)).await;
    assert_eq!(passed_of_ten(&weir).await, 4);
    assert!(redis.script_calls().await > 0, "the limiter's state is in Redis");
    for place in [weir.log(), weir.ask("/api/config").await.text(), weir.ask("/metrics").await.text()] {
        assert!(!place.contains("s3cret"), "the password shows: {place}");
    }
}

#[tokio::test]
async fn a_wrong_password_counts_as_an_unreachable_store() {
    let _lane = lane::shared().await;
    let options = RedisOptions { password: Some("s3cret"), ..RedisOptions::default() };
    let (redis, upstream) = (RedisServer::start_with(options).await, Upstream::start());
    let store = redis.store().replace("s3cret", "wr0ng");
    let weir =
        Weir::start(&one_limiter(&store, "{limits: [4/1h], on_store_failure: reject}", &upstream)).await;
    let answer = weir.get("/").await;
    assert_eq!((answer.status, answer.weir_error()), (503, Some("store_unavailable")));
    assert_eq!(upstream.count(), 0);
    assert!(!weir.log().contains("wr0ng"));
}

#[tokio::test]
async fn tls_is_spoken_and_the_certificate_is_checked() {
    let _lane = lane::shared().await;
    let options = RedisOptions { tls: true, ..RedisOptions::default() };
    let (redis, upstream) = (RedisServer::start_with(options).await, Upstream::start());
    let weir = Weir::start(&one_limiter(&redis.store(), LIMITER, &upstream)).await;
    assert_eq!(passed_of_ten(&weir).await, 4);
    assert!(redis.script_calls().await > 0, "the limiter's state is in Redis");

    // Without the authority, the server's certificate is not trusted.
    let store = format!("{{redis: {{url: \"{}\"}}}}", redis.url());
    let strict = "{limits: [4/1h], on_store_failure: reject}";
    let distrustful = Weir::start(&one_limiter(&store, strict, &upstream)).await;
    assert_eq!(distrustful.get("/").await.weir_error(), Some("store_unavailable"));
}

#[tokio::test]
async fn the_scripts_may_be_flushed_under_load() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [50/500ms], queue: {timeout: 30s, max_waiting: 1000}}";
        let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
        let mut pending = Vec::new();
        for _ in 0..10 {
            pending.extend(fleet.iter().flat_map(|weir| weir.begin(10, "/")));
            redis.command(&["SCRIPT", "FLUSH"]).await;
            // The next requests come while these are under way.
            let sent = pending.len();
            upstream.wait_for(sent.min(upstream.count() + 10), PATIENCE).await;
        }
        client::assert_all_ok(&client::answers(pending).await);
        assert_eq!(upstream.count(), 200, "none lost, none twice");
        upstream.assert_within(50, Duration::from_millis(500));
    })
    .await;
}

#[tokio::test]
async fn state_has_the_documented_keys_and_expires() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let store = redis.store().replace("timeout:", "key_prefix: fleet-a, timeout:");
    let weir = Weir::start(&one_limiter(&store, "{limits: [4/1s]}", &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let keys = redis.keys().await;
    assert!(keys.iter().any(|key| key.starts_with("fleet-a:{api}:v2:")), "{keys:?}");
    for key in &keys {
        let expiry: i64 = redis::from_redis_value(redis.command(&["PTTL", key]).await).unwrap();
        assert!(expiry > 0, "{key} never expires");
    }
    drop(weir);
    // The epoch, the sets that note what else there is and what was moved, and the counts of who used what outlive all other keys, and expire
    // as well, as was seen above.
    let outlives = |key: &String| {
        key.ends_with(":v2:epoch")
            || key.ends_with(":v2:live")
            || key.ends_with(":v2:moved")
            || key.starts_with("fleet-a:{usage}:v2:usage:")
    };
    eventually("no key is left behind", async || redis.keys().await.iter().all(outlives)).await;
}

async fn without_redis(policy: &str, upstream: &Upstream) -> Weir {
    let store = format!("{{redis: {{url: \"redis://127.0.0.1:{}\", fleet_size: 2}}}}", closed_port());
    Weir::start(&one_limiter(&store, &format!("{{limits: [10/1h], on_store_failure: {policy}}}"), upstream))
        .await
}

#[tokio::test]
async fn without_redis_at_the_start_policy_local_grants_a_share() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = without_redis("local", &upstream).await;
    // The replica's share: the limit divided by the assumed fleet size.
    assert_eq!(passed_of_ten(&weir).await, 5);
    assert_eq!(upstream.count(), 5);
    assert_eq!(weir.ask("/readyz").await.status, 200);
    let metrics = weir.metrics().await;
    assert_eq!(metrics.sum("weir_store_up", &[]), 0.0);
    assert_eq!(metrics.sum("weir_permits_total", &[("result", "local")]), 5.0);
}

#[tokio::test]
async fn without_redis_at_the_start_policy_reject_refuses() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = without_redis("reject", &upstream).await;
    for _ in 0..3 {
        let answer = weir.get("/").await;
        assert_eq!((answer.status, answer.weir_error()), (503, Some("store_unavailable")));
        assert_eq!(answer.json()["code"], "store_unavailable");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(weir.ask("/readyz").await.status, 503);
    assert_eq!(weir.ask("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_replica_is_ready_while_it_can_serve_some_route() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let store = format!("{{redis: {{url: \"redis://127.0.0.1:{}\"}}}}", closed_port());
    let limiters =
        [("strict", "{limits: [10/1h], on_store_failure: reject}"), ("loose", "{limits: [100000/1h]}")];
    let routes = [("path: /strict", "limiter: strict"), ("path: /loose", "limiter: loose")];
    let weir = Weir::start(&configuration(&store, &limiters, &routes, &upstream)).await;
    eventually("its store is away", async || {
        assert_eq!(weir.get("/loose").await.status, 200);
        weir.metrics().await.sum("weir_limiter_ready", &[("limiter", "strict")]) == 0.0
    })
    .await;
    assert_eq!(weir.get("/strict").await.status, 503);
    assert_eq!(weir.metrics().await.sum("weir_limiter_ready", &[("limiter", "loose")]), 1.0);
    let cannot_serve = serde_json::json!([{"limiter": "strict", "because": "store_unavailable"}]);
    for (target, status) in [
        ("/readyz", 200),
        ("/readyz?limiter=loose", 200),
        ("/readyz?limiter=strict", 503),
        ("/readyz?limiter=loose&limiter=strict", 503),
        ("/readyz?limiter=none", 404),
    ] {
        let answer = weir.ask(target).await;
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
        if status != 404 {
            let told = answer.json();
            assert_eq!((&told["ready"], &told["cannot_serve"]), (&(status == 200).into(), &cannot_serve));
        }
    }
}

#[tokio::test]
async fn without_redis_at_the_start_policy_allow_forwards_everything() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = without_redis("allow", &upstream).await;
    assert_eq!(passed_of_ten(&weir).await + passed_of_ten(&weir).await, 20);
    assert_eq!(weir.ask("/readyz").await.status, 200);
    assert_eq!(weir.metrics().await.sum("weir_permits_total", &[("result", "allowed")]), 20.0);
}

#[tokio::test]
async fn a_redis_that_starts_later_is_used() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let port = closed_port();
    let store = format!("{{redis: {{url: \"redis://127.0.0.1:{port}\", timeout: 1s}}}}");
    let limiter = "{limits: [1000/1h], on_store_failure: reject}";
    let weir = Weir::start(&one_limiter(&store, limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.status, 503);

    let options = RedisOptions { port: Some(port), ..RedisOptions::default() };
    let redis = RedisServer::start_with(options).await;
    eventually("requests pass", async || weir.get("/").await.status == 200).await;
    assert!(redis.script_calls().await > 0);
    eventually("/readyz", async || weir.ask("/readyz").await.status == 200).await;
    assert_eq!(weir.metrics().await.sum("weir_store_up", &[]), 1.0);
}

#[tokio::test]
async fn a_redis_that_goes_away_loses_no_request() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [10/1s], queue: {timeout: 30s, max_waiting: 100}, on_store_failure: local}";
        let weir = Weir::start(&one_limiter(&redis.store(), limiter, &upstream)).await;
        let mut pending = weir.begin(20, "/");
        upstream.wait_for(10, PATIENCE).await;
        drop(redis);
        // Booked slots stay good; the policy decides on new requests.
        pending.extend(weir.begin(10, "/"));
        client::assert_all_ok(&client::answers(pending).await);
        assert_eq!(upstream.count(), 30);
        upstream.assert_within(10, Duration::from_secs(1));
    })
    .await;
}

/// weir needs exactly the rights that docs/redis.md names.
#[tokio::test]
async fn the_documented_rights_are_enough_and_none_is_missed() {
    let _lane = lane::shared().await;
    let page = include_str!("../../docs/redis.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER weir")).expect("the page names them");
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let words: Vec<&str> =
        line.split(' ').map(|word| if word == ">PASSWORD" { ">s3cret" } else { word }).collect();
    redis.command(&words).await;
    let store = redis.store().replace("redis://", "redis://weir:s3cret@");
    let limiter = "{limits: [20/1s], queue: {timeout: 20s, max_waiting: 100}, on_store_failure: reject}";
    let fleet = Weir::fleet(2, &one_limiter(&store, limiter, &upstream)).await;
    for fault in [&["SCRIPT", "FLUSH"][..], &["FLUSHALL"]] {
        let mut pending: Vec<_> = fleet.iter().flat_map(|weir| weir.begin(30, "/")).collect();
        // Some clients leave, and the permits given back are announced.
        pending.truncate(50);
        client::assert_all_ok(&client::answers(pending).await);
        redis.command(fault).await;
    }
    assert_eq!(fleet[0].get("/").await.status, 200);
    let refused: Vec<redis::Value> = redis::from_redis_value(redis.command(&["ACL", "LOG"]).await).unwrap();
    assert!(refused.is_empty(), "{refused:?}");
}

/// Returns the number of replicas that one of them knows of.
async fn known(weir: &Weir) -> usize {
    weir.ask("/api/replicas").await.json()["replicas"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn replicas_know_each_other_and_divide_a_limit_by_their_number() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    // The configuration does not name a fleet size.
    let config = one_limiter(&redis.store(), "{limits: [30/5s]}", &upstream);
    let mut fleet = Weir::fleet(3, &config).await;
    for weir in &fleet {
        eventually("each knows of all", async || known(weir).await == 3).await;
    }
    let replicas = fleet[0].ask("/api/replicas").await.json();
    assert_eq!(replicas["store_up"], true);
    let field = |name: &str| {
        let replicas = replicas["replicas"].as_array().unwrap().iter();
        replicas.map(|replica| replica[name].to_string()).collect::<BTreeSet<_>>()
    };
    assert_eq!(field("id").len(), 3, "{replicas}");
    assert_eq!(field("version"), [format!("\"{}\"", env!("CARGO_PKG_VERSION"))].into());
    assert_eq!(field("configuration").len(), 1, "all run the same: {replicas}");
    assert_eq!(field("this"), ["false".to_owned(), "true".to_owned()].into());

    drop(redis);
    let mut passed = 0;
    for weir in &fleet {
        // Permits that others may have been granted right before have to leave the window first.
        eventually("it grants its share", async || weir.get("/").await.status == 200).await;
        passed += 1;
        for _ in 0..14 {
            passed += usize::from(weir.get("/").await.status == 200);
        }
    }
    assert_eq!((passed, upstream.count()), (30, 30), "a third each");

    // Redis comes back without data: all replicas register again, and a replica that ends says that it leaves.
    let redis = RedisServer::start().await;
    let config = one_limiter(&redis.store(), "{limits: [30/5s]}", &upstream);
    let others = Weir::fleet(2, &config).await;
    eventually("they know of each other", async || known(&others[0]).await == 2).await;
    let mut leaving = Weir::start(&config).await;
    eventually("and of a third", async || known(&others[0]).await == 3).await;
    leaving.sigterm();
    leaving.wait_exit(PATIENCE).await;
    eventually("which has left", async || known(&others[0]).await == 2).await;
    fleet.clear();
}

/// Nobody knows what others were granted of a tenant that this replica has not heard of. Of the limit for all it has heard a moment before.
#[tokio::test]
async fn a_new_tenant_in_an_outage_closes_no_limit_for_all() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiters =
        [("all", "{limits: [1000/1h]}"), ("tenant", "{limits: [1000/1h], key: [header:x-tenant]}")];
    let routes = [("path: /", "limiters: [all, tenant]")];
    let fleet = Weir::fleet(2, &configuration(&redis.store(), &limiters, &routes, &upstream)).await;
    for weir in &fleet {
        eventually("each knows of both", async || known(weir).await == 2).await;
    }
    let ask = async |tenant: &str| {
        let request = Request::get("/").header("x-tenant", tenant);
        fleet[0].connect().await.ask(&request).await.status
    };
    assert_eq!([ask("one").await, ask("one").await], [200; 2]);
    drop(redis);
    eventually("the outage has begun", async || {
        ask("one").await;
        fleet[0].ask("/api/replicas").await.json()["store_up"] == false
    })
    .await;
    eventually("it grants its share", async || ask("one").await == 200).await;
    assert_eq!(ask("two").await, 503, "others may have been granted all, which the store alone knows");
    assert_eq!([ask("one").await, ask("one").await], [200; 2]);
}

#[tokio::test]
async fn each_minute_without_the_store_is_logged_with_the_limiters_concerned() {
    // Without a place in the lane, of which it would keep the tests of other kinds for a minute: it waits, judges no instant and makes no load.
    let upstream = Upstream::start();
    let store = format!("{{redis: {{url: \"redis://127.0.0.1:{}\"}}}}", closed_port());
    let limiters = [
        ("strict", "{limits: [10/1h], on_store_failure: reject}"),
        ("loose", "{limits: [100000/1h]}"),
        ("own", "{limits: [10/1h], scope: per_replica}"),
    ];
    let routes = [
        ("path: /strict", "limiter: strict"),
        ("path: /loose", "limiter: loose"),
        ("path: /own", "limiter: own"),
    ];
    let weir = Weir::start(&configuration(&store, &limiters, &routes, &upstream)).await;
    eventually_within("a line about the outage", Duration::from_secs(90), async || {
        weir.log().contains("the store is still away")
    })
    .await;
    let log = weir.log();
    let line = log.lines().find(|line| line.contains("the store is still away")).expect("it is there");
    let affected = "limited by this replica's share: loose; refused with 503: strict";
    assert!(line.contains("\"WARN\"") && line.contains(affected), "{line}");
}
