//! A client's connection of HTTP/1 until its end, or until it switches to another protocol and is handed over.
//!
//! hyper takes a connection on which any request has named another protocol, whatever became of that, for one that switches: it ends it
//! without the bytes that were not written yet, and without a close. So weir ends every connection itself. Knows no protocol.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// A client's stream, whatever it consists of.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<I: AsyncRead + AsyncWrite + Send> Duplex for I {}

/// The stream of a connection that has switched, with the bytes of the other protocol that were read with the request.
pub(crate) type Switched = (Pin<Box<dyn Duplex>>, Bytes);

/// The sender of the connection, once a request has asked for it.
type Wanted = Mutex<Option<oneshot::Sender<Switched>>>;

/// A request's way to its connection, which it does not keep open. Over HTTP/2 it leads nowhere.
#[derive(Default)]
pub(crate) struct Switch(Weak<Wanted>);

impl Switch {
    /// Asks for the connection, once the response that announces the switch has been written. The receiver fails if the connection ends
    /// before.
    pub(crate) fn want(&self) -> oneshot::Receiver<Switched> {
        let (sender, switched) = oneshot::channel();
        if let Some(wanted) = self.0.upgrade() {
            *lock(&wanted) = Some(sender);
        }
        switched
    }
}

/// The connection's end of a [`Switch`].
#[derive(Default)]
pub(crate) struct HandOver(Arc<Wanted>);

impl HandOver {
    /// Returns the way for requests.
    pub(crate) fn switch(&self) -> Switch {
        Switch(Arc::downgrade(&self.0))
    }
}

fn lock(wanted: &Wanted) -> MutexGuard<'_, Option<oneshot::Sender<Switched>>> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

type Http1<I, S> = http1::Connection<TokioIo<I>, S>;

/// A connection that serves requests until its end, or until it switches.
pub(crate) struct Switchable<I, S: HttpService<Incoming>> {
    /// `None` once it is handed over.
    connection: Option<Http1<I, S>>,
    stage: Stage,
    hand_over: HandOver,
    /// The fault of a head that hyper could not read, and has answered.
    fault: Option<hyper::Error>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It serves requests.
    Serving,
    /// There is no further request. The rest is written before the sending side closes.
    Closing,
}

impl<I, S> Switchable<I, S>
where
    I: Duplex + Unpin + 'static,
    S: HttpService<Incoming, Future: Unpin, ResBody: 'static> + Unpin,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Wraps a connection.
    pub(crate) fn new(connection: Http1<I, S>, hand_over: HandOver) -> Switchable<I, S> {
        Switchable { connection: Some(connection), stage: Stage::Serving, hand_over, fault: None }
    }

    /// Ends the connection after the requests under way.
    pub(crate) fn finish(self: Pin<&mut Self>) {
        if let Some(connection) = &mut self.get_mut().connection {
            Pin::new(connection).graceful_shutdown();
        }
    }
}

impl<I, S> Future for Switchable<I, S>
where
    I: Duplex + Unpin + 'static,
    S: HttpService<Incoming, Future: Unpin, ResBody: 'static> + Unpin,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = hyper::Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let this = self.get_mut();
        let Some(connection) = &mut this.connection else { return Poll::Ready(Ok(())) };
        if this.stage == Stage::Serving {
            match ready!(connection.poll_without_shutdown(context)) {
                // hyper has answered a head that it cannot read, and tells so before it has closed.
                Err(error) if error.is_parse() => this.fault = Some(error),
                ended => ended?,
            }
            this.stage = Stage::Closing;
            // A receiver that is gone has left with the tunnel, and the connection ends as any other.
            if let Some(sender) = lock(&this.hand_over.0).take().filter(|sender| !sender.is_closed())
                && let Some(connection) = this.connection.take()
            {
                let parts = connection.into_parts();
                // It may go at this moment.
                let _ = sender.send((Box::pin(parts.io.into_inner()), parts.read_buf));
                return Poll::Ready(Ok(()));
            }
        }
        match &mut this.connection {
            Some(connection) => {
                let ended = ready!(Pin::new(connection).poll(context));
                Poll::Ready(this.fault.take().map_or(ended, Err))
            }
            None => Poll::Ready(Ok(())),
        }
    }
}
