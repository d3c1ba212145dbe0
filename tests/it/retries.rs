//! Retries, and the cost that a response reports.

use std::time::{Duration, Instant};

use crate::support::{
    Answer, Reply, Request, Upstream, Weir, client, closed_port, eventually, lane, one_limiter,
};

async fn ask(weir: &Weir, request: Request) -> Answer {
    weir.connect().await.ask(&request).await
}

fn with_retries(limiter: &str, retry: &str, upstream: &Upstream) -> String {
    format!("{}    retry: {retry}\n", one_limiter("memory", limiter, upstream))
}

async fn permits(weir: &Weir) -> f64 {
    weir.metrics().await.sum("weir_permits_total", &[("limiter", "api"), ("result", "granted")])
}

async fn retries(weir: &Weir, reason: &str) -> f64 {
    weir.metrics().await.sum("weir_retries_total", &[("route", "all"), ("reason", reason)])
}

/// Answers the first requests with these statuses, and the next with 200.
fn first(upstream: &Upstream, statuses: &'static [u16]) {
    let before = upstream.count();
    upstream.script(move |number| statuses.get(number - before - 1).map(|status| Reply::status(*status)));
}

#[tokio::test]
async fn a_safe_request_is_retried_with_a_permit_of_its_own() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [100/1m], pause: off, queue: {timeout: 5s, max_waiting: 10}}";
    let weir = Weir::start(&with_retries(limiter, "{attempts: 3, budget: off}", &upstream)).await;

    first(&upstream, &[503, 502]);
    assert_eq!(weir.get("/one").await.status, 200);
    assert_eq!((upstream.count(), permits(&weir).await), (3, 3.0));
    assert_eq!((retries(&weir, "503").await, retries(&weir, "502").await), (1.0, 1.0));

    // There are no further attempts: the client gets the last answer.
    first(&upstream, &[503, 503, 503, 503]);
    assert_eq!(weir.get("/two").await.status, 503);
    assert_eq!(upstream.count(), 6);

    // A status that is not listed passes.
    first(&upstream, &[500, 504]);
    assert_eq!(weir.get("/three").await.status, 500);
    assert_eq!(weir.get("/four").await.status, 504);

    // A POST might be carried out twice, unless it has an idempotency key.
    first(&upstream, &[503]);
    assert_eq!(ask(&weir, Request::post("/five", b"paid")).await.status, 503);
    first(&upstream, &[503]);
    let keyed = Request::post("/six", b"paid once").header("idempotency-key", "k");
    assert_eq!(ask(&weir, keyed).await.status, 200);
    let seen = upstream.seen();
    let bodies: Vec<&[u8]> =
        seen.iter().filter(|seen| seen.target == "/six").map(|seen| &*seen.body).collect();
    assert_eq!(bodies, [b"paid once"; 2]);
    let lengths =
        seen.iter().filter(|seen| seen.target == "/six").map(|seen| seen.headers["content-length"].clone());
    assert!(lengths.into_iter().all(|length| length == "9"));
    assert_eq!(permits(&weir).await, upstream.count() as f64);
}

#[tokio::test]
async fn a_body_that_is_too_large_to_keep_is_sent_once() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&with_retries(
        "{limits: [100/1m], pause: off}",
        "{max_body: 1KiB, budget: off}",
        &upstream,
    ))
    .await;
    for (length, sent) in [(1024, 2), (1025, 1)] {
        first(&upstream, &[503]);
        let before = upstream.count();
        let body = vec![b'x'; length];
        let answer = ask(&weir, Request::post("/", &body).method("PUT")).await;
        assert_eq!((answer.status, upstream.count() - before), (if sent == 2 { 200 } else { 503 }, sent));
        assert!(upstream.seen()[before..].iter().all(|seen| seen.body.len() == length));
    }
}

#[tokio::test]
async fn a_rejected_request_waits_out_the_pause() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [100/1s], queue: {timeout: 5s, max_waiting: 10}}";
    let weir = Weir::start(&with_retries(limiter, "{attempts: 2, on: [429], budget: off}", &upstream)).await;
    upstream.script(|number| (number == 1).then(|| Reply::status(429).header("retry-after", "1")));
    let began = Instant::now();
    assert_eq!(weir.get("/").await.status, 200);
    let waited = began.elapsed();
    assert!((Duration::from_millis(950)..Duration::from_secs(3)).contains(&waited), "{waited:?}");

    // A request that would wait for too long gets the upstream's own answer.
    upstream.script(|_| Some(Reply::status(429).header("retry-after", "60").body("slow down")));
    let answer = weir.get("/").await;
    assert_eq!((answer.status, answer.weir_error(), answer.text().as_str()), (429, None, "slow down"));
    let answer = weir.get("/").await;
    assert_eq!((answer.status, answer.weir_error()), (429, Some("paused")));
}

/// It holds the only permit of the limit, and has sent nothing.
#[tokio::test]
async fn a_failed_connection_is_tried_again_with_the_same_permit() {
    let _lane = lane::shared().await;
    let port = closed_port();
    let config = format!(
        "limiters:\n  api: {{limits: [1/1h]}}\nroutes:\n  - {{name: all, match: {{path: /}}, limiter: api, \
         retry: {{attempts: 10, on: [connect], budget: off}}, upstream: \"http://127.0.0.1:{port}\"}}\n"
    );
    let weir = Weir::start(&config).await;
    let pending = weir.begin(1, "/");
    eventually("a retry", async || retries(&weir, "connect").await >= 1.0).await;
    let _upstream = Upstream::start_at(port);
    assert_eq!(client::answers(pending).await[0].status, 200);
    assert_eq!(weir.available("api").await, [0]);
}

#[tokio::test]
async fn an_upstream_that_starts_late_is_waited_for() {
    let _lane = lane::shared().await;
    let port = closed_port();
    let config = format!(
        "limiters:\n  api: {{limits: [2/1s], queue: {{timeout: 20s, max_waiting: 10}}}}\nroutes:\n  \
         - {{name: all, match: {{path: /}}, limiter: api, retry: {{attempts: 10, on: [connect], budget: off}}, \
         upstream: \"http://127.0.0.1:{port}\"}}\n"
    );
    let weir = Weir::start(&config).await;
    let answer = weir.get("/").await;
    assert_eq!((answer.status, answer.weir_error()), (502, Some("upstream_connect")));
    assert_eq!(retries(&weir, "connect").await, 9.0);
    // No permit was used.
    eventually("the permits are back", async || weir.available("api").await == [2]).await;
}

/// Where each attempt fails, weir sends a fifth more, however many times its clients try.
#[tokio::test]
async fn retries_are_a_share_of_the_requests() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir =
        Weir::start(&with_retries("{limits: [1000/1m], pause: off}", "{attempts: 3}", &upstream)).await;
    upstream.script(|_| Some(Reply::status(503)));
    for _ in 0..50 {
        assert_eq!(weir.get("/").await.status, 503);
    }
    assert_eq!((upstream.count(), retries(&weir, "503").await), (60, 10.0));

    // When most attempts succeed, those that fail are retried.
    first(&upstream, &[200; 20]);
    for _ in 0..20 {
        assert_eq!(weir.get("/").await.status, 200);
    }
    first(&upstream, &[503, 503]);
    assert_eq!(weir.get("/").await.status, 200);
}

#[tokio::test]
async fn a_response_reports_the_cost_of_its_request() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = one_limiter("memory", "{limits: [20/1m]}", &upstream)
        + "    cost: {header: weir-cost, default: 5, settle: {header: x-cost, free: [304]}}\n";
    let weir = Weir::start(&config).await;
    for (reply, left) in [
        (Reply::status(200), 15),
        (Reply::status(200).header("x-cost", "2"), 13),
        (Reply::status(304), 13),
        (Reply::status(200).header("x-cost", "0"), 13),
        (Reply::status(200).header("x-cost", "-3"), 8),
        (Reply::status(200).header("x-cost", "9"), 0),
    ] {
        upstream.reply("/", reply);
        assert!(weir.get("/").await.status < 400);
        eventually("it is settled", async || weir.available("api").await == [left]).await;
    }
    assert_eq!(weir.get("/").await.status, 429);
}
