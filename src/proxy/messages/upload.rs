//! Lets the forwarder watch a request's body while hyper sends it, and keeps a copy for another attempt.
//!
//! Reads nothing itself: [`super::request_body`] reports to it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::time::Instant;

/// The progress of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadState {
    /// More may come.
    Open,
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
pub(crate) struct Upload {
    state: AtomicU8,
    began: Instant,
    /// Microseconds from `began` to the last piece.
    last_piece: AtomicU64,
    /// A copy of the body so far, if another attempt may need it.
    kept: Mutex<Option<Kept>>,
}

/// A copy of a body, up to a size.
#[derive(Debug)]
struct Kept {
    bytes: BytesMut,
    bytes_max: usize,
}

impl Upload {
    /// Creates the view of a body that has not begun; up to `kept_max` bytes of the body are copied.
    pub(crate) fn new(kept_max: Option<usize>) -> Upload {
        let state = AtomicU8::new(UploadState::Open as u8);
        let kept = kept_max.map(|bytes_max| Kept { bytes: BytesMut::new(), bytes_max });
        Upload { state, began: Instant::now(), last_piece: AtomicU64::new(0), kept: Mutex::new(kept) }
    }

    /// Copies a piece. Trailers, and a body that grows too large, end the copying and drop the copy.
    pub(crate) fn keep(&self, frame: &Frame<Bytes>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Kept { bytes, bytes_max }) = &mut *kept else { return };
        match frame.data_ref() {
            Some(data) if bytes.len() + data.len() <= *bytes_max => bytes.extend_from_slice(data),
            _ => *kept = None,
        }
    }

    /// Returns whether the whole body has been handed over and copied.
    pub(crate) fn is_whole(&self) -> bool {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.is_some() && self.state() == UploadState::Complete
    }

    /// Returns a copy of the whole body, if there is one.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        let is_whole = self.is_whole();
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|_| is_whole).map(|kept| Bytes::copy_from_slice(&kept.bytes))
    }

    /// Returns the progress.
    pub(crate) fn state(&self) -> UploadState {
        const STATES: [UploadState; 5] = [
            UploadState::Open,
            UploadState::Complete,
            UploadState::Stalled,
            UploadState::Malformed,
            UploadState::Broken,
        ];
        STATES
            .into_iter()
            .find(|state| *state as u8 == self.state.load(Ordering::Acquire))
            .unwrap_or(UploadState::Broken)
    }

    /// Returns the instant at which the last piece was handed over.
    pub(crate) fn last_piece(&self) -> Instant {
        self.began + Duration::from_micros(self.last_piece.load(Ordering::Acquire))
    }

    /// Notes that a piece was handed over; `complete` says whether it was the last.
    pub(crate) fn piece_arrived(&self, complete: bool) {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_piece.store(micros, Ordering::Release);
        if complete {
            self.set(UploadState::Complete);
        }
    }

    /// Sets the progress.
    pub(crate) fn set(&self, state: UploadState) {
        self.state.store(state as u8, Ordering::Release);
    }
}
