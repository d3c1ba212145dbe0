//! The body of a response on its way to the client: it streams piece by piece, and ends the request.
//!
//! hyper asks for a piece when it has room for it, so a slow client slows the upstream down.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

use super::feedback::Feedback;
use super::held::Held;
use super::record::Record;
use super::rejection::BodyRules;
use super::settling::Settling;
use crate::proxy::messages::idle_timer::{BodyError, IdleTimer};
use crate::proxy::messages::stream_usage::WithoutUsage;
use crate::proxy::net::stall;
use crate::proxy::upstream::lease::Lease;
use crate::telemetry::Outcome;

/// The body of a response on its way to the client.
///
/// When it ends or is dropped, the request is over: its record is written, and a reusable connection returns to the pool.
pub(crate) struct ResponseBody {
    content: Content,
    record: Option<Box<Record>>,
}

enum Content {
    /// No bytes, with the length that a body would have.
    Announced(u64),
    /// A body that weir made.
    Own(Bytes),
    /// A body that the upstream sends.
    Upstream(Box<Download>),
}

/// A body that the upstream sends, and the connection that carries it.
struct Download {
    incoming: Incoming,
    timer: IdleTimer,
    lease: Option<Lease>,
    /// The bytes of it that the client has not taken yet.
    held: Held,
    /// The pauses that its begin has still to decide about.
    rules: Option<Box<BodyRules>>,
    /// The cost that it has still to tell.
    settling: Option<Box<Settling>>,
    /// Its events without the usage, for which the client has not asked.
    without_usage: Option<Box<WithoutUsage>>,
    /// The trailers behind a last piece, or the error with which it broke off: to be returned at the next poll.
    next: Option<Result<Frame<Bytes>, BodyError>>,
}

impl ResponseBody {
    /// Creates an empty body that announces a length. Except for HEAD, hyper writes such a length only if the body reports it, and the
    /// status forbids a body.
    pub(crate) fn announced(length: u64) -> ResponseBody {
        ResponseBody { content: Content::Announced(length), record: None }
    }

    /// Creates a body that weir made.
    pub(crate) fn own(bytes: Bytes) -> ResponseBody {
        ResponseBody { content: Content::Own(bytes), record: None }
    }

    /// Wraps the upstream's body, with the longest time between two pieces, the connection that carries it, and what it decides and tells.
    pub(crate) fn upstream(
        incoming: Incoming,
        idle_timeout: Duration,
        lease: Lease,
        feedback: Feedback,
    ) -> ResponseBody {
        let (timer, held) = (IdleTimer::new(idle_timeout), Held::default());
        let Feedback { body_rules: rules, settling, without_usage, .. } = feedback;
        let lease = Some(lease);
        let download = Download { incoming, timer, lease, held, rules, settling, without_usage, next: None };
        ResponseBody { content: Content::Upstream(Box::new(download)), record: None }
    }

    /// Attaches the record, which is written when this body is over.
    pub(crate) fn recorded(mut self, record: Box<Record>) -> ResponseBody {
        self.record = Some(record);
        self
    }

    /// Ends the request, the first time that it is called.
    fn settle(&mut self, end: End<'_>) {
        let is_complete = matches!(end, End::Complete);
        if let Content::Upstream(download) = &mut self.content
            && let Some(mut settling) = download.settling.take()
        {
            settling.end(is_complete);
        }
        if let Content::Upstream(download) = &mut self.content
            && let Some(lease) = download.lease.take()
            && is_complete
        {
            lease.release();
        }
        let Some(mut record) = self.record.take() else { return };
        match end {
            End::Complete => {}
            End::Failed(error) => record.broke_off(&reason(error)),
            End::Dropped => record.end.outcome = Outcome::Cancelled,
        }
    }
}

/// Shows a piece of a body to the rules that it decides, as long as they want to see more, and to what looks for the cost.
fn look(
    rules: &mut Option<Box<BodyRules>>,
    settling: &mut Option<Box<Settling>>,
    frame: &Option<Result<Frame<Bytes>, BodyError>>,
) {
    let piece = match frame {
        Some(Ok(frame)) => frame.data_ref(),
        None | Some(Err(_)) => {
            *rules = None;
            return;
        }
    };
    if let Some(piece) = piece {
        rules.take_if(|rules| !rules.see(piece));
        settling.iter_mut().for_each(|settling| settling.see(piece));
    }
}

/// Takes the usage out of a stream of events. What is left of it at its end goes on before the trailers, which are kept in `next`.
fn hide_usage(
    events: &mut WithoutUsage,
    frame: Option<Result<Frame<Bytes>, BodyError>>,
    next: &mut Option<Result<Frame<Bytes>, BodyError>>,
) -> Option<Result<Frame<Bytes>, BodyError>> {
    match frame {
        Some(Ok(frame)) if frame.is_data() => Some(Ok(frame.map_data(|piece| events.see(&piece)))),
        Some(Err(error)) => Some(Err(error)),
        end => match events.rest() {
            None => end,
            Some(rest) => {
                *next = end;
                Some(Ok(Frame::data(rest)))
            }
        },
    }
}

/// The way in which a body ended.
#[derive(Clone, Copy)]
enum End<'a> {
    Complete,
    Failed(&'a BodyError),
    Dropped,
}

/// Returns the reason for which a body broke off. hyper's own words say no more than that it did.
fn reason(error: &BodyError) -> String {
    match error {
        BodyError::Broken(error) => error.source().map_or_else(|| error.to_string(), ToString::to_string),
        BodyError::Stalled => "nothing came for `idle_timeout`".to_owned(),
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        let frame = match &mut body.content {
            Content::Announced(_) => None,
            Content::Own(bytes) if bytes.is_empty() => None,
            Content::Own(bytes) => Some(Ok(Frame::data(std::mem::take(bytes)))),
            Content::Upstream(download) => {
                let Download { incoming, timer, lease, held, rules, settling, without_usage, next } =
                    &mut **download;
                if let Some(next) = next.take() {
                    body.settle(next.as_ref().map_or_else(End::Failed, |_| End::Complete));
                    return Poll::Ready(Some(next));
                }
                // While a piece is held, the stream still waits for its client, and not for a further piece.
                ready!(held.poll_room(context));
                stall::asks();
                let mut poll = |context: &mut Context<'_>| {
                    http_body::Body::poll_frame(Pin::new(&mut *incoming), context)
                };
                let frame = match lease {
                    Some(lease) => lease.poll_piece(context, poll),
                    None => poll(context),
                };
                let frame = ready!(timer.poll_frame(frame, context));
                if rules.is_some() || settling.is_some() {
                    look(rules, settling, &frame);
                }
                let frame = match without_usage {
                    Some(events) => hide_usage(events, frame, next),
                    None => frame,
                };
                match frame {
                    // At an error hyper closes the connection and drops unwritten bytes, so it gets a turn to write them first.
                    Some(Err(error)) => {
                        *next = Some(Err(error));
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    // A body of one piece holds no more than that.
                    Some(Ok(frame)) if !incoming.is_end_stream() => {
                        Some(Ok(frame.map_data(|bytes| held.hold(bytes))))
                    }
                    frame => frame,
                }
            }
        };
        if matches!(frame, Some(Ok(_))) {
            // The last piece may wait for its client, too, and with it the connection that it came by.
            stall::hands_over();
        }
        // Nobody asks for what comes behind trailers.
        if frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers)) {
            body.settle(End::Complete);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Announced(_) => false,
            Content::Own(bytes) => bytes.is_empty(),
            Content::Upstream(download) => {
                let has_rest = download.without_usage.as_ref().is_some_and(|events| events.has_rest());
                download.next.is_none() && !has_rest && download.incoming.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Announced(length) => SizeHint::with_exact(*length),
            Content::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Upstream(download) if download.without_usage.is_some() => SizeHint::default(),
            Content::Upstream(download) => download.incoming.size_hint(),
        }
    }
}

impl Drop for ResponseBody {
    /// A body dropped at its end is complete, because hyper polls no further than the announced length. Any other was left by the
    /// client.
    fn drop(&mut self) {
        let complete = matches!(self.content, Content::Announced(_)) || http_body::Body::is_end_stream(self);
        self.settle(if complete { End::Complete } else { End::Dropped });
    }
}
