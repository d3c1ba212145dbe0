//! Lets the forwarder watch a request's body while hyper sends it, and keeps a copy for another attempt.
//!
//! Reads nothing itself: [`super::request_body`] reports to it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::time::Instant;

/// The progress of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadState {
    /// More may come, and the upstream has not asked for it.
    Open,
    /// The next piece is asked for, and the client has not sent it.
    Awaited,
    /// The whole body has been handed over.
    Complete,
    /// The client stopped sending.
    Stalled,
    /// The client closed the connection.
    Broken,
    /// The body is not framed correctly.
    Malformed,
}

/// A view of a request's body while hyper owns the body.
#[derive(Debug)]
pub(crate) struct Upload(Mutex<Progress>);

#[derive(Debug)]
struct Progress {
    state: UploadState,
    last_piece: Instant,
    /// A copy of the body so far, if another attempt may need it, and its largest size.
    kept: Option<(BytesMut, usize)>,
}

impl Upload {
    /// Creates the view of a body that has not begun; up to `kept_max` bytes of the body are copied.
    pub(crate) fn new(kept_max: Option<usize>) -> Upload {
        let kept = kept_max.map(|bytes_max| (BytesMut::new(), bytes_max));
        Upload(Mutex::new(Progress { state: UploadState::Open, last_piece: Instant::now(), kept }))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a piece that is handed over, and copies it. Trailers, and a body that grows too large, end the copying and drop the copy.
    pub(crate) fn piece(&self, frame: &Frame<Bytes>, is_last: bool) {
        let mut progress = self.lock();
        progress.last_piece = Instant::now();
        match (&mut progress.kept, frame.data_ref()) {
            (Some((bytes, bytes_max)), Some(data)) if bytes.len() + data.len() <= *bytes_max => {
                bytes.extend_from_slice(data);
            }
            _ => progress.kept = None,
        }
        progress.state = if is_last { UploadState::Complete } else { UploadState::Open };
    }

    /// Returns whether the whole body has been handed over and copied.
    pub(crate) fn is_whole(&self) -> bool {
        let progress = self.lock();
        progress.kept.is_some() && progress.state == UploadState::Complete
    }

    /// Returns a copy of the whole body, if there is one.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        let progress = self.lock();
        let kept = progress.kept.as_ref().filter(|_| progress.state == UploadState::Complete);
        kept.map(|(bytes, _)| Bytes::copy_from_slice(bytes))
    }

    /// Drops the copy.
    pub(crate) fn forget(&self) {
        self.lock().kept = None;
    }

    /// Returns the progress.
    pub(crate) fn state(&self) -> UploadState {
        self.lock().state
    }

    /// Returns the instant by which an upstream must have answered that has `limit` to answer. Its time does not begin while the client is
    /// being waited for.
    pub(crate) fn deadline(&self, limit: Duration) -> Instant {
        let progress = self.lock();
        let since = if progress.state == UploadState::Awaited { Instant::now() } else { progress.last_piece };
        since + limit
    }

    /// Notes that the client is asked for the next piece.
    pub(crate) fn asked(&self) {
        let mut progress = self.lock();
        if progress.state == UploadState::Open {
            progress.state = UploadState::Awaited;
        }
    }

    /// Sets the progress.
    pub(crate) fn set(&self, state: UploadState) {
        self.lock().state = state;
    }
}
