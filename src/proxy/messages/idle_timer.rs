//! Limits the time between two pieces of a body, and cleans its trailers.
//!
//! Knows nothing of where a body comes from.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::Instant;

use super::header_flags::HeaderFlags;
use super::headers;
use crate::proxy::net::driver::Alarm;

/// The reason why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The sender's connection broke, or its bytes are not HTTP.
    #[error("the body broke off: {0}")]
    Broken(#[from] hyper::Error),
    /// The time between two pieces was too long.
    #[error("the body stalled")]
    Stalled,
}

/// A timer for the pieces of one body. It runs only while a piece is asked for, because a slow receiver is not the sender's
/// fault.
pub(crate) struct IdleTimer {
    limit: Duration,
    asked_at: Option<Instant>,
    alarm: Alarm,
}

impl IdleTimer {
    /// Creates a timer with the longest time between two pieces.
    pub(crate) fn new(limit: Duration) -> IdleTimer {
        IdleTimer { limit, asked_at: None, alarm: Alarm::default() }
    }

    /// Stops the timer, because a piece has arrived.
    pub(crate) fn piece_arrived(&mut self) {
        self.asked_at = None;
    }

    /// Turns the poll of a piece into one that fails when the time is over, and removes misplaced trailers.
    pub(crate) fn poll_frame(
        &mut self,
        piece: Poll<Option<hyper::Result<Frame<Bytes>>>>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match piece {
            Poll::Ready(frame) => {
                self.piece_arrived();
                Poll::Ready(frame.map(|frame| Ok(clean_trailers(frame?))))
            }
            Poll::Pending => {
                let deadline = *self.asked_at.get_or_insert_with(Instant::now) + self.limit;
                ready!(self.alarm.poll(context, deadline));
                Poll::Ready(Some(Err(BodyError::Stalled)))
            }
        }
    }
}

/// Removes from trailers what concerns one connection or weir alone, and what must not be a trailer.
fn clean_trailers(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            let flags = HeaderFlags::of(&trailers);
            headers::remove_hop_by_hop(&mut trailers, flags);
            headers::remove_own(&mut trailers, flags);
            headers::remove_misplaced(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}
