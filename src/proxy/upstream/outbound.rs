//! Asks an outbound HTTP proxy for a tunnel to an upstream (CONNECT, RFC 9110, 9.3.6). Sends nothing through the tunnel, and
//! resolves no name: the proxy does.
//!
//! The user and password go to the proxy alone, and into no log.

use std::net::Ipv6Addr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::Status;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::model::{OutboundProxy, Upstream as Settings};
use crate::proxy::error::{ConnectError, TunnelError};
use crate::proxy::messages::response;

/// The most bytes of an answer's head, interim answers included. A refusal may carry several long challenges. Its body is not
/// read.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most headers of an answer.
const HEADERS_MAX: usize = 64;
/// The size of one peek.
const PIECE_BYTES: usize = 1024;

/// The way to one upstream through its proxy.
pub(crate) struct Outbound {
    /// `HOST:PORT` of the proxy, for errors.
    name: Arc<str>,
    /// The head of the CONNECT request, with the credentials.
    request: Box<[u8]>,
}

impl Outbound {
    /// Prepares the request and sends nothing.
    pub(crate) fn new(settings: &Settings, proxy: &OutboundProxy) -> Outbound {
        let target = authority(&settings.host, settings.port);
        let credentials = proxy.credentials.as_ref().map(|secret| STANDARD.encode(secret.reveal()));
        let credentials = credentials.map(|token| format!("Proxy-Authorization: Basic {token}\r\n"));
        let credentials = credentials.unwrap_or_default();
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{credentials}\r\n");
        Outbound {
            name: authority(&proxy.host, proxy.port).into(),
            request: request.into_bytes().into_boxed_slice(),
        }
    }

    /// Turns a connection to the proxy into one to the upstream. The caller limits the time.
    pub(crate) async fn open(&self, tcp: &mut TcpStream) -> Result<(), ConnectError> {
        let status = async {
            tcp.write_all(&self.request).await?;
            answer(tcp).await
        };
        let source = match status.await.map(|status| (status, response::no_tunnel(status))) {
            Ok((_, None)) => return Ok(()),
            Ok((status, Some(advice))) => TunnelError::Refused { status, advice },
            Err(error) => error,
        };
        Err(ConnectError::Tunnel { proxy: Arc::clone(&self.name), source })
    }
}

/// Returns `HOST:PORT`, with brackets around an IPv6 address.
fn authority(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// Reads exactly the head of the answer, because the next byte may come from the upstream, and returns the status.
async fn answer(tcp: &mut TcpStream) -> Result<u16, TunnelError> {
    let mut head = Vec::new();
    let mut left = HEAD_BYTES_MAX;
    let mut piece = [0; PIECE_BYTES];
    while left > 0 {
        let peeked = tcp.peek(&mut piece[..left.min(PIECE_BYTES)]).await?;
        if peeked == 0 {
            return Err(TunnelError::Closed);
        }
        let before = head.len();
        head.extend_from_slice(&piece[..peeked]);
        let found = parse(&head)?;
        // This read takes only bytes that have arrived, so it never waits.
        let taken = found.map_or(peeked, |(length, _)| length.saturating_sub(before).min(peeked));
        tcp.read_exact(&mut piece[..taken]).await?;
        left -= taken;
        match found {
            Some((_, status)) if response::is_interim(status) => head.clear(),
            Some((_, status)) => return Ok(status),
            None => {}
        }
    }
    Err(TunnelError::TooLarge { bytes_max: HEAD_BYTES_MAX })
}

/// Returns the length of the head and its status; `None` if more must come. Bytes that cannot become a head fail at once.
fn parse(bytes: &[u8]) -> Result<Option<(usize, u16)>, TunnelError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(bytes) {
        Ok(Status::Complete(length)) => Ok(response.code.map(|status| (length, status))),
        Ok(Status::Partial) => Ok(None),
        Err(error) => Err(TunnelError::NotHttp(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    /// Sends an answer in these pieces. Returns the result, and the bytes left to read.
    async fn answered(pieces: &[&[u8]]) -> (Result<u16, TunnelError>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut proxy = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut weir, _) = listener.accept().await.unwrap();
        proxy.set_nodelay(true).unwrap();
        let speaking = async {
            for piece in pieces {
                // weir may have refused the answer in the middle.
                let _ = proxy.write_all(piece).await;
                tokio::task::yield_now().await;
            }
            drop(proxy);
        };
        let both = async { tokio::join!(answer(&mut weir), speaking).0 };
        let status = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
        let mut rest = Vec::new();
        let _ = weir.read_to_end(&mut rest).await;
        (status, rest)
    }

    #[tokio::test]
    async fn nothing_behind_the_head_is_lost() {
        let whole = b"HTTP/1.1 200 Connection established\r\nProxy-Agent: x\r\n\r\nthe upstream speaks first"
            .as_slice();
        for size in [1, 2, 7, whole.len()] {
            let (status, rest) = answered(&whole.chunks(size).collect::<Vec<_>>()).await;
            assert_eq!(status.unwrap(), 200);
            assert_eq!(rest, b"the upstream speaks first", "in pieces of {size}");
        }
        let (status, rest) = answered(&[b"HTTP/1.0 200\r\n\r\n"]).await;
        assert_eq!((status.unwrap(), rest.len()), (200, 0));
    }

    #[tokio::test]
    async fn interim_answers_are_skipped() {
        let (status, rest) =
            answered(&[b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 ", b"407 No\r\n\r\nbody"]).await;
        assert_eq!((status.unwrap(), rest.as_slice()), (407, b"body".as_slice()));
    }

    #[tokio::test]
    async fn garbage_and_cut_answers_are_refused() {
        for garbage in ["SSH-2.0-what\r\n", "\u{1}\u{2}", "HTTP/1.1 abc\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n"] {
            let (status, _) = answered(&[garbage.as_bytes()]).await;
            assert!(matches!(status, Err(TunnelError::NotHttp(_))), "{garbage:?}: {status:?}");
        }
        for cut in ["", "HTTP/1.1 200 OK\r\nA: b\r\n"] {
            let (status, _) = answered(&[cut.as_bytes()]).await;
            assert!(matches!(status, Err(TunnelError::Closed)), "{cut:?}: {status:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(2 * HEAD_BYTES_MAX));
        assert!(matches!(answered(&[long.as_bytes()]).await.0, Err(TunnelError::TooLarge { .. })));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert!(matches!(answered(&[many.as_bytes()]).await.0, Err(TunnelError::NotHttp(_))));
        let endless = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(HEAD_BYTES_MAX / 20);
        assert!(matches!(answered(&[&endless]).await.0, Err(TunnelError::TooLarge { .. })));
    }

    #[test]
    fn an_authority_always_has_a_port() {
        assert_eq!(authority("api.example.com", 443), "api.example.com:443");
        assert_eq!(authority("::1", 80), "[::1]:80");
        assert_eq!(authority("10.0.0.1", 80), "10.0.0.1:80");
    }
}
