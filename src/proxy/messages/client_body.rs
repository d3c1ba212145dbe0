//! The body of a request as it comes from the client, and the begin of it that was read ahead. Over HTTP/2, the window of its stream
//! becomes wide when more of it is waited for.
//!
//! Knows nothing of connections.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::proxy::net::windows::Window;

/// The result of polling a body.
pub(crate) type Piece = Option<Result<Frame<Bytes>, hyper::Error>>;

/// A body that comes from the client.
pub(crate) struct ClientBody {
    incoming: Incoming,
    /// The window of the stream, while it is narrow.
    window: Option<Window>,
    /// True if all of the body fits into the narrow window, unless it is padded, so that the first wait is for what is on its way.
    is_on_its_way: bool,
    /// The part that was read ahead, if anything was.
    ahead: Option<Box<Ahead>>,
}

/// The begin of a body that was read ahead.
#[derive(Default)]
struct Ahead {
    /// The pieces that nobody has taken yet.
    pieces: VecDeque<Frame<Bytes>>,
    /// The bytes in them.
    bytes: u64,
    /// True if nothing comes behind them.
    is_whole: bool,
}

impl ClientBody {
    /// Wraps what hyper gives.
    pub(crate) fn new(incoming: Incoming, window: Option<Window>) -> ClientBody {
        let is_on_its_way = window.as_ref().is_some_and(|window| {
            incoming.size_hint().exact().is_some_and(|length| length <= u64::from(window.size()))
        });
        ClientBody { incoming, window, is_on_its_way, ahead: None }
    }

    /// Polls for what has arrived, and asks the client for nothing more.
    pub(crate) fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<Piece> {
        if let Some(ahead) = &mut self.ahead {
            if let Some(piece) = ahead.pieces.pop_front() {
                ahead.bytes -= piece.data_ref().map_or(0, Bytes::len) as u64;
                return Poll::Ready(Some(Ok(piece)));
            }
            if ahead.is_whole {
                return Poll::Ready(None);
            }
        }
        Pin::new(&mut self.incoming).poll_frame(context)
    }

    /// Puts pieces that were polled back in front of the rest; `is_whole` says that there is no rest.
    pub(crate) fn put_back(&mut self, pieces: VecDeque<Frame<Bytes>>, is_whole: bool) {
        let bytes = pieces.iter().filter_map(Frame::data_ref).map(|piece| piece.len() as u64).sum();
        self.ahead = Some(Box::new(Ahead { pieces, bytes, is_whole }));
    }

    /// Puts a member in front of those of the mapping that was read ahead.
    pub(crate) fn insert_member(&mut self, member: &'static [u8]) {
        let Some(ahead) = &mut self.ahead else { return };
        // Only white space stands before it.
        let brace = |piece: &Frame<Bytes>| piece.data_ref()?.iter().position(|byte| *byte == b'{');
        let Some((place, at)) =
            ahead.pieces.iter().enumerate().find_map(|(place, piece)| Some((place, brace(piece)?)))
        else {
            return;
        };
        let mut rest = ahead.pieces.split_off(place);
        if let Some(Ok(mut before)) = rest.pop_front().map(Frame::into_data) {
            let behind = before.split_off(at + 1);
            ahead.pieces.extend([before, Bytes::from_static(member), behind].map(Frame::data));
            ahead.bytes += member.len() as u64;
        }
        ahead.pieces.append(&mut rest);
    }

    /// Returns the bytes that are still to come from the client, as far as it tells.
    pub(crate) fn bytes_to_come(&self) -> u64 {
        self.incoming.size_hint().lower()
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Piece> {
        let piece = self.poll_arrived(context);
        if piece.is_pending()
            && !std::mem::take(&mut self.is_on_its_way)
            && let Some(window) = self.window.take()
        {
            window.widen();
        }
        piece
    }

    fn is_end_stream(&self) -> bool {
        match &self.ahead {
            Some(ahead) => ahead.pieces.is_empty() && (ahead.is_whole || self.incoming.is_end_stream()),
            None => self.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.incoming.size_hint();
        let Some(ahead) = &self.ahead else { return hint };
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + ahead.bytes),
            // A length would frame the body anew, and leave no place for its trailers.
            None => {
                let mut known = SizeHint::new();
                known.set_lower(hint.lower() + ahead.bytes);
                known
            }
        }
    }
}
