//! Open connections to one upstream: idle HTTP/1.1 connections, and HTTP/2 connections that requests share.
//!
//! Opens none itself: [`crate::proxy::upstream::upstream`] does. The last one that became idle is taken first, so that a small load
//! keeps few connections warm and the others age. There are never more connections than there were requests at
//! once; of those, at most [`IDLE_MAX`] stay. However busy a connection is, it carries no new request once it is to
//! retire: a name may lead elsewhere by then.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::Either;
use http::uri::Scheme;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::proxy::messages::body::{RequestBody, Upload, UploadState};
use crate::proxy::messages::headers;
use crate::proxy::messages::response::SWITCHING_PROTOCOLS;
use crate::proxy::net::driver::{Alarm, Driver};
use crate::proxy::net::stream::Probe;

/// The most idle connections that are kept for an upstream: enough for a burst after a lull, and little beside
/// the file descriptors that a proxy has.
const IDLE_MAX: usize = 256;
/// How long one is kept. Below the 60 s after which common servers and load balancers close theirs, so that
/// they seldom close one at the moment when it is used.
const IDLE_AGE_MAX: Duration = Duration::from_secs(55);
/// The runtime has looked at the sockets since: whether one that has been idle for less was closed need not be asked the
/// kernel, which may not know it either.
const FRESH: Duration = Duration::from_millis(1);

/// An open connection, held by one request.
pub(crate) enum Connection {
    /// All of it.
    Http1(Http1),
    /// One stream of it.
    Http2(Http2),
}

/// Why a request has no response.
pub(crate) enum SendError {
    /// Nothing of it was written: it may be sent by another connection, whatever its method.
    Unsent(Box<Request<RequestBody>>, hyper::Error),
    /// It may have arrived.
    Failed(hyper::Error),
    /// It took too long.
    TimedOut,
}

impl Connection {
    /// Whether it can still take a request.
    pub(crate) fn is_open(&mut self) -> bool {
        match self {
            Connection::Http1(http1) => http1.is_open(),
            Connection::Http2(http2) => http2.connection.is_open(),
        }
    }

    /// Whether it has carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        match self {
            Connection::Http1(http1) => http1.reused,
            Connection::Http2(http2) => http2.reused,
        }
    }

    /// Sends a request and waits for the head of its response, as long as `limit`, counted from the last piece of the
    /// request's body, `upload`. What it returns holds no request: that is on its way already.
    pub(crate) fn send(
        &mut self,
        mut request: Request<RequestBody>,
        limit: Duration,
        upload: Option<&Upload>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> {
        let deadline = Instant::now() + limit;
        let later = move || upload.map(|upload| upload.last_piece() + limit);
        match self {
            Connection::Http1(http1) => {
                headers::to_http1(&mut request);
                let answer = http1.sender.try_send_request(request);
                Either::Left(async move {
                    let Http1 { wire, alarm, .. } = http1;
                    let mut answer = pin!(answer);
                    let driven =
                        poll_fn(|context| drive(wire, context, |context| answer.as_mut().poll(context)));
                    let answer = in_time(pin!(driven), alarm, deadline, later).await;
                    let response = answer.ok_or(SendError::TimedOut)?.map_err(unsent)?;
                    let is_uploaded = upload.is_none_or(|upload| upload.state() == UploadState::Complete);
                    if !is_uploaded || response.status() == SWITCHING_PROTOCOLS {
                        http1.detach();
                    }
                    Ok(response)
                })
            }
            Connection::Http2(Http2 { connection, .. }) => {
                headers::to_http2(&mut request, connection.scheme.clone());
                let answer = connection.sender.try_send_request(request);
                Either::Right(async move {
                    let answer = in_time(pin!(answer), &mut Alarm::default(), deadline, later).await;
                    let answer = answer.ok_or(SendError::TimedOut)?.map_err(unsent);
                    if matches!(answer, Err(SendError::Unsent(..))) {
                        // It takes no more streams, which its sender may not know yet.
                        connection.load.retired.store(true, Ordering::Release);
                    }
                    answer
                })
            }
        }
    }

    /// Polls a piece of a response's body, which comes by this connection.
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

/// A request comes back if nothing of it was written.
fn unsent(mut error: TrySendError<Request<RequestBody>>) -> SendError {
    match error.take_message() {
        Some(request) => SendError::Unsent(Box::new(request), error.into_error()),
        None => SendError::Failed(error.into_error()),
    }
}

/// What reads from an HTTP/1.1 connection and writes to it, until it ends.
pub(crate) type Wire = dyn Future<Output = ()> + Send;

/// An HTTP/1.1 connection.
pub(crate) struct Http1 {
    sender: http1::SendRequest<RequestBody>,
    /// `None` where it has a task of its own, or has ended.
    wire: Option<Driver<Wire>>,
    /// For its requests.
    alarm: Alarm,
    probe: Probe,
    idle_since: Instant,
    retires_at: Instant,
    reused: bool,
    /// For the wire, when it goes on by itself.
    tasks: TaskTracker,
}

impl Http1 {
    /// A connection that has just been opened.
    pub(crate) fn new(
        sender: http1::SendRequest<RequestBody>,
        wire: Pin<Box<Wire>>,
        probe: Probe,
        retires_at: Instant,
        tasks: TaskTracker,
    ) -> Http1 {
        let (wire, alarm, idle_since) = (Some(Driver::new(wire)), Alarm::default(), Instant::now());
        let mut http1 = Http1 { sender, wire, alarm, probe, idle_since, retires_at, reused: false, tasks };
        http1.rest();
        http1
    }

    /// Whether it is still open, as far as can be known.
    fn is_open(&mut self) -> bool {
        // Something came while nobody looked: an end, or what only concerns TLS.
        let looked = !self.wire.as_ref().is_some_and(Driver::is_woken) || self.rest();
        looked && self.sender.is_ready() && (self.idle_since.elapsed() < FRESH || self.probe.is_idle())
    }

    /// Gives it a task of its own: it goes on in both directions whether or not the response is being read, and says goodbye,
    /// as TLS wants it to, when nobody holds it any more.
    fn detach(&mut self) {
        if let Some(wire) = self.wire.take() {
            self.tasks.spawn(wire.into_inner());
        }
    }

    /// Ends it.
    fn end(mut self) {
        self.detach();
    }

    /// Lets it come to rest; `false` if it has ended.
    fn rest(&mut self) -> bool {
        if self.wire.as_mut().is_some_and(|wire| wire.rest().is_ready()) {
            self.wire = None;
            return false;
        }
        !self.sender.is_closed()
    }

    fn is_old(&self) -> bool {
        let now = Instant::now();
        now >= self.retires_at || now - self.idle_since > IDLE_AGE_MAX
    }
}

/// Waits for an answer until `deadline`, and then until `later` if that still lies ahead.
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

/// Polls what an exchange on a connection brings on, and drives the connection meanwhile.
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

/// An HTTP/2 connection, as all its requests share it.
#[derive(Clone)]
pub(crate) struct Multiplexed {
    sender: http2::SendRequest<RequestBody>,
    load: Arc<Load>,
    scheme: Scheme,
    retires_at: Instant,
}

impl Multiplexed {
    /// A connection that has just been opened.
    pub(crate) fn new(
        sender: http2::SendRequest<RequestBody>,
        load: Arc<Load>,
        scheme: Scheme,
        retires_at: Instant,
    ) -> Multiplexed {
        Multiplexed { sender, load, scheme, retires_at }
    }

    /// A stream of it, if the upstream allows one more now.
    pub(crate) fn stream(&self, reused: bool) -> Option<Http2> {
        self.load.begin().then(|| Http2 { connection: self.clone(), reused })
    }

    fn is_open(&self) -> bool {
        !self.sender.is_closed() && !self.load.retired.load(Ordering::Acquire)
    }

    /// Whether it takes more streams. When it is too old, those that it has go on, and it closes after the last.
    fn is_shared(&self) -> bool {
        self.is_open() && Instant::now() < self.retires_at
    }
}

/// A stream of an HTTP/2 connection.
pub(crate) struct Http2 {
    connection: Multiplexed,
    reused: bool,
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.connection.load.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How much of an HTTP/2 connection is taken.
pub(crate) struct Load {
    streams: AtomicUsize,
    streams_max: AtomicUsize,
    retired: AtomicBool,
}

impl Load {
    /// Nothing yet.
    pub(crate) fn new(streams_max: usize) -> Load {
        let (streams, streams_max) = (AtomicUsize::new(0), AtomicUsize::new(streams_max));
        Load { streams, streams_max, retired: AtomicBool::new(false) }
    }

    /// The upstream says how many streams it takes at once.
    pub(crate) fn set_streams_max(&self, streams_max: usize) {
        self.streams_max.store(streams_max, Ordering::Release);
    }

    fn begin(&self) -> bool {
        let streams_max = self.streams_max.load(Ordering::Acquire);
        let more = |streams| if streams < streams_max { Some(streams + 1) } else { None };
        self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }
}

/// The open connections of one upstream that are not in use, or can be shared.
#[derive(Default)]
pub(crate) struct Pool {
    /// The oldest first.
    idle: Mutex<VecDeque<Http1>>,
    shared: Mutex<Vec<Multiplexed>>,
}

impl Pool {
    /// An idle HTTP/1.1 connection that is open as far as can be known.
    pub(crate) fn take_http1(&self) -> Option<Connection> {
        loop {
            let mut connection = lock(&self.idle).pop_back()?;
            if !connection.is_old() && connection.is_open() {
                connection.reused = true;
                return Some(Connection::Http1(connection));
            }
            connection.end();
        }
    }

    /// A stream of an HTTP/2 connection.
    pub(crate) fn take_http2(&self) -> Option<Connection> {
        let mut shared = lock(&self.shared);
        shared.retain(Multiplexed::is_shared);
        shared.iter().find_map(|connection| connection.stream(true)).map(Connection::Http2)
    }

    /// Takes back a connection whose response has ended. An HTTP/2 connection never left.
    pub(crate) fn put(&self, connection: Connection) {
        let Connection::Http1(mut connection) = connection else { return };
        if !connection.rest() {
            return;
        }
        connection.idle_since = Instant::now();
        if connection.is_old() {
            connection.end();
            return;
        }
        let mut idle = lock(&self.idle);
        idle.push_back(connection);
        let surplus = if idle.len() > IDLE_MAX { idle.pop_front() } else { None };
        drop(idle);
        surplus.into_iter().for_each(Http1::end);
    }

    /// Others may take streams of this connection from now on.
    pub(crate) fn share(&self, connection: &Connection) {
        if let Connection::Http2(http2) = connection {
            lock(&self.shared).push(http2.connection.clone());
        }
    }

    /// Closes what has been idle for too long or has been closed by the upstream.
    pub(crate) fn sweep(&self) {
        let done = {
            let mut idle = lock(&self.idle);
            let looked_at = idle
                .drain(..)
                .map(|mut connection| (!connection.is_old() && connection.is_open(), connection));
            let (kept, done): (Vec<_>, Vec<_>) = looked_at.partition(|(is_kept, _)| *is_kept);
            idle.extend(kept.into_iter().map(|(_, connection)| connection));
            done
        };
        done.into_iter().for_each(|(_, connection)| connection.end());
        lock(&self.shared).retain(Multiplexed::is_shared);
    }

    /// Closes all that is not in use.
    pub(crate) fn clear(&self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.into_iter().for_each(Http1::end);
        lock(&self.shared).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::Load;

    #[test]
    fn an_upstream_gets_no_more_streams_than_it_allows() {
        let load = Load::new(1);
        assert!(load.begin());
        assert!(!load.begin());
        load.set_streams_max(2);
        assert!(load.begin());
        assert!(!load.begin());
    }
}
