//! Raw bytes: a client that sends given bytes and reads until the other side closes, and an upstream that answers with
//! given bytes, regardless of HTTP.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// A deadline far longer than any step here takes.
const DEADLINE: Duration = Duration::from_secs(20);

/// Returns the result of a future that must not hang.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what}: nothing in {DEADLINE:?}"))
}

/// Sends bytes, and reads until the connection ends.
pub(crate) async fn exchange(host: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(host).await.expect("connect");
    // The other side may close before it has read all.
    let _ = stream.write_all(bytes).await;
    read_to_end(&mut stream).await
}

/// Reads until the connection ends, in whatever way.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let _ = in_time("the end of the connection", stream.read_to_end(&mut read)).await;
    String::from_utf8_lossy(&read).into_owned()
}

/// Reads the head of a message, or what there is of it, and nothing behind it.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = in_time("a head", stream.read_u8()).await else { break };
        head.push(byte);
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// An upstream that handles each connection as the test wants.
pub(crate) struct RawUpstream {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    _accepting: AbortOnDropHandle<()>,
}

impl RawUpstream {
    /// Starts an upstream; `serve` gets each connection, and the number of connections before it.
    pub(crate) async fn start<F>(
        serve: impl Fn(RawConnection, usize) -> F + Send + Sync + 'static,
    ) -> RawUpstream
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let (address, heads) = (listener.local_addr().expect("an address"), Arc::default());
        let seen = Arc::clone(&heads);
        let accepting = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            for index in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                serving.spawn(serve(RawConnection { stream, heads: Arc::clone(&seen) }, index));
            }
        });
        RawUpstream { address, heads, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Starts an upstream that answers every request on every connection with the same bytes.
    pub(crate) async fn answering(bytes: &'static [u8]) -> RawUpstream {
        RawUpstream::start(move |mut connection, _| async move {
            while !connection.read_head().await.is_empty() {
                connection.write(bytes).await;
            }
        })
        .await
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
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

/// A connection to a raw upstream.
pub(crate) struct RawConnection {
    pub(crate) stream: TcpStream,
    heads: Arc<Mutex<Vec<String>>>,
}

impl RawConnection {
    /// Reads and records one head; returns an empty one when the connection has ended.
    pub(crate) async fn read_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = self.stream.read_u8().await else { return String::new() };
            head.push(byte);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
        head
    }

    /// Writes bytes, if the other side is still there.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }
}
