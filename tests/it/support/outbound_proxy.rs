//! An outbound HTTP proxy that records its requests and answers as the test wants. Written for these tests: it shares
//! nothing with the tested code.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

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
pub(crate) struct OutboundProxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl OutboundProxy {
    /// Starts on a free port. A tunnel to one of these names, `HOST:PORT`, leads to the address beside it, regardless
    /// of DNS; others are refused with 403.
    pub(crate) async fn start(manner: Manner, leads: &[(&str, SocketAddr)]) -> OutboundProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let leads: HashMap<String, SocketAddr> =
            leads.iter().map(|(name, to)| ((*name).to_owned(), *to)).collect();
        let (leads, heads) = (Arc::new(leads), Arc::<Mutex<Vec<String>>>::default());
        let seen = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            let mut tunnels = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (manner, leads, seen) = (manner.clone(), Arc::clone(&leads), Arc::clone(&seen));
                tunnels.spawn(async move { serve(stream, manner, &leads, &seen).await });
            }
        });
        OutboundProxy { address, heads, _task: AbortOnDropHandle::new(task) }
    }

    /// Returns `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the heads of all requests, in order.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    manner: Manner,
    leads: &HashMap<String, SocketAddr>,
    seen: &Mutex<Vec<String>>,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut head = Vec::new();
    // Byte by byte, so that no bytes of the tunnel are read here.
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
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
