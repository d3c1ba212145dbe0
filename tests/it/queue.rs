//! The queue is bounded, serves in order of arrival, and keeps no trace of clients that leave.

use std::time::Duration;

use crate::support::measure::{Service, occupancy, pairs_out_of_order};
use crate::support::{
    Connection, PATIENCE, Pending, RedisServer, Request, SECOND, Upstream, Weir, client, eventually, lane,
    one_limiter, spent,
};

#[tokio::test]
async fn a_waiting_request_reports_how_long_it_waited() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/1s], queue: {timeout: 10s, max_waiting: 10}}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.header("weir-wait-ms"), None, "it did not wait");
    let waited: u64 = weir.get("/").await.header("weir-wait-ms").expect("it waited").parse().unwrap();
    assert!((500..5000).contains(&waited), "{waited} ms");
}

#[tokio::test]
async fn a_client_that_leaves_takes_no_permit_with_it_in_memory() {
    lane::calm(async || {
        a_client_that_leaves_takes_no_permit_with_it("memory").await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_takes_no_permit_with_it_with_redis() {
    lane::calm(async || {
        let redis = RedisServer::start().await;
        a_client_that_leaves_takes_no_permit_with_it(&redis.store()).await;
    })
    .await;
}

async fn a_client_that_leaves_takes_no_permit_with_it(store: &str) {
    let upstream = Upstream::start();
    let limiter = "{limits: [10/2s], queue: {timeout: 30s, max_waiting: 100}}";
    let weir = Weir::start(&one_limiter(store, limiter, &upstream)).await;
    client::assert_all_ok(&client::answers(weir.begin(10, "/first")).await);
    // In order of arrival: ten clients that stay, ten that leave, ten that stay.
    let mut staying = weir.begin(10, "/stays");
    weir.wait_for_waiting(10).await;
    let leaving = weir.begin(10, "/leaves");
    weir.wait_for_waiting(20).await;
    staying.extend(weir.begin(10, "/stays"));
    weir.wait_for_waiting(30).await;
    drop(leaving);

    client::assert_all_ok(&client::answers(staying).await);
    let targets = upstream.targets();
    assert_eq!(targets.len(), 30);
    assert!(
        !targets.contains(&"/leaves".to_owned()),
        "the request of a client that left is never sent upstream"
    );
    upstream.assert_within(10, 2 * SECOND);
    // The requests took two windows after the first, not three: those behind the leavers moved up.
    let used = occupancy(&upstream.instants(), 10, 2 * SECOND);
    assert!(used >= 0.95, "{:.1} % of the quota used", used * 100.0);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 3).await;
    // The first slot is an hour away, the second two: only one fits into the wait.
    let waiting = weir.begin(1, "/");
    weir.wait_for_waiting(1).await;
    let too_late = weir.get("/").await;
    assert_eq!((too_late.status, too_late.weir_error()), (429, Some("rate_limited")));
    drop(waiting);

    let limiter = "{limits: [1/10s], queue: {timeout: 5m, max_waiting: 3}}";
    weir.reload(&one_limiter("memory", limiter, &upstream)).await;
    let waiting = weir.begin(3, "/");
    weir.wait_for_waiting(3).await;
    let full = weir.get("/").await;
    assert_eq!((full.status, full.weir_error()), (429, Some("queue_full")));
    assert!(full.header("retry-after").is_some());
    assert_eq!(full.json()["code"], "queue_full");
    drop(waiting);
    weir.wait_for_empty_queue().await;
}

#[tokio::test]
async fn a_request_may_shorten_its_own_wait() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/30s], queue: {timeout: 1m, max_waiting: 10}}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let hasty = Request::get("/").header("weir-timeout", "2s");
    let refused = client::send(&weir.url("/"), hasty).await.unwrap();
    assert_eq!((refused.status, refused.weir_error()), (429, Some("rate_limited")));
    assert!(refused.done - refused.sent < 2 * SECOND, "the answer is known at once");
    assert!(refused.json()["retry_after_ms"].as_u64().unwrap() > 20_000);
    assert_eq!(weir.waiting().await, 0.0);
}

#[tokio::test]
async fn limiters_do_not_wait_for_each_other() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = upstream.url();
    let weir = Weir::start(&format!(
        "limiters:\n  slow: {{limits: [1/1h], queue: {{timeout: 2h, max_waiting: 100}}}}\n  \
         quick: {{limits: [1000/1s]}}\n\
         routes:\n  \
         - {{name: slow, match: {{path: /slow}}, upstream: \"{url}\", limiter: slow}}\n  \
         - {{name: quick, match: {{path: /quick}}, upstream: \"{url}\", limiter: quick}}\n  \
         - {{name: free, match: {{path: /free}}, upstream: \"{url}\"}}\n"
    ))
    .await;
    assert_eq!(weir.get("/slow").await.status, 200);
    let held = weir.begin(1, "/slow");
    weir.wait_for_waiting(1).await;
    for target in ["/quick", "/free", "/quick"] {
        assert_eq!(weir.get(target).await.status, 200);
    }
    drop(held);
}

#[tokio::test]
async fn a_failed_connection_gives_its_permit_back() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let away = crate::support::closed_port();
    let url = upstream.url();
    let weir = Weir::start(&format!(
        "limiters:\n  api: {{limits: [2/1h]}}\n\
         routes:\n  \
         - {{name: away, match: {{path: /away}}, upstream: \"http://127.0.0.1:{away}\", limiter: api}}\n  \
         - {{name: there, match: {{path: /}}, upstream: \"{url}\", limiter: api}}\n"
    ))
    .await;
    for _ in 0..5 {
        let failed = weir.get("/away").await;
        assert_eq!((failed.status, failed.weir_error()), (502, Some("upstream_connect")));
    }
    // The permit is given back after the answer.
    for _ in 0..2 {
        eventually("a permit given back", async || weir.get("/").await.status == 200).await;
    }
    assert_eq!(weir.get("/").await.status, 429);
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn requests_are_served_in_order_of_arrival() {
    lane::alone(async || {
        let upstream = Upstream::start();
        let limiter = "{limits: [5/500ms], queue: {timeout: 30s, max_waiting: 100}}";
        let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        let (mut sent, mut pending) = (Vec::new(), Vec::new());
        for index in 0..30 {
            let mut connection = Connection::open(&weir.host()).await.unwrap();
            pace.tick().await;
            sent.push(connection.send(&Request::get(&format!("/{index}"))).await.unwrap());
            pending.push(Pending::on(connection));
        }
        client::answers(pending).await;
        let served = upstream.seen().into_iter().map(|seen| {
            let index: usize = seen.target[1..].parse().expect("a number");
            Service { arrived: sent[index], served: seen.at }
        });
        // Five requests are sent in the same instant, in any order, so small differences are allowed.
        let out_of_order = pairs_out_of_order(&served.collect::<Vec<_>>(), Duration::from_millis(50));
        assert!(out_of_order < 1e-9, "{:?}", upstream.targets());
    })
    .await;
}

#[tokio::test]
async fn a_slow_upstream_holds_up_nobody() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [1000/1s], queue: {timeout: 10s, max_waiting: 1000}}";
    let weir = Weir::start(&one_limiter(&redis.store(), limiter, &upstream)).await;
    let gate = upstream.hold("/slow");
    let pending = weir.begin(400, "/slow");
    // All 400 requests are sent, though none is answered.
    upstream.wait_for(400, PATIENCE).await;
    gate.open();
    client::assert_all_ok(&client::answers(pending).await);
}
