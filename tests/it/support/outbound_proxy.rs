//! An outbound HTTP proxy that records its requests and answers as the test wants. Written for these tests: it shares
//! nothing with the tested code.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;

use super::raw::{RawConnection, RawUpstream};

/// The behaviour of the proxy once it has read the head of a request.
#[derive(Clone, Debug)]
pub(crate) enum Manner {
    /// Opens the tunnel.
    Tunnel,
    /// Opens the tunnel after an answer in single bytes.
    Dribble,
    /// Opens the tunnel for requests with this `Proxy-Authorization`, and answers others with 407.
    Ask(&'static str),
    /// Sends these bytes and hangs up.
    Say(Vec<u8>),
    /// Sends these bytes again and again, after a pause each time, until the other side leaves.
    Repeat(&'static [u8], Duration),
    /// Sends nothing, and keeps the connection.
    Stall,
}

/// A running proxy. Dropping it closes every tunnel.
pub(crate) struct OutboundProxy(RawUpstream);

impl OutboundProxy {
    /// Starts on a free port. A tunnel to one of these names, `HOST:PORT`, leads to the address beside it, regardless
    /// of DNS; others are refused with 403.
    pub(crate) async fn start(manner: Manner, leads: &[(&str, SocketAddr)]) -> OutboundProxy {
        let leads: HashMap<String, SocketAddr> =
            leads.iter().map(|(name, to)| ((*name).to_owned(), *to)).collect();
        let leads = Arc::new(leads);
        let raw = RawUpstream::start(move |connection, _| {
            let (manner, leads) = (manner.clone(), Arc::clone(&leads));
            async move { serve(connection, manner, &leads).await.unwrap_or_default() }
        });
        OutboundProxy(raw.await)
    }

    /// Returns `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Returns the heads of all requests, in order.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.0.heads()
    }
}

async fn serve(
    mut connection: RawConnection,
    manner: Manner,
    leads: &HashMap<String, SocketAddr>,
) -> Option<()> {
    connection.stream.set_nodelay(true).ok()?;
    let head = connection.read_head().await;
    let mut stream = connection.stream;
    let authorization = head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    let opened = b"HTTP/1.1 200 Connection established\r\nProxy-Agent: test\r\n\r\n".as_slice();
    match manner {
        Manner::Tunnel => {}
        Manner::Dribble => {
            for byte in &opened[..opened.len() - 1] {
                stream.write_all(&[*byte]).await.ok()?;
                tokio::task::yield_now().await;
            }
        }
        Manner::Ask(wanted) if authorization == Some(wanted) => {}
        Manner::Ask(_) => return refuse(stream, "407 Proxy Authentication Required").await,
        Manner::Say(bytes) => return stream.write_all(&bytes).await.ok(),
        Manner::Repeat(bytes, pause) => loop {
            stream.write_all(bytes).await.ok()?;
            tokio::time::sleep(pause).await;
        },
        Manner::Stall => return stream.read_u8().await.ok().map(|_| ()),
    }
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let Some(to) = leads.get(target) else { return refuse(stream, "403 Forbidden").await };
    let mut upstream = TcpStream::connect(to).await.ok()?;
    let left = if matches!(manner, Manner::Dribble) { &opened[opened.len() - 1..] } else { opened };
    stream.write_all(left).await.ok()?;
    copy_bidirectional(&mut stream, &mut upstream).await.ok().map(|_| ())
}

async fn refuse(mut stream: TcpStream, status: &str) -> Option<()> {
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 7\r\n\r\nrefused");
    stream.write_all(answer.as_bytes()).await.ok()
}
