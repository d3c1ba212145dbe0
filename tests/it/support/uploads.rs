//! A client of HTTP/2 that sends as much of its uploads as weir allows.

use std::collections::BTreeMap;
use std::ops::Range;

use tokio::net::TcpStream;

use super::http2::{
    ACK, DATA, END_HEADERS, END_STREAM, Event, HEADERS, Http2, INITIAL_WINDOW_SIZE, POST, PREFACE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, request, settings,
};
use super::{Upstream, Weir};

/// Returns a part of the body of a stream, unlike that of any other.
fn body_of(stream: u32, part: Range<usize>) -> Vec<u8> {
    part.map(|index| (index % 241) as u8 ^ stream as u8).collect()
}

/// A client that sends as much of its uploads as weir allows.
pub(crate) struct Uploads {
    pub(crate) connection: Http2,
    /// The windows that weir has granted, and not been sent yet.
    window: usize,
    initial: usize,
    pub(crate) streams: BTreeMap<u32, Upload>,
}

pub(crate) struct Upload {
    window: usize,
    length: usize,
    pub(crate) sent: usize,
    is_answered: bool,
}

impl Uploads {
    pub(crate) async fn connect(weir: &Weir) -> Uploads {
        let mut connection = Http2::over(TcpStream::connect(weir.host()).await.unwrap());
        connection.send(&[PREFACE, &settings(&[])].concat()).await;
        let (mut window, mut initial) = (65_535, 65_535);
        while window == 65_535 {
            match connection.next().await {
                Event::Frame { kind: SETTINGS, flags: 0, payload, .. } => {
                    for setting in payload.chunks(6) {
                        if setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes() {
                            initial = number(&setting[2..]);
                        }
                    }
                    connection.send(&frame(SETTINGS, ACK, 0, &[])).await;
                }
                Event::Frame { kind: WINDOW_UPDATE, stream: 0, payload, .. } => window += number(&payload),
                Event::Frame { .. } => {}
                other => panic!("in place of settings: {other:?}"),
            }
        }
        Uploads { connection, window, initial, streams: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, stream: u32, length: usize) {
        let upload = Upload { window: self.initial, length, sent: 0, is_answered: false };
        self.streams.insert(stream, upload);
    }

    pub(crate) async fn begin(&mut self, stream: u32, length: usize) {
        self.add(stream, length);
        self.connection.send(&frame(HEADERS, END_HEADERS, stream, &request(POST))).await;
    }

    pub(crate) async fn send(&mut self) {
        let mut frames = Vec::new();
        for (stream, upload) in &mut self.streams {
            while upload.sent < upload.length {
                let count = (upload.length - upload.sent).min(upload.window).min(self.window).min(16_384);
                if count == 0 {
                    break;
                }
                let piece = body_of(*stream, upload.sent..upload.sent + count);
                upload.sent += count;
                upload.window -= count;
                self.window -= count;
                let flags = if upload.sent == upload.length { END_STREAM } else { 0 };
                frames.extend(frame(DATA, flags, *stream, &piece));
            }
        }
        self.connection.send(&frames).await;
    }

    /// Sends on until all uploads are answered with 200.
    pub(crate) async fn finish(&mut self) {
        while !self.streams.values().all(|upload| upload.is_answered) {
            self.send().await;
            match self.connection.next().await {
                Event::Frame { kind: WINDOW_UPDATE, stream, payload, .. } => {
                    let window = match self.streams.get_mut(&stream) {
                        Some(upload) => &mut upload.window,
                        None => &mut self.window,
                    };
                    *window += number(&payload);
                }
                Event::Frame { kind: HEADERS, stream, payload, .. } => {
                    // `:status: 200` of the static table.
                    assert_eq!(payload.first(), Some(&0x88), "stream {stream}");
                    self.streams.get_mut(&stream).unwrap().is_answered = true;
                }
                Event::Frame { kind: RST_STREAM, stream, .. } => {
                    assert!(!self.streams.contains_key(&stream), "stream {stream} was reset");
                }
                Event::Frame { .. } => {}
                other => panic!("in place of an answer: {other:?}"),
            }
        }
    }

    /// Returns whether each of the uploads has arrived as it was sent.
    pub(crate) fn have_arrived(&self, upstream: &Upstream) -> bool {
        let seen = upstream.seen();
        let mut bodies = self.streams.iter().map(|(stream, upload)| body_of(*stream, 0..upload.length));
        bodies.all(|body| seen.iter().any(|seen| seen.body[..] == body[..]))
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}
