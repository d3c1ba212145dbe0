//! The stream of a client as hyper reads it, with a watch over its bytes.
//!
//! Knows nothing of requests.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client::Client;
use super::early_bytes::ClientWire;
use super::first_line::FirstLine;
use super::http2_guard::Frames;
use super::linger::Linger;
use super::protocol::FirstBytes;
use crate::proxy::net::read_ahead::ReadAhead;
use crate::proxy::net::windows::OwnFrames;
use crate::telemetry::ConnectionError;

/// A client's stream: returns the first bytes once more, and watches all bytes.
pub(crate) struct ClientIo {
    wire: ClientWire,
    first: FirstBytes,
    watch: Watch,
    /// Set when the sending side is closed and the client is still sending.
    linger: Option<Box<Linger>>,
    /// `server.max_connections`.
    connections_max: u32,
}

/// The watch over the bytes of a client.
pub(crate) enum Watch {
    /// HTTP/1: notes the beginning of a head, and writes that wait, and finds the first line of another protocol.
    Http1(Arc<Client>, FirstLine),
    /// HTTP/2: finds frames that h2 would let pass, and adds to those that it writes.
    Http2(Box<Frames>, ReadAhead, OwnFrames),
}

impl Watch {
    /// Notes whether a write waits for the client, and returns its result.
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        if let Watch::Http1(client, _) = self {
            client.activity.writes(written.is_pending());
        }
        written
    }
}

impl ClientIo {
    /// Wraps an opened connection, of which `first` was read already, one of at most `connections_max`.
    pub(crate) fn new(wire: ClientWire, first: FirstBytes, watch: Watch, connections_max: u32) -> ClientIo {
        ClientIo { wire, first, watch, linger: None, connections_max }
    }

    /// Writes what comes before `bytes`, and returns how many of them were written with it.
    fn poll_before(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match &mut self.watch {
            Watch::Http1(..) => Poll::Ready(Ok(0)),
            Watch::Http2(_, _, own) => own.poll_before(Pin::new(&mut self.wire), context, bytes),
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        // Bytes that have arrived since go into the same read, because a buffer that gets only a few bytes grows for the rest.
        let first = this.first.give(buffer);
        let read = match &mut this.watch {
            Watch::Http1(..) => Pin::new(&mut this.wire).poll_read(context, buffer),
            // The first bytes were the preface, which is no frame.
            Watch::Http2(frames, ahead, own) => {
                let read = frames.poll_read(Pin::new(&mut ahead.of(&mut this.wire)), context, buffer);
                if read.is_pending() {
                    own.waits(context);
                }
                read
            }
        };
        match read {
            Poll::Pending if !first => return Poll::Pending,
            Poll::Pending => {}
            Poll::Ready(result) => result?,
        }
        if let Watch::Http1(client, line) = &mut this.watch {
            let received = buffer.filled().get(before..).unwrap_or_default();
            if !received.is_empty() {
                client.activity.received();
            }
            if line.names_another_protocol(received) {
                let client_ip = client.peer.to_canonical();
                tracing::debug!(%client_ip, "a client speaks another protocol than HTTP");
                client.errors.ended(ConnectionError::OtherProtocol);
                // The client would not understand a response, so it is treated as if it had left.
                buffer.set_filled(before);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match ready!(self.poll_before(context, bytes))? {
            0 => {
                let written = Pin::new(&mut self.wire).poll_write(context, bytes);
                self.watch.wrote(written)
            }
            taken => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match ready!(self.poll_before(context, pieces.first().map_or(&[][..], |first| first)))? {
            0 => {
                let written = Pin::new(&mut self.wire).poll_write_vectored(context, pieces);
                self.watch.wrote(written)
            }
            taken => Poll::Ready(Ok(taken)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        if let Watch::Http2(frames, _, own) = &mut this.watch {
            ready!(own.poll_flush(Pin::new(&mut this.wire), context, |stream| frames.is_over(stream)))?;
        }
        // TLS takes bytes that the client has not taken yet.
        let flushed = Pin::new(&mut this.wire).poll_flush(context);
        this.watch.wrote(flushed)
    }

    /// Closes the sending side. Over HTTP/1, what a client is still sending is then read to its end, within bounds.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        let Watch::Http1(client, _) = &this.watch else {
            return Pin::new(&mut this.wire).poll_shutdown(context);
        };
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.wire).poll_shutdown(context))?;
            this.linger = client.linger(this.connections_max).map(Box::new);
        }
        let Some(linger) = &mut this.linger else { return Poll::Ready(Ok(())) };
        linger.poll(Pin::new(&mut this.wire), context, client.is_draining())
    }
}
