//! Peers that take no bytes: each holds little memory, for a bounded time, and others do not notice.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::support::raw::{RawUpstream, in_time, read_head};
use crate::support::{
    PATIENCE, Reply, Upstream, Weir, client, eventually, eventually_within, lane, one_route, poll_for,
};

const GET: &[u8] = b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n";
/// Far more than the kernel keeps for a client that reads nothing.
const LARGE: usize = 16 * 1024 * 1024;
const KIB: u64 = 1024;

fn large_body() -> Upstream {
    let upstream = Upstream::start();
    upstream.reply("/large", Reply::status(200).body(vec![b'x'; LARGE]));
    upstream
}

/// Opens a connection whose kernel buffer is as small as it can be.
async fn narrow(host: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(host.parse::<SocketAddr>().unwrap()).await.unwrap()
}

/// Sends a request for the large body, and reads nothing.
async fn stalled(weir: &Weir) -> TcpStream {
    let mut client = narrow(&weir.host()).await;
    client.write_all(GET).await.unwrap();
    client
}

/// The window of a stream where the client names none (RFC 9113, 6.9.2).
const WINDOW: u32 = 65_535;

/// Opens a connection of HTTP/2 whose streams wait for their own window alone.
async fn http2(weir: &Weir, window: u32) -> (SendRequest<Empty<Bytes>>, AbortOnDropHandle<()>) {
    let stream = TokioIo::new(TcpStream::connect(weir.host()).await.unwrap());
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window).initial_connection_window_size((1 << 31) - 1);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    let driving = tokio::spawn(async move {
        let _ = connection.await;
    });
    (sender, AbortOnDropHandle::new(driving))
}

async fn get(weir: &Weir, sender: &mut SendRequest<Empty<Bytes>>, path: &str) -> Response<Incoming> {
    let request = Request::get(weir.url(path)).body(Empty::new()).unwrap();
    sender.ready().await.unwrap();
    in_time("a response", sender.send_request(request)).await.unwrap()
}

/// Returns weir's memory when it grows no more.
async fn settled_bytes(weir: &Weir) -> u64 {
    let mut before = weir.rss_bytes();
    poll_for("memory that grows no more", async || {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let (now, earlier) = (weir.rss_bytes(), before);
        before = now;
        (now.abs_diff(earlier) < 64 * KIB).then_some(now)
    })
    .await
}

async fn cancelled(weir: &Weir) -> f64 {
    weir.metrics().await.sum("weir_requests_total", &[("outcome", "cancelled")])
}

#[tokio::test]
async fn a_stalled_download_holds_little_and_gives_it_back() {
    // So many that a quarter of what they hold, 6.8 MiB, is far more than what the caches of the allocator's threads keep of any
    // burst: 2.8 MiB behind 200 clients, 3.4 to 3.9 behind 500.
    const CLIENTS: u64 = 500;
    let _lane = lane::shared().await;
    let upstream = large_body();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    client::get(&weir.url("/")).await.unwrap();
    let before = settled_bytes(&weir).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(stalled(&weir).await);
    }
    upstream.wait_for(CLIENTS as usize + 1, PATIENCE).await;
    let each = settled_bytes(&weir).await.saturating_sub(before) / CLIENTS;
    println!("a stalled download holds {} KiB", each / KIB);
    assert!(each <= 64 * KIB, "{each} bytes each");
    drop(clients);
    eventually("the end of the requests", async || cancelled(&weir).await == CLIENTS as f64).await;
    let given_back = before + CLIENTS * each / 4;
    // The allocator keeps what is free for some ten seconds, and gives it back bit by bit.
    eventually_within("memory given back", 3 * PATIENCE, async || weir.rss_bytes() < given_back).await;
}

#[tokio::test]
async fn unread_streams_hold_little() {
    const STREAMS: usize = 1000;
    let _lane = lane::shared().await;
    let upstream = large_body();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let (mut sender, _driving) = http2(&weir, WINDOW).await;
    get(&weir, &mut sender, "/").await.into_body().collect().await.unwrap();
    let before = settled_bytes(&weir).await;
    let mut unread = Vec::new();
    for _ in 0..STREAMS {
        unread.push(get(&weir, &mut sender, "/large").await);
    }
    let grown = settled_bytes(&weir).await.saturating_sub(before);
    println!("{STREAMS} unread streams hold {} KiB", grown / KIB);
    assert!(grown <= 40 * KIB * KIB, "{grown} bytes");
}

/// A stream that has flowed for a while has larger pieces.
#[tokio::test]
async fn a_stream_that_stalls_late_holds_little() {
    const STREAMS: usize = 100;
    let _lane = lane::shared().await;
    let upstream = large_body();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let (mut sender, _driving) = http2(&weir, 16 * WINDOW).await;
    get(&weir, &mut sender, "/").await.into_body().collect().await.unwrap();
    let before = settled_bytes(&weir).await;
    let mut unread = Vec::new();
    for _ in 0..STREAMS {
        unread.push(get(&weir, &mut sender, "/large").await);
    }
    let each = settled_bytes(&weir).await.saturating_sub(before) / STREAMS as u64;
    println!("a stream that stalled late holds {} KiB", each / KIB);
    assert!(each <= 64 * KIB, "{each} bytes each");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_closed_and_a_slow_one_is_not() {
    let _lane = lane::shared().await;
    let upstream = large_body();
    let config = format!("server: {{write_timeout: 1s}}\n{}", one_route(&upstream.url()));
    let weir = Weir::start(&config).await;
    let mut slow = narrow(&weir.host()).await;
    slow.write_all(GET).await.unwrap();
    let mut stalled = stalled(&weir).await;
    let mut piece = [0; 64 * 1024];
    let mut read = 0;
    // It reads on until the other is closed, and for as long again.
    let begun = std::time::Instant::now();
    let mut closed_after = None;
    while closed_after.is_none_or(|closed| begun.elapsed() < 2 * closed + Duration::from_secs(2)) {
        assert!(begun.elapsed() < PATIENCE, "nothing was closed");
        read += in_time("a piece", slow.read(&mut piece)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        if closed_after.is_none() && cancelled(&weir).await == 1.0 {
            closed_after = Some(begun.elapsed());
        }
    }
    let mut rest = Vec::new();
    let ended = in_time("the end of the stalled one", stalled.read_to_end(&mut rest)).await;
    assert!(ended.is_err() || rest.len() < LARGE, "it was cut");
    while read < LARGE {
        let count = in_time("the rest", slow.read(&mut piece)).await.unwrap();
        assert!(count > 0, "the slow one was cut after {read} bytes");
        read += count;
    }
    assert_eq!(cancelled(&weir).await, 1.0);
}

#[tokio::test]
async fn a_stream_of_which_nothing_is_taken_is_reset_and_its_connection_goes_on() {
    let _lane = lane::shared().await;
    let upstream = large_body();
    let config = format!("server: {{write_timeout: 500ms}}\n{}", one_route(&upstream.url()));
    let weir = Weir::start(&config).await;
    let (mut sender, _driving) = http2(&weir, WINDOW).await;
    let unread = get(&weir, &mut sender, "/large").await;
    eventually("the reset", async || cancelled(&weir).await == 1.0).await;
    let read = in_time("the end of the stream", unread.into_body().collect()).await;
    assert!(read.is_err(), "the body is not complete");
    let whole = get(&weir, &mut sender, "/large").await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(whole.len(), LARGE);
}

#[tokio::test]
async fn an_upstream_that_takes_nothing_is_given_up() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, _| async move {
        connection.read_head().await;
        std::future::pending::<()>().await;
    })
    .await;
    let config = format!("server: {{write_timeout: 1s}}\n{}", one_route(&upstream.url()));
    let weir = Weir::start(&config).await;
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", 4 * LARGE);
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = client.into_split();
    let sending = tokio::spawn(async move { write.write_all(&vec![b'x'; 4 * LARGE]).await });
    let mut answer = vec![0; 12];
    in_time("the answer", read.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 504");
    drop(read);
    let _ = sending.await.unwrap();
}

/// The kernel's table of connections shows which timer runs: 02 is keep-alive.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn the_kernel_asks_silent_peers_on_both_sides_whether_they_are_there() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"));
    let port = |address: SocketAddr| format!(":{:04X}", address.port());
    let (own, peer) = (port(weir.host().parse().unwrap()), port(client.local_addr().unwrap()));
    let upstream = port(upstream.address());
    eventually("keep-alive on both sides", async || {
        let mut table = String::new();
        std::fs::File::open("/proc/net/tcp").unwrap().read_to_string(&mut table).unwrap();
        let is_kept = |from: &str, to: &str| {
            table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|fields| {
                fields[1].ends_with(from) && fields[2].ends_with(to) && fields[5].starts_with("02:")
            })
        };
        is_kept(&own, &peer) && is_kept("", &upstream)
    })
    .await;
}
