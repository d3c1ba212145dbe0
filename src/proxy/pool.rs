//! Open connections to one upstream: idle HTTP/1.1 connections, and HTTP/2 connections that requests share.
//!
//! Opens none itself: [`super::upstream`] does. The last one that became idle is taken first, so that a small load
//! keeps few connections warm and the others age. There are never more connections than there were requests at
//! once; of those, at most [`IDLE_MAX`] stay.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::uri::Scheme;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use tokio::time::{Instant, timeout};

use super::body::RequestBody;
use super::headers;
use super::io::Probe;

/// The most idle connections that are kept for an upstream: enough for a burst after a lull, and little beside
/// the file descriptors that a proxy has.
const IDLE_MAX: usize = 256;
/// How long one is kept. Below the 60 s after which common servers and load balancers close theirs, so that
/// they seldom close one at the moment when it is used.
const IDLE_AGE_MAX: Duration = Duration::from_secs(55);
/// A connection comes back when its response has ended, which its task may learn a moment later.
const READY_WAIT_MAX: Duration = Duration::from_millis(10);

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
}

impl Connection {
    /// Whether it can still take a request.
    pub(crate) fn is_open(&self) -> bool {
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

    /// Sends a request and waits for the head of its response.
    pub(crate) async fn send(
        &mut self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        let sent = match self {
            Connection::Http1(http1) => {
                headers::to_http1(&mut request);
                http1.sender.try_send_request(request).await
            }
            Connection::Http2(Http2 { connection, .. }) => {
                headers::to_http2(&mut request, connection.scheme.clone());
                connection.sender.try_send_request(request).await
            }
        };
        sent.map_err(|error| self.explain(error))
    }

    fn explain(&self, mut error: TrySendError<Request<RequestBody>>) -> SendError {
        let Some(request) = error.take_message() else { return SendError::Failed(error.into_error()) };
        if let Connection::Http2(http2) = self {
            // It takes no more streams, which its sender may not know yet.
            http2.connection.load.retired.store(true, Ordering::Release);
        }
        SendError::Unsent(Box::new(request), error.into_error())
    }
}

/// An HTTP/1.1 connection.
pub(crate) struct Http1 {
    sender: http1::SendRequest<RequestBody>,
    probe: Probe,
    idle_since: Instant,
    reused: bool,
}

impl Http1 {
    /// A connection that has just been opened.
    pub(crate) fn new(sender: http1::SendRequest<RequestBody>, probe: Probe) -> Http1 {
        Http1 { sender, probe, idle_since: Instant::now(), reused: false }
    }

    fn is_open(&self) -> bool {
        !self.sender.is_closed() && self.probe.is_idle()
    }

    fn is_old(&self) -> bool {
        self.idle_since.elapsed() > IDLE_AGE_MAX
    }

    /// Whether it is done with its last request.
    async fn is_ready(&mut self) -> bool {
        self.sender.is_ready() || matches!(timeout(READY_WAIT_MAX, self.sender.ready()).await, Ok(Ok(())))
    }
}

/// An HTTP/2 connection, as all its requests share it.
#[derive(Clone)]
pub(crate) struct Multiplexed {
    sender: http2::SendRequest<RequestBody>,
    load: Arc<Load>,
    scheme: Scheme,
}

impl Multiplexed {
    /// A connection that has just been opened.
    pub(crate) fn new(
        sender: http2::SendRequest<RequestBody>,
        load: Arc<Load>,
        scheme: Scheme,
    ) -> Multiplexed {
        Multiplexed { sender, load, scheme }
    }

    /// A stream of it, if the upstream allows one more now.
    pub(crate) fn stream(&self, reused: bool) -> Option<Http2> {
        self.load.begin().then(|| Http2 { connection: self.clone(), reused })
    }

    fn is_open(&self) -> bool {
        !self.sender.is_closed() && !self.load.retired.load(Ordering::Acquire)
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
    pub(crate) async fn take_http1(&self) -> Option<Connection> {
        loop {
            let mut connection = lock(&self.idle).pop_back()?;
            if !connection.is_old() && connection.is_ready().await && connection.is_open() {
                connection.reused = true;
                return Some(Connection::Http1(connection));
            }
        }
    }

    /// A stream of an HTTP/2 connection.
    pub(crate) fn take_http2(&self) -> Option<Connection> {
        let mut shared = lock(&self.shared);
        shared.retain(Multiplexed::is_open);
        shared.iter().find_map(|connection| connection.stream(true)).map(Connection::Http2)
    }

    /// Takes back a connection whose response has ended. An HTTP/2 connection never left.
    pub(crate) fn put(&self, connection: Connection) {
        let Connection::Http1(mut connection) = connection else { return };
        if connection.sender.is_closed() {
            return;
        }
        connection.idle_since = Instant::now();
        let mut idle = lock(&self.idle);
        idle.push_back(connection);
        if idle.len() > IDLE_MAX {
            idle.pop_front();
        }
    }

    /// Others may take streams of this connection from now on.
    pub(crate) fn share(&self, connection: &Connection) {
        if let Connection::Http2(http2) = connection {
            lock(&self.shared).push(http2.connection.clone());
        }
    }

    /// Closes what has been idle for too long or has been closed by the upstream.
    pub(crate) fn sweep(&self) {
        lock(&self.idle).retain(|connection| !connection.is_old() && !connection.sender.is_closed());
        lock(&self.shared).retain(Multiplexed::is_open);
    }

    /// Closes all that is not in use.
    pub(crate) fn clear(&self) {
        lock(&self.idle).clear();
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
