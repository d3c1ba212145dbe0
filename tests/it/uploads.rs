//! Request bodies: refused in the middle, waited for, large, and slow.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::raw::{RawUpstream, in_time, read_head, read_to_end};
use crate::support::{Upstream, Weir, lane, one_limiter, one_route, spent};

/// A client that is refused while sending can still read the refusal.
#[tokio::test]
async fn a_refusal_is_read_in_the_middle_of_a_large_body() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 0).await;
    for megabytes in [0, 1, 4, 16] {
        for _ in 0..5 {
            let length = megabytes * 1024 * 1024 + 9;
            let mut client = TcpStream::connect(weir.host()).await.unwrap();
            let head = format!(
                "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
            );
            client.write_all(head.as_bytes()).await.unwrap();
            // The client writes all that it can before it reads anything.
            let body = vec![b'x'; length];
            let _ = in_time("the body", client.write_all(&body)).await;
            let answer = read_to_end(&mut client).await;
            let is_told = answer.starts_with("HTTP/1.1 429 ") && answer.contains("retry_after_ms");
            assert!(is_told, "{megabytes} MiB: {answer:?}");
        }
    }
    assert_eq!(upstream.count(), 1);
}

/// A client that asks with `Expect: 100-continue` gets no answer before its permit.
#[tokio::test]
async fn a_waiting_client_is_not_told_to_continue() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/2s], queue: {timeout: 10s, max_waiting: 10}}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    let head = "POST /late HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    weir.wait_for_waiting(1).await;
    let mut byte = [0; 1];
    let early = tokio::time::timeout(Duration::from_millis(300), client.peek(&mut byte)).await;
    assert!(early.is_err(), "something came while it waited");
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 100 "));
    client.write_all(b"body").await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(&upstream.seen()[1].body[..], b"body");
}

/// A refused client is told at once, and never to continue.
#[tokio::test]
async fn a_refused_client_is_not_told_to_continue() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 0).await;
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4000000\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let answer = read_head(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}

const STREAMS: usize = 20;
const EACH: usize = 200 * 1024 * 1024;

/// The memory that weir may take for all streams together.
const MORE_BYTES: u64 = 40 * 1024 * 1024;

async fn send_body(stream: &mut TcpStream) {
    let piece = vec![b'x'; 256 * 1024];
    let mut left = EACH;
    while left > 0 {
        let length = left.min(piece.len());
        if stream.write_all(&piece[..length]).await.is_err() {
            return;
        }
        left -= length;
    }
}

/// Reads a little from each stream in turn, so that all are under way together, and none is read at full speed.
async fn read_in_turn(streams: &mut [TcpStream], weir: &Weir) -> u64 {
    let (mut most, mut buffer) = (0, vec![0; 1024 * 1024]);
    let mut read = vec![0; streams.len()];
    while read.iter().any(|read| *read < EACH) {
        for (stream, read) in streams.iter_mut().zip(&mut read).filter(|(_, read)| **read < EACH) {
            *read += match in_time("a piece", stream.read(&mut buffer)).await.unwrap() {
                0 => EACH,
                count => count,
            };
        }
        most = most.max(weir.rss_bytes());
    }
    most
}

/// With slow readers, weir holds only the bytes under way.
#[tokio::test]
async fn large_answers_take_no_memory() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, _| async move {
        connection.read_head().await;
        connection.write(format!("HTTP/1.1 200 OK\r\ncontent-length: {EACH}\r\n\r\n").as_bytes()).await;
        send_body(&mut connection.stream).await;
    })
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let before = weir.rss_bytes();
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        let mut client = TcpStream::connect(weir.host()).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        clients.push(client);
    }
    let most = read_in_turn(&mut clients, &weir).await;
    println!("{STREAMS} answers of {EACH} bytes: {before} bytes before, {most} at most");
    assert!(most < before + MORE_BYTES, "{before} bytes before, {most} at most");
}

/// Fast senders do not fill weir's memory when the upstream is slow.
#[tokio::test]
async fn large_uploads_take_no_memory() {
    let _lane = lane::shared().await;
    let (arrives, mut arrived) = tokio::sync::mpsc::channel(STREAMS);
    let upstream = RawUpstream::start(move |mut connection, _| {
        let arrives = arrives.clone();
        async move {
            connection.read_head().await;
            let _ = arrives.send(connection.stream).await;
        }
    })
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let before = weir.rss_bytes();
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..STREAMS {
        let mut client = TcpStream::connect(weir.host()).await.unwrap();
        senders.spawn(async move {
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {EACH}\r\n\r\n");
            client.write_all(head.as_bytes()).await.unwrap();
            send_body(&mut client).await;
        });
    }
    let mut streams = Vec::new();
    while streams.len() < STREAMS {
        streams.push(in_time("a head", arrived.recv()).await.unwrap());
    }
    let most = read_in_turn(&mut streams, &weir).await;
    println!("{STREAMS} uploads of {EACH} bytes: {before} bytes before, {most} at most");
    assert!(most < before + MORE_BYTES, "{before} bytes before, {most} at most");
}
