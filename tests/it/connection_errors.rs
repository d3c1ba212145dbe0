//! Connections that end with an error of their client are counted by their reason. A client that leaves is no error.

use std::collections::BTreeMap;
use std::time::Duration;

use socket2::SockRef;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::certificates::{Authority, localhost};
use crate::support::http2::{Event, GOAWAY, Http2, PING, PREFACE, frame};
use crate::support::raw::{exchange, in_time};
use crate::support::{Request, TlsClient, Upstream, Weir, eventually, lane, one_route, spent};

const MALFORMED: &[u8] = b"GET / HTTP/1.1\r\nno colon\r\n\r\n";
/// The first bytes of a TLS 1.2 record with a ClientHello.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
/// The code of an HTTP/2 connection that ends because of a violation (RFC 9113, 7).
const PROTOCOL_ERROR: u32 = 1;

/// Returns the counts by reason, but those that are zero.
async fn counted(weir: &Weir) -> BTreeMap<String, u64> {
    let metrics = weir.metrics().await;
    let samples = metrics.samples_of("weir_client_connection_errors_total").into_iter();
    let counts = samples.map(|sample| (sample.labels["reason"].clone(), sample.value as u64));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Waits for exactly these counts.
async fn counts(weir: &Weir, expected: &[(&str, u64)]) {
    let expected: BTreeMap<String, u64> =
        expected.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
    let what = format!("the counts {expected:?}");
    eventually(&what, async || counted(weir).await == expected).await;
}

/// The files of a weir that speaks TLS.
struct Files {
    directory: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Files {
        let (directory, authority) = (TempDir::new().unwrap(), Authority::new());
        let signed = authority.sign(localhost());
        std::fs::write(directory.path().join("server.pem"), signed.certificate).unwrap();
        std::fs::write(directory.path().join("server.key"), signed.key).unwrap();
        Files { directory, authority }
    }

    fn server(&self) -> String {
        format!("server: {{{}}}\n", self.tls())
    }

    fn tls(&self) -> String {
        let path = |name| self.directory.path().join(name);
        format!("tls: {{cert: {:?}, key: {:?}}}", path("server.pem"), path("server.key"))
    }

    fn client(&self) -> TlsClient {
        TlsClient::trusting(&self.authority.pem())
    }
}

#[tokio::test]
async fn heads_that_weir_cannot_take_are_counted() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    counts(&weir, &[]).await;
    assert!(exchange(&weir.host(), MALFORMED).await.starts_with("HTTP/1.1 400 "));
    counts(&weir, &[("malformed_head", 1)]).await;
    // TLS where there is none.
    exchange(&weir.host(), CLIENT_HELLO).await;
    counts(&weir, &[("malformed_head", 2)]).await;
    // The second request of a connection.
    let pipelined = [&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], MALFORMED].concat();
    let read = exchange(&weir.host(), &pipelined).await;
    assert!(read.starts_with("HTTP/1.1 200 ") && read.contains("HTTP/1.1 400 "), "{read}");
    counts(&weir, &[("malformed_head", 3)]).await;
    // Too many bytes, and too many lines.
    let long = format!("x: {}\r\n", "y".repeat(70_000));
    for (count, headers) in [(1, long), (2, "x: y\r\n".repeat(101))] {
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
        let read = exchange(&weir.host(), head.as_bytes()).await;
        assert!(read.starts_with("HTTP/1.1 431 "), "{read}");
        counts(&weir, &[("malformed_head", 3), ("head_too_large", count)]).await;
    }
    assert_eq!(exchange(&weir.host(), b"OPTIONS * RTSP/1.0\r\n\r\n").await, "");
    counts(&weir, &[("malformed_head", 3), ("head_too_large", 2), ("other_protocol", 1)]).await;
    // A request that weir itself refuses is counted as one.
    assert!(exchange(&weir.host(), b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await.contains("400"));
    eventually("both requests", async || {
        let requests = async |code| weir.metrics().await.sum("weir_requests_total", &[("code", code)]);
        (requests("200").await, requests("400").await) == (1.0, 1.0)
    })
    .await;
    counts(&weir, &[("malformed_head", 3), ("head_too_large", 2), ("other_protocol", 1)]).await;
}

#[tokio::test]
async fn violations_of_http2_are_counted() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.server() + &one_route(&upstream.url()))).await;
    let client = files.client().offering(&["h2"]);
    let mut peer = Http2::over(client.connect(&weir.host()).await.unwrap());
    peer.shake_hands().await;
    // A PING belongs to the connection.
    peer.send(&frame(PING, 0, 1, &[0; 8])).await;
    let end = peer.until(|event| matches!(event, Event::Frame { kind: GOAWAY, .. })).await;
    assert_eq!(end.code(), Some(PROTOCOL_ERROR), "{end:?}");
    counts(&weir, &[("http2_protocol", 1)]).await;
    // HTTP/1 on a connection that has agreed on HTTP/2.
    let mut stream = client.connect(&weir.host()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    let _ = in_time("the end of the connection", stream.read_to_end(&mut read)).await;
    counts(&weir, &[("http2_protocol", 2)]).await;
}

#[tokio::test]
async fn failed_handshakes_are_counted() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.server() + &one_route(&upstream.url()))).await;
    exchange(&weir.host(), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    counts(&weir, &[("tls_handshake", 1)]).await;
    // A client that does not trust weir's certificate says so.
    let distrustful = TlsClient::trusting(&Authority::new().pem());
    assert!(distrustful.connect(&weir.host()).await.is_err());
    counts(&weir, &[("tls_handshake", 2)]).await;
    assert!(files.client().offering(&["spdy/3"]).connect(&weir.host()).await.is_err());
    counts(&weir, &[("tls_handshake", 3)]).await;
    let answer = files.client().open(&weir.host()).await.unwrap().ask(&Request::get("/")).await;
    assert_eq!(answer.status, 200);
    counts(&weir, &[("tls_handshake", 3)]).await;
}

/// Sends bytes, and waits until weir closes the connection.
async fn stay_silent_behind(weir: &Weir, bytes: &[u8]) {
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let _ = in_time("the end of the connection", stream.read_to_end(&mut Vec::new())).await;
}

#[tokio::test]
async fn heads_and_handshakes_that_take_too_long_are_counted() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir =
        Weir::start(&("server: {header_timeout: 300ms}\n".to_owned() + &one_route(&upstream.url()))).await;
    // A client that has sent nothing may have connected ahead.
    stay_silent_behind(&weir, b"").await;
    counts(&weir, &[]).await;
    stay_silent_behind(&weir, b"GET / HT").await;
    counts(&weir, &[("head_too_slow", 1)]).await;
    let server = format!("server: {{header_timeout: 1s, {}}}\n", files.tls());
    let weir = Weir::start(&(server + &one_route(&upstream.url()))).await;
    stay_silent_behind(&weir, b"").await;
    let mut shaken = files.client().connect(&weir.host()).await.unwrap();
    let _ = in_time("the end of the connection", shaken.read_to_end(&mut Vec::new())).await;
    counts(&weir, &[]).await;
    stay_silent_behind(&weir, CLIENT_HELLO).await;
    counts(&weir, &[("tls_handshake", 1)]).await;
}

/// Waits until weir has no more tasks than before: the connections of clients have ended.
async fn all_ended(weir: &Weir, tasks_before: f64) {
    eventually("the end of the connections", async || tasks(weir).await <= tasks_before).await;
}

/// Sends bytes and leaves, by a close or by a reset.
async fn send_and_leave(weir: &Weir, bytes: &[u8], reset: bool) {
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    if reset {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

async fn tasks(weir: &Weir) -> f64 {
    weir.metrics().await.sum("weir_tasks", &[])
}

#[tokio::test]
async fn clients_that_leave_are_not_counted() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 10).await;
    let before = tasks(&weir).await;
    for reset in [false, true] {
        for bytes in [
            &b""[..],
            b"\r\n",
            b"GET / HT",
            b"GET / HTTP/1.1\r\nhost: a\r\nx",
            // It waits for its permit.
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf",
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nha",
            // A client that another one has taken for an HTTP/2 server, and one that has not begun.
            &PREFACE[..10],
            PREFACE,
        ] {
            send_and_leave(&weir, bytes, reset).await;
        }
    }
    // Over HTTP/2: one that is idle, one that says goodbye, and one that says why.
    for code in [None, Some(0_u32), Some(PROTOCOL_ERROR)] {
        let mut peer = Http2::over(TcpStream::connect(weir.host()).await.unwrap());
        peer.shake_hands().await;
        if let Some(code) = code {
            peer.send(&frame(GOAWAY, 0, 0, &[[0; 4], code.to_be_bytes()].concat())).await;
        }
    }
    // It is accepted behind the others.
    exchange(&weir.host(), MALFORMED).await;
    all_ended(&weir, before).await;
    counts(&weir, &[("malformed_head", 1)]).await;
}

#[tokio::test]
async fn clients_that_leave_tls_are_not_counted() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.server() + &one_route(&upstream.url()))).await;
    let before = tasks(&weir).await;
    let mut connection = files.client().open(&weir.host()).await.unwrap();
    assert_eq!(connection.ask(&Request::get("/")).await.status, 200);
    drop(connection);
    drop(files.client().connect(&weir.host()).await.unwrap());
    for reset in [false, true] {
        for bytes in [&b""[..], &CLIENT_HELLO[..3], CLIENT_HELLO] {
            send_and_leave(&weir, bytes, reset).await;
        }
    }
    // It is accepted behind the others.
    exchange(&weir.host(), MALFORMED).await;
    all_ended(&weir, before).await;
    counts(&weir, &[("tls_handshake", 1)]).await;
}
