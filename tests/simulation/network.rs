//! The network between replicas and servers: streams of bytes in memory, which the world carries when their time has come.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir::redis::{Stream, Transport};

/// Both directions of a connection, as replica and world share it.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<WireState>>);

#[derive(Default)]
struct WireState {
    /// Bytes that the replica has written and the world has not taken yet.
    written: Vec<u8>,
    /// Bytes that have arrived at the replica and were not read yet.
    arrived: VecDeque<u8>,
    reader: Option<Waker>,
    is_open: bool,
    /// True once the server has closed the connection, or refused it.
    is_closed: bool,
    /// True once the replica has dropped its end.
    is_dropped: bool,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, WireState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state that the replica waits for, and wakes it.
    fn change(&self, change: impl FnOnce(&mut WireState)) {
        let mut state = self.lock();
        change(&mut state);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Accepts the connection.
    pub fn accept(&self) {
        self.change(|state| state.is_open = true);
    }

    /// Closes the connection from the server's side, or refuses it.
    pub fn close(&self) {
        self.change(|state| state.is_closed = true);
    }

    /// Delivers bytes to the replica.
    pub fn deliver(&self, bytes: &[u8]) {
        self.change(|state| state.arrived.extend(bytes));
    }

    /// Takes what the replica has written.
    pub fn take_written(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().written)
    }

    /// Returns whether the replica has dropped its end.
    pub fn is_dropped(&self) -> bool {
        self.lock().is_dropped
    }
}

/// The replica's end of a connection.
struct End(Wire);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().is_dropped = true;
    }
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        if state.arrived.is_empty() && !state.is_closed {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = buffer.remaining().min(state.arrived.len());
        let bytes: Vec<u8> = state.arrived.drain(..count).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        state.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Opens connections for one replica. The world takes them out and accepts or refuses them.
#[derive(Clone, Default)]
pub struct Dialer(Arc<Mutex<Vec<Wire>>>);

impl Dialer {
    /// Takes the connections that were begun since the last call.
    pub fn take_begun(&self) -> Vec<Wire> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Transport for Dialer {
    fn open(&self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        let wire = Wire::default();
        let end = End(wire.clone());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(wire.clone());
        Box::pin(async move {
            poll_fn(|context| {
                let mut state = wire.lock();
                if state.is_open {
                    return Poll::Ready(Ok(()));
                }
                if state.is_closed {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
                }
                state.reader = Some(context.waker().clone());
                Poll::Pending
            })
            .await
            .map(|()| Box::new(end) as Box<dyn Stream>)
        })
    }
}
