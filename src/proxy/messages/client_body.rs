//! The body of a request as it comes from the client. Over HTTP/2, the window of its stream becomes wide when more of it is waited for.
//!
//! Knows nothing of connections.

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
}

impl ClientBody {
    /// Wraps what hyper gives.
    pub(crate) fn new(incoming: Incoming, window: Option<Window>) -> ClientBody {
        let is_on_its_way = window.as_ref().is_some_and(|window| {
            incoming.size_hint().exact().is_some_and(|length| length <= u64::from(window.size()))
        });
        ClientBody { incoming, window, is_on_its_way }
    }

    /// Polls for what has arrived, and asks the client for nothing more.
    pub(crate) fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<Piece> {
        Pin::new(&mut self.incoming).poll_frame(context)
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
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
