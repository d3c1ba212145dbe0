//! The log never stops weir: a reader that stalls costs lines, and nothing else.

use tokio::task::JoinSet;

use crate::support::raw::exchange;
use crate::support::weir::with_preamble;
use crate::support::{Connection, PATIENCE, Request, Upstream, Weir, eventually, lane, one_route};

/// Starts weir with the access log.
async fn start(upstream: &Upstream) -> Weir {
    let config = with_preamble(&one_route(&upstream.url())).replace("access: false", "access: true");
    Weir::start_whole(&config).await
}

/// Sends requests on some connections, and expects that each is answered.
async fn send(weir: &Weir, count: usize, target: &str) {
    const CONNECTIONS: usize = 8;
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (host, request) = (weir.host(), Request::get(target));
        clients.spawn(async move {
            let mut connection = Connection::open(&host).await.unwrap();
            connection.statuses(&request, count / CONNECTIONS).await
        });
    }
    for statuses in clients.join_all().await {
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    }
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let mut weir = start(&upstream).await;
    weir.stop_reading_log();
    send(&weir, 2000, "/").await;
    assert_eq!(weir.ask("/healthz").await.status, 200);
    weir.sigterm();
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
    assert_eq!(upstream.count(), 2000);
}

#[tokio::test]
async fn dropped_lines_are_counted_and_named_when_the_log_is_read_again() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    weir.stop_reading_log();
    // More than the buffer and the pipe hold.
    let long = format!("/{}", "a".repeat(8000));
    send(&weir, 1200, &long).await;
    let dropped = weir.metrics().await.sum("weir_log_lines_dropped_total", &[]);
    assert!(dropped > 0.0 && dropped < 1200.0, "{dropped}");
    weir.read_log_again();
    weir.wait_for_log(&[&format!("\"lines\":{dropped}")]).await;
    send(&weir, 8, "/again").await;
    eventually("later lines", async || weir.log().matches("\"/again\"").count() == 8).await;
}

#[tokio::test]
async fn everything_that_was_logged_before_the_end_is_written() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let mut weir = start(&upstream).await;
    send(&weir, 1600, "/counted").await;
    weir.sigterm();
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
    eventually("every line", async || weir.log().matches("\"/counted\"").count() == 1600).await;
}

/// Such a client gets a bare 400, and there is no line in the access log.
#[tokio::test]
async fn a_head_that_cannot_be_parsed_is_told_with_its_client() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = with_preamble(&one_route(&upstream.url())).replace("level: info", "level: debug");
    let weir = Weir::start_whole(&config).await;
    let read = exchange(&weir.host(), b"GET / HTTP/1.1\r\nno colon\r\n\r\n").await;
    assert!(read.starts_with("HTTP/1.1 400 "), "{read}");
    let words = ["connection ended with an error", "invalid HTTP header", "\"client_ip\":\"127.0.0.1\""];
    weir.wait_for_log(&words).await;
}

/// `/dev/full` refuses each write like a full disk.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_full_disk_stops_nothing() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut weir = Weir::start_logging_to(full, &one_route(&upstream.url())).await;
    send(&weir, 80, "/").await;
    assert_eq!(weir.ask("/healthz").await.status, 200);
    eventually("dropped lines", async || {
        weir.metrics().await.sum("weir_log_lines_dropped_total", &[]) >= 80.0
    })
    .await;
    weir.sigterm();
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
}
