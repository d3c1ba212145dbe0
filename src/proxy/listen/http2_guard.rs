//! What hyper and h2 are not shown as it came, because they would let it pass: frames on streams of HTTP/2 that the client
//! has ended itself, pseudo-headers among trailers, and a first line that is of another protocol than HTTP.
//!
//! h2 judges a frame by the state of both sides, and forgets a stream once both are done with it: what a client then goes on to
//! send is answered with a reset, or with nothing, where RFC 9113 (5.1) has the connection end. And it drops pseudo-headers
//! among trailers, which make a request malformed (8.1), without a word. Here only the client's side is looked at, which no
//! answer of an upstream can change meanwhile.
//!
//! Decodes no header block, and answers nothing: the beginning of a frame is changed so that h2 finds the error and answers it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// The length of a frame's head: three bytes of length, type, flags, four bytes of stream (RFC 9113, 4.1).
const HEAD: usize = 9;
/// With it, the most that has to be seen of a frame: the length of the padding, a priority, and the beginning of a header block.
const BEGINNING_MAX: usize = HEAD + 1 + PRIORITY_BYTES + BLOCK_BYTES;
const PRIORITY_BYTES: usize = 5;
/// A header, the length of its name, and the first letter (RFC 7541, 6.2.1).
const BLOCK_BYTES: usize = 3;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;

const END_STREAM: u8 = 0x01;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// Looks at the frames of one client's HTTP/2 connection, what follows the preface.
pub(crate) struct Frames {
    streams: Streams,
    /// Bytes of the present frame that are still to come, and pass.
    rest: usize,
    held: Held,
}

/// The beginning of a frame that came in pieces.
enum Held {
    Nothing,
    /// Too little to judge it.
    Begun(Beginning),
    /// Judged, and given from there on.
    Judged(Beginning, usize),
}

#[derive(Clone, Copy)]
struct Beginning {
    bytes: [u8; BEGINNING_MAX],
    length: usize,
}

impl Frames {
    /// Nothing has come yet; a client may have so many streams open.
    pub(crate) fn new(streams_max: u32) -> Frames {
        Frames { streams: Streams::new(streams_max as usize), rest: 0, held: Held::Nothing }
    }

    /// Reads, and gives what may pass.
    pub(crate) fn poll_read(
        &mut self,
        mut wire: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Held::Begun(mut begun) = self.held {
                let wanted = self.streams.wanted(begun.seen());
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
            // No bytes at all would say that the connection has ended.
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Looks at what was read, and says how much of it may pass now; what is behind that is held.
    fn look(&mut self, read: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            let passing = self.rest.min(read.len() - at);
            self.rest -= passing;
            at += passing;
            let Some(beginning) = read.get_mut(at..).filter(|left| !left.is_empty()) else { return at };
            let wanted = self.streams.wanted(beginning);
            let Some(whole) = beginning.get_mut(..wanted) else {
                self.held = Held::Begun(Beginning::of(beginning));
                return at;
            };
            self.streams.judge(whole);
            self.rest = length(whole);
            at += HEAD;
        }
    }

    /// A beginning of which more has come.
    fn looked_at(&mut self, mut begun: Beginning) -> Held {
        if begun.length < self.streams.wanted(begun.seen()) {
            return Held::Begun(begun);
        }
        let seen = begun.bytes.get_mut(..begun.length).unwrap_or_default();
        self.streams.judge(seen);
        self.rest = length(seen).saturating_sub(begun.length - HEAD);
        Held::Judged(begun, 0)
    }

    /// Gives what was held, as far as there is room; whether there was something.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let Held::Judged(judged, given) = &mut self.held else { return false };
        let left = judged.seen().get(*given..).unwrap_or_default();
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(left.get(..count).unwrap_or_default());
        *given += count;
        if *given == judged.length {
            self.held = Held::Nothing;
        }
        count > 0
    }
}

impl Beginning {
    fn of(begun: &[u8]) -> Beginning {
        let mut bytes = [0; BEGINNING_MAX];
        let length = begun.len().min(BEGINNING_MAX);
        bytes.iter_mut().zip(begun).for_each(|(own, byte)| *own = *byte);
        Beginning { bytes, length }
    }

    fn seen(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// The length of a frame's payload.
fn length(frame: &[u8]) -> usize {
    let [high, middle, low, ..] = *frame else { return 0 };
    u32::from_be_bytes([0, high, middle, low]) as usize
}

/// The streams that a client has begun and not ended.
struct Streams {
    /// In order.
    open: Vec<u32>,
    open_max: usize,
    /// The last one begun.
    last: u32,
    /// Up to here they have been forgotten, as h2 refuses or has reset so many: nothing is said about them.
    forgotten: u32,
}

/// What can be told of a frame by its head.
struct Head {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    fn of(frame: &[u8]) -> Option<Head> {
        let [_, _, _, kind, flags, stream @ ..] = frame.first_chunk::<HEAD>()?;
        // The first bit is reserved, and to be ignored.
        Some(Head { kind: *kind, flags: *flags, stream: u32::from_be_bytes(*stream) & 0x7fff_ffff })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Where the header block begins behind the head.
    fn block_offset(&self) -> usize {
        let padding = if self.has(PADDED) { 1 } else { 0 };
        let priority = if self.has(PRIORITY) { PRIORITY_BYTES } else { 0 };
        padding + priority
    }
}

impl Streams {
    fn new(open_max: usize) -> Streams {
        Streams { open: Vec::new(), open_max, last: 0, forgotten: 0 }
    }

    fn is_open(&self, stream: u32) -> bool {
        self.open.binary_search(&stream).is_ok()
    }

    /// How much of a frame has to be seen to judge it, as far as can be told by what is seen.
    fn wanted(&self, frame: &[u8]) -> usize {
        match Head::of(frame) {
            Some(head) if self.ends_with_headers(&head) => {
                HEAD + length(frame).min(head.block_offset() + BLOCK_BYTES)
            }
            _ => HEAD,
        }
    }

    /// Trailers, that is.
    fn ends_with_headers(&self, head: &Head) -> bool {
        head.kind == HEADERS && head.has(END_STREAM) && self.is_open(head.stream)
    }

    /// Takes note of a frame, and changes it if h2 would not find what is wrong with it.
    fn judge(&mut self, frame: &mut [u8]) {
        let Some(head) = Head::of(frame) else { return };
        match head.kind {
            HEADERS if head.stream > self.last => self.begun(&head),
            HEADERS | DATA if self.is_over(head.stream) => {
                // On no stream at all either ends the connection (RFC 9113, 6.1 and 6.2).
                if let Some(stream) = frame.get_mut(HEAD - 4..HEAD) {
                    stream.fill(0);
                }
            }
            HEADERS if self.ends_with_headers(&head) => {
                // Further headers that do not end the stream make the request malformed as well, and h2 knows (RFC 9113, 8.1).
                if frame.get(HEAD + head.block_offset()..).is_some_and(begins_with_pseudo_header)
                    && let Some(flags) = frame.get_mut(4)
                {
                    *flags &= !END_STREAM;
                }
                self.ended(head.stream);
            }
            DATA if head.has(END_STREAM) => self.ended(head.stream),
            RST_STREAM => self.ended(head.stream),
            _ => {}
        }
    }

    fn begun(&mut self, head: &Head) {
        self.last = head.stream;
        if head.has(END_STREAM) {
            return;
        }
        if self.open.len() == self.open_max {
            self.forgotten = self.open.remove(0);
        }
        self.open.push(head.stream);
    }

    fn ended(&mut self, stream: u32) {
        if let Ok(index) = self.open.binary_search(&stream) {
            self.open.remove(index);
        }
    }

    /// Whether the client has ended or reset a stream, or passed it over (RFC 9113, 5.1.1).
    fn is_over(&self, stream: u32) -> bool {
        self.forgotten < stream && stream <= self.last && !self.is_open(stream)
    }
}

/// Whether a header block begins with a pseudo-header: one of the static table, 1 to 14 (RFC 7541, appendix A), be it indexed or with a
/// value of its own, or one that is spelled out. They come first, or h2 complains. One from the dynamic table cannot be told, and
/// does no harm: h2 drops it.
fn begins_with_pseudo_header(block: &[u8]) -> bool {
    let Some(first) = block.first() else { return false };
    let index = match first {
        0x80.. => first & 0x7f,
        0x40.. => first & 0x3f,
        // The size of the table changes.
        0x20.. => return false,
        _ => first & 0x0f,
    };
    let is_spelled_out = match block {
        [0x00 | 0x10 | 0x40, 1..=0x7f, letter] => *letter == b':',
        // A colon is seven bits of Huffman's code, 1011100 (RFC 7541, appendix B).
        [0x00 | 0x10 | 0x40, 0x81..=0xff, bits] => bits >> 1 == 0x5c,
        _ => false,
    };
    is_spelled_out || (1..=14).contains(&index)
}

/// The first line of a connection that does not speak HTTP/2. What names another protocol, as in `METHOD TARGET PROTOCOL`, would not
/// understand an answer in HTTP.
pub(crate) struct FirstLine {
    words: usize,
    /// How the last word begins, and its length.
    beginning: [u8; HTTP.len()],
    length: usize,
    is_between: bool,
    is_over: bool,
}

const HTTP: &[u8; 5] = b"HTTP/";

impl FirstLine {
    /// Nothing of it has come.
    pub(crate) fn new() -> FirstLine {
        FirstLine { words: 0, beginning: [0; HTTP.len()], length: 0, is_between: true, is_over: false }
    }

    /// Takes what has come, and says whether the line has been completed by it and names another protocol.
    pub(crate) fn names_another_protocol(&mut self, bytes: &[u8]) -> bool {
        let unread = if self.is_over { &[] } else { bytes };
        for byte in unread {
            match byte {
                // Empty lines may come first (RFC 9112, 2.2).
                b'\n' if self.words > 0 => {
                    self.is_over = true;
                    return self.words >= 3 && !(self.length >= HTTP.len() && self.beginning == *HTTP);
                }
                b'\r' | b'\n' | b' ' => self.is_between = true,
                _ => self.take(*byte),
            }
        }
        false
    }

    fn take(&mut self, byte: u8) {
        if std::mem::take(&mut self.is_between) {
            self.words += 1;
            self.length = 0;
        }
        if let Some(own) = self.beginning.get_mut(self.length) {
            *own = byte;
        }
        self.length += 1;
    }
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

    /// A wire on which bytes come in pieces.
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

    /// What passes of these bytes when they come in pieces of one size and are read in pieces of another.
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
        let mut guarded = pin!(Guarded(Frames::new(4), Pieces { left: sent, piece }));
        let (mut passed, mut buffer) = (Vec::new(), vec![0; room]);
        loop {
            let read = guarded.read(&mut buffer).await.unwrap();
            if read == 0 {
                return passed;
            }
            passed.extend_from_slice(&buffer[..read]);
        }
    }

    /// In pieces of all sizes the same passes.
    async fn assert_passed(sent: &[Vec<u8>], expected: &[Vec<u8>], what: &str) {
        let (sent, expected) = (sent.concat(), expected.concat());
        for piece in [1, 2, 8, 9, 10, 15, 17, 18, 19, 1000] {
            for room in [1, 7, 16, 1000] {
                assert_eq!(passed(&sent, piece, room).await, expected, "{what}: {piece}, {room}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_right_passes_byte_for_byte() {
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
            // Allowed, or h2's to judge.
            frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]),
            frame(8, 0, 1, &[0, 0, 0, 8]),
            frame(2, 0, 1, &[0; 5]),
            frame(DATA, END_STREAM, 11, &[1]),
        ];
        assert_passed(&frames, &frames, "right").await;
    }

    #[tokio::test]
    async fn what_follows_the_end_of_a_stream_is_on_none() {
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
        // One that was passed over can no longer begin.
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

    /// A client that opens more streams than it may have is h2's to refuse.
    #[tokio::test]
    async fn the_oldest_streams_are_forgotten() {
        let mut frames: Vec<_> = (0..6).map(|index| frame(HEADERS, 4, 2 * index + 1, &[0x83])).collect();
        frames.extend([1, 3, 5, 7, 9, 11].map(|stream| frame(DATA, END_STREAM, stream, b"x")));
        frames.push(frame(DATA, END_STREAM, 3, b"again"));
        assert_passed(&frames, &frames, "forgotten").await;
    }

    #[test]
    fn a_first_line_of_another_protocol_is_told() {
        for (line, is_another) in [
            ("INVALID CONNECTION PREFACE\r\n\r\n", true),
            ("OPTIONS * RTSP/1.0\r\n", true),
            ("\r\n\r\nINVITE sip:a SIP/2.0\n", true),
            ("GET / XTTP/1.1\r\n", true),
            ("GET / HTTP\r\n", true),
            ("GET / HTTP/1.1\r\n", false),
            ("\r\nGET / HTTP/1.1\nA b C\n", false),
            ("GET / HTTP/1.1 \r\n", false),
            ("GET /a b HTTP/1.1\r\n", false),
            ("GET / HTTP/9\r\nOne two three\r\n", false),
            ("GET /\r\nOne two three\r\n", false),
            ("gibberish\r\n", false),
            ("no end to this line", false),
        ] {
            for size in [1, 3, 100] {
                let mut first = FirstLine::new();
                let told = line.as_bytes().chunks(size).any(|piece| first.names_another_protocol(piece));
                assert_eq!(told, is_another, "{line:?} in pieces of {size}");
            }
        }
    }
}
