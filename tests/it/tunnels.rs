//! An upgraded connection, such as a WebSocket: every byte passes in both directions at once, each side may end at any
//! time, and the other side gets the last bytes.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::support::outbound_proxy::{Manner, OutboundProxy};
use crate::support::raw::{RawUpstream, in_time, read_head};
use crate::support::{Weir, eventually, lane, one_route};

const HANDSHAKE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

/// An upstream that switches to another protocol and leaves the rest to the test.
struct Changing {
    upstream: RawUpstream,
    changed: mpsc::Receiver<TcpStream>,
}

impl Changing {
    async fn start() -> Changing {
        let (sender, changed) = mpsc::channel(8);
        let upstream = RawUpstream::start(move |mut connection, _| {
            let sender = sender.clone();
            async move {
                if !connection.read_head().await.is_empty() {
                    connection.write(SWITCHING).await;
                    let _ = sender.send(connection.stream).await;
                }
            }
        })
        .await;
        Changing { upstream, changed }
    }

    /// Returns both ends of a new tunnel: the client's and the upstream's.
    async fn tunnel(&mut self, weir: &Weir) -> (TcpStream, TcpStream) {
        let mut client = TcpStream::connect(weir.host()).await.unwrap();
        client.set_nodelay(true).unwrap();
        client.write_all(HANDSHAKE).await.unwrap();
        let head = read_head(&mut client).await.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        let upstream = in_time("the upstream's end", self.changed.recv()).await.unwrap();
        upstream.set_nodelay(true).unwrap();
        (client, upstream)
    }
}

/// Pseudo-random numbers, the same each time (xorshift, 64 bits).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a size from one byte to a megabyte, each power of two as often as any other.
    fn piece(&mut self) -> usize {
        let bits = self.roll() % 21;
        1 + (self.roll() % (1 << bits)) as usize
    }
}

/// Returns the byte at a position: neighbours differ, and so do the two directions.
fn byte_at(position: usize, direction: u8) -> u8 {
    ((position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ direction
}

fn bytes_at(position: usize, count: usize, direction: u8) -> Vec<u8> {
    (position..position + count).map(|position| byte_at(position, direction)).collect()
}

/// Writes `total` bytes in pieces, then ends the direction of `write`.
async fn say(mut write: impl AsyncWriteExt + Unpin, total: usize, direction: u8, mut dice: Dice) {
    let mut said = 0;
    while said < total {
        let piece = dice.piece().min(total - said);
        in_time("to write", write.write_all(&bytes_at(said, piece, direction))).await.unwrap();
        said += piece;
    }
    write.shutdown().await.unwrap();
}

/// Reads in pieces to the end; panics at the first wrong byte.
async fn hear(mut read: impl AsyncReadExt + Unpin, direction: u8, mut dice: Dice) -> usize {
    let mut heard = 0;
    loop {
        let mut piece = vec![0; dice.piece()];
        let count = in_time("to read", read.read(&mut piece)).await.unwrap();
        if count == 0 {
            return heard;
        }
        assert_eq!(piece[..count], bytes_at(heard, count, direction), "behind {heard} bytes");
        heard += count;
    }
}

/// Writes this many bytes to each side at once, and reads all of them.
async fn converse(client: TcpStream, upstream: TcpStream, to_upstream: usize, to_client: usize, seed: u64) {
    let dice = |salt: u64| Dice(seed.wrapping_mul(0x9e37_79b9).wrapping_add(salt));
    let (client_read, client_write) = client.into_split();
    let (upstream_read, upstream_write) = upstream.into_split();
    let ((), (), at_upstream, at_client) = tokio::join!(
        say(client_write, to_upstream, 0x55, dice(1)),
        say(upstream_write, to_client, 0xaa, dice(2)),
        hear(upstream_read, 0x55, dice(3)),
        hear(client_read, 0xaa, dice(4)),
    );
    assert_eq!((at_upstream, at_client), (to_upstream, to_client), "seed {seed}");
}

#[tokio::test]
async fn every_byte_passes_both_ways_at_once() {
    const HALF: usize = 5_000_000;
    let _lane = lane::shared().await;
    let mut changing = Changing::start().await;
    let weir = Weir::start(&one_route(&changing.upstream.url())).await;
    for (seed, to_upstream, to_client) in [(1, HALF, HALF), (2, 2 * HALF, 1), (3, 0, HALF)] {
        let (client, upstream) = changing.tunnel(&weir).await;
        converse(client, upstream, to_upstream, to_client, seed).await;
    }
}

#[tokio::test]
async fn an_outbound_proxy_carries_an_upgraded_connection() {
    let _lane = lane::shared().await;
    let mut changing = Changing::start().await;
    for manner in [Manner::Tunnel, Manner::Dribble] {
        let proxy = OutboundProxy::start(manner, &[("chat.test:8000", changing.upstream.address())]).await;
        let weir = Weir::start(&format!(
            "routes:\n  - {{name: all, match: {{path: /}}, upstream: {{url: \"http://chat.test:8000\", proxy: \"http://{}\"}}}}\n",
            proxy.address()
        ))
        .await;
        for seed in 1..=2 {
            let (client, upstream) = changing.tunnel(&weir).await;
            converse(client, upstream, 300_000, 400_000, seed).await;
        }
        // A connection that has switched is never used again.
        let asked = "CONNECT chat.test:8000 HTTP/1.1\r\nHost: chat.test:8000\r\n\r\n";
        assert_eq!(proxy.heads(), [asked, asked]);
    }
    let heads = changing.upstream.heads();
    assert!(heads.iter().all(|head| head.contains("host: chat.test:8000\r\n")), "{heads:?}");
}

/// A browser and a server close one after the other.
#[tokio::test]
async fn either_side_may_end_first_and_still_listen() {
    let _lane = lane::shared().await;
    let mut changing = Changing::start().await;
    let weir = Weir::start(&one_route(&changing.upstream.url())).await;
    for client_first in [true, false] {
        let (client, upstream) = changing.tunnel(&weir).await;
        let (mut first, mut second) = if client_first { (client, upstream) } else { (upstream, client) };
        first.write_all(b"the last of mine").await.unwrap();
        first.shutdown().await.unwrap();
        let mut heard = Vec::new();
        in_time("the first one's end", second.read_to_end(&mut heard)).await.unwrap();
        assert_eq!(heard, b"the last of mine");
        let answer = bytes_at(0, 1_000_000, 0);
        let (_, heard) = tokio::join!(
            async {
                second.write_all(&answer).await.unwrap();
                second.shutdown().await.unwrap();
            },
            hear(&mut first, 0, Dice(7)),
        );
        assert_eq!(heard, answer.len());
    }
    eventually("both to be over", async || {
        let metrics = weir.metrics().await;
        metrics.sum("weir_requests_total", &[("outcome", "forwarded"), ("code", "101")]) == 2.0
    })
    .await;
}

#[tokio::test]
async fn an_abrupt_end_of_one_side_ends_the_other() {
    let _lane = lane::shared().await;
    let mut changing = Changing::start().await;
    let weir = Weir::start(&one_route(&changing.upstream.url())).await;
    for client_breaks in [true, false] {
        for has_spoken in [true, false] {
            let (client, upstream) = changing.tunnel(&weir).await;
            let (mut breaking, mut other) =
                if client_breaks { (client, upstream) } else { (upstream, client) };
            if has_spoken {
                breaking.write_all(b"and then").await.unwrap();
                let mut heard = [0; 8];
                in_time("a word", other.read_exact(&mut heard)).await.unwrap();
            }
            // A reset instead of an orderly close.
            SockRef::from(&breaking).set_linger(Some(Duration::ZERO)).unwrap();
            drop(breaking);
            let end = in_time("the other's end", other.read(&mut [0])).await;
            assert!(matches!(end, Ok(0) | Err(_)), "client breaks: {client_breaks}, {end:?}");
        }
    }
}

/// The server closes while the client still sends: the server's last bytes arrive nevertheless, as they would without
/// weir.
#[tokio::test]
async fn last_bytes_of_a_closed_side_reach_the_side_that_still_sends() {
    let _lane = lane::shared().await;
    let mut changing = Changing::start().await;
    let weir = Weir::start(&one_route(&changing.upstream.url())).await;
    let last = bytes_at(0, 100, 0);
    for _ in 0..100 {
        let (client, mut upstream) = changing.tunnel(&weir).await;
        let (read, mut write) = client.into_split();
        let speaking = async {
            // Until nobody reads any more.
            while write.write_all(&[b'x'; 16_384]).await.is_ok() {}
        };
        let closing = async {
            in_time("the first words", upstream.read_exact(&mut [0; 16_384])).await.unwrap();
            upstream.write_all(&last).await.unwrap();
            // Unread bytes make this a reset.
            drop(upstream);
        };
        let listening = async {
            let mut heard = Vec::new();
            let _ = in_time("the end", { read }.read_to_end(&mut heard)).await;
            heard
        };
        let ((), (), heard) = tokio::join!(speaking, closing, listening);
        assert_eq!(heard, last);
    }
}

#[tokio::test]
async fn a_tunnel_ends_when_both_sides_are_silent_for_too_long() {
    let _lane = lane::shared().await;
    let mut changing = Changing::start().await;
    let weir = Weir::start(&format!(
        "routes:\n  - {{name: all, match: {{path: /}}, upstream: {{url: \"{}\", tunnel_timeout: 1s}}}}\n",
        changing.upstream.url()
    ))
    .await;
    let (mut client, mut upstream) = changing.tunnel(&weir).await;
    let begun = std::time::Instant::now();
    let mut byte = [0];
    // One side alone speaks, for longer than the time.
    while begun.elapsed() < Duration::from_secs(2) {
        client.write_all(b"x").await.unwrap();
        in_time("a byte", upstream.read_exact(&mut byte)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for side in [&mut client, &mut upstream] {
        assert!(matches!(in_time("the end of the tunnel", side.read(&mut byte)).await, Ok(0) | Err(_)));
    }
}
