//! Bounds the bytes of a response's body that hyper has been given and the client has not taken.
//!
//! hyper buffers as much of a body as the head of a request may have, and an HTTP/2 stream as much as its window. That is memory that a
//! client which reads nothing could make weir hold. Knows nothing of where a body comes from.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;

/// The bytes beyond which a body hands out no further piece. The last piece before may go beyond it.
const HELD_BYTES: usize = 8 * 1024;

/// The bytes of one body that hyper holds; `None` before the first piece.
#[derive(Default)]
pub(super) struct Held(Option<Arc<State>>);

#[derive(Default)]
struct State {
    bytes: AtomicUsize,
    body: AtomicWaker,
}

impl Held {
    /// Waits until there is room for a piece.
    pub(super) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(state) = self.0.as_ref().filter(|state| !state.has_room()) else { return Poll::Ready(()) };
        state.body.register(context.waker());
        // A piece may have been dropped before the waker was registered.
        if state.has_room() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns a piece that is counted until it is dropped.
    pub(super) fn hold(&mut self, bytes: Bytes) -> Bytes {
        let state = self.0.get_or_insert_default();
        state.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        Bytes::from_owner(Piece { bytes, state: Arc::clone(state) })
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Acquire) < HELD_BYTES
    }
}

/// A piece of a body. It is dropped when all of it has been written.
struct Piece {
    bytes: Bytes,
    state: Arc<State>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.state.bytes.fetch_sub(self.bytes.len(), Ordering::AcqRel);
        self.state.body.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use bytes::Bytes;

    use super::{HELD_BYTES, Held};

    #[test]
    fn there_is_room_again_when_a_piece_has_been_dropped() {
        let mut held = Held::default();
        let mut context = Context::from_waker(Waker::noop());
        let first = held.hold(Bytes::from(vec![1; HELD_BYTES - 1]));
        assert!(held.poll_room(&mut context).is_ready());
        let second = held.hold(Bytes::from(vec![2; HELD_BYTES]));
        assert!(held.poll_room(&mut context).is_pending());
        drop(first);
        assert!(held.poll_room(&mut context).is_pending());
        let rest = second.slice(1..);
        drop(second);
        assert!(held.poll_room(&mut context).is_pending(), "a part of it is still to be written");
        drop(rest);
        assert!(held.poll_room(&mut context).is_ready());
    }
}
