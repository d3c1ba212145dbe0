//! Narrow windows for the streams of HTTP/2 whose requests wait, and wide ones for those whose bodies are read.
//!
//! h2 grants all streams the same window, and an upload is only fast within a wide one. Bytes that arrive lie in memory, also while the
//! request waits for its turn. So the client is told less than h2 grants: its streams begin narrow, and the rest of the window follows
//! when somebody waits for more of the body. h2 never gets more than it has granted.
//!
//! h2 does not tell on which stream a request came. But it hands requests out in the order of their heads, and within the turn of the
//! connection in which it gets them, unless it refuses one itself. So heads and requests are counted in each turn. From the first turn
//! in which the numbers differ, all streams of the connection are wide at once, because a narrow one that nobody widens would stand
//! still.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::io::AsyncWrite;

/// The bytes of a frame's head: three of length, the type, the flags, four of stream (RFC 9113, 4.1).
const HEAD: usize = 9;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
/// `SETTINGS_INITIAL_WINDOW_SIZE`.
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];

/// The windows of the streams of one connection.
pub(crate) struct Windows {
    narrow: u32,
    state: Mutex<State>,
    /// Wakes the connection, which widens windows.
    connection: AtomicWaker,
}

#[derive(Default)]
struct State {
    /// The streams whose heads h2 has got in this turn.
    heads: Vec<u32>,
    /// The requests that have come out of h2 in this turn.
    requests: usize,
    /// The first stream of the turn from which on all streams are wide.
    all_wide_from: Option<u32>,
    /// The streams that the client is to be told of.
    widening: Vec<u32>,
}

/// The window of a request's stream, while it is narrow.
pub(crate) struct Window {
    windows: Arc<Windows>,
    stream: u32,
}

impl Windows {
    /// Creates windows that are `narrow` bytes at first.
    pub(crate) fn new(narrow: u32) -> Windows {
        Windows { narrow, state: Mutex::default(), connection: AtomicWaker::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that h2 gets the last byte of the head of a stream's request.
    pub(crate) fn begins(&self, stream: u32) {
        let state = &mut *self.lock();
        if state.all_wide_from.is_some() { &mut state.widening } else { &mut state.heads }.push(stream);
    }

    /// Counts a request that h2 hands out. Returns the window of its stream, if it will have to be widened.
    pub(crate) fn request(self: &Arc<Windows>, has_body: bool) -> Option<Window> {
        let state = &mut *self.lock();
        let stream = state.heads.get(state.requests).copied();
        state.requests += 1;
        stream.filter(|_| has_body).map(|stream| Window { windows: Arc::clone(self), stream })
    }

    /// Ends a turn of the connection, before any of its requests runs.
    pub(crate) fn end_turn(&self) {
        let state = &mut *self.lock();
        let requests = std::mem::take(&mut state.requests);
        if state.all_wide_from.is_none() && requests != state.heads.len() {
            state.all_wide_from = Some(state.heads.first().copied().unwrap_or(u32::MAX));
            state.widening.append(&mut state.heads);
            self.connection.wake();
        }
        state.heads.clear();
    }

    /// Returns the streams that have become wide.
    fn widening(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().widening)
    }
}

impl Window {
    /// Returns the size of the window.
    pub(crate) fn size(&self) -> u32 {
        self.windows.narrow
    }

    /// Makes the window wide.
    pub(crate) fn widen(self) {
        let mut state = self.windows.lock();
        // From there on it is wide already, and the number may be that of another stream.
        if state.all_wide_from.is_none_or(|first| self.stream < first) {
            state.widening.push(self.stream);
            drop(state);
            self.windows.connection.wake();
        }
    }
}

/// The frames that weir writes between those of h2.
pub(crate) struct OwnFrames {
    windows: Arc<Windows>,
    bytes: BytesMut,
    /// The room of a wide window beyond a narrow one, once h2's first frame is known.
    difference: Option<u32>,
}

impl OwnFrames {
    /// Begins before h2 has written anything.
    pub(crate) fn new(windows: Arc<Windows>) -> OwnFrames {
        OwnFrames { windows, bytes: BytesMut::new(), difference: None }
    }

    /// Makes the stream ready for `bytes` of h2's. Returns how many of them are taken already: the first frame, which is changed.
    pub(crate) fn poll_before(
        &mut self,
        wire: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.difference.is_none() && !bytes.is_empty() {
            self.bytes.extend_from_slice(bytes);
            self.difference = Some(narrowed(&mut self.bytes, self.windows.narrow));
            return Poll::Ready(Ok(bytes.len()));
        }
        self.poll_own(wire, context).map_ok(|()| 0)
    }

    /// Tells the client of the windows that have become wide, except those for which `is_over`. h2 flushes only between frames.
    pub(crate) fn poll_flush(
        &mut self,
        wire: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
        is_over: impl Fn(u32) -> bool,
    ) -> Poll<io::Result<()>> {
        let difference = self.difference.unwrap_or_default();
        for stream in self.windows.widening() {
            if difference > 0 && !is_over(stream) {
                self.bytes.put_slice(&[0, 0, 4, WINDOW_UPDATE, 0]);
                self.bytes.put_u32(stream);
                self.bytes.put_u32(difference);
            }
        }
        self.poll_own(wire, context)
    }

    /// Registers the task that reads and writes the connection.
    pub(crate) fn waits(&self, context: &Context<'_>) {
        self.windows.connection.register(context.waker());
    }

    fn poll_own(
        &mut self,
        mut wire: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.bytes.is_empty() {
            match ready!(wire.as_mut().poll_write(context, &self.bytes))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.bytes.advance(count),
            }
        }
        if self.bytes.capacity() > 0 {
            self.bytes = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

/// Makes the window narrow that is announced in the SETTINGS at the beginning of `bytes`. Returns what it had more before.
fn narrowed(bytes: &mut [u8], narrow: u32) -> u32 {
    let Some(([_, high, low, SETTINGS, ..], payload)) = bytes.split_first_chunk_mut::<HEAD>() else {
        return 0;
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    for setting in payload.get_mut(..length).unwrap_or_default().chunks_exact_mut(6) {
        if let Some((name, value)) = setting.split_first_chunk_mut()
            && *name == INITIAL_WINDOW_SIZE
            && let Ok(value) = <&mut [u8; 4]>::try_from(value)
        {
            let wide = u32::from_be_bytes(*value);
            *value = narrow.min(wide).to_be_bytes();
            return wide.saturating_sub(narrow);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a turn with these heads, of which the requests come out. Returns their windows.
    fn turn(windows: &Arc<Windows>, heads: &[u32], requests: usize) -> Vec<Window> {
        heads.iter().for_each(|stream| windows.begins(*stream));
        let taken = (0..requests).filter_map(|_| windows.request(true)).collect();
        windows.end_turn();
        taken
    }

    #[test]
    fn a_window_widens_when_its_request_wants_more() {
        let windows = Arc::new(Windows::new(10));
        let mut first = turn(&windows, &[1, 3], 2);
        let second = turn(&windows, &[5], 1);
        assert!(windows.widening().is_empty());
        second.into_iter().for_each(Window::widen);
        first.remove(1).widen();
        assert_eq!(windows.widening(), [5, 3]);
    }

    #[test]
    fn all_are_wide_once_where_a_head_became_no_request() {
        let windows = Arc::new(Windows::new(10));
        let before = turn(&windows, &[1, 3], 2);
        let confused = turn(&windows, &[5, 7, 9], 2);
        assert_eq!(windows.widening(), [5, 7, 9]);
        assert!(turn(&windows, &[11, 13], 2).is_empty());
        assert_eq!(windows.widening(), [11, 13]);
        confused.into_iter().chain(before).for_each(Window::widen);
        assert_eq!(windows.widening(), [1, 3], "each one once");
    }

    #[tokio::test]
    async fn the_client_is_told_less_and_then_the_rest() {
        let settings = |window: u32| {
            let head = [0, 0, 12, SETTINGS, 0, 0, 0, 0, 0, 0, 3, 0, 0, 4, 0, 0, 4];
            [&head[..], &window.to_be_bytes()].concat()
        };
        let windows = Arc::new(Windows::new(10));
        let (mut own, mut wire) = (OwnFrames::new(Arc::clone(&windows)), Vec::new());
        let taken =
            std::future::poll_fn(|context| own.poll_before(Pin::new(&mut wire), context, &settings(1000)));
        assert_eq!(taken.await.unwrap(), 21);
        turn(&windows, &[1, 3], 2).into_iter().for_each(Window::widen);
        std::future::poll_fn(|context| own.poll_flush(Pin::new(&mut wire), context, |stream| stream == 1))
            .await
            .unwrap();
        let update = [0, 0, 4, WINDOW_UPDATE, 0, 0, 0, 0, 3, 0, 0, 3, 222];
        assert_eq!(wire, [&settings(10)[..], &update].concat());
    }
}
