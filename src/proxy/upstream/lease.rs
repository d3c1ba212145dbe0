//! Connections on loan: to a request, or held ready for one that waits.
//!
//! Opens none.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::connection::{Connection, SendError};
use super::pool::Pool;
use crate::proxy::error::ProxyError;
use crate::proxy::messages::request_body::RequestBody;
use crate::proxy::messages::upload::{Upload, UploadState};

/// A connection on loan to a request. A drop closes it; [`Lease::release`] returns it to the pool.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    connection: Connection,
    upload: Option<Arc<Upload>>,
}

impl Lease {
    /// Lends a connection that returns to `pool`.
    pub(crate) fn new(pool: Arc<Pool>, connection: Connection) -> Lease {
        Lease { pool, connection, upload: None }
    }

    /// Returns whether the connection can take a request.
    pub(crate) fn is_open(&mut self) -> bool {
        self.connection.is_open()
    }

    /// Returns whether the connection has carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        self.connection.is_reused()
    }

    /// Returns whether other requests share the connection.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.connection.is_multiplexed()
    }

    /// Drops the copy of the request's body: there will be no further attempt.
    pub(crate) fn forget_copy(&self) {
        self.upload.iter().for_each(|upload| upload.forget());
    }

    /// Returns whether a response whose head is too large may pass by another connection.
    pub(crate) fn may_grow(&self) -> bool {
        self.connection.may_grow()
    }

    /// Sends a request at `now`, whose body is `upload`, and waits for the head of its response, for at most `timeout` after the last
    /// piece of that body.
    pub(crate) fn send(
        &mut self,
        request: Request<RequestBody>,
        upload: Option<Arc<Upload>>,
        (now, timeout): (Instant, Duration),
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> {
        self.upload = upload;
        self.connection.send(request, (now, timeout), self.upload.as_deref())
    }

    /// Polls a piece of the response's body, and drives the connection meanwhile.
    pub(crate) fn poll_piece<T>(
        &mut self,
        context: &mut Context<'_>,
        step: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.connection.poll_piece(context, step)
    }

    /// Returns an unused connection, or one whose response has ended, to the pool. If the request's body has not ended, the
    /// connection is closed instead.
    pub(crate) fn release(self) {
        if self.upload.is_none_or(|upload| upload.state() == UploadState::Complete) {
            self.pool.put(self.connection);
        }
    }
}

/// The connection held ready for a waiting request: one, none, or the failure to open one that was known only after the request's turn
/// had come. A drop returns the connection to the pool.
#[derive(Default)]
pub(crate) struct Ready(Option<Result<Lease, Box<ProxyError>>>);

impl Ready {
    /// Creates the failure to open a connection.
    pub(crate) fn failed(error: ProxyError) -> Ready {
        Ready(Some(Err(Box::new(error))))
    }

    /// Returns this, unless it is a failure.
    ///
    /// # Errors
    /// The failure to open a connection.
    pub(crate) fn unless_failed(mut self) -> Result<Ready, ProxyError> {
        match self.0.take() {
            Some(Err(error)) => Err(*error),
            ready => Ok(Ready(ready)),
        }
    }

    /// Takes the connection, if there is one and it is still open.
    ///
    /// # Errors
    /// The failure to open one.
    pub(crate) fn take(&mut self) -> Result<Option<Lease>, ProxyError> {
        let lease = self.0.take().transpose().map_err(|error| *error)?;
        Ok(lease.and_then(|mut lease| lease.is_open().then_some(lease)))
    }
}

impl From<Lease> for Ready {
    fn from(lease: Lease) -> Ready {
        Ready(Some(Ok(lease)))
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(Ok(lease)) = self.0.take() {
            lease.release();
        }
    }
}
