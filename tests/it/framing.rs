//! Requests with wrong HTTP framing are refused, the connection is closed, and nothing goes upstream.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, Http2, POST, frame, literal, request};
use crate::support::raw::{RawUpstream, exchange, read_head, read_to_end};
use crate::support::{PATIENCE, Upstream, Weir, eventually, lane, one_route};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

async fn weir() -> (Upstream, Weir) {
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    (upstream, weir)
}

/// Each malformed request is followed by one that must not get through.
#[tokio::test]
async fn a_request_with_wrong_framing_reaches_no_upstream() {
    let _lane = lane::shared().await;
    let (upstream, weir) = weir().await;
    let mut passed = Vec::new();
    for head in [
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: identity\r\n\r\n",
        "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
        "Content-Length : 0\r\n\r\n",
        "Content-Length: +0\r\n\r\n",
        "Content-Length: -1\r\n\r\n",
        "Content-Length: 1, 2\r\n\r\nab",
        "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "Content-Length: 0x1\r\n\r\na",
        "Content-Length: \r\n\r\n",
        "Content-Length: 18446744073709551616\r\n\r\n",
        "X-Fold: a\r\n b\r\n\r\n",
        "X-Nul: a\0b\r\n\r\n",
        "X-Bare: a\rb\r\n\r\n",
        "X Space: a\r\n\r\n",
        ": nameless\r\n\r\n",
        "no colon\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\na\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-1\r\na\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\na\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n\r\n0\r\n\r\n",
    ] {
        let request =
            format!("POST /first HTTP/1.1\r\nHost: a\r\n{head}GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = exchange(&weir.host(), request.as_bytes()).await;
        let is_refused =
            answer.is_empty() || answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 501");
        if !is_refused || answer.contains("HTTP/1.1 2") {
            passed.push((head, answer));
        }
    }
    assert!(passed.is_empty(), "{passed:#?}");
    // Anything that had gone upstream would have arrived before this request.
    assert_eq!(weir.get("/marker").await.status, 200);
    assert_eq!(upstream.targets(), ["/marker"]);
}

/// The transfer coding wins, the message is framed anew, and the connection closes (RFC 9112, 6.1).
#[tokio::test]
async fn a_length_beside_a_transfer_coding_ends_the_connection() {
    let _lane = lane::shared().await;
    let (upstream, weir) = weir().await;
    let request = "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n\
                   2\r\nab\r\n0\r\n\r\nGET /second HTTP/1.1\r\nHost: a\r\n\r\n";
    let answer = exchange(&weir.host(), request.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    for seen in upstream.seen() {
        assert_eq!((seen.target.as_str(), &seen.body[..]), ("/first", &b"ab"[..]));
    }
}

/// A body that becomes malformed after its beginning breaks off at the upstream.
#[tokio::test]
async fn a_body_that_becomes_malformed_breaks_off_upstream() {
    let _lane = lane::shared().await;
    let (ends, mut ended) = tokio::sync::mpsc::channel(1);
    let upstream = RawUpstream::start(move |mut connection, _| {
        let ends = ends.clone();
        async move {
            connection.read_head().await;
            let body = read_to_end(&mut connection.stream).await;
            let _ = ends.send(body).await;
        }
    })
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        .await
        .unwrap();
    eventually("the head is upstream", async || !upstream.heads().is_empty()).await;
    client.write_all(b"zz\r\nb\r\n0\r\n\r\n").await.unwrap();
    let body = tokio::time::timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
    assert!(!body.contains("0\r\n\r\n"), "{body:?}");
    let answer = read_to_end(&mut client).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
}

/// An upgrade that the upstream does not accept changes nothing: the following bytes are ordinary requests.
#[tokio::test]
async fn an_upgrade_that_is_not_accepted_lets_nothing_through() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::answering(OK).await;
    let config =
        format!("routes:\n  - {{name: open, match: {{path: /open}}, upstream: \"{}\"}}\n", upstream.url());
    let weir = Weir::start(&config).await;
    let request = "GET /open HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\
                   GET /closed HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = exchange(&weir.host(), request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("HTTP/1.1 404"), "{answer}");
    assert_eq!(upstream.heads().len(), 1);
}

/// With another HTTP inside the connection, a client could send requests that no route and no limiter sees.
#[tokio::test]
async fn an_upgrade_to_another_http_is_ignored() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::answering(OK).await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    for protocol in ["h2c", "websocket, h2c", "HTTP/2.0", "TLS/1.0"] {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, http2-settings\r\nUpgrade: {protocol}\r\n\
             HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        );
        let mut client = TcpStream::connect(weir.host()).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"), "{protocol}");
    }
    for head in upstream.heads() {
        let head = head.to_ascii_lowercase();
        assert!(!head.contains("upgrade") && !head.contains("http2-settings"), "{head}");
    }
}

/// A stalling connection is closed within its time, and the others are not held up.
#[tokio::test]
async fn slow_clients_are_closed_in_time() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = format!(
        "server: {{header_timeout: 500ms, idle_timeout: 700ms}}\nroutes:\n  - {{name: all, match: {{path: /}}, \
         upstream: {{url: \"{}\", idle_timeout: 600ms}}}}\n",
        upstream.url()
    );
    let weir = Weir::start(&config).await;
    for (what, bytes, answer) in [
        ("connects only", &b""[..], ""),
        ("a part of HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM", ""),
        ("a preface and no settings", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
        ("a part of a head", b"GET / HTTP/1.1\r\nHost: a", ""),
        ("a body that stops", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf", "HTTP/1.1 408"),
        ("nothing after an answer", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200"),
    ] {
        let begun = std::time::Instant::now();
        let mut client = TcpStream::connect(weir.host()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let read = read_to_end(&mut client).await;
        let is_as_told =
            if answer.is_empty() { !read.contains("HTTP/1.1 2") } else { read.starts_with(answer) };
        assert!(is_as_told, "{what}: {read}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{what}: {:?}", begun.elapsed());
    }
}

/// A length that is repeated goes upstream once (RFC 9110, 8.6).
#[tokio::test]
async fn a_repeated_length_goes_upstream_once() {
    let _lane = lane::shared().await;
    let (upstream, weir) = weir().await;
    let ask = async |lengths: &str| {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{lengths}\r\n\r\nok");
        exchange(&weir.host(), request.as_bytes()).await
    };
    let answer = ask("Content-Length: 2\r\nContent-Length: 2").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(ask("Content-Length: 2, 2").await.starts_with("HTTP/1.1 400 "));
    let mut client = Http2::over(TcpStream::connect(weir.host()).await.unwrap());
    client.shake_hands().await;
    let length = literal("content-length", "2");
    client.send(&frame(HEADERS, END_HEADERS, 1, &[request(POST), length.clone(), length].concat())).await;
    client.send(&frame(DATA, END_STREAM, 1, b"ok")).await;
    eventually("the body", async || upstream.seen().get(1).is_some_and(|seen| seen.body[..] == b"ok"[..]))
        .await;
    assert_eq!(upstream.count(), 2);
    for seen in upstream.seen() {
        let lengths = seen.headers.get_all("content-length").iter();
        let lengths: Vec<_> = lengths.map(|length| length.to_str().unwrap()).collect();
        assert_eq!((lengths, &seen.body[..]), (vec!["2"], &b"ok"[..]));
    }
}
