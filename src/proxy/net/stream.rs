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

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The longest write of several pieces that is copied into one.
const JOINED_MAX: usize = 1024;

/// A TCP stream that hands out [`Probe`]s.
pub(crate) struct Stream {
    read: OwnedReadHalf,
    write: Arc<OwnedWriteHalf>,
}

impl Stream {
    /// Takes the stream over and turns Nagle's algorithm off.
    pub(crate) fn new(tcp: TcpStream) -> Stream {
        // It fails only on a dead socket, and then the first read fails as well.
        let _ = tcp.set_nodelay(true);
        let (read, write) = tcp.into_split();
        Stream { read, write: Arc::new(write) }
    }

    /// Returns a view of the peer that does not keep the stream open.
    pub(crate) fn probe(&self) -> Probe {
        Probe(Arc::downgrade(&self.write))
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
        Pin::new(&mut self.read).poll_read(context, buffer)
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

/// A view of a [`Stream`]'s peer that consumes no bytes.
#[derive(Clone)]
pub(crate) struct Probe(Weak<OwnedWriteHalf>);

impl Probe {
    /// Returns whether an idle connection is open and silent in the kernel right now. One with unasked bytes is as useless as a
    /// closed one.
    pub(crate) fn is_idle(&self) -> bool {
        let Some(write) = self.0.upgrade() else { return false };
        let tcp: &TcpStream = (*write).as_ref();
        let mut byte = [MaybeUninit::uninit()];
        let peeked = SockRef::from(tcp).peek(&mut byte);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
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
        (peer, Stream::new(listener.accept().await.unwrap().0))
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
