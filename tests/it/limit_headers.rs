//! The headers of forwarded answers that tell what is left of a quota, without a call to the store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{Answer, RedisServer, Reply, Request, Upstream, Weir, client, configuration, lane};

async fn get(weir: &Weir, target: &str, tenant: &str) -> Answer {
    client::send(&weir.url(target), Request::get(target).header("x-tenant", tenant)).await.unwrap()
}

fn number(answer: &Answer, name: &str) -> u64 {
    answer.header(name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} of {answer:?}"))
}

#[tokio::test]
async fn an_answer_tells_what_the_fleet_has_left() {
    let _lane = lane::shared().await;
    let (upstream, redis) = (Upstream::start(), RedisServer::start().await);
    let limiters = [
        ("hour", "{limits: [1000/1m, 10/1h], group: g}"),
        (
            "tenants",
            "{limits: [{rate: 5, per: 1h, algorithm: token_bucket}], key: [\"header:x-tenant\"], group: g}",
        ),
        ("even", "{limits: [{rate: 100, per: 1s, algorithm: leaky_bucket}]}"),
        ("counted", "{limits: [10/1h], mode: shadow}"),
    ];
    let routes = [
        ("path: /ietf", "limiter: hour, limit_headers: ietf"),
        ("path: /openai", "limiters: [tenants, hour], limit_headers: openai"),
        ("path: /github", "limiter: hour, limit_headers: github"),
        ("path: /off", "limiter: hour, limit_headers: off"),
        ("path: /even", "limiter: even, limit_headers: github"),
        ("path: /counted", "limiter: counted, limit_headers: github"),
    ];
    let theirs = Reply::status(201)
        .header("ratelimit", "theirs")
        .header("x-ratelimit-limit-tokens", "theirs")
        .header("x-ratelimit-remaining", "theirs");
    upstream.script(move |_| Some(theirs.clone()));
    let fleet = Weir::fleet(2, &configuration(&redis.store(), &limiters, &routes, &upstream)).await;

    let answer = get(&fleet[0], "/ietf", "a").await;
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("ratelimit"), Some("\"hour:10/1h\";r=9;t=3600"));
    let policies = "\"hour:1000/1m\";q=1000;w=60, \"hour:10/1h\";q=10;w=3600";
    assert_eq!(answer.header("ratelimit-policy"), Some(policies));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("theirs"), "another family");

    // The tightest one of both limiters, by what the other replica has left.
    let answer = get(&fleet[1], "/openai", "a").await;
    assert_eq!(number(&answer, "x-ratelimit-limit-requests"), 5);
    assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), 4);
    assert_eq!(answer.header("x-ratelimit-reset-requests"), Some("12m0s"));
    for gone in ["x-ratelimit-limit-tokens", "x-ratelimit-remaining"] {
        assert_eq!(answer.header(gone), None, "{gone}");
    }
    assert_eq!(answer.header("ratelimit"), Some("theirs"));

    let answer = get(&fleet[0], "/github", "a").await;
    let [limit, left, used] =
        ["limit", "remaining", "used"].map(|name| number(&answer, &format!("x-ratelimit-{name}")));
    assert_eq!((limit, left, used, answer.header("x-ratelimit-resource")), (10, 7, 3, Some("hour")));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let resets = Duration::from_secs(number(&answer, "x-ratelimit-reset"));
    assert!(
        resets > now + Duration::from_secs(3500) && resets < now + Duration::from_secs(3700),
        "{resets:?}"
    );

    // Another tenant has its own; at first the shared limiter is the tighter one.
    for (left, limit) in [(6, 10), (5, 10), (2, 5), (1, 5)] {
        let answer = get(&fleet[1], "/openai", "b").await;
        assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), left);
        assert_eq!(number(&answer, "x-ratelimit-limit-requests"), limit);
    }

    // Without a form the upstream's pass; where weir knows nothing, none do.
    assert_eq!(get(&fleet[0], "/off", "a").await.header("x-ratelimit-remaining"), Some("theirs"));
    for unknown in ["/even", "/counted"] {
        let answer = get(&fleet[0], unknown, "a").await;
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (201, None), "{unknown}");
    }
}

/// The headers cost no call.
#[tokio::test]
async fn limit_headers_cost_no_store_call() {
    let _lane = lane::shared().await;
    let (upstream, redis) = (Upstream::start(), RedisServer::start().await);
    let limiters = [("api", "{limits: [100/1h]}")];
    let routes = [("path: /told", "limiter: api, limit_headers: github"), ("path: /", "limiter: api")];
    let weir = Weir::start(&configuration(&redis.store(), &limiters, &routes, &upstream)).await;
    let reserves = async || {
        let metrics = weir.metrics().await;
        metrics.sum("weir_store_calls_total", &[("op", "reserve")])
    };
    let mut calls = Vec::new();
    for target in ["/told", "/untold"] {
        let before = reserves().await;
        for _ in 0..5 {
            assert_eq!(weir.get(target).await.status, 200);
        }
        calls.push(reserves().await - before);
    }
    assert!(calls[0] <= 5.0 && calls[0] > 0.0, "{calls:?}");
}
