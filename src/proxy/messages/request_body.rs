//! The body of a request on its way upstream: it streams piece by piece, with a limit to the time between two.
//!
//! hyper asks for a piece when it has room for it, so a slow upstream slows the client down. Knows nothing of connections.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::timeout;

use super::client_body::{ClientBody, Piece};
use super::headers;
use super::idle_timer::{BodyError, IdleTimer};
use super::upload::{Upload, UploadState};
use crate::proxy::net::activity::{Activity, Busy};
use crate::proxy::net::unread::Unread;

/// The most bytes of a refused request's body that are read and dropped to keep the connection. A longer body ends it.
const SHORT_BYTES_MAX: u64 = 64 * 1024;
/// The longest time to wait for the rest of such a body.
const SHORT_TIME_MAX: Duration = Duration::from_secs(5);
/// How often hyper gets a turn to read what has arrived of a body.
const TURNS_MAX: u8 = 2;

/// The body of a request on its way upstream.
pub(crate) enum RequestBody {
    /// A body that comes from the client.
    Streaming(Box<Streaming>),
    /// The copy of an earlier attempt; `None` without a body.
    Kept(Option<Bytes>),
}

/// A request's body that comes from the client.
pub(crate) struct Streaming {
    incoming: ClientBody,
    /// A piece that is held back: the one that completes the announced length, until the stream has ended, or the trailers
    /// behind it.
    held: Option<Frame<Bytes>>,
    timer: IdleTimer,
    upload: Arc<Upload>,
    unread: Unread,
    /// Held until the end, which a response may not wait for.
    _busy: Busy,
    /// The names that are removed from the trailers.
    no_trailers: Arc<[HeaderName]>,
}

impl Streaming {
    /// Polls the next piece, and holds back the one that completes the announced length until the stream has ended.
    ///
    /// A request longer than announced is malformed and must not be processed (RFC 9113, 8.1.1). With that last piece the upstream
    /// would have a whole request, but over HTTP/2 the end of the stream may arrive later.
    fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Piece> {
        if self.held.as_ref().is_some_and(Frame::is_trailers) {
            return Poll::Ready(self.held.take().map(Ok));
        }
        loop {
            let piece = ready!(Pin::new(&mut self.incoming).poll_frame(context));
            let is_used_up = self.incoming.size_hint().exact() == Some(0);
            match (self.held.take(), piece) {
                (None, Some(Ok(frame)))
                    if frame.is_data() && is_used_up && !self.incoming.is_end_stream() =>
                {
                    self.held = Some(frame);
                    self.timer.piece_arrived();
                }
                (None, piece) => return Poll::Ready(piece),
                (Some(last), None) => return Poll::Ready(Some(Ok(last))),
                (Some(last), Some(Ok(frame))) if frame.is_trailers() => {
                    self.held = Some(frame);
                    return Poll::Ready(Some(Ok(last)));
                }
                // The piece is empty, because no other fits into the announced length. It may be the end.
                (Some(last), Some(Ok(_))) if self.incoming.is_end_stream() => {
                    return Poll::Ready(Some(Ok(last)));
                }
                (Some(last), Some(Ok(_))) => self.held = Some(last),
                (Some(_), Some(Err(error))) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.incoming.size_hint();
        let held = self.held.as_ref().and_then(Frame::data_ref).map_or(0, |last| last.len() as u64);
        hint.exact().map_or(hint, |exact| SizeHint::with_exact(exact + held))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.incoming.is_end_stream()
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        if self.upload.state() != UploadState::Complete {
            self.unread.set();
        }
    }
}

impl RequestBody {
    /// Wraps the client's body, with the longest time between two pieces. Returns a view of it as well, unless it is empty. Up to
    /// `kept_max` bytes are copied for another attempt. Trailers named in `no_trailers` are removed. A body that is dropped before its end
    /// sets `unread`; until its end the client is busy, and not idle.
    pub(crate) fn new(
        incoming: ClientBody,
        idle_timeout: Duration,
        kept_max: Option<usize>,
        (unread, activity): (&Unread, &Arc<Activity>),
        no_trailers: &Arc<[HeaderName]>,
    ) -> (RequestBody, Option<Arc<Upload>>) {
        if http_body::Body::is_end_stream(&incoming) {
            return (RequestBody::Kept(None), None);
        }
        let upload = Arc::new(Upload::new(kept_max));
        let timer = IdleTimer::new(idle_timeout);
        let (held, unread, _busy) = (None, unread.clone(), activity.busy());
        let (view, no_trailers) = (Arc::clone(&upload), Arc::clone(no_trailers));
        let streaming = Streaming { incoming, held, timer, upload: view, unread, _busy, no_trailers };
        (RequestBody::Streaming(Box::new(streaming)), Some(upload))
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = match self.get_mut() {
            RequestBody::Streaming(body) => body,
            RequestBody::Kept(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        };
        let frame = body.poll_incoming(context);
        if frame.is_pending() {
            body.upload.asked();
        }
        let mut frame = ready!(body.timer.poll_frame(frame, context));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::remove_variables(trailers, || body.no_trailers.iter());
        }
        match &frame {
            // Nobody asks for what comes behind trailers.
            Some(Ok(frame)) => body.upload.piece(frame, frame.is_trailers() || body.is_end_stream()),
            Some(Err(BodyError::Stalled)) => body.upload.set(UploadState::Stalled),
            Some(Err(BodyError::Broken(error))) if is_malformed(error) => {
                body.upload.set(UploadState::Malformed);
            }
            Some(Err(BodyError::Broken(_))) => body.upload.set(UploadState::Broken),
            None => body.upload.set(UploadState::Complete),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Streaming(body) => body.is_end_stream(),
            RequestBody::Kept(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Streaming(body) => body.size_hint(),
            RequestBody::Kept(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

/// Returns whether an HTTP/1.1 body is malformed, in contrast to one that broke off.
pub(crate) fn is_malformed(error: &hyper::Error) -> bool {
    matches!(io_kind(error), Some(ErrorKind::InvalidData | ErrorKind::InvalidInput))
}

/// Returns the I/O error behind an error of hyper's, if there is one.
pub(crate) fn io_kind(error: &hyper::Error) -> Option<ErrorKind> {
    let source = std::error::Error::source(error)?.downcast_ref::<std::io::Error>();
    source.map(std::io::Error::kind)
}

/// The rest of a refused request's body.
pub(crate) enum Rest {
    /// None: the body was read to its end.
    Nothing,
    /// So little that it is on its way.
    Short(ClientBody),
    /// Much, or nobody knows how much.
    Long(ClientBody),
}

/// Reads and drops what has arrived of a refused request's body, and waits for nothing.
pub(crate) async fn drop_arrived(mut body: ClientBody) -> Rest {
    let is_short = |left: Option<u64>| left.is_some_and(|left| left <= SHORT_BYTES_MAX);
    let announced = http_body::Body::size_hint(&body).exact();
    if announced.is_some() && !is_short(announced) {
        return Rest::Long(body);
    }
    let (mut bytes_left, mut turns) = (SHORT_BYTES_MAX, 0);
    let is_over = poll_fn(|context| {
        loop {
            match body.poll_arrived(context) {
                Poll::Ready(None) => return Poll::Ready(Some(true)),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(None),
                Poll::Ready(Some(Ok(frame))) => {
                    let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                    let Some(left) = bytes_left.checked_sub(length) else { return Poll::Ready(None) };
                    (bytes_left, turns) = (left, 0);
                }
                Poll::Pending if turns == TURNS_MAX => return Poll::Ready(Some(false)),
                Poll::Pending => {
                    turns += 1;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    });
    match is_over.await {
        Some(true) => Rest::Nothing,
        Some(false) if is_short(http_body::Body::size_hint(&body).exact()) => Rest::Short(body),
        Some(false) | None => Rest::Long(body),
    }
}

/// Reads and drops a short body. Returns whether it has ended in time.
pub(crate) async fn drop_short(body: &mut ClientBody) -> bool {
    let reading = async {
        while let Some(frame) = http_body_util::BodyExt::frame(body).await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    timeout(SHORT_TIME_MAX, reading).await.unwrap_or(false)
}
