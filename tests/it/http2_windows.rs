//! Over HTTP/2 little arrives of the bodies of requests that wait, and the rest quickly when they are sent.

use crate::support::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Event, HEADERS, PADDED, POST, WINDOW_UPDATE, frame, literal,
    request,
};
use crate::support::uploads::Uploads;
use crate::support::{Upstream, Weir, eventually, lane, one_limiter, one_route};

/// The bytes that arrive of a waiting request with a `body_memory` of 64 MiB.
const WINDOW: usize = 4096;
const LARGE: usize = 700_000;

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
    eventually("the body", async || upstream.seen()[0].body[..] == [b'x'; 24]).await;
}
