//! One upstream: its settings, its connector and its pool, shared by the routes that go there and kept over
//! reloads that do not change it.
//!
//! Hands a connection to a request and takes it back. Knows nothing of limiters.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::config::model::{Http2, Upstream as Settings};
use crate::proxy::Reach;
use crate::proxy::error::{ConnectError, ProxyBuildError};
use crate::proxy::messages::body::{RequestBody, Upload, UploadState};
use crate::proxy::upstream::connect::{Connector, Progress, Wanted};
use crate::proxy::upstream::pool::{Connection, Pool, SendError};

/// Waiting requests that may hold a connection ready at once, over all limiters that lead here. A queue that moves
/// faster has its connections warm from the requests before; one held by each that waits would be a flood.
const EARLY_MAX: usize = 256;

/// How often it is said at most that an upstream cannot be reached.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// What an upstream is told apart by: its settings, and the content of the files that they name, so that rotated files are
/// followed at a reload. Not `Debug`: a private key is in it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// As configured.
    pub(crate) settings: Settings,
    /// The certificates of `ca`.
    pub(crate) ca: Option<Vec<u8>>,
    /// Those of `cert`, and the key of `key`.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// One upstream.
pub(crate) struct Upstream {
    settings: Settings,
    host: HeaderValue,
    connector: Connector,
    pool: Pool,
    /// What it spoke last: [`UNKNOWN`], [`HTTP1`] or [`HTTP2`].
    speaks: AtomicU8,
    /// Held while a connection opens that others will share: they wait for it instead of opening their own.
    opening: Mutex<()>,
    early: Semaphore,
    /// When it was last said that it cannot be reached.
    warned: std::sync::Mutex<Option<Instant>>,
}

const UNKNOWN: u8 = 0;
const HTTP1: u8 = 1;
const HTTP2: u8 = 2;

impl Upstream {
    /// Opens nothing yet.
    pub(crate) fn new(key: &Key, reach: &Reach, tasks: TaskTracker) -> Result<Upstream, ProxyBuildError> {
        let settings = key.settings.clone();
        let speaks = match (settings.http2, settings.tls) {
            (Http2::PriorKnowledge, _) => HTTP2,
            (Http2::Off, _) | (Http2::Auto, false) => HTTP1,
            (Http2::Auto, true) => UNKNOWN,
        };
        let connector = Connector::new(key, reach, tasks)?;
        let (pool, opening) = (Pool::default(), Mutex::default());
        let host = HeaderValue::from_str(&settings.authority);
        let host = host.map_err(|_| ProxyBuildError::Host { authority: Arc::clone(&settings.authority) })?;
        let (speaks, early) = (AtomicU8::new(speaks), Semaphore::new(EARLY_MAX));
        let warned = std::sync::Mutex::default();
        Ok(Upstream { settings, host, connector, pool, speaks, opening, early, warned })
    }

    /// As configured.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it is called in `Host`.
    pub(crate) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// A connection for one request, of those that are open.
    pub(crate) fn idle(self: &Arc<Self>, wanted: Wanted) -> Option<Lease> {
        self.take(wanted).map(|connection| self.lease(connection))
    }

    /// A new connection, or one that others have opened meanwhile and share.
    pub(crate) async fn open(self: &Arc<Self>, wanted: Wanted) -> Result<Lease, ConnectError> {
        let progress = Progress::new();
        let opening = async {
            if wanted == Wanted::Http1 || self.speaks.load(Ordering::Acquire) == HTTP1 {
                return self.connect(wanted, &progress).await;
            }
            let turn = self.opening.lock().await;
            if let Some(connection) = self.take(wanted) {
                return Ok(connection);
            }
            if self.speaks.load(Ordering::Acquire) == HTTP1 {
                drop(turn);
            }
            self.connect(wanted, &progress).await
        };
        self.bounded(&progress, opening).await
    }

    /// A new connection.
    pub(crate) async fn open_fresh(self: &Arc<Self>, wanted: Wanted) -> Result<Lease, ConnectError> {
        let progress = Progress::new();
        self.bounded(&progress, self.connect(wanted, &progress)).await
    }

    /// A place among those that hold a connection ready before their slot comes; `None` if all are taken.
    pub(crate) fn early_place(&self) -> Option<SemaphorePermit<'_>> {
        self.early.try_acquire().ok()
    }

    fn lease(self: &Arc<Self>, connection: Connection) -> Lease {
        Lease { upstream: Arc::clone(self), connection, upload: None }
    }

    fn take(&self, wanted: Wanted) -> Option<Connection> {
        if wanted == Wanted::Any
            && self.speaks.load(Ordering::Acquire) != HTTP1
            && let Some(connection) = self.pool.take_http2()
        {
            return Some(connection);
        }
        self.pool.take_http1()
    }

    async fn connect(&self, wanted: Wanted, progress: &Progress) -> Result<Connection, ConnectError> {
        let connection = self.connector.connect(wanted, progress).await?;
        if wanted == Wanted::Any {
            let speaks = if matches!(connection, Connection::Http1(_)) { HTTP1 } else { HTTP2 };
            self.speaks.store(speaks, Ordering::Release);
        }
        self.pool.share(&connection);
        Ok(connection)
    }

    async fn bounded(
        self: &Arc<Self>,
        progress: &Progress,
        opening: impl Future<Output = Result<Connection, ConnectError>>,
    ) -> Result<Lease, ConnectError> {
        let opened = timeout(self.settings.connect_timeout, opening).await;
        let opened = opened
            .unwrap_or_else(|_| Err(ConnectError::Timeout(progress.stage())))
            .inspect_err(|error| self.warn(error));
        opened.map(|connection| self.lease(connection))
    }

    /// Says why it cannot be reached, now and then: there may be thousands of requests.
    fn warn(&self, error: &ConnectError) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|warned| warned.elapsed() >= WARN_INTERVAL) {
            *warned = Some(Instant::now());
            tracing::warn!(upstream = %self.settings.authority, %error, "cannot connect to an upstream");
        }
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&self) {
        self.pool.sweep();
    }

    /// Closes all that is not in use.
    pub(crate) fn close_idle(&self) {
        self.pool.clear();
    }
}

/// A connection on loan to a request. Dropped, it is closed; [`Lease::release`] gives it back.
pub(crate) struct Lease {
    upstream: Arc<Upstream>,
    connection: Connection,
    upload: Option<Arc<Upload>>,
}

impl Lease {
    /// Whether it can still take a request.
    pub(crate) fn is_open(&mut self) -> bool {
        self.connection.is_open()
    }

    /// Whether it has carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        self.connection.is_reused()
    }

    /// Sends a request, whose body is `upload`, and waits for the head of its response.
    pub(crate) fn send(
        &mut self,
        request: Request<RequestBody>,
        upload: Option<Arc<Upload>>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> {
        self.upload = upload;
        self.connection.send(request, self.upstream.settings.timeout, self.upload.as_deref())
    }

    /// Polls a piece of the response's body.
    pub(crate) fn poll_piece<T>(
        &mut self,
        context: &mut Context<'_>,
        step: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.connection.poll_piece(context, step)
    }

    fn is_uploaded(&self) -> bool {
        self.upload.as_ref().is_none_or(|upload| upload.state() == UploadState::Complete)
    }

    /// Nothing is under way on it, or the response has ended: it can be used again, unless its request's body
    /// has not ended yet.
    pub(crate) fn release(self) {
        if self.is_uploaded() {
            self.upstream.pool.put(self.connection);
        }
    }
}

/// A connection that is held ready for a request that waits, if it could get one; given back if the request
/// does not come.
#[derive(Default)]
pub(crate) struct Ready(Option<Lease>);

impl Ready {
    /// For the request that has come.
    pub(crate) fn take(&mut self) -> Option<Lease> {
        self.0.take().and_then(|mut lease| lease.is_open().then_some(lease))
    }
}

impl From<Lease> for Ready {
    fn from(lease: Lease) -> Ready {
        Ready(Some(lease))
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take() {
            lease.release();
        }
    }
}
