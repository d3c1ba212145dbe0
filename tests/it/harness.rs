//! Tests of the harness itself: a wrong judge proves nothing.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::support::lane::ProcessorWaits;
use crate::support::measure::{
    Service, fullest_bucket, fullest_window, jain, median, occupancy, pairs_out_of_order,
};
use crate::support::metrics::Metrics;
use crate::support::{
    Connection, PATIENCE, Pending, RedisOptions, RedisServer, Reply, Request, Upstream, client, eventually,
    lane,
};

fn instants(millis: &[u64]) -> Vec<Instant> {
    let start = Instant::now();
    millis.iter().map(|at| start + Duration::from_millis(*at)).collect()
}

#[test]
fn a_window_is_half_open_and_exact() {
    let second = Duration::from_secs(1);
    assert_eq!(fullest_window(&[], second), 0);
    assert_eq!(fullest_window(&instants(&[0, 1000]), second), 1);
    assert_eq!(fullest_window(&instants(&[0, 999]), second), 2);
    assert_eq!(fullest_window(&instants(&[1500, 0, 900, 1000, 1899]), second), 4);
}

#[test]
fn occupancy_counts_the_permits_that_nobody_used() {
    let second = Duration::from_secs(1);
    let perfect = instants(&[0, 0, 1000, 1000, 2000]);
    assert!((occupancy(&perfect, 2, second) - 1.0).abs() < 1e-9);
    let straggler = instants(&[0, 0, 1000, 1000, 2000, 3000]);
    assert!((occupancy(&straggler, 2, second) - 5.0 / 6.0).abs() < 1e-9);
    let paused = instants(&[0, 0, 2000, 2000]);
    assert!((occupancy(&paused, 2, second) - 0.5).abs() < 1e-9);
    let even = instants(&[0, 0, 1000, 1500, 2000, 2500, 3000]);
    assert!((occupancy(&even, 2, second) - (2.0 + 1.0 + 1.0 + 1.0 + 0.5) / 6.0).abs() < 1e-9);
}

#[test]
fn pairs_out_of_order_counts_beyond_the_tolerance() {
    let at = instants(&[0, 10, 20, 1000]);
    let service = |arrived: usize, served: usize| Service { arrived: at[arrived], served: at[served] };
    let tolerance = Duration::from_millis(50);
    let close = [service(0, 2), service(1, 0)];
    assert!(pairs_out_of_order(&close, tolerance) < 1e-9);
    // The first of three is served a second after the two others.
    let starved = [service(0, 3), service(1, 1), service(2, 2)];
    assert!((pairs_out_of_order(&starved, tolerance) - 2.0 / 3.0).abs() < 1e-9);
}

#[test]
fn a_bucket_is_as_full_as_its_fullest_interval() {
    let second = Duration::from_secs(1);
    let level = |millis: &[u64]| fullest_bucket(&instants(millis), 10.0, second);
    assert!(level(&[]).abs() < 1e-9);
    // Three at once; then one every 100 ms, as the rate allows.
    assert!((level(&[0, 0, 0, 100, 200, 300]) - 3.0).abs() < 1e-9);
    // A pause brings the bucket's level to zero, not below.
    assert!((level(&[0, 5000, 5000, 5050]) - 2.5).abs() < 1e-9);
}

#[test]
fn shares_and_medians_are_exact() {
    assert!((jain(&[5, 5, 5]) - 1.0).abs() < 1e-9);
    assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(median(&[9, 1, 5]), 5);
}

#[test]
fn metrics_are_read() {
    let text = "# HELP a_total what\n# TYPE a_total counter\na_total{x=\"1\",y=\"q\\\"{,}\"} 3\na_total{x=\"2\"} 4\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_count 1\n";
    let metrics = Metrics::parse(text);
    assert_eq!(metrics.types["a_total"], "counter");
    assert!(metrics.helped.contains("a_total"));
    assert_eq!(metrics.sum("a_total", &[]), 7.0);
    assert_eq!(metrics.sum("a_total", &[("y", "q\"{,}")]), 3.0);
    assert_eq!(metrics.samples_of("h").len(), 2);
}

#[tokio::test]
async fn an_upstream_records_what_arrives() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    upstream.reply("/made", Reply::status(201).header("x-reply", "yes").body("made"));

    let before = Instant::now();
    let request = Request::post("/made?q=1", b"hello").header("x-test", "a");
    let answer = client::send(&upstream.url(), request).await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (201, "made"));
    assert_eq!(answer.header("x-reply"), Some("yes"));

    let seen = &upstream.seen()[0];
    assert_eq!((seen.target.as_str(), seen.method.as_str()), ("/made?q=1", "POST"));
    assert_eq!((&seen.body[..], &seen.headers["x-test"]), (&b"hello"[..], &"a".parse().unwrap()));
    assert!(before <= seen.at && seen.at <= answer.done);
}

#[tokio::test]
async fn a_gate_holds_and_a_dropped_client_leaves() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let gate = upstream.hold("/slow");
    let slow = Pending::get(&format!("{}/slow", upstream.url()));
    let left = Pending::get(&format!("{}/slow", upstream.url()));
    upstream.wait_for(2, PATIENCE).await;
    drop(left);
    gate.open();
    assert_eq!(slow.answer().await.status, 200);
    assert_eq!(upstream.fullest_window(Duration::from_secs(60)), 2);
    upstream.assert_within(2, Duration::from_secs(60));
}

#[tokio::test]
async fn a_connection_carries_several_requests() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let mut connection = Connection::open(&upstream.address().to_string()).await.unwrap();
    for target in ["/a", "/b"] {
        connection.send(&Request::get(target)).await.unwrap();
        assert_eq!(connection.answer().await.unwrap().status, 200);
    }
    assert_eq!(upstream.targets(), ["/a", "/b"]);
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn a_thousand_requests_wait_at_once() {
    lane::alone(async || {
        let upstream = Upstream::start();
        let gate = upstream.hold("/slow");
        let url = format!("{}/slow", upstream.url());
        let pending: Vec<_> = (0..1000).map(|_| Pending::get(&url)).collect();
        upstream.wait_for(1000, PATIENCE).await;
        gate.open();
        let answers = client::answers(pending).await;
        assert!(answers.iter().all(|answer| answer.status == 200));
    })
    .await;
}

#[tokio::test]
async fn redis_counts_script_calls() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    assert_eq!(redis.script_calls().await, 0);
    for _ in 0..3 {
        redis.command(&["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "key"]).await;
    }
    assert_eq!(redis.script_calls().await, 3);
    assert_eq!(redis.keys().await, ["key"]);
}

#[tokio::test]
async fn redis_asks_for_its_password() {
    let _lane = lane::shared().await;
    let redis =
        RedisServer::start_with(RedisOptions { password: Some("secret"), ..RedisOptions::default() }).await;
    assert!(redis.url().contains(":secret@"));
    let without = redis.url().replace(":secret@", "");
    let mut stranger =
        redis::Client::open(without).unwrap().get_multiplexed_async_connection().await.unwrap();
    let refused = redis::cmd("GET").arg("x").query_async::<Option<String>>(&mut stranger).await.unwrap_err();
    assert!(refused.to_string().contains("NOAUTH"), "{refused}");
}

#[tokio::test]
async fn redis_speaks_tls() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start_with(RedisOptions { tls: true, ..RedisOptions::default() }).await;
    let ca = std::fs::read(redis.ca().unwrap()).unwrap();
    let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(ca) };
    let client = redis::Client::build_with_tls(redis.url(), certificates).unwrap();
    eventually("an answer over TLS", async || {
        let Ok(mut connection) = client.get_multiplexed_async_connection().await else { return false };
        redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
    })
    .await;
}

/// A process that is ended with the test.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait().map(drop)).expect("end a busy process");
    }
}

#[tokio::test]
async fn a_process_that_waits_for_a_processor_is_noticed() {
    lane::alone(async || {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let busy = |_| Busy(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell"));
        let mut waits = ProcessorWaits::default();
        assert_eq!(waits.longest_since(), Duration::ZERO, "nothing runs yet");
        let _busy: Vec<Busy> = (0..2 * cores + 1).map(busy).collect();
        eventually("one has waited", async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            waits.longest_since() >= lane::STALL
        })
        .await;
    })
    .await;
}
