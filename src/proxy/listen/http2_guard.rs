//! Finds errors in a client's HTTP/2 frames that h2 lets pass: frames on a stream that the client has ended, and pseudo-headers among
//! trailers.
//!
//! h2 judges a frame by the state of both sides and forgets a stream that both have ended. It answers later DATA with a reset where
//! RFC 9113 (5.1) wants the connection to end. And it silently drops pseudo-headers among trailers, which make a request malformed
//! (8.1). This module tracks the client's side alone, which no response can change meanwhile.
//!
//! Decodes no header block and answers nothing: it changes the head of a wrong frame so that h2 finds an error and answers it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::proxy::net::windows::Windows;

/// The bytes of a frame's head: three of length, the type, the flags, four of stream (RFC 9113, 4.1).
const HEAD: usize = 9;
/// The most bytes needed to judge a frame: its head, the length of the padding, a priority, and the beginning of a header block.
const BEGINNING_MAX: usize = HEAD + 1 + PRIORITY_BYTES + BLOCK_BYTES;
const PRIORITY_BYTES: usize = 5;
/// A header, the length of its name, and its first letter (RFC 7541, 6.2.1).
const BLOCK_BYTES: usize = 3;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x01;
const END_HEADERS: u8 = 0x04;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// The frames of one client's HTTP/2 connection, behind the preface.
pub(crate) struct Frames {
    streams: Streams,
    /// The bytes of the current frame that are still to come and pass unread.
    rest: usize,
    held: PartialFrame,
    windows: Arc<Windows>,
}

/// The beginning of a frame that arrived in pieces.
enum PartialFrame {
    Nothing,
    /// More bytes are needed to judge the frame.
    Begun(Beginning),
    /// The frame is judged, and its bytes are passed on from this index.
    Judged(Beginning, usize),
}

#[derive(Clone, Copy)]
struct Beginning {
    bytes: [u8; BEGINNING_MAX],
    length: usize,
}

impl Frames {
    /// Begins before the first frame. The client may have `streams_max` streams open.
    pub(crate) fn new(streams_max: u32, windows: Arc<Windows>) -> Frames {
        Frames { streams: Streams::new(streams_max as usize), rest: 0, held: PartialFrame::Nothing, windows }
    }

    /// Returns whether the client has ended, reset or skipped a stream (RFC 9113, 5.1.1).
    pub(crate) fn is_over(&self, stream: u32) -> bool {
        self.streams.is_over(stream)
    }

    /// Reads bytes, judges frames, and passes them on.
    pub(crate) fn poll_read(
        &mut self,
        mut wire: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if let PartialFrame::Begun(mut begun) = self.held {
                let wanted = self.streams.wanted(begun.as_slice());
                let mut missing = ReadBuf::new(begun.bytes.get_mut(begun.length..wanted).unwrap_or_default());
                ready!(wire.as_mut().poll_read(context, &mut missing))?;
                let read = missing.filled().len();
                if read == 0 {
                    return Poll::Ready(Ok(()));
                }
                begun.length += read;
                self.held = self.looked_at(begun);
                continue;
            }
            if self.give(buffer) || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let before = buffer.filled().len();
            ready!(wire.as_mut().poll_read(context, buffer))?;
            let read = buffer.filled_mut().get_mut(before..).unwrap_or_default();
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let passed = self.look(read);
            buffer.set_filled(before + passed);
            // Zero bytes would mean the end of the connection.
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Judges the frames in `read`. Returns how many bytes pass now; the rest, an incomplete beginning, is held.
    fn look(&mut self, read: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            let passing = self.rest.min(read.len() - at);
            self.rest -= passing;
            at += passing;
            self.passed();
            let Some(beginning) = read.get_mut(at..).filter(|left| !left.is_empty()) else { return at };
            let wanted = self.streams.wanted(beginning);
            let Some(whole) = beginning.get_mut(..wanted) else {
                self.held = PartialFrame::Begun(Beginning::of(beginning));
                return at;
            };
            self.streams.judge(whole);
            self.rest = length(whole);
            at += HEAD;
        }
    }

    /// Judges a beginning of which more has arrived, if that is enough.
    fn looked_at(&mut self, mut begun: Beginning) -> PartialFrame {
        if begun.length < self.streams.wanted(begun.as_slice()) {
            return PartialFrame::Begun(begun);
        }
        let frame = begun.bytes.get_mut(..begun.length).unwrap_or_default();
        self.streams.judge(frame);
        self.rest = length(frame).saturating_sub(begun.length - HEAD);
        PartialFrame::Judged(begun, 0)
    }

    /// Passes held bytes on while there is space in `buffer`; returns whether there were any.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let PartialFrame::Judged(judged, given) = &mut self.held else { return false };
        let left = judged.as_slice().get(*given..).unwrap_or_default();
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(left.get(..count).unwrap_or_default());
        *given += count;
        if *given == judged.length {
            self.held = PartialFrame::Nothing;
            self.passed();
        }
        count > 0
    }

    /// Notes the stream whose head has passed, if a whole frame has.
    fn passed(&mut self) {
        if self.rest == 0
            && let Some(stream) = self.streams.head.take()
        {
            self.windows.begins(stream);
        }
    }
}

impl Beginning {
    fn of(begun: &[u8]) -> Beginning {
        let mut bytes = [0; BEGINNING_MAX];
        let length = begun.len().min(BEGINNING_MAX);
        bytes.iter_mut().zip(begun).for_each(|(own, byte)| *own = *byte);
        Beginning { bytes, length }
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Returns the length of a frame's payload.
fn length(frame: &[u8]) -> usize {
    let [high, middle, low, ..] = *frame else { return 0 };
    u32::from_be_bytes([0, high, middle, low]) as usize
}

/// The streams that the client has begun and not ended.
struct Streams {
    /// The open streams, in ascending order.
    open: Vec<u32>,
    open_max: usize,
    /// The last stream begun.
    last: u32,
    /// The stream whose head ends with this frame.
    head: Option<u32>,
    /// True from the beginning of a head to its end.
    is_heading: bool,
    /// The last stream forgotten. h2 refuses or resets streams beyond the maximum, so they need no judgement.
    forgotten: u32,
}

/// The fields of a frame's head.
struct Head {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    fn of(frame: &[u8]) -> Option<Head> {
        let [_, _, _, kind, flags, stream @ ..] = frame.first_chunk::<HEAD>()?;
        // The first bit is reserved and ignored.
        Some(Head { kind: *kind, flags: *flags, stream: u32::from_be_bytes(*stream) & 0x7fff_ffff })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the offset of the header block behind the head.
    fn block_offset(&self) -> usize {
        let padding = if self.has(PADDED) { 1 } else { 0 };
        let priority = if self.has(PRIORITY) { PRIORITY_BYTES } else { 0 };
        padding + priority
    }
}

impl Streams {
    fn new(open_max: usize) -> Streams {
        Streams { open: Vec::new(), open_max, last: 0, head: None, is_heading: false, forgotten: 0 }
    }

    fn is_open(&self, stream: u32) -> bool {
        self.open.binary_search(&stream).is_ok()
    }

    /// Returns how many bytes are needed to judge a frame, by its first bytes.
    fn wanted(&self, frame: &[u8]) -> usize {
        match Head::of(frame) {
            Some(head) if self.ends_with_headers(&head) => {
                HEAD + length(frame).min(head.block_offset() + BLOCK_BYTES)
            }
            _ => HEAD,
        }
    }

    /// Returns whether the frame holds trailers.
    fn ends_with_headers(&self, head: &Head) -> bool {
        head.kind == HEADERS && head.has(END_STREAM) && self.is_open(head.stream)
    }

    /// Tracks the stream of a frame, and changes the frame if h2 would miss its error.
    fn judge(&mut self, frame: &mut [u8]) {
        let Some(head) = Head::of(frame) else { return };
        match head.kind {
            HEADERS if head.stream > self.last => self.begun(&head),
            HEADERS | DATA if self.is_over(head.stream) => {
                // On stream 0 either frame ends the connection (RFC 9113, 6.1 and 6.2).
                if let Some(stream) = frame.get_mut(HEAD - 4..HEAD) {
                    stream.fill(0);
                }
            }
            HEADERS if self.ends_with_headers(&head) => {
                // Trailers that do not end the stream are malformed as well (RFC 9113, 8.1), and h2 finds that.
                if frame.get(HEAD + head.block_offset()..).is_some_and(begins_with_pseudo_header)
                    && let Some(flags) = frame.get_mut(4)
                {
                    *flags &= !END_STREAM;
                }
                self.ended(head.stream);
            }
            DATA if head.has(END_STREAM) => self.ended(head.stream),
            RST_STREAM => self.ended(head.stream),
            CONTINUATION => self.heads(&head),
            _ => {}
        }
    }

    fn begun(&mut self, head: &Head) {
        (self.last, self.is_heading) = (head.stream, true);
        self.heads(head);
        if head.has(END_STREAM) {
            return;
        }
        if self.open.len() == self.open_max {
            self.forgotten = self.open.remove(0);
        }
        self.open.push(head.stream);
    }

    /// Notes a part of a request's head.
    fn heads(&mut self, head: &Head) {
        if self.is_heading && head.has(END_HEADERS) {
            (self.head, self.is_heading) = (Some(self.last), false);
        }
    }

    fn ended(&mut self, stream: u32) {
        if let Ok(index) = self.open.binary_search(&stream) {
            self.open.remove(index);
        }
    }

    /// Returns whether the client has ended, reset or skipped a stream (RFC 9113, 5.1.1).
    fn is_over(&self, stream: u32) -> bool {
        self.forgotten < stream && stream <= self.last && !self.is_open(stream)
    }
}

/// Returns whether a header block begins with a pseudo-header, from the static table (1 to 14; RFC 7541, appendix A) or spelled out.
///
/// Pseudo-headers come first, or h2 reports an error. One from the dynamic table stays unknown, and h2 drops it harmlessly.
fn begins_with_pseudo_header(block: &[u8]) -> bool {
    let Some(first) = block.first() else { return false };
    let index = match first {
        0x80.. => first & 0x7f,
        0x40.. => first & 0x3f,
        // An update of the table's size.
        0x20.. => return false,
        _ => first & 0x0f,
    };
    let is_spelled_out = match block {
        [0x00 | 0x10 | 0x40, 1..=0x7f, letter] => *letter == b':',
        // The Huffman code of a colon is 1011100 (RFC 7541, appendix B).
        [0x00 | 0x10 | 0x40, 0x81..=0xff, bits] => bits >> 1 == 0x5c,
        _ => false,
    };
    is_spelled_out || (1..=14).contains(&index)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// A wire whose bytes arrive in pieces.
    struct Pieces<'a> {
        left: &'a [u8],
        piece: usize,
    }

    impl AsyncRead for Pieces<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let count = self.piece.min(self.left.len()).min(buffer.remaining());
            let (now, left) = self.left.split_at(count);
            buffer.put_slice(now);
            self.left = left;
            Poll::Ready(Ok(()))
        }
    }

    /// Returns the bytes that pass when they arrive in pieces of one size and are read in pieces of another.
    async fn passed(sent: &[u8], piece: usize, room: usize) -> Vec<u8> {
        struct Guarded<'a>(Frames, Pieces<'a>);
        impl AsyncRead for Guarded<'_> {
            fn poll_read(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let this = &mut *self;
                this.0.poll_read(Pin::new(&mut this.1), context, buffer)
            }
        }
        let windows = Arc::new(Windows::new(1));
        let mut guarded = pin!(Guarded(Frames::new(4, windows), Pieces { left: sent, piece }));
        let (mut passed, mut buffer) = (Vec::new(), vec![0; room]);
        loop {
            let read = guarded.read(&mut buffer).await.unwrap();
            if read == 0 {
                return passed;
            }
            passed.extend_from_slice(&buffer[..read]);
        }
    }

    /// Asserts that the same bytes pass in pieces of every size.
    async fn assert_passed(sent: &[Vec<u8>], expected: &[Vec<u8>], what: &str) {
        let (sent, expected) = (sent.concat(), expected.concat());
        for piece in [1, 2, 8, 9, 10, 15, 17, 18, 19, 1000] {
            for room in [1, 7, 16, 1000] {
                assert_eq!(passed(&sent, piece, room).await, expected, "{what}: {piece}, {room}");
            }
        }
    }

    #[tokio::test]
    async fn correct_frames_pass_byte_for_byte() {
        let frames = [
            frame(4, 0, 0, &[0; 12]),
            frame(HEADERS, 4 | END_STREAM, 1, &[0x82; 40]),
            frame(HEADERS, 4, 3, &[0x83; 20]),
            frame(DATA, 0, 3, &[7; 300]),
            frame(DATA, 0, 3, &[]),
            frame(6, 0, 0, &[1; 8]),
            frame(HEADERS, 4 | END_STREAM, 3, b"\x40\x01a\x01b"),
            frame(HEADERS, 4, 5, &[0x83; 20]),
            frame(DATA, END_STREAM, 5, &[]),
            frame(HEADERS, 4, 7, &[]),
            frame(HEADERS, 4 | END_STREAM, 7, &[]),
            frame(HEADERS, 4, 9, &[1]),
            frame(RST_STREAM, 0, 9, &[0, 0, 0, 8]),
            // Allowed, or judged by h2.
            frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]),
            frame(8, 0, 1, &[0, 0, 0, 8]),
            frame(2, 0, 1, &[0; 5]),
            frame(DATA, END_STREAM, 11, &[1]),
        ];
        assert_passed(&frames, &frames, "right").await;
    }

    #[tokio::test]
    async fn frames_behind_the_end_of_a_stream_move_to_stream_0() {
        let begun = frame(HEADERS, 4, 5, &[0x83; 20]);
        for end in [
            frame(DATA, END_STREAM, 5, b"last"),
            frame(HEADERS, END_STREAM, 5, b"\x00\x01a\x01b"),
            frame(RST_STREAM, 0, 5, &[0; 4]),
        ] {
            for late in [DATA, HEADERS] {
                let sent = [begun.clone(), end.clone(), frame(late, END_STREAM, 5, b"more")];
                let expected = [begun.clone(), end.clone(), frame(late, END_STREAM, 0, b"more")];
                assert_passed(&sent, &expected, "late").await;
            }
        }
        // A skipped stream can no longer begin.
        let (sent, expected) = (frame(HEADERS, 4, 3, &[0x82]), frame(HEADERS, 4, 0, &[0x82]));
        assert_passed(&[begun.clone(), sent], &[begun, expected], "passed over").await;
    }

    #[tokio::test]
    async fn trailers_with_a_pseudo_header_do_not_end_the_stream() {
        let begun = frame(HEADERS, 4, 1, &[0x83; 20]);
        let (padded, prioritized) =
            ([&[1][..], &[0x82, 0]].concat(), [&[0; 5][..], &[0x44, 1, b'/']].concat());
        for (flags, block) in [
            (0, &b"\x83"[..]),
            (0, b"\x8e"),
            (0, b"\x42\x01a"),
            (0, b"\x01\x01a"),
            (0, b"\x12\x01a"),
            (0, b"\0\x02:a\x01a"),
            (0, b"\x10\x02:a\x01a"),
            (0, b"\x40\x85\xb9\x49\x53\x39\xe4\x01a"),
            (PADDED, &padded),
            (PRIORITY, &prioritized),
        ] {
            let sent = [begun.clone(), frame(HEADERS, 4 | END_STREAM | flags, 1, block)];
            let expected = [begun.clone(), frame(HEADERS, 4 | flags, 1, block)];
            assert_passed(&sent, &expected, "pseudo-header").await;
        }
        for block in [
            &b"\x8f"[..],
            b"\x80",
            b"\x7f\x01\x01a",
            b"\x0f\x01\x01a",
            b"\x21\x90",
            b"\xbe",
            b"\0\x02a:\0",
            b"\0",
            b"\0\x01",
            b"\0\x81\x1f\0",
        ] {
            let frames = [begun.clone(), frame(HEADERS, 4 | END_STREAM, 1, block)];
            assert_passed(&frames, &frames, "another header").await;
        }
    }

    /// h2 refuses the streams of a client that opens too many.
    #[tokio::test]
    async fn the_oldest_streams_are_forgotten() {
        let mut frames: Vec<_> = (0..6).map(|index| frame(HEADERS, 4, 2 * index + 1, &[0x83])).collect();
        frames.extend([1, 3, 5, 7, 9, 11].map(|stream| frame(DATA, END_STREAM, stream, b"x")));
        frames.push(frame(DATA, END_STREAM, 3, b"again"));
        assert_passed(&frames, &frames, "forgotten").await;
    }
}
