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
use crate::proxy::error::{ConnectError, ProxyBuildError, Stage};

/// The most waiting requests, over all limiters of the upstream, that hold a connection ready at once. In a queue that moves
/// faster, connections are warm from earlier requests, and one for each waiting request would be a flood.
const READY_MAX: usize = 256;

/// The longest wait for a connection that another request opens, in attempts: the one that a request finds under way, and the next,
/// which stands for its own.
const TURN_ATTEMPTS: u32 = 2;

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
    /// Held while a connection opens that other requests will share instead of opening their own. Keeps the failure of the last one.
    opening: Mutex<Option<Failure>>,
    ready_places: Semaphore,
    /// The time of the last warning that the upstream cannot be reached.
    warned_at: std::sync::Mutex<Option<Instant>>,
}

/// The reason why a request got no connection.
pub(crate) enum Unopened {
    /// Its own attempt has failed.
    Own(ConnectError),
    /// It has waited for the attempt of another request, which tells the same of the upstream.
    Shared(ConnectError),
}

impl From<Unopened> for ConnectError {
    fn from(unopened: Unopened) -> ConnectError {
        match unopened {
            Unopened::Own(error) | Unopened::Shared(error) => error,
        }
    }
}

/// An attempt to open a shared connection that has failed.
struct Failure {
    began: Instant,
    error: ConnectError,
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
    ///
    /// Where requests share connections, one of them opens the next and the others wait for it. Each attempt has all of
    /// `connect_timeout`, however long its request has waited; and one that began while a request waited stands for its own.
    pub(crate) async fn open(&self, wanted: Wanted) -> Result<Lease, Unopened> {
        if wanted == Wanted::Http1 || self.protocol.load(Ordering::Acquire) == HTTP1 {
            return self.open_fresh(wanted).await.map_err(Unopened::Own);
        }
        let arrived = Instant::now();
        let turn = timeout(self.settings.timeouts.connect * TURN_ATTEMPTS, self.opening.lock()).await;
        let turn = turn.map_err(|_| ConnectError::Timeout(Stage::Turn));
        let mut last_failure = turn.inspect_err(|error| self.warn(error)).map_err(Unopened::Shared)?;
        if let Some(connection) = self.take(wanted) {
            return Ok(self.lend(connection));
        }
        if let Some(failure) = last_failure.as_ref().filter(|failure| failure.began >= arrived) {
            return Err(Unopened::Shared(failure.error.clone()));
        }
        if self.protocol.load(Ordering::Acquire) == HTTP1 {
            drop(last_failure);
            return self.open_fresh(wanted).await.map_err(Unopened::Own);
        }
        let began = Instant::now();
        let opened = self.open_fresh(wanted).await;
        *last_failure = opened.as_ref().err().map(|error| Failure { began, error: error.clone() });
        opened.map_err(Unopened::Own)
    }

    /// Lends a new connection.
    pub(crate) async fn open_fresh(&self, wanted: Wanted) -> Result<Lease, ConnectError> {
        let progress = Progress::new();
        let opened = timeout(self.settings.timeouts.connect, self.connect(wanted, &progress)).await;
        let opened = opened
            .unwrap_or_else(|_| Err(ConnectError::Timeout(progress.stage())))
            .inspect_err(|error| self.warn(error));
        opened.map(|connection| self.lend(connection))
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
