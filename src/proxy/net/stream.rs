//! A TCP stream whose peer can be watched while hyper owns the stream. Knows nothing of the bytes.
//!
//! Two questions need it. Has the client left, although its request body is still unread? hyper looks at a connection only when
//! it wants bytes. And is an idle upstream connection open right now? The runtime's view of a socket is as old as its last look at
//! the poller; a peek is current.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The longest write of several pieces that is copied into one.
const JOINED_MAX: usize = 1024;

/// The most bytes of one read, which is what a connection holds of a body that nobody takes. One less than a step in which hyper's
/// buffers grow: hyper doubles a buffer that a read has filled, and holds half of it for nothing.
pub(crate) const READ_MAX: usize = 16 * 1024 - 1;

/// The silence after which the kernel asks the peer whether it is still there, the interval in which it asks again, and how often.
/// Four times a quarter of a minute is the default of `server.write_timeout`, which ends the connection earlier if it is shorter.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 4;

/// A TCP stream that hands out [`Probe`]s.
pub(crate) struct Stream {
    read: OwnedReadHalf,
    write: Arc<OwnedWriteHalf>,
}

impl Stream {
    /// Takes the stream over, turns Nagle's algorithm off, and lets the kernel close a connection whose peer has vanished, or takes no
    /// byte for `write_timeout` while some wait for it.
    pub(crate) fn new(tcp: TcpStream, write_timeout: Duration) -> Stream {
        let socket = SockRef::from(&tcp);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_TIME);
        // They fail only on a dead socket, and then the first read fails as well.
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_RETRIES));
        // Only the kernel knows what the peer has taken: weir's write blocks until a good part of the send buffer is free.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = socket.set_tcp_user_timeout(Some(write_timeout));
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = write_timeout;
        let (read, write) = tcp.into_split();
        Stream { read, write: Arc::new(write) }
    }

    /// Returns a view of the peer that does not keep the stream open.
    pub(crate) fn probe(&self) -> Probe {
        Probe(Arc::downgrade(&self.write))
    }

    /// Waits until a first byte has arrived, or the stream has ended.
    pub(crate) async fn first_arrival(&mut self) {
        // The readiness of a new socket says nothing: a look does. The read behind it finds an error.
        let _ = self.read.peek(&mut [0]).await;
    }

    /// Waits until something has arrived, or the stream has ended.
    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tcp: &TcpStream = self.read.as_ref();
        tcp.poll_read_ready(context)
    }

    /// Returns whether nothing has arrived, nor the end, of which the runtime has not told yet.
    pub(crate) fn is_silent(&self) -> bool {
        is_silent(self.read.as_ref())
    }

    fn poll_try(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let tcp: &TcpStream = (*self.write).as_ref();
        loop {
            ready!(tcp.poll_write_ready(context))?;
            match write(tcp) {
                // The attempt has cleared the readiness, so the next round waits.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() <= READ_MAX {
            return Pin::new(&mut self.read).poll_read(context, buffer);
        }
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(READ_MAX));
        ready!(Pin::new(&mut self.read).poll_read(context, &mut part))?;
        let count = part.filled().len();
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_try(context, |tcp| tcp.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A plain write of a head, or of a head with a small body, is cheaper for the kernel than a vectored one.
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut joined = [0; JOINED_MAX];
        match pieces {
            [piece] => self.poll_try(context, |tcp| tcp.try_write(piece)),
            _ if length <= JOINED_MAX => {
                let mut filled = 0;
                for piece in pieces {
                    joined[filled..filled + piece.len()].copy_from_slice(piece);
                    filled += piece.len();
                }
                self.poll_try(context, |tcp| tcp.try_write(&joined[..filled]))
            }
            _ => self.poll_try(context, |tcp| tcp.try_write_vectored(pieces)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tcp: &TcpStream = (*self.write).as_ref();
        match SockRef::from(tcp).shutdown(Shutdown::Write) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// Returns whether the kernel has neither bytes of the peer nor its end right now.
fn is_silent(tcp: &TcpStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    let peeked = SockRef::from(tcp).peek(&mut byte);
    peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// A view of a [`Stream`]'s peer that consumes no bytes.
#[derive(Clone)]
pub(crate) struct Probe(Weak<OwnedWriteHalf>);

impl Probe {
    /// Returns whether an idle connection is open and silent in the kernel right now. One with unasked bytes is as useless as a
    /// closed one.
    pub(crate) fn is_idle(&self) -> bool {
        let Some(write) = self.0.upgrade() else { return false };
        is_silent((*write).as_ref())
    }

    /// Waits until the peer has closed its side or the connection broke, even behind unread bytes.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) async fn closed(&self) {
        let Some(write) = self.0.upgrade() else { return };
        let tcp: &TcpStream = (*write).as_ref();
        // An unread body would make the socket readable at once. Priority data never arrives here, so this interest reports only
        // the close of the read side, which comes with every interest.
        let _ = tcp.ready(tokio::io::Interest::PRIORITY).await;
    }

    /// Never ends: this system's poller does not report the close, and hyper notices it at its next read.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) async fn closed(&self) {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::Stream;

    async fn pair() -> (TcpStream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (peer, Stream::new(listener.accept().await.unwrap().0, Duration::from_secs(60)))
    }

    #[tokio::test]
    async fn a_close_is_noticed_behind_unread_bytes() {
        let (mut peer, stream) = pair().await;
        let probe = stream.probe();
        peer.write_all(b"a body that nobody reads").await.unwrap();
        assert!(timeout(Duration::from_millis(50), probe.closed()).await.is_err());
        drop(peer);
        timeout(Duration::from_secs(5), probe.closed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_is_idle_while_open_and_silent() {
        let (mut peer, stream) = pair().await;
        let probe = stream.probe();
        assert!(probe.is_idle());
        peer.write_all(b"HTTP/1.1 408 Request Timeout\r\n").await.unwrap();
        assert!(!probe.is_idle());
        drop(stream);
        assert!(!probe.is_idle());
    }
}
