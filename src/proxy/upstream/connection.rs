//! An open connection to an upstream: sends one request at a time (HTTP/1.1), or many on streams (HTTP/2).
//!
//! Opens none, and keeps none when it is idle.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::Either;
use http::header::TRANSFER_ENCODING;
use http::uri::Scheme;
use http::{Request, Response, Version};
use hyper::body::{Body, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::header_room::HeaderRoom;
use crate::proxy::error::http2_cause;
use crate::proxy::messages::end_to_end::is_chunked;
use crate::proxy::messages::request_body::RequestBody;
use crate::proxy::messages::response::SWITCHING_PROTOCOLS;
use crate::proxy::messages::upload::{Upload, UploadState};
use crate::proxy::messages::versions;
use crate::proxy::net::driver::{Alarm, Driver};
use crate::proxy::net::stream::Probe;

/// The longest time that an idle connection is kept. It is below the 60 s after which common servers and load balancers close
/// theirs, so that a close seldom meets a request.
const IDLE_AGE_MAX: Duration = Duration::from_secs(55);
/// The idle time up to which the kernel is not asked whether a connection is open: the runtime has looked at the sockets since,
/// and the kernel may not know more.
const FRESH: Duration = Duration::from_millis(1);

/// The most streams of an HTTP/2 connection: what its clients have not read of all of them fits into its window, so that one who takes
/// nothing stops nobody else.
pub(crate) const HTTP2_STREAMS_MAX: u32 = 128;

/// An open connection, or a stream of one, held by one request.
pub(crate) enum Connection {
    /// A whole connection. Boxed, because it is handed on many times in a request, and keeps its place.
    Http1(Box<Http1>),
    /// One stream of a connection.
    Http2(Http2),
}

/// The reason why a request got no response.
pub(crate) enum SendError {
    /// Nothing was written, so the request may be sent by another connection, whatever its method.
    Unsent(Box<Request<RequestBody>>, hyper::Error),
    /// The connection failed; the request may have arrived.
    Failed(hyper::Error),
    /// The response has a transfer coding that weir does not undo.
    Coded,
    /// The response took too long.
    TimedOut,
}

impl Connection {
    /// Returns whether the connection can take a request.
    pub(crate) fn is_open(&mut self) -> bool {
        match self {
            Connection::Http1(http1) => http1.is_open(Instant::now()),
            Connection::Http2(http2) => http2.connection.is_open(),
        }
    }

    /// Returns whether the connection has carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        match self {
            Connection::Http1(http1) => http1.reused,
            Connection::Http2(http2) => http2.reused,
        }
    }

    /// Returns whether other requests share the connection.
    pub(crate) fn is_multiplexed(&self) -> bool {
        matches!(self, Connection::Http2(_))
    }

    /// Returns whether a response whose head is too large may pass by another connection.
    pub(crate) fn may_grow(&self) -> bool {
        matches!(self, Connection::Http1(http1) if http1.room.may_grow())
    }

    /// Sends a request at `now` and waits for the head of its response, for at most `limit` after the last piece of the request's body,
    /// `upload`, without the time that the client takes for it. The returned future no longer holds the request.
    pub(crate) fn send(
        &mut self,
        mut request: Request<RequestBody>,
        (now, limit): (Instant, Duration),
        upload: Option<&Upload>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> {
        let deadline = now + limit;
        let later = move || upload.map(|upload| upload.deadline(limit));
        match self {
            Connection::Http1(http1) => {
                versions::to_http1(&mut request);
                let answer = http1.sender.try_send_request(request);
                Either::Left(async move {
                    let Http1 { wire, alarm, room, .. } = &mut **http1;
                    let mut answer = pin!(answer);
                    let driven =
                        poll_fn(|context| drive(wire, context, |context| answer.as_mut().poll(context)));
                    let answer = in_time(pin!(driven), alarm, deadline, later).await;
                    let answer = answer.ok_or(SendError::TimedOut)?.map_err(unsent);
                    if matches!(&answer, Err(SendError::Failed(error)) if error.is_parse_too_large()) {
                        room.grow();
                    }
                    let response = answer?;
                    if response.version() == Version::HTTP_10 {
                        // To such a server hyper would speak HTTP/1.0 from now on, which has no framing for a body of unknown length.
                        http1.retires_at = now;
                    }
                    if is_coded(&response) {
                        return Err(SendError::Coded);
                    }
                    let is_uploaded = upload.is_none_or(|upload| upload.state() == UploadState::Complete);
                    if !is_uploaded || response.status() == SWITCHING_PROTOCOLS {
                        http1.detach();
                    }
                    Ok(response)
                })
            }
            Connection::Http2(Http2 { connection, .. }) => {
                versions::to_http2(&mut request, connection.scheme.clone());
                let answer = connection.sender.try_send_request(request);
                Either::Right(async move {
                    let answer = in_time(pin!(answer), &mut Alarm::default(), deadline, later).await;
                    let answer = answer.ok_or(SendError::TimedOut)?.map_err(unsent);
                    let is_retired = match &answer {
                        Err(SendError::Unsent(..)) => true,
                        Err(SendError::Failed(error)) => {
                            http2_cause(error).is_some_and(h2::Error::is_go_away)
                        }
                        Ok(_) | Err(SendError::TimedOut | SendError::Coded) => false,
                    };
                    if is_retired {
                        // The connection takes no more streams, and its sender may not know yet.
                        connection.load.retired.store(true, Ordering::Release);
                    }
                    answer
                })
            }
        }
    }

    /// Polls a piece of the body of a response that this connection carries.
    pub(crate) fn poll_piece<T>(
        &mut self,
        context: &mut Context<'_>,
        mut step: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        match self {
            Connection::Http1(http1) => drive(&mut http1.wire, context, step),
            Connection::Http2(_) => step(context),
        }
    }
}

/// Returns whether the body has a transfer coding that nobody would undo, and of which nobody would be told.
fn is_coded(response: &Response<Incoming>) -> bool {
    // First the length, because a lookup hashes the name.
    let may_be_coded = response.body().size_hint().exact().is_none();
    may_be_coded && response.headers().contains_key(TRANSFER_ENCODING) && !is_chunked(response.headers())
}

/// Takes the request out of the error if nothing of it was written.
fn unsent(mut error: TrySendError<Request<RequestBody>>) -> SendError {
    match error.take_message() {
        Some(request) => SendError::Unsent(Box::new(request), error.into_error()),
        None => SendError::Failed(error.into_error()),
    }
}

/// The future that reads and writes an HTTP/1.1 connection until its end.
pub(crate) type Wire = dyn Future<Output = ()> + Send;

/// An HTTP/1.1 connection with its timer and its age.
pub(crate) struct Http1 {
    sender: http1::SendRequest<RequestBody>,
    /// `None` if it has a task of its own, or has ended.
    wire: Option<Driver<Wire>>,
    /// The timer of the connection's requests.
    alarm: Alarm,
    probe: Probe,
    idle_since: Instant,
    retires_at: Instant,
    reused: bool,
    room: HeaderRoom,
    /// The owner of the wire's task.
    tasks: TaskTracker,
}

impl Http1 {
    /// Wraps a connection that has just been opened.
    pub(crate) fn new(
        sender: http1::SendRequest<RequestBody>,
        wire: Pin<Box<Wire>>,
        probe: Probe,
        retires_at: Instant,
        room: HeaderRoom,
        tasks: TaskTracker,
    ) -> Http1 {
        let (wire, alarm, idle_since) = (Some(Driver::new(wire)), Alarm::default(), Instant::now());
        let mut http1 =
            Http1 { sender, wire, alarm, probe, idle_since, retires_at, reused: false, room, tasks };
        http1.rest();
        http1
    }

    /// Returns whether the connection seems open: to hyper, and after an idle time to the kernel too.
    pub(crate) fn is_open(&mut self, now: Instant) -> bool {
        // A wake-up at rest is the end of the connection, or concerns TLS alone.
        let looked = !self.wire.as_ref().is_some_and(Driver::is_woken) || self.rest();
        looked && self.sender.is_ready() && (now - self.idle_since < FRESH || self.probe.is_idle())
    }

    /// Gives the wire a task of its own, which goes on in both directions without a reader of the response, and closes the
    /// connection properly (TLS needs a goodbye) when the sender is dropped.
    fn detach(&mut self) {
        if let Some(wire) = self.wire.take() {
            self.tasks.spawn(wire.into_inner());
        }
    }

    /// Closes the connection.
    pub(crate) fn end(mut self) {
        self.detach();
    }

    /// Brings the connection to rest; returns `false` if it has ended.
    fn rest(&mut self) -> bool {
        if self.wire.as_mut().is_some_and(|wire| wire.rest().is_ready()) {
            self.wire = None;
            return false;
        }
        !self.sender.is_closed()
    }

    /// Marks the connection as taken from the pool.
    pub(crate) fn reuse(mut self: Box<Self>) -> Connection {
        self.reused = true;
        Connection::Http1(self)
    }

    /// Brings the connection to rest for the pool; returns `None` if it has ended, or is too old and is closed.
    pub(crate) fn into_idle(mut self: Box<Self>) -> Option<Box<Http1>> {
        if !self.rest() {
            return None;
        }
        self.idle_since = Instant::now();
        if self.is_old(self.idle_since) {
            self.end();
            return None;
        }
        Some(self)
    }

    /// Returns whether the connection is too old for a new request, or has less room than its upstream needs.
    pub(crate) fn is_old(&self, now: Instant) -> bool {
        now >= self.retires_at || now - self.idle_since > IDLE_AGE_MAX || self.room.is_outgrown()
    }
}

/// Waits for an answer until `deadline`, which `later` may move on when it is reached.
async fn in_time<T>(
    mut answer: Pin<&mut impl Future<Output = T>>,
    alarm: &mut Alarm,
    mut deadline: Instant,
    later: impl Fn() -> Option<Instant>,
) -> Option<T> {
    poll_fn(|context| {
        loop {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            ready!(alarm.poll(context, deadline));
            match later() {
                Some(later) if later > Instant::now() => deadline = later,
                _ => return Poll::Ready(None),
            }
        }
    })
    .await
}

/// Polls a step of an exchange and drives the connection meanwhile.
fn drive<T>(
    wire: &mut Option<Driver<Wire>>,
    context: &mut Context<'_>,
    mut step: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    if let Some(driver) = wire {
        match ready!(driver.drive(context, &mut step)) {
            Ok(done) => return Poll::Ready(done),
            Err(()) => *wire = None,
        }
    }
    step(context)
}

/// An HTTP/2 connection, shared by its requests.
#[derive(Clone)]
pub(crate) struct Multiplexed {
    sender: http2::SendRequest<RequestBody>,
    load: Arc<Load>,
    scheme: Scheme,
    retires_at: Instant,
}

impl Multiplexed {
    /// Wraps a connection that has just been opened.
    pub(crate) fn new(
        sender: http2::SendRequest<RequestBody>,
        load: Arc<Load>,
        scheme: Scheme,
        retires_at: Instant,
    ) -> Multiplexed {
        Multiplexed { sender, load, scheme, retires_at }
    }

    /// Begins a stream, if the upstream allows one more now.
    pub(crate) fn stream(&self, reused: bool) -> Option<Http2> {
        self.load.begin().then(|| Http2 { connection: self.clone(), reused })
    }

    fn is_open(&self) -> bool {
        !self.sender.is_closed() && !self.load.retired.load(Ordering::Acquire)
    }

    /// Returns whether the connection takes more streams. One that is too old keeps its streams and closes after the last.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_open() && Instant::now() < self.retires_at
    }
}

/// A stream of an HTTP/2 connection.
pub(crate) struct Http2 {
    connection: Multiplexed,
    reused: bool,
}

impl Http2 {
    /// Returns the connection, for other requests to share.
    pub(crate) fn connection(&self) -> &Multiplexed {
        &self.connection
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.connection.load.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The number of streams of an HTTP/2 connection, and its bound.
pub(crate) struct Load {
    streams: AtomicUsize,
    streams_max: AtomicUsize,
    retired: AtomicBool,
}

impl Load {
    /// Creates the count, without a stream.
    pub(crate) fn new(streams_max: usize) -> Load {
        let load = Load {
            streams: AtomicUsize::new(0),
            streams_max: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
        };
        load.set_streams_max(streams_max);
        load
    }

    /// Sets the number of streams that the upstream allows at once. No more than [`HTTP2_STREAMS_MAX`] are used.
    pub(crate) fn set_streams_max(&self, streams_max: usize) {
        self.streams_max.store(streams_max.min(HTTP2_STREAMS_MAX as usize), Ordering::Release);
    }

    fn begin(&self) -> bool {
        let streams_max = self.streams_max.load(Ordering::Acquire);
        let more = |streams| (streams < streams_max).then_some(streams + 1);
        self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{HTTP2_STREAMS_MAX, Load};

    #[test]
    fn streams_are_bounded_by_what_the_upstream_allows() {
        let load = Load::new(1);
        assert!(load.begin());
        assert!(!load.begin());
        load.set_streams_max(2);
        assert!(load.begin());
        assert!(!load.begin());
        load.set_streams_max(usize::MAX);
        let more = std::iter::repeat_with(|| load.begin()).take_while(|began| *began).count();
        assert_eq!(more, HTTP2_STREAMS_MAX as usize - 2);
    }
}
