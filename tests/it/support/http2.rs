//! HTTP/2 by hand: frames as bytes, header blocks without a table, and a connection that reports the peer's frames.
//! Written for these tests, to send what no library would.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Frame types (RFC 9113, 6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

// Flags; their meaning depends on the frame type.
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

// Settings (RFC 9113, 6.5.2).
pub(crate) const ENABLE_PUSH: u16 = 2;
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(crate) const MAX_FRAME_SIZE: u16 = 5;

/// The longest time for an answer to a frame, on a busy machine.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Returns a frame (RFC 9113, 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Returns a SETTINGS frame.
pub(crate) fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = pairs
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

/// Returns a frame whose payload is one number, such as RST_STREAM and WINDOW_UPDATE.
pub(crate) fn numbered(kind: u8, stream: u32, number: u32) -> Vec<u8> {
    frame(kind, 0, stream, &number.to_be_bytes())
}

/// Returns a header that enters no table, with its literal name and value (RFC 7541, 6.2.2).
pub(crate) fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut header = vec![0];
    for text in [name, value] {
        header.extend(length_of_string(text.len()));
        header.extend_from_slice(text.as_bytes());
    }
    header
}

/// Returns an integer with a prefix of seven bits, the first bit of the byte being zero (RFC 7541, 5.1).
fn length_of_string(length: usize) -> Vec<u8> {
    let Some(mut rest) = length.checked_sub(0x7f) else {
        return vec![u8::try_from(length).expect("below 127")];
    };
    let mut bytes = vec![0x7f];
    while rest >= 0x80 {
        bytes.push(u8::try_from(rest % 0x80).expect("below 128") | 0x80);
        rest /= 0x80;
    }
    bytes.push(u8::try_from(rest).expect("below 128"));
    bytes
}

/// The static table's `:method` entries.
pub(crate) const GET: u8 = 0x82;
pub(crate) const POST: u8 = 0x83;
/// `:path: /` and `:scheme: http` of the static table.
pub(crate) const ROOT: u8 = 0x84;
pub(crate) const HTTP: u8 = 0x86;
/// `:authority: a`, its name from the static table.
pub(crate) const AUTHORITY: [u8; 3] = [0x01, 1, b'a'];

/// Returns the headers of a request for `/`.
pub(crate) fn request(method: u8) -> Vec<u8> {
    [&[method, HTTP, ROOT][..], &AUTHORITY].concat()
}

/// An event on the connection: a frame of the peer, or the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Frame {
        kind: u8,
        flags: u8,
        stream: u32,
        payload: Vec<u8>,
    },
    /// The peer ended the connection, between two frames.
    Closed,
    /// The connection broke, or ended in the middle of a frame.
    Broken(String),
    /// Nothing came in time.
    Nothing,
}

impl Event {
    /// Returns the code of a RST_STREAM or GOAWAY.
    pub(crate) fn code(&self) -> Option<u32> {
        let Event::Frame { kind, payload, .. } = self else { return None };
        let code = match *kind {
            RST_STREAM => payload.get(..4)?,
            GOAWAY => payload.get(4..8)?,
            _ => return None,
        };
        Some(u32::from_be_bytes(code.try_into().ok()?))
    }
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection on which frames are written by hand.
pub(crate) struct Http2 {
    wire: Box<dyn Wire>,
}

impl Http2 {
    /// Wraps a connection; sends nothing yet.
    pub(crate) fn over(wire: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Http2 {
        Http2 { wire: Box::new(wire) }
    }

    /// Sends the preface, and waits until both sides know each other's settings.
    pub(crate) async fn shake_hands(&mut self) {
        self.send(&[PREFACE, &settings(&[])].concat()).await;
        let (mut theirs, mut ours) = (false, false);
        while !(theirs && ours) {
            match self.next().await {
                Event::Frame { kind: SETTINGS, flags: 0, .. } => {
                    theirs = true;
                    self.send(&frame(SETTINGS, ACK, 0, &[])).await;
                }
                Event::Frame { kind: SETTINGS, flags: ACK, .. } => ours = true,
                Event::Frame { kind: WINDOW_UPDATE, stream: 0, .. } => {}
                other => panic!("in place of settings: {other:?}"),
            }
        }
    }

    /// Writes bytes; the peer may have ended the connection meanwhile, which the next read reports.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let written = async {
            self.wire.write_all(bytes).await?;
            self.wire.flush().await
        };
        let _ = timeout(ANSWER_DEADLINE, written).await;
    }

    /// Reads the next frame, or the end of the connection.
    pub(crate) async fn next(&mut self) -> Event {
        match timeout(ANSWER_DEADLINE, self.read()).await {
            Ok(Ok(event)) => event,
            Ok(Err(error)) => Event::Broken(format!("{:?}: {error}", error.kind())),
            Err(_) => Event::Nothing,
        }
    }

    async fn read(&mut self) -> std::io::Result<Event> {
        let mut head = [0; 9];
        if self.wire.read(&mut head[..1]).await? == 0 {
            return Ok(Event::Closed);
        }
        self.wire.read_exact(&mut head[1..]).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let mut payload = vec![0; length];
        self.wire.read_exact(&mut payload).await?;
        Ok(Event::Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads until an event matches or the connection ends. Returns that event.
    pub(crate) async fn until(&mut self, is_it: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.next().await;
            if is_it(&event) || !matches!(event, Event::Frame { .. }) {
                return event;
            }
        }
    }
}
