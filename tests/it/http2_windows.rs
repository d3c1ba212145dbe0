//! Over HTTP/2 little arrives of the bodies of requests that wait, and the rest quickly when they are sent.

use std::collections::BTreeMap;
use std::ops::Range;

use tokio::net::TcpStream;

use crate::client_leaves::is_noticed;
use crate::support::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Event, HEADERS, Http2, INITIAL_WINDOW_SIZE, PADDED,
    POST, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, literal, numbered, request, settings,
};
use crate::support::{PATIENCE, Upstream, Weir, eventually, lane, one_limiter, one_route};

/// What arrives of a waiting request with a `body_memory` of 64 MiB.
const WINDOW: usize = 4096;
const LARGE: usize = 700_000;

/// Returns a part of the body of a stream, unlike that of any other.
fn body_of(stream: u32, part: Range<usize>) -> Vec<u8> {
    part.map(|index| (index % 241) as u8 ^ stream as u8).collect()
}

/// A client that sends as much of its uploads as weir allows.
struct Uploads {
    connection: Http2,
    /// The windows that weir has granted, and not been sent yet.
    window: usize,
    initial: usize,
    streams: BTreeMap<u32, Upload>,
}

struct Upload {
    window: usize,
    length: usize,
    sent: usize,
    is_answered: bool,
}

impl Uploads {
    async fn connect(weir: &Weir) -> Uploads {
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

    fn add(&mut self, stream: u32, length: usize) {
        let upload = Upload { window: self.initial, length, sent: 0, is_answered: false };
        self.streams.insert(stream, upload);
    }

    async fn begin(&mut self, stream: u32, length: usize) {
        self.add(stream, length);
        self.connection.send(&frame(HEADERS, END_HEADERS, stream, &request(POST))).await;
    }

    async fn send(&mut self) {
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
    async fn finish(&mut self) {
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
    fn have_arrived(&self, upstream: &Upstream) -> bool {
        let seen = upstream.seen();
        let mut bodies = self.streams.iter().map(|(stream, upload)| body_of(*stream, 0..upload.length));
        bodies.all(|body| seen.iter().any(|seen| seen.body[..] == body[..]))
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn small_memory(config: &str) -> String {
    format!("server: {{body_memory: 64MiB}}\n{config}")
}

#[tokio::test]
async fn little_arrives_of_requests_that_wait_and_all_when_they_are_sent() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1000/1s], queue: {timeout: 2h, max_waiting: 100}}";
    let weir = Weir::start(&small_memory(&one_limiter("memory", limiter, &upstream))).await;
    assert_eq!(weir.tell_with("/api/limiters/api/pause", r#"{"for": "1h"}"#).await.status, 200);
    let mut uploads = Uploads::connect(&weir).await;
    for index in 0..50 {
        uploads.begin(2 * index + 1, LARGE).await;
    }
    uploads.send().await;
    weir.wait_for_waiting(50).await;
    let arrived: usize = uploads.streams.values().map(|upload| upload.sent).sum();
    assert!(arrived <= 50 * WINDOW, "{arrived} bytes");
    assert!(arrived >= 50 * WINDOW, "a body of {WINDOW} bytes would have to wait for a window: {arrived}");
    assert_eq!(weir.tell("/api/limiters/api/resume").await.status, 200);
    uploads.finish().await;
    assert!(uploads.have_arrived(&upstream));
}

/// A stream that never gets a wide window would stand still.
#[tokio::test]
async fn uploads_go_on_beside_heads_that_become_no_request() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&small_memory(&one_route(&upstream.url()))).await;
    let mut uploads = Uploads::connect(&weir).await;
    uploads.begin(1, LARGE).await;
    uploads.finish().await;
    for stream in [3, 7, 9, 11] {
        uploads.add(stream, LARGE);
    }
    let malformed = [request(POST), literal("connection", "close")].concat();
    let long = [request(POST), literal("x", &"y".repeat(10_000))].concat();
    let (begin, rest) = long.split_at(5000);
    let heads = [
        frame(HEADERS, END_HEADERS, 3, &request(POST)),
        frame(HEADERS, END_HEADERS, 5, &malformed),
        frame(HEADERS, 0, 7, begin),
        frame(CONTINUATION, END_HEADERS, 7, rest),
        frame(HEADERS, END_HEADERS, 9, &request(POST)),
        frame(HEADERS, END_HEADERS, 11, &request(POST)),
    ];
    uploads.connection.send(&heads.concat()).await;
    uploads.finish().await;
    for stream in [13, 15] {
        uploads.begin(stream, LARGE).await;
    }
    uploads.finish().await;
    assert!(uploads.have_arrived(&upstream));
}

/// Padding takes of a window, too.
#[tokio::test]
async fn a_short_body_arrives_however_it_is_padded() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&small_memory(&one_route(&upstream.url()))).await;
    let mut uploads = Uploads::connect(&weir).await;
    uploads.add(1, 0);
    let head = [request(POST), literal("content-length", "24")].concat();
    uploads.connection.send(&frame(HEADERS, END_HEADERS, 1, &head)).await;
    let padded = [&[255, b'x'][..], &[0; 255]].concat();
    for _ in 0..WINDOW / padded.len() {
        uploads.connection.send(&frame(DATA, PADDED, 1, &padded)).await;
    }
    let widened = |event: &Event| matches!(event, Event::Frame { kind: WINDOW_UPDATE, stream: 1, .. });
    assert!(widened(&uploads.connection.until(widened).await), "no window");
    for left in (0..24 - WINDOW / padded.len()).rev() {
        let flags = if left == 0 { PADDED | END_STREAM } else { PADDED };
        uploads.connection.send(&frame(DATA, flags, 1, &padded)).await;
    }
    uploads.finish().await;
    eventually("the body", PATIENCE, async || upstream.seen()[0].body[..] == [b'x'; 24]).await;
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_behind_a_large_body() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/1h], queue: {timeout: 2h, max_waiting: 10}}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let mut uploads = Uploads::connect(&weir).await;
    for stream in [1, 3] {
        uploads.begin(stream, LARGE).await;
        uploads.send().await;
        weir.wait_for_waiting(1).await;
        if stream == 1 {
            uploads.connection.send(&numbered(RST_STREAM, stream, 8)).await;
            uploads.streams.clear();
        } else {
            drop(uploads);
            is_noticed(&weir, "a connection that was closed").await;
            break;
        }
        is_noticed(&weir, "a stream that was reset").await;
    }
    assert_eq!(upstream.count(), 1);
}
