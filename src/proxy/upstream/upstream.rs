//! One upstream: its settings, its connector and its pool. Routes to the same upstream share it, and it survives reloads that do not
//! change it.
//!
//! Lends connections to requests. Knows nothing of limiters.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::connect::{Connector, Wanted};
use super::connection::Connection;
use super::key::{Key, Reach};
use super::lease::Lease;
use super::pool::Pool;
use super::progress::Progress;
use crate::config::model::{Http2, Upstream as Settings};
use crate::proxy::error::{ConnectError, ProxyBuildError};

/// The most waiting requests, over all limiters of the upstream, that hold a connection ready at once. In a queue that moves
/// faster, connections are warm from earlier requests, and one for each waiting request would be a flood.
const READY_MAX: usize = 256;

/// The shortest time between two warnings that the upstream cannot be reached.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// One upstream, shared by its routes.
pub(crate) struct Upstream {
    settings: Settings,
    host: HeaderValue,
    connector: Connector,
    pool: Arc<Pool>,
    /// The protocol of the last connection: [`UNKNOWN`], [`HTTP1`] or [`HTTP2`].
    protocol: AtomicU8,
    /// Held while a connection opens that other requests will share instead of opening their own.
    opening: Mutex<()>,
    ready_places: Semaphore,
    /// The time of the last warning that the upstream cannot be reached.
    warned_at: std::sync::Mutex<Option<Instant>>,
}

const UNKNOWN: u8 = 0;
const HTTP1: u8 = 1;
const HTTP2: u8 = 2;

impl Upstream {
    /// Creates the upstream without a connection.
    pub(crate) fn new(key: &Key, reach: &Reach, tasks: TaskTracker) -> Result<Upstream, ProxyBuildError> {
        let settings = key.settings.clone();
        let protocol = match (settings.http2, settings.tls) {
            (Http2::PriorKnowledge, _) => HTTP2,
            (Http2::Off, _) | (Http2::Auto, false) => HTTP1,
            (Http2::Auto, true) => UNKNOWN,
        };
        let connector = Connector::new(key, reach, tasks)?;
        let (pool, opening) = (Arc::default(), Mutex::default());
        let host = HeaderValue::from_str(&settings.authority);
        let host = host.map_err(|_| ProxyBuildError::Host { authority: Arc::clone(&settings.authority) })?;
        let (protocol, ready_places) = (AtomicU8::new(protocol), Semaphore::new(READY_MAX));
        let warned_at = std::sync::Mutex::default();
        Ok(Upstream { settings, host, connector, pool, protocol, opening, ready_places, warned_at })
    }

    /// Returns the settings as configured.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the value of `Host` for requests to the upstream.
    pub(crate) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Lends an open connection, if there is one.
    pub(crate) fn idle(&self, wanted: Wanted) -> Option<Lease> {
        self.take(wanted).map(|connection| self.lend(connection))
    }

    /// Lends a new connection, or a shared one that another request has opened meanwhile.
    pub(crate) async fn open(&self, wanted: Wanted) -> Result<Lease, ConnectError> {
        let progress = Progress::new();
        let opening = async {
            if wanted == Wanted::Http1 || self.protocol.load(Ordering::Acquire) == HTTP1 {
                return self.connect(wanted, &progress).await;
            }
            let turn = self.opening.lock().await;
            if let Some(connection) = self.take(wanted) {
                return Ok(connection);
            }
            if self.protocol.load(Ordering::Acquire) == HTTP1 {
                drop(turn);
            }
            self.connect(wanted, &progress).await
        };
        self.bounded(&progress, opening).await
    }

    /// Lends a new connection.
    pub(crate) async fn open_fresh(&self, wanted: Wanted) -> Result<Lease, ConnectError> {
        let progress = Progress::new();
        self.bounded(&progress, self.connect(wanted, &progress)).await
    }

    /// Takes a place among the waiting requests that hold a connection ready; `None` if all are taken.
    pub(crate) fn ready_place(&self) -> Option<SemaphorePermit<'_>> {
        self.ready_places.try_acquire().ok()
    }

    fn lend(&self, connection: Connection) -> Lease {
        Lease::new(Arc::clone(&self.pool), connection)
    }

    fn take(&self, wanted: Wanted) -> Option<Connection> {
        if wanted == Wanted::Any
            && self.protocol.load(Ordering::Acquire) != HTTP1
            && let Some(connection) = self.pool.take_http2()
        {
            return Some(connection);
        }
        self.pool.take_http1()
    }

    async fn connect(&self, wanted: Wanted, progress: &Progress) -> Result<Connection, ConnectError> {
        let connection = self.connector.connect(wanted, progress).await?;
        if wanted == Wanted::Any {
            let protocol = if matches!(connection, Connection::Http1(_)) { HTTP1 } else { HTTP2 };
            self.protocol.store(protocol, Ordering::Release);
        }
        self.pool.share(&connection);
        Ok(connection)
    }

    async fn bounded(
        &self,
        progress: &Progress,
        opening: impl Future<Output = Result<Connection, ConnectError>>,
    ) -> Result<Lease, ConnectError> {
        let opened = timeout(self.settings.timeouts.connect, opening).await;
        let opened = opened
            .unwrap_or_else(|_| Err(ConnectError::Timeout(progress.stage())))
            .inspect_err(|error| self.warn(error));
        opened.map(|connection| self.lend(connection))
    }

    /// Logs why the upstream cannot be reached, but not for each of what may be thousands of requests.
    fn warn(&self, error: &ConnectError) {
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        if warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            *warned_at = Some(Instant::now());
            tracing::warn!(upstream = %self.settings.authority, %error, "cannot connect to an upstream");
        }
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self) {
        self.pool.sweep();
    }

    /// Closes every connection that is not in use.
    pub(crate) fn close_idle(&self) {
        self.pool.clear();
    }
}
