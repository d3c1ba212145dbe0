//! Refusals of requests whose body is still on its way: they come at once, and the client can read them whenever it does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::http2::{
    DATA, END_HEADERS, END_STREAM, Event, HEADERS, Http2, POST, RST_STREAM, frame, literal, request,
};
use crate::support::raw::{RawUpstream, in_time, read_head, read_to_end};
use crate::support::{PATIENCE, Upstream, Weir, lane, one_limiter, one_route, spent};

const UPLOAD: usize = 30 * 1000 * 1000;
/// The number of uploads at once.
const UPLOADS: u64 = 100;
/// Far more than a refusal takes, and less than any wait for a body.
const AT_ONCE: Duration = Duration::from_millis(300);

async fn begin_upload(weir: &Weir, framing: &str) -> TcpStream {
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    client
}

fn upload() -> String {
    format!("Content-Length: {UPLOAD}")
}

#[tokio::test]
async fn a_refusal_waits_for_no_body() {
    lane::calm(async || {
        let upstream = Upstream::start();
        let weir = spent(&upstream, 0).await;
        for framing in [&upload(), "Content-Length: 5", "Transfer-Encoding: chunked"] {
            let mut client = begin_upload(&weir, framing).await;
            let begin = Instant::now();
            assert!(read_head(&mut client).await.starts_with("HTTP/1.1 429 "), "{framing}");
            let took = begin.elapsed();
            assert!(took < AT_ONCE, "{framing}: {took:?}");
        }
    })
    .await;
}

/// The client sends all that it has before it reads. No part of that is reset.
#[tokio::test]
async fn a_whole_upload_is_taken_behind_the_refusal() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 0).await;
    let body = vec![b'x'; UPLOAD];
    let pieces: Vec<u8> =
        body.chunks(1_000_000).flat_map(|piece| [b"f4240\r\n", piece, b"\r\n"].concat()).collect();
    // As Java's client does by default.
    let with_protocol =
        format!("{}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA", upload());
    let framings = [(&*upload(), &body), ("Transfer-Encoding: chunked", &pieces), (&*with_protocol, &body)];
    for (framing, body) in framings {
        for _ in 0..3 {
            let mut client = begin_upload(&weir, framing).await;
            in_time("the upload", client.write_all(body)).await.expect("the upload is not reset");
            let mut answer = String::new();
            in_time("the answer", client.read_to_string(&mut answer)).await.expect("nor is the answer");
            let head = answer.to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 429 ") && head.contains("connection: close\r\n"), "{answer}");
            assert!(answer.contains("retry_after_ms"), "{answer}");
        }
    }
}

/// They share the line, and each is read to its end. Callers whose requests are wanted have their turns in between.
#[tokio::test(flavor = "multi_thread")]
async fn many_uploads_at_once_are_taken_and_harm_nobody() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_limiter("memory", "{limits: [1/1h], key: [path:0]}", &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let (before, body) = (weir.rss_bytes(), Arc::new(vec![b'x'; UPLOAD]));
    let mut uploads = JoinSet::new();
    for _ in 0..UPLOADS {
        let (mut client, body) = (begin_upload(&weir, &upload()).await, Arc::clone(&body));
        uploads.spawn(async move {
            client.write_all(&body).await?;
            let mut answer = String::new();
            client.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        });
    }
    for call in 0.. {
        let answer = weir.get(&format!("/{call}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let took = answer.done - answer.sent;
        assert!(took < Duration::from_secs(2), "{took:?}");
        let held = weir.rss_bytes().saturating_sub(before);
        assert!(held < UPLOADS * 64 * 1024 + 8_000_000, "{held} bytes for {UPLOADS} uploads");
        while let Some(upload) = uploads.try_join_next() {
            let answer = upload.unwrap().expect("no upload is reset");
            assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
        }
        if uploads.is_empty() {
            break;
        }
    }
}

/// The same where the upstream refuses.
#[tokio::test]
async fn a_whole_upload_is_taken_behind_the_answer_of_an_upstream() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, _| async move {
        connection.read_head().await;
        let answer =
            b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 8\r\n\r\ntoo much";
        connection.write(answer).await;
        let _ = connection.stream.shutdown().await;
        let _ = tokio::io::copy(&mut connection.stream, &mut tokio::io::sink()).await;
    })
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let body = vec![b'x'; UPLOAD];
    for _ in 0..3 {
        let mut client = begin_upload(&weir, &upload()).await;
        in_time("the upload", client.write_all(&body)).await.expect("the upload is not reset");
        let mut answer = String::new();
        in_time("the answer", client.read_to_string(&mut answer)).await.expect("nor is the answer");
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("too much"), "{answer}");
    }
}

/// A short body is read behind the refusal, and the connection serves the next request.
#[tokio::test]
async fn a_short_body_behind_a_refusal_keeps_the_connection() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 0).await;
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    for _ in 0..3 {
        client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n").await.unwrap();
        let head = read_head(&mut client).await.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 429 ") && !head.contains("connection: close"), "{head}");
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let mut document = vec![0; length.unwrap().parse().unwrap()];
        in_time("the document", client.read_exact(&mut document)).await.unwrap();
        client.write_all(b"later").await.unwrap();
    }
}

/// Half of the connections may be such ends. A further one is closed at once, and frees its place.
#[tokio::test]
async fn ends_of_connections_leave_room_for_others() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/1h], key: [path:0]}";
    let config = format!("server: {{max_connections: 4}}\n{}", one_limiter("memory", limiter, &upstream));
    let weir = Weir::start(&config).await;
    assert_eq!(weir.get("/").await.status, 200);
    let mut ends = Vec::new();
    for _ in 0..10 {
        let mut client = begin_upload(&weir, &upload()).await;
        assert!(read_head(&mut client).await.starts_with("HTTP/1.1 429 "));
        ends.push(client);
    }
    let begin = Instant::now();
    assert_eq!(weir.get("/other").await.status, 200);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    drop(ends);
}

#[tokio::test]
async fn shutdown_waits_for_no_refused_upload() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let mut weir = spent(&upstream, 0).await;
    let mut client = begin_upload(&weir, &upload()).await;
    assert!(read_to_end(&mut client).await.starts_with("HTTP/1.1 429 "));
    let sending = tokio::spawn(async move {
        while client.write_all(&[b'x'; 1000]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    weir.sigterm();
    let begin = Instant::now();
    weir.wait_exit(PATIENCE).await;
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    sending.await.unwrap();
}

/// Over HTTP/2 the stream is reset with NO_ERROR some time after the refusal, and the connection goes on.
#[tokio::test]
async fn an_upload_over_http2_is_reset_without_an_error() {
    lane::calm(async || {
        let upstream = Upstream::start();
        let weir = spent(&upstream, 0).await;
        let mut client = Http2::over(TcpStream::connect(weir.host()).await.unwrap());
        client.shake_hands().await;
        let grpc = [request(POST), literal("content-type", "application/grpc")].concat();
        for (stream, headers) in [(1, request(POST)), (3, grpc), (5, request(POST))] {
            let begin = Instant::now();
            client.send(&frame(HEADERS, END_HEADERS, stream, &headers)).await;
            let is_of_stream =
                |event: &Event| matches!(event, Event::Frame { stream: of, .. } if *of == stream);
            let first = client.until(is_of_stream).await;
            assert!(matches!(first, Event::Frame { kind: HEADERS, .. }), "{first:?}");
            assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
            let reset = client.until(|event| matches!(event, Event::Frame { kind: RST_STREAM, .. })).await;
            assert_eq!(reset.code(), Some(0), "{reset:?}");
            // A client that reads both at once drops the refusal.
            assert!(begin.elapsed() > Duration::from_millis(200), "{:?}", begin.elapsed());
            // Bytes on their way are no error.
            client.send(&frame(DATA, 0, stream, &[0; 10_000])).await;
            client.send(&frame(DATA, END_STREAM, stream, &[0; 10_000])).await;
        }
    })
    .await;
}
