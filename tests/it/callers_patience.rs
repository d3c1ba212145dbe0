//! Callers that tell how long they wait: none of them gets its slot too late for its answer.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::raw::RawUpstream;
use crate::support::{Request, Upstream, Weir, client, lane, one_limiter, spent};

/// The time of the upstream for each answer.
const WORK: Duration = Duration::from_millis(800);
/// The timeout of each try of a caller.
const PATIENCE: Duration = Duration::from_millis(3500);
const CALLS: usize = 8;
/// As many calls as are remembered.
const FAST_CALLS: usize = 100;

async fn slow_upstream() -> RawUpstream {
    RawUpstream::start(|mut connection, _| async move {
        loop {
            let head = connection.read_head().await;
            if head.is_empty() {
                return;
            }
            if !head.starts_with("GET /fast") {
                sleep(WORK).await;
            }
            connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    })
    .await
}

/// Calls as an SDK does: up to three tries, each with the timeout, and after a refusal the wait that it asks for. Returns whether a try
/// was answered with success.
async fn call(url: String) -> bool {
    for _ in 0..3 {
        let request = Request::get("/").header("x-stainless-read-timeout", "3.5");
        let answer = timeout(PATIENCE, client::send(&url, request)).await.expect("nobody leaves").unwrap();
        if answer.status == 200 {
            return true;
        }
        assert_eq!((answer.status, answer.weir_error()), (429, Some("rate_limited")), "{}", answer.text());
        assert!(answer.text().contains("`x-stainless-read-timeout: 3.5`"), "{}", answer.text());
        let delay = answer.header("retry-after-ms").unwrap().parse().unwrap();
        sleep(Duration::from_millis(delay)).await;
    }
    false
}

#[tokio::test]
async fn a_request_is_sent_only_if_its_caller_will_wait_for_the_answer() {
    let _lane = lane::shared().await;
    let upstream = slow_upstream().await;
    let url = upstream.url();
    let config = format!(
        "limiters:\n  api: {{limits: [1/1s], queue: {{timeout: 60s}}}}\nroutes:\n  \
         - {{name: fast, match: {{path: /fast}}, upstream: \"{url}\"}}\n  \
         - {{name: slow, match: {{path: /}}, limiter: api, upstream: \"{url}\"}}\n"
    );
    let weir = Weir::start(&config).await;
    // Of the same upstream, and quite another work.
    for _ in 0..FAST_CALLS {
        assert_eq!(weir.get("/fast").await.status, 200);
    }
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        calls.spawn(call(weir.url("/")));
    }
    let answered = calls.join_all().await.into_iter().filter(|is_answered| *is_answered).count();
    assert!(answered >= CALLS / 2, "{answered}");
    assert_eq!(upstream.heads().len(), FAST_CALLS + answered, "the upstream works for nobody else");
}

#[tokio::test]
async fn a_slot_beyond_the_patience_is_a_refusal_at_once() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 10).await;
    for (header, value) in [
        ("weir-timeout", "5s"),
        ("x-stainless-timeout", "5"),
        ("x-stainless-read-timeout", "5.0"),
        ("x-server-timeout", "5"),
        ("grpc-timeout", "5000m"),
    ] {
        let begin = Instant::now();
        let answer = client::send(&weir.url("/"), Request::get("/").header(header, value)).await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(2), "{header}: {:?}", begin.elapsed());
        assert_eq!((answer.status, answer.weir_error()), (429, Some("rate_limited")), "{header}");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(&format!(" ms that `{header}: {value}` leaves")), "{detail}");
    }
    assert_eq!(weir.waiting().await, 0.0);
}

#[tokio::test]
async fn the_configuration_names_the_headers() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let queue = "{timeout: 2h, patience: [x-request-timeout], leave: 40%}";
    let weir =
        Weir::start(&one_limiter("memory", &format!("{{limits: [1/1h], queue: {queue}}}"), &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let request = Request::get("/").header("x-request-timeout", "10").header("x-stainless-timeout", "1");
    let answer = client::send(&weir.url("/"), request).await.unwrap();
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("the wait of 6000 ms that `x-request-timeout: 10` leaves"), "{detail}");
}
