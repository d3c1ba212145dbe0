//! HTTP/2 attacks are bounded, end the connection where they go too far, and lose no permit.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client_leaves::is_noticed;
use crate::support::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, HEADERS, PING, POST, PREFACE, RST_STREAM, SETTINGS,
    frame, request,
};
use crate::support::{PATIENCE, Upstream, Weir, eventually, lane, one_limiter, spent};

/// The memory that an attack may add.
const MORE_BYTES: u64 = 32 * 1024 * 1024;

async fn connect(weir: &Weir) -> TcpStream {
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    stream
}

/// Sends until the peer takes no more, and returns whether the peer ended the connection. Reads nothing, so that
/// answers can pile up.
async fn flood(stream: &mut TcpStream, frames: impl Iterator<Item = Vec<u8>>) -> bool {
    for frame in frames {
        match tokio::time::timeout(Duration::from_millis(500), stream.write_all(&frame)).await {
            // The peer takes no more.
            Err(_) => return false,
            Ok(Err(_)) => return true,
            Ok(Ok(())) => {}
        }
    }
    false
}

/// Reads until the connection ends; returns false if it does not end in time.
async fn ends(stream: &mut TcpStream) -> bool {
    let mut read = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.is_ok()
}

#[tokio::test]
async fn streams_that_are_reset_at_once_take_no_permit() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [5/1h], queue: {timeout: 2h, max_waiting: 100000}}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    let before = weir.rss_bytes();
    for _ in 0..5 {
        let mut stream = connect(&weir).await;
        let resets = (0..2000).map(|index| {
            let id = 2 * index + 1;
            let head = frame(HEADERS, END_HEADERS | END_STREAM, id, &request(GET));
            [head, frame(RST_STREAM, 0, id, &8_u32.to_be_bytes())].concat()
        });
        flood(&mut stream, resets).await;
        assert!(ends(&mut stream).await, "it goes on for ever");
    }
    eventually("no request is left waiting", async || weir.waiting().await == 0.0).await;
    // The permits of requests that were not sent upstream are still available.
    let sent = upstream.count();
    assert!(sent <= 5, "{sent} of 5 permits");
    for _ in sent..5 {
        assert_eq!(weir.get("/").await.status, 200);
    }
    let more = weir.rss_bytes().saturating_sub(before);
    assert!(more < MORE_BYTES, "{more} bytes more");
}

/// A stream that is reset while its request waits counts as a client that left, like a closed connection.
#[tokio::test]
async fn a_client_that_resets_its_stream_has_left() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 10).await;
    let mut stream = connect(&weir).await;
    for (id, flags, method) in [(1, END_HEADERS | END_STREAM, GET), (3, END_HEADERS, POST)] {
        stream.write_all(&frame(HEADERS, flags, id, &request(method))).await.unwrap();
        weir.wait_for_waiting(1).await;
        stream.write_all(&frame(RST_STREAM, 0, id, &8_u32.to_be_bytes())).await.unwrap();
        is_noticed(&weir, "a stream that was reset").await;
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn floods_are_bounded() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_limiter("memory", "{limits: [1000/1h]}", &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let before = weir.rss_bytes();
    let head = |flags| frame(HEADERS, flags, 1, &request(POST));
    // A header that is never indexed, of a kilobyte (RFC 7541, 6.2.3).
    let header = [&[0x10, 1, b'x', 0x7f, 0x81, 0x07][..], &[b'y'; 1024]].concat();
    let attacks: [(&str, bool, Vec<u8>, Vec<u8>); 6] = [
        ("CONTINUATION", true, head(0), frame(CONTINUATION, 0, 1, &header)),
        ("empty CONTINUATION", true, head(0), frame(CONTINUATION, 0, 1, &[])),
        ("empty DATA", false, head(END_HEADERS), frame(DATA, 0, 1, &[])),
        ("PING", false, Vec::new(), frame(PING, 0, 0, &[0; 8])),
        ("SETTINGS", false, Vec::new(), frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        (
            "empty HEADERS of a stream that is open",
            false,
            head(END_HEADERS),
            frame(HEADERS, END_HEADERS, 1, &[]),
        ),
    ];
    for (what, must_end, begin, repeated) in attacks {
        let mut stream = connect(&weir).await;
        stream.write_all(&begin).await.unwrap();
        let is_ended = flood(&mut stream, std::iter::repeat_n(repeated, 50_000)).await;
        let more = weir.rss_bytes().saturating_sub(before);
        println!("{what}: ended: {is_ended}, {more} bytes more");
        assert!(more < MORE_BYTES, "{what}: {more} bytes more");
        assert!(is_ended || !must_end, "{what}: it goes on for ever");
        drop(stream);
        // Other clients are served as before.
        assert_eq!(weir.get("/").await.status, 200, "{what}");
    }
}
