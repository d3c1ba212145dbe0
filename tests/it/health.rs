//! Health and metrics are answered whatever else asks for connections, descriptors and workers.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::raw::exchange;
use crate::support::{Request, Upstream, Weir, client, eventually, lane, one_route, open_files_max};

/// Far more than an answer takes, and less than any timeout of a connection.
const AT_ONCE: Duration = Duration::from_secs(1);

async fn is_answered(weir: &Weir, what: &str) {
    for target in ["/healthz", "/readyz", "/metrics"] {
        let asked = Instant::now();
        assert_eq!(weir.ask(target).await.status, 200, "{target} beside {what}");
        let took = asked.elapsed();
        assert!(took < AT_ONCE, "{target} beside {what}: {took:?}");
    }
}

async fn open(address: &str, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for _ in 0..count {
        // The system may hold further ones back.
        let Ok(stream) = tokio::time::timeout(AT_ONCE, TcpStream::connect(address)).await else { break };
        let mut stream = stream.unwrap();
        let _ = stream.write_all(bytes).await;
        open.push(stream);
    }
    open
}

#[tokio::test]
async fn a_crowd_on_the_admin_listener_holds_up_no_probe() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let admin = weir.admin("").trim_start_matches("http://").to_owned();
    let _idle = open(&admin, 1000, b"").await;
    is_answered(&weir, "idle connections").await;
    let asks = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50);
    let _deaf = open(&admin, 256, &asks).await;
    is_answered(&weir, "clients that do not read").await;
    let _begun = open(&admin, 256, b"GET /healthz HTT").await;
    is_answered(&weir, "heads without an end").await;
}

/// One of them would be checked, and another one may have led there.
#[tokio::test]
async fn the_admin_listener_takes_one_host() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let admin = weir.admin("").trim_start_matches("http://").to_owned();
    for path in ["/healthz", "/api/limiters"] {
        let head = |hosts: &str| format!("GET {path} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        let one = exchange(&admin, head("Host: localhost\r\n").as_bytes()).await;
        assert!(one.starts_with("HTTP/1.1 200"), "{one}");
        for hosts in ["Host: localhost\r\nHost: evil.example\r\n", "Host: localhost\r\nhost: localhost\r\n"] {
            let two = exchange(&admin, head(hosts).as_bytes()).await;
            assert!(two.starts_with("HTTP/1.1 400"), "{two}");
        }
    }
}

#[tokio::test]
async fn clients_leave_descriptors_for_probes_and_upstreams() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let before = weir.open_files() as u64;
    weir.limit_open_files(before + 100);
    let mut first = weir.connect().await;
    let idle = open(&weir.host(), 300, b"").await;
    is_answered(&weir, "idle clients").await;
    assert_eq!(first.ask(&Request::get("/")).await.status, 200);
    drop(idle);
    let url = weir.url("/again");
    eventually("a new client", async || client::get(&url).await.is_ok_and(|answer| answer.status == 200))
        .await;
    // With none at all, a connection of the admin listener makes room, or the spare descriptor does.
    weir.limit_open_files(before);
    is_answered(&weir, "no descriptor").await;
}

#[tokio::test]
async fn too_few_descriptors_are_told_at_start() {
    let _lane = lane::shared().await;
    if open_files_max() >= 2_000_000 {
        return;
    }
    let upstream = Upstream::start();
    let weir =
        Weir::start(&format!("server: {{max_connections: 1000000}}\n{}", one_route(&upstream.url()))).await;
    let log = weir.log();
    let warned = log.lines().filter(|line| line.contains("WARN") && line.contains("descriptors"));
    assert_eq!(warned.count(), 1, "{log}");
}
