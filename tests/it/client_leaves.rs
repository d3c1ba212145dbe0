//! A client leaves while its request waits, in every way that a client can leave: weir notices within a second, takes
//! no permit and sends nothing.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::http2::{RST_STREAM, numbered};
use crate::support::raw::{read_head, read_to_end};
use crate::support::uploads::Uploads;
use crate::support::{Upstream, Weir, eventually, lane, one_limiter, spent};

/// The time in which weir must notice, and the delay that the machine may add.
const NOTICED_IN: Duration = Duration::from_millis(1500);

async fn waiting(weir: &Weir, request: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    client.write_all(request).await.unwrap();
    weir.wait_for_waiting(1).await;
    client
}

/// Waits until no request waits any more; `what` names the way in which the client left.
pub(crate) async fn is_noticed(weir: &Weir, what: &str) {
    are_noticed(weir, what, 0.0).await;
}

/// Waits until only `staying` requests wait.
async fn are_noticed(weir: &Weir, what: &str, staying: f64) {
    let left = Instant::now();
    eventually(what, async || weir.waiting().await == staying).await;
    assert!(left.elapsed() < NOTICED_IN, "{what}: noticed after {:?}", left.elapsed());
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_within_a_second() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 10).await;
    for (what, request) in [
        ("a GET", &b"GET /left HTTP/1.1\r\nHost: a\r\n\r\n"[..]),
        (
            "a body that is not read",
            b"POST /left HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\na part of it",
        ),
        ("a whole body", b"POST /left HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"),
        (
            "a chunked body",
            b"POST /left HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n",
        ),
        ("pipelined requests", b"GET /left HTTP/1.1\r\nHost: a\r\n\r\nGET /left HTTP/1.1\r\nHost: a\r\n\r\n"),
        (
            "a client that expects 100-continue",
            b"POST /left HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        ),
    ] {
        let client = waiting(&weir, request).await;
        drop(client);
        is_noticed(&weir, &format!("{what}, closed")).await;
        let client = waiting(&weir, request).await;
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        is_noticed(&weir, &format!("{what}, reset")).await;
    }
    assert_eq!(upstream.targets(), ["/"]);
    let permits = weir.metrics().await;
    assert_eq!(permits.sum("weir_permits_total", &[("result", "granted")]), 1.0);
    assert_eq!(permits.sum("weir_permits_total", &[("result", "cancelled")]), 12.0);
}

/// A client that closes its sending side counts as gone, as with nginx: nobody can tell it from a client that has left.
#[tokio::test]
async fn a_client_that_closes_its_sending_side_has_left() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 10).await;
    let mut client = waiting(&weir, b"GET /left HTTP/1.1\r\nHost: a\r\n\r\n").await;
    client.shutdown().await.unwrap();
    is_noticed(&weir, "half closed").await;
    let read = read_to_end(&mut client).await;
    assert!(!read.contains("HTTP/1.1 200"), "{read}");
    assert_eq!(upstream.targets(), ["/"]);
}

/// The ways in which a client sends a request with a body.
#[derive(Debug, Clone, Copy)]
enum Framing {
    Length,
    Chunked,
    /// Two requests, of which the second is behind the one that waits.
    Pipelined,
}

fn upload(framing: Framing, body: &[u8]) -> Vec<u8> {
    let head = |rest: String| format!("POST /left HTTP/1.1\r\nHost: a\r\n{rest}\r\n\r\n").into_bytes();
    let whole = || [head(format!("Content-Length: {}", body.len())), body.to_vec()].concat();
    match framing {
        Framing::Length => whole(),
        Framing::Pipelined => [whole(), whole()].concat(),
        Framing::Chunked => {
            let chunks = body.chunks(40_000);
            let chunks =
                chunks.map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
            [
                head("Transfer-Encoding: chunked".into()),
                chunks.collect::<Vec<_>>().concat(),
                b"0\r\n\r\n".to_vec(),
            ]
            .concat()
        }
    }
}

/// A client that has sent as much of its request as weir takes.
enum Sender {
    Http1 { _open: TcpStream },
    Http2(Uploads),
}

/// Sends a request over HTTP/1.1 until weir takes no more of it for a moment.
async fn sends(weir: &Weir, framing: Framing, length: usize) -> Sender {
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    let request = upload(framing, &vec![b'x'; length]);
    let _ = tokio::time::timeout(Duration::from_millis(500), client.write_all(&request)).await;
    Sender::Http1 { _open: client }
}

/// Sends a request over HTTP/2 as far as the windows reach.
async fn sends_http2(weir: &Weir, length: usize) -> Sender {
    let mut uploads = Uploads::connect(weir).await;
    uploads.begin(1, length).await;
    uploads.send().await;
    Sender::Http2(uploads)
}

const FRAMINGS: [Framing; 3] = [Framing::Length, Framing::Chunked, Framing::Pipelined];
const KB: usize = 1000;
const LENGTHS: [usize; 6] = [0, 64 * KB, 128 * KB, 300 * KB, 5_000 * KB, 30_000 * KB];

/// The end of a connection stands behind all that was sent on it.
#[tokio::test]
async fn a_client_that_leaves_is_noticed_behind_its_body() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 10).await;
    for length in LENGTHS {
        for framing in FRAMINGS {
            let client = sends(&weir, framing, length).await;
            weir.wait_for_waiting(1).await;
            drop(client);
            is_noticed(&weir, &format!("{framing:?}, {length} bytes")).await;
        }
        let client = sends_http2(&weir, length).await;
        weir.wait_for_waiting(1).await;
        drop(client);
        is_noticed(&weir, &format!("HTTP/2, {length} bytes, closed")).await;
        let Sender::Http2(mut uploads) = sends_http2(&weir, length).await else { unreachable!() };
        weir.wait_for_waiting(1).await;
        uploads.connection.send(&numbered(RST_STREAM, 1, 8)).await;
        is_noticed(&weir, &format!("HTTP/2, {length} bytes, reset")).await;
    }
    assert_eq!(upstream.targets(), ["/"]);
    assert_eq!(weir.metrics().await.sum("weir_permits_total", &[("result", "granted")]), 1.0);
}

/// Clients that have sent all kinds of bodies leave at once, and nobody but the one behind them gets a permit: neither where all that
/// they have sent is read ahead, nor where there is memory for none of it and a departure is only seen when the turn is near.
#[tokio::test]
async fn the_permits_of_clients_that_left_go_to_the_next() {
    let _lane = lane::shared().await;
    for (memory, is_ample) in [("256MiB", true), ("64KiB", false), ("0B", false)] {
        let upstream = Upstream::start();
        let limiter = "{limits: [{rate: 1, per: 4s}], queue: {timeout: 2h, max_waiting: 100}}";
        let config = one_limiter("memory", limiter, &upstream);
        let weir = Weir::start(&format!("server: {{body_memory: {memory}}}\n{config}")).await;
        assert_eq!(weir.tell_with("/api/limiters/api/pause", r#"{"for": "1h"}"#).await.status, 200);
        let over_http1 =
            FRAMINGS.iter().flat_map(|framing| LENGTHS.map(|length| sends(&weir, *framing, length)));
        let over_http2 = LENGTHS.map(|length| sends_http2(&weir, length));
        let clients = (join_all(over_http1).await, join_all(over_http2).await);
        let count = clients.0.len() + clients.1.len();
        weir.wait_for_waiting(count).await;
        let leave_and_resume = async {
            weir.wait_for_waiting(count + 1).await;
            drop(clients);
            if is_ample {
                are_noticed(&weir, memory, 1.0).await;
            }
            assert_eq!(weir.tell("/api/limiters/api/resume").await.status, 200);
        };
        let (stays, ()) = tokio::join!(weir.get("/stays"), leave_and_resume);
        assert_eq!(stays.status, 200, "{memory}");
        assert_eq!(upstream.targets(), ["/stays"], "{memory}");
        let metrics = weir.metrics().await;
        assert_eq!(metrics.sum("weir_permits_total", &[("result", "granted")]), 1.0, "{memory}");
        assert_eq!(metrics.sum("weir_queue_waiting", &[]), 0.0, "{memory}");
    }
}

/// Bytes that were read ahead go upstream as they were sent.
#[tokio::test]
async fn a_body_that_was_read_ahead_arrives_whole() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let pattern = |length: u32| (0..length).map(|number| (number / 7 % 251) as u8).collect::<Vec<u8>>();
    for memory in ["0B", "1MiB", "256MiB"] {
        let limiter = "{limits: [{rate: 1, per: 500ms}], queue: {timeout: 1m, max_waiting: 100}}";
        let config = one_limiter("memory", limiter, &upstream);
        let weir = Weir::start(&format!("server: {{body_memory: {memory}}}\n{config}")).await;
        assert_eq!(weir.get("/").await.status, 200);
        for framing in FRAMINGS {
            let (body, before) = (pattern(1_500_000), upstream.count());
            let mut client = TcpStream::connect(weir.host()).await.unwrap();
            client.write_all(&upload(framing, &body)).await.unwrap();
            let expected = if matches!(framing, Framing::Pipelined) { 2 } else { 1 };
            assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 "), "{memory}, {framing:?}");
            eventually("the whole bodies", async || {
                let seen = upstream.seen();
                let bodies = seen[before..].iter().filter(|seen| seen.body[..] == body[..]);
                bodies.count() == expected
            })
            .await;
        }
    }
}
