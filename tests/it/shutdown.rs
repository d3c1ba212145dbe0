//! SIGTERM: active and queued requests finish, nothing new begins, and the exit code is 0.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    Connection, PATIENCE, RedisServer, Request, Upstream, Weir, client, eventually, lane, one_limiter,
};

const LIMITER: &str = "{limits: [5/1s], queue: {timeout: 30s, max_waiting: 100}}";

#[tokio::test]
async fn requests_in_flight_and_waiting_finish_in_memory() {
    let _lane = lane::shared().await;
    requests_in_flight_and_waiting_finish("memory", Signal::TERM).await;
}

#[tokio::test]
async fn requests_in_flight_and_waiting_finish_with_redis() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    requests_in_flight_and_waiting_finish(&redis.store(), Signal::INT).await;
}

async fn requests_in_flight_and_waiting_finish(store: &str, signal: Signal) {
    let upstream = Upstream::start();
    let gate = upstream.hold("/slow");
    let mut weir = Weir::start(&one_limiter(store, LIMITER, &upstream)).await;
    let in_flight = weir.begin(5, "/slow");
    upstream.wait_for(5, PATIENCE).await;
    let waiting = weir.begin(15, "/waits");
    weir.wait_for_waiting(10).await;

    weir.signal(signal);
    eventually("/readyz to say so", PATIENCE, async || weir.ask("/readyz").await.status == 503).await;
    assert_eq!(weir.ask("/healthz").await.status, 200);

    for answer in client::answers(waiting).await {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    gate.open();
    for answer in client::answers(in_flight).await {
        assert_eq!((answer.status, answer.text().as_str()), (200, "upstream"));
    }
    assert_eq!(upstream.count(), 20, "none was lost, none was sent twice");
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
}

#[tokio::test]
async fn an_idle_weir_ends_at_once() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let mut weir = Weir::start(&one_limiter("memory", LIMITER, &upstream)).await;
    // A connection that is kept alive must not hold up the process.
    let mut idle = Connection::open(&weir.host()).await.unwrap();
    idle.send(&Request::get("/")).await.unwrap();
    assert_eq!(idle.answer().await.unwrap().status, 200);
    weir.sigterm();
    assert_eq!(weir.wait_exit(Duration::from_secs(5)).await.code(), Some(0));
}

#[tokio::test]
async fn no_new_connection_is_taken_while_draining() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let gate = upstream.hold("/slow");
    let mut weir = Weir::start(&one_limiter("memory", LIMITER, &upstream)).await;
    let in_flight = weir.begin(1, "/slow");
    upstream.wait_for(1, PATIENCE).await;
    weir.sigterm();
    let host = weir.host();
    eventually("a closed door", PATIENCE, async || Connection::open(&host).await.is_err()).await;
    gate.open();
    assert_eq!(client::answers(in_flight).await[0].status, 200);
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
}

#[tokio::test]
async fn requests_are_still_taken_during_the_drain_delay() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = format!("server: {{drain_delay: 3s}}\n{}", one_limiter("memory", LIMITER, &upstream));
    let mut weir = Weir::start(&config).await;
    weir.sigterm();
    eventually("/readyz to say so", PATIENCE, async || weir.ask("/readyz").await.status == 503).await;
    assert_eq!(weir.get("/").await.status, 200);
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
}

#[tokio::test]
async fn a_request_that_waits_longer_than_the_drain_is_refused() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/10m], queue: {timeout: 1h, max_waiting: 100}}";
    let config = format!("server: {{drain_timeout: 1s}}\n{}", one_limiter("memory", limiter, &upstream));
    let mut weir = Weir::start(&config).await;
    assert_eq!(weir.get("/").await.status, 200);
    let waiting = weir.begin(3, "/");
    weir.wait_for_waiting(3).await;
    weir.sigterm();
    for answer in client::answers(waiting).await {
        assert_eq!((answer.status, answer.weir_error()), (503, Some("draining")), "{}", answer.text());
        assert_eq!(answer.json()["code"], "draining");
    }
    weir.wait_exit(PATIENCE).await;
    assert_eq!(upstream.count(), 1);
}
