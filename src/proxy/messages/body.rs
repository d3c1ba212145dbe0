//! Bodies that stream both ways, piece by piece, and are never held whole.
//!
//! hyper asks for the next piece when it has room for it, so a slow reader slows the writer down. What is added
//! here: the longest time between two pieces, and what has to happen when a body ends, or is dropped before
//! it does.

use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::proxy::forward::record::Record;
use crate::proxy::messages::headers::{self, Seen};
use crate::proxy::net::driver::Alarm;
use crate::proxy::upstream::upstream::Lease;
use crate::telemetry::Outcome;

/// The most bytes of a refused request's body that are read and thrown away, so that a client that writes
/// before it reads still gets to see the refusal. Beyond that the connection is closed.
const DISCARD_BYTES_MAX: usize = 256 * 1024;
/// The longest time that is spent on it.
const DISCARD_TIME_MAX: Duration = Duration::from_millis(500);

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The sender's connection broke, or what it sent is not HTTP.
    #[error("the body broke off: {0}")]
    Broken(#[from] hyper::Error),
    /// The time between two pieces was too long.
    #[error("the body stalled")]
    Stalled,
}

/// The body of a request on its way upstream.
pub(crate) enum RequestBody {
    /// There is none.
    Empty,
    /// Comes from the client.
    Streaming(Box<Streaming>),
    /// Was kept of an attempt before.
    Kept(Option<Bytes>),
}

/// A request's body that comes from the client.
pub(crate) struct Streaming {
    incoming: Incoming,
    /// What has come and is not handed over yet: the last piece that fits into the announced length, until it is known that
    /// none follows; or trailers that have shown that.
    held: Option<Frame<Bytes>>,
    timer: IdleTimer,
    upload: Arc<Upload>,
}

/// What a body gives.
type Piece = Option<Result<Frame<Bytes>, hyper::Error>>;

impl Streaming {
    /// A request that turns out longer than it has announced is malformed and goes nowhere (RFC 9113, 8.1.1). Over HTTP/2 that
    /// is known when its stream has ended, which need not come with the last piece of its body: the upstream, which would have
    /// a whole request by that piece, gets it then.
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
                    self.timer.moved();
                }
                (None, piece) => return Poll::Ready(piece),
                (Some(last), None) => return Poll::Ready(Some(Ok(last))),
                (Some(last), Some(Ok(frame))) if frame.is_trailers() => {
                    self.held = Some(frame);
                    return Poll::Ready(Some(Ok(last)));
                }
                // An empty piece, for no other fits. It may be the end.
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

impl RequestBody {
    /// Takes over the client's body, with the longest time between two pieces, and what can be seen of it
    /// from outside while hyper has it. Up to `kept_max` bytes of it are kept.
    pub(crate) fn new(
        incoming: Incoming,
        idle_timeout: Duration,
        kept_max: Option<usize>,
    ) -> (RequestBody, Option<Arc<Upload>>) {
        if http_body::Body::is_end_stream(&incoming) {
            return (RequestBody::Empty, None);
        }
        let upload = Arc::new(Upload::new(kept_max));
        let timer = IdleTimer::new(idle_timeout);
        let streaming = Streaming { incoming, held: None, timer, upload: Arc::clone(&upload) };
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
            RequestBody::Empty => return Poll::Ready(None),
        };
        let frame = body.poll_incoming(context);
        let frame = ready!(body.timer.poll_frame(frame, context));
        match &frame {
            Some(Ok(frame)) => {
                body.upload.keep(frame);
                body.upload.moved(body.is_end_stream());
            }
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
            RequestBody::Empty => true,
            RequestBody::Streaming(body) => body.is_end_stream(),
            RequestBody::Kept(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Streaming(body) => body.size_hint(),
            RequestBody::Kept(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

/// Whether what was read of an HTTP/1.1 body is none, in contrast to one that broke off.
fn is_malformed(error: &hyper::Error) -> bool {
    matches!(io_kind(error), Some(ErrorKind::InvalidData | ErrorKind::InvalidInput))
}

/// What happened to a connection, where that is what an error of hyper's says.
pub(crate) fn io_kind(error: &hyper::Error) -> Option<ErrorKind> {
    let source = std::error::Error::source(error)?.downcast_ref::<std::io::Error>();
    source.map(std::io::Error::kind)
}

/// How far a request's body has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadState {
    /// On its way.
    Open,
    /// All of it has been handed over.
    Complete,
    /// The client stopped sending.
    Stalled,
    /// The client hung up.
    Broken,
    /// What the client sent is not HTTP.
    Malformed,
}

/// What can be seen of a request's body while hyper has it.
#[derive(Debug)]
pub(crate) struct Upload {
    state: AtomicU8,
    began: Instant,
    /// Microseconds from `began` to the last piece.
    last_piece: AtomicU64,
    /// What has been handed over, where another attempt may need it.
    kept: Mutex<Option<Kept>>,
}

/// What is kept of a body.
#[derive(Debug)]
struct Kept {
    bytes: BytesMut,
    bytes_max: usize,
}

impl Upload {
    fn new(kept_max: Option<usize>) -> Upload {
        let state = AtomicU8::new(UploadState::Open as u8);
        let kept = kept_max.map(|bytes_max| Kept { bytes: BytesMut::new(), bytes_max });
        Upload { state, began: Instant::now(), last_piece: AtomicU64::new(0), kept: Mutex::new(kept) }
    }

    /// Keeps a piece. Trailers, and what is too large, let all of it go.
    fn keep(&self, frame: &Frame<Bytes>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Kept { bytes, bytes_max }) = &mut *kept else { return };
        match frame.data_ref() {
            Some(data) if bytes.len() + data.len() <= *bytes_max => bytes.extend_from_slice(data),
            _ => *kept = None,
        }
    }

    /// Whether all of it has been handed over and kept.
    pub(crate) fn is_whole(&self) -> bool {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.is_some() && self.state() == UploadState::Complete
    }

    /// A copy of the whole body; `None` if it is not there.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        let is_whole = self.is_whole();
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|_| is_whole).map(|kept| Bytes::copy_from_slice(&kept.bytes))
    }

    /// How far it has got.
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

    /// When the last piece was handed over.
    pub(crate) fn last_piece(&self) -> Instant {
        self.began + Duration::from_micros(self.last_piece.load(Ordering::Acquire))
    }

    fn moved(&self, complete: bool) {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_piece.store(micros, Ordering::Release);
        if complete {
            self.set(UploadState::Complete);
        }
    }

    fn set(&self, state: UploadState) {
        self.state.store(state as u8, Ordering::Release);
    }
}

/// Reads a refused request's body to its end, within bounds, and forgets it.
pub(crate) async fn discard(mut body: Incoming) {
    let reading = async {
        let mut left = DISCARD_BYTES_MAX;
        while let Some(Ok(frame)) = http_body_util::BodyExt::frame(&mut body).await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else { return };
            left = rest;
        }
    };
    let _ = timeout(DISCARD_TIME_MAX, reading).await;
}

/// The body of a response on its way to the client. When it ends, or is dropped, the request is over: its record
/// is written, and an upstream connection that can be used again goes back.
pub(crate) struct Body {
    content: Content,
    record: Option<Box<Record>>,
}

enum Content {
    Empty,
    /// Nothing, of which is said how long it would be.
    Announced(u64),
    Own(Bytes),
    Upstream(Box<Download>),
}

struct Download {
    incoming: Incoming,
    timer: IdleTimer,
    lease: Option<Lease>,
    /// Why it broke off, once that is known.
    broken: Option<BodyError>,
}

impl Body {
    /// No body at all.
    pub(crate) fn empty() -> Body {
        Body { content: Content::Empty, record: None }
    }

    /// No body, where one would be so long. hyper writes such a length for a HEAD alone, unless the body itself says so; nothing is
    /// sent where the status has no body.
    pub(crate) fn announced(length: u64) -> Body {
        Body { content: Content::Announced(length), record: None }
    }

    /// A body that weir made.
    pub(crate) fn own(bytes: Bytes) -> Body {
        Body { content: Content::Own(bytes), record: None }
    }

    /// The upstream's body, with the longest time between two pieces and the connection that it comes by.
    pub(crate) fn upstream(incoming: Incoming, idle_timeout: Duration, lease: Lease) -> Body {
        let download =
            Download { incoming, timer: IdleTimer::new(idle_timeout), lease: Some(lease), broken: None };
        Body { content: Content::Upstream(Box::new(download)), record: None }
    }

    /// The record is written when this body is over.
    pub(crate) fn recorded(mut self, record: Box<Record>) -> Body {
        self.record = Some(record);
        self
    }

    /// The body is over; what comes later changes nothing.
    fn settle(&mut self, end: End) {
        if let Content::Upstream(download) = &mut self.content
            && let Some(lease) = download.lease.take()
            && end == End::Complete
        {
            lease.release();
        }
        let Some(mut record) = self.record.take() else { return };
        match end {
            End::Complete => {}
            End::Failed => record.outcome = Outcome::Failed,
            End::Dropped => record.outcome = Outcome::Cancelled,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Complete,
    Failed,
    Dropped,
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        let frame = match &mut body.content {
            Content::Empty | Content::Announced(_) => None,
            Content::Own(bytes) if bytes.is_empty() => None,
            Content::Own(bytes) => Some(Ok(Frame::data(std::mem::take(bytes)))),
            Content::Upstream(download) => {
                let Download { incoming, timer, lease, broken } = &mut **download;
                if let Some(error) = broken.take() {
                    body.settle(End::Failed);
                    return Poll::Ready(Some(Err(error)));
                }
                let mut poll = |context: &mut Context<'_>| {
                    http_body::Body::poll_frame(Pin::new(&mut *incoming), context)
                };
                let frame = match lease {
                    Some(lease) => lease.poll_piece(context, poll),
                    None => poll(context),
                };
                match ready!(timer.poll_frame(frame, context)) {
                    // hyper ends the connection at once and forgets what it has not written yet: it gets a turn to write that.
                    Some(Err(error)) => {
                        *broken = Some(error);
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    frame => frame,
                }
            }
        };
        if frame.is_none() {
            body.settle(End::Complete);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Announced(_) => false,
            Content::Own(bytes) => bytes.is_empty(),
            Content::Upstream(download) => download.broken.is_none() && download.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Empty => SizeHint::with_exact(0),
            Content::Announced(length) => SizeHint::with_exact(*length),
            Content::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Upstream(download) => download.incoming.size_hint(),
        }
    }
}

impl Drop for Body {
    /// hyper does not ask for more once it has as many bytes as were announced: a body at its end is complete,
    /// another one was left by the client.
    fn drop(&mut self) {
        let complete = matches!(self.content, Content::Announced(_)) || http_body::Body::is_end_stream(self);
        self.settle(if complete { End::Complete } else { End::Dropped });
    }
}

/// The longest time between two pieces of a body. The time in which nobody asks for one does not count: a slow
/// receiver is not the sender's fault.
struct IdleTimer {
    limit: Duration,
    asked: Option<Instant>,
    alarm: Alarm,
}

impl IdleTimer {
    fn new(limit: Duration) -> IdleTimer {
        IdleTimer { limit, asked: None, alarm: Alarm::default() }
    }

    /// A piece has come.
    fn moved(&mut self) {
        self.asked = None;
    }

    /// Puts a limit to a piece that was asked for.
    fn poll_frame(
        &mut self,
        asked: Poll<Option<hyper::Result<Frame<Bytes>>>>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match asked {
            Poll::Ready(frame) => {
                self.moved();
                Poll::Ready(frame.map(|frame| Ok(scrub_trailers(frame?))))
            }
            Poll::Pending => {
                let deadline = *self.asked.get_or_insert_with(Instant::now) + self.limit;
                ready!(self.alarm.poll(context, deadline));
                Poll::Ready(Some(Err(BodyError::Stalled)))
            }
        }
    }
}

/// Trailers pass, without what has no business there and what concerns one connection only or weir itself.
fn scrub_trailers(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            let seen = Seen::of(&trailers);
            headers::remove_hop_by_hop(&mut trailers, seen);
            headers::remove_own(&mut trailers, seen);
            headers::remove_misplaced(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}
