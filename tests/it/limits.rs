//! One weir: several windows at once; refusals are free and say when to come back.

use std::time::{Duration, Instant};

use crate::support::measure::occupancy;
use crate::support::{PATIENCE, RedisServer, SECOND, Upstream, Weir, lane, one_limiter};

/// The delay that the machine may add to an instant for which weir promised a permit.
const SLACK: Duration = Duration::from_millis(300);

#[tokio::test]
async fn two_windows_hold_at_once_and_a_refusal_spends_nothing() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let config = one_limiter(&redis.store(), "{limits: [20/1s, 50/5s]}", &upstream);
        let weir = Weir::start(&config).await;

        // Ask far more often than allowed, until the second five-second window has filled its first second.
        let start = Instant::now();
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while upstream.count() < 70 && start.elapsed() < Duration::from_secs(10) {
            ticks.tick().await;
            for pending in weir.begin(10, "/") {
                let answer = pending.answer().await;
                assert!(matches!(answer.status, 200 | 429), "{}", answer.text());
            }
        }

        upstream.assert_within(20, SECOND);
        upstream.assert_within(50, 5 * SECOND);
        let instants = upstream.instants();
        let after_first = |index: usize| instants[index].duration_since(instants[0]);
        // Had refusals been charged, the fiftieth and the seventieth would come much later, or never.
        assert!(after_first(49) < 2 * SECOND + SLACK, "the fiftieth after {:?}", after_first(49));
        assert!(after_first(69) < 5 * SECOND + SLACK, "the seventieth after {:?}", after_first(69));
    })
    .await;
}

#[tokio::test]
async fn waiting_exactly_retry_after_is_enough_with_redis() {
    lane::calm(async || {
        let redis = RedisServer::start().await;
        waiting_exactly_retry_after_is_enough(&redis.store()).await;
    })
    .await;
}

#[tokio::test]
async fn waiting_exactly_retry_after_is_enough_in_memory() {
    lane::calm(async || {
        waiting_exactly_retry_after_is_enough("memory").await;
    })
    .await;
}

async fn waiting_exactly_retry_after_is_enough(store: &str) {
    let upstream = Upstream::start();
    let weir = Weir::start(&one_limiter(store, "{limits: [3/2s]}", &upstream)).await;
    for _ in 0..3 {
        assert_eq!(weir.get("/").await.status, 200);
    }
    let refused = weir.get("/").await;
    let promised = refused.done + refused.retry_after();
    assert!(refused.retry_after() <= 2 * SECOND + Duration::from_millis(20), "a window and its guard");

    // A refusal before the promised instant changes nothing about it.
    tokio::time::sleep_until((promised - SECOND).into()).await;
    assert_eq!(weir.get("/").await.status, 429);

    tokio::time::sleep_until(promised.into()).await;
    assert_eq!(weir.get("/").await.status, 200);
    upstream.assert_within(3, 2 * SECOND);
    assert_eq!(upstream.count(), 4);
}

#[tokio::test]
async fn a_429_carries_all_its_headers() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = one_limiter("memory", "{limits: [900/1m, 2/1h]}", &upstream);
    let weir = Weir::start(&config).await;
    for _ in 0..2 {
        let passed = weir.get("/").await;
        assert_eq!((passed.status, passed.weir_error()), (200, None));
    }

    let refused = weir.get("/").await;
    let wait_ms = u64::try_from(refused.retry_after().as_millis()).unwrap();
    assert_eq!(refused.weir_error(), Some("rate_limited"));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert!((3_590_000..=3_600_020).contains(&wait_ms), "{wait_ms} ms");

    // `Retry-After` is the delay in whole seconds, rounded up. Refused callers may be spread a little later, but
    // never earlier.
    let seconds: u64 = refused.header("retry-after").expect("retry-after").parse().expect("whole seconds");
    assert!(seconds >= wait_ms.div_ceil(1000), "{seconds} s for {wait_ms} ms");
    assert!(seconds <= wait_ms.div_ceil(1000) + 60, "{seconds} s for {wait_ms} ms");

    assert_eq!(
        refused.header("ratelimit-policy"),
        Some("\"api:900/1m\";q=900;w=60, \"api:2/1h\";q=2;w=3600")
    );
    let limit = refused.header("ratelimit").expect("ratelimit");
    let (before, reset) = limit.rsplit_once("t=").expect("t=");
    assert_eq!(before, "\"api:2/1h\";r=0;");
    let reset: u64 = reset.parse().expect("whole seconds");
    assert!((3590..=3601 + 60).contains(&reset), "{limit}");

    let problem = refused.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["status"], &problem["code"]), (&429.into(), &"rate_limited".into()));
    assert_eq!(problem["limiter"], "api");
    assert_eq!(problem["violated-policies"], serde_json::json!(["api:2/1h"]));
    for text in ["title", "detail"] {
        assert!(problem[text].as_str().is_some_and(|text| !text.is_empty()), "{text} in {problem}");
    }
}

#[tokio::test]
async fn a_subsecond_window_has_no_window_parameter() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_limiter("memory", "{limits: [1/1500ms]}", &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let refused = weir.get("/").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("ratelimit-policy"), Some("\"api:1/1500ms\";q=1"));
    assert!(refused.retry_after() <= Duration::from_millis(1515));
    let seconds: u64 = refused.header("retry-after").expect("retry-after").parse().expect("whole seconds");
    assert!(seconds >= 1);
}

#[tokio::test]
async fn a_limiter_of_a_high_rate_is_exact_to_its_cells() {
    lane::alone(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter =
            "{limits: [{rate: 200, per: 1s, precision: 20}], queue: {timeout: 30s, max_waiting: 2000}}";
        let weir = Weir::start(&one_limiter(&redis.store(), limiter, &upstream)).await;
        for pending in weir.begin(600, "/") {
            assert_eq!(pending.answer().await.status, 200);
        }
        upstream.assert_within(200, SECOND);
        let used = occupancy(&upstream.instants(), 200, SECOND);
        assert!(used >= 0.9, "{:.1} % of the quota used", used * 100.0);
    })
    .await;
}

#[tokio::test]
async fn a_cost_is_charged_whole() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = one_limiter("memory", "{limits: [10/1h]}", &upstream)
        .replace("limiter: api", "limiter: api\n    cost: 4");
    let weir = Weir::start(&config).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(weir.get("/").await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_reset_lets_waiting_requests_through() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    for store in ["memory".to_owned(), redis.store()] {
        let upstream = Upstream::start();
        let limiter = "{limits: [2/60s], queue: {timeout: 300s, max_waiting: 10}}";
        let weir = Weir::start(&one_limiter(&store, limiter, &upstream)).await;
        let _waiting = weir.begin(5, "/");
        // A request that has its permit and is not sent yet would need another one behind the reset.
        upstream.wait_for(2, PATIENCE).await;
        weir.wait_for_waiting(3).await;
        assert_eq!(weir.tell("/api/limiters/api/reset").await.status, 200);
        upstream.wait_for(4, PATIENCE).await;
        weir.wait_for_waiting(1).await;
        assert_eq!(weir.available("api").await, [0]);
        assert_eq!(weir.tell("/api/limiters/other/reset").await.status, 404);
        assert_eq!(weir.ask("/api/limiters/api/reset").await.status, 405, "a GET changes nothing");
    }
}
