//! Keys, costs and matches that read the JSON body: which facts a body has, what is held of it, and that it goes upstream as it came.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::http2::{
    AUTHORITY, DATA, END_HEADERS, END_STREAM, Event, HEADERS, HTTP, Http2, POST, RST_STREAM, frame, literal,
};
use crate::support::raw::{in_time, read_head};
use crate::support::{
    Answer, PATIENCE, RedisServer, Reply, Request, Upstream, Weir, client, configuration, eventually, lane,
};

const MIB: usize = 1024 * 1024;

/// A limiter that grants each model one request an hour, and one that counts costs.
const LIMITERS: [(&str, &str); 2] =
    [("models", "{limits: [1/1h], key: [\"json:model\"]}"), ("costs", "{limits: [100/1h]}")];

/// The routes of these limiters, and one that a body selects.
const ROUTES: [(&str, &str); 4] = [
    ("path: /models", "limiter: models, body: {max: 64KiB}"),
    ("path: /costs", "limiter: costs, cost: {json: n, default: 2, max: 10}"),
    (
        "path: /match, json: {model: gpt-5, stream: \"true\"}",
        "limiters: off, set_headers: {x-route: matched}",
    ),
    ("path: /match", "limiters: off, set_headers: {x-route: other}"),
];

async fn start(upstream: &Upstream) -> Weir {
    Weir::start(&configuration("memory", &LIMITERS, &ROUTES, upstream)).await
}

async fn post(weir: &Weir, target: &str, body: &[u8]) -> Answer {
    client::send(&weir.url(target), Request::post(target, body)).await.unwrap()
}

async fn status(weir: &Weir, target: &str, body: &str) -> u16 {
    post(weir, target, body.as_bytes()).await.status
}

#[tokio::test]
async fn each_value_of_a_body_has_a_partition() {
    let _lane = lane::shared().await;
    let (upstream, redis) = (Upstream::start(), RedisServer::start().await);
    let weir = Weir::start(&configuration(&redis.store(), &LIMITERS, &ROUTES, &upstream)).await;
    for (body, expected) in [
        (r#"{"model": "gpt-5-secret", "messages": [{"model": "x"}]}"#, 200),
        (r#"{"messages": [], "model": "gpt-5-secret"}"#, 429),
        (r#"{"mod\u0065l": "gpt\u002d5-secret"}"#, 429),
        (r#"{"model": "gpt-4"}"#, 200),
        // Without the value there is one partition for all.
        (r#"{"model": null}"#, 200),
        (r#"{"model": ["gpt-5"]}"#, 429),
        ("{}", 429),
        ("no JSON", 429),
        ("", 429),
        // A value that can be read in more than one way selects nothing.
        (r#"{"model": "a", "model": "b"}"#, 400),
        (r#"{"model": "a", "Model": "b"}"#, 400),
    ] {
        assert_eq!(status(&weir, "/models", body).await, expected, "{body}");
    }
    let bodies: Vec<_> = upstream.seen().iter().map(|seen| seen.body.clone()).collect();
    assert_eq!(
        bodies,
        [
            "{\"model\": \"gpt-5-secret\", \"messages\": [{\"model\": \"x\"}]}",
            "{\"model\": \"gpt-4\"}",
            "{\"model\": null}"
        ]
    );
    let ambiguous = post(&weir, "/models", br#"{"model": "a", "model": "b"}"#).await;
    assert!(ambiguous.text().contains("the JSON value model"), "{}", ambiguous.text());
    assert!(redis.keys().await.iter().all(|key| !key.contains("secret")), "a value is no part of a key");
    assert_eq!(weir.available_of("models", "gpt-4").await, [0]);
    assert_eq!(weir.available_of("models", "gpt-3").await, [1]);
}

#[tokio::test]
async fn a_hostile_body_is_without_facts_and_goes_on() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    let model = r#"{"model": "gpt-5"}"#;
    assert_eq!(status(&weir, "/models", model).await, 200);
    let deep = format!("{{\"x\": {}{}, \"model\": \"gpt-5\"}}", "[".repeat(20_000), "]".repeat(20_000));
    assert_eq!(status(&weir, "/models", &deep).await, 429, "it has its value");
    let unclosed = "[".repeat(60_000);
    let cut_off = "{\"model\": \"gpt-5\", \"a\":";
    let late = format!("{{\"x\": \"{}\", \"model\": \"gpt-5\"}}", "x".repeat(64 * 1024));
    let not_utf8 = [&br#"{"model": "gpt-5", "x": ""#[..], b"\xff", b"\"}"].concat();
    let large = vec![b'['; 100 * MIB];
    let bodies: [&[u8]; 5] = [unclosed.as_bytes(), cut_off.as_bytes(), late.as_bytes(), &not_utf8, &large];
    for body in bodies {
        let weir = start(&upstream).await;
        let before = weir.rss_bytes();
        assert_eq!(post(&weir, "/models", body).await.status, 200, "{} bytes", body.len());
        assert_eq!(status(&weir, "/models", "no JSON").await, 429, "it has the partition of all without");
        assert_eq!(status(&weir, "/models", model).await, 200, "the value has a partition of its own");
        let arrived = upstream.seen().iter().any(|seen| seen.body == body);
        assert!(arrived, "{} bytes", body.len());
        let more = weir.rss_bytes().saturating_sub(before);
        assert!(more < 32 * MIB as u64, "{more} bytes more for {}", body.len());
    }
}

#[tokio::test]
async fn a_compressed_body_is_looked_into() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    let gzip = |plain: &[u8]| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(plain).unwrap();
        gzip.finish().unwrap()
    };
    let send = async |coding: &str, body: &[u8]| {
        let request = Request::post("/models", body).header("content-encoding", coding);
        client::send(&weir.url("/models"), request).await.unwrap().status
    };
    let model = br#"{"model": "gpt-5"}"#;
    assert_eq!(send("gzip", &gzip(model)).await, 200);
    assert_eq!(upstream.seen()[0].body, gzip(model), "it goes upstream as it came");
    assert_eq!(send("identity", model).await, 429);
    let uncoded = Request::post("/models", model).header("content-encoding", "br");
    let uncoded = uncoded.header("connection", "close, content-encoding");
    let answer = client::send(&weir.url("/models"), uncoded).await.unwrap();
    assert_eq!(answer.status, 429, "the coding does not go upstream");
    // One that becomes larger than `max`, and one in an unknown coding, have no facts.
    let bomb = [&br#"{"model": "gpt-5", "x": ""#[..], &vec![b'x'; 10 * MIB], b"\"}"].concat();
    assert_eq!(send("gzip", &gzip(&bomb)).await, 200);
    assert_eq!(send("br", model).await, 429);
    assert_eq!(send("gzip, gzip", model).await, 429);
}

#[tokio::test]
async fn a_body_names_its_cost() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    for (body, expected, left) in [
        (r#"{"n": 3}"#, 200, 97),
        (r#"{"n": "3"}"#, 200, 94),
        (r#"{"n": null}"#, 200, 92),
        ("{}", 200, 90),
        ("{\"n\":", 200, 88),
        (r#"{"n": 11}"#, 400, 88),
        (r#"{"n": 0}"#, 400, 88),
        (r#"{"n": -1}"#, 400, 88),
        (r#"{"n": 1.5}"#, 400, 88),
        (r#"{"n": 1000000000000000000}"#, 400, 88),
        (r#"{"n": 1, "n": 2}"#, 400, 88),
    ] {
        assert_eq!(status(&weir, "/costs", body).await, expected, "{body}");
        assert_eq!(weir.available("costs").await, [left], "{body}");
    }
}

#[tokio::test]
async fn a_body_selects_its_route() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    let large = format!("{{\"model\": \"gpt-5\", \"stream\": true, \"x\": \"{}\"}}", "x".repeat(MIB));
    for (body, route) in [
        (r#"{"model": "gpt-5", "stream": true}"#, "matched"),
        (r#"{"model": "gpt-5", "stream": false}"#, "other"),
        (r#"{"model": "gpt-5"}"#, "other"),
        ("", "other"),
        (r#"{"model": "gpt-5", "stream": true"#, "other"),
        (&large, "other"),
    ] {
        assert_eq!(status(&weir, "/match", body).await, 200);
        let seen = upstream.seen().pop().unwrap();
        assert_eq!((&seen.headers["x-route"], &seen.body[..]), (&route.parse().unwrap(), body.as_bytes()));
    }
    assert_eq!(status(&weir, "/match", r#"{"model": "gpt-5", "model": "x", "stream": true}"#).await, 400);
    // Where no condition is met but the one on the body, nothing is read of it.
    assert_eq!(status(&weir, "/elsewhere", r#"{"model": "gpt-5", "model": "x"}"#).await, 404);
}

/// Sends a head and the begin of a body of ten bytes.
async fn begin(weir: &Weir, target: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}Content-Length: 10\r\n\r\n{{\"n\""
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_body_that_does_not_come_takes_no_permit() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiters = [("costs", "{limits: [100/1h], queue: {timeout: 1h, max_waiting: 2}}")];
    let routes = [("path: /", "limiter: costs, cost: {json: n, max: 10}")];
    let config = configuration("memory", &limiters, &routes, &upstream);
    let weir = Weir::start(&format!("server: {{header_timeout: 3s}}\n{config}")).await;
    let mut slow = Vec::new();
    for waiting in 1..=2 {
        slow.push(begin(&weir, "/", "").await);
        weir.wait_for_waiting(waiting).await;
    }
    // They count in `max_waiting`.
    let full = read_head(&mut begin(&weir, "/", "").await).await;
    assert!(full.starts_with("HTTP/1.1 429 ") && full.contains("weir-error: queue_full"), "{full}");
    // One whose body is there need not wait.
    assert_eq!(status(&weir, "/", r#"{"n": 7}"#).await, 200);
    // One gets its body in time.
    let mut in_time_too = slow.pop().unwrap();
    in_time_too.write_all(b":    9").await.unwrap();
    let answer = read_head(&mut in_time_too).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for mut stream in slow {
        let answer = read_head(&mut stream).await;
        assert!(
            answer.starts_with("HTTP/1.1 408 ") && answer.contains("weir-error: request_timeout"),
            "{answer}"
        );
    }
    weir.wait_for_empty_queue().await;
    // The part that came in time is no JSON, and costs the default.
    assert_eq!((weir.available("costs").await, upstream.count()), (vec![100 - 7 - 1], 2));
}

#[tokio::test]
async fn a_client_that_leaves_within_its_body_takes_no_permit() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    let stream = begin(&weir, "/models", "").await;
    weir.wait_for_waiting(1).await;
    drop(stream);
    weir.wait_for_empty_queue().await;
    assert_eq!((weir.available_of("models", "x").await, upstream.count()), (vec![1], 0));
}

/// Nobody that weir does not know makes it hold anything.
#[tokio::test]
async fn the_body_of_an_unknown_caller_is_not_read() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = configuration("memory", &LIMITERS, &ROUTES, &upstream);
    let weir = Weir::start(&format!("clients: {{known: {{tokens: [secret-token]}}}}\n{config}")).await;
    for target in ["/models", "/costs", "/match"] {
        let answer = read_head(&mut begin(&weir, target, "").await).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
    let mut known = begin(&weir, "/match", "Weir-Authorization: Bearer secret-token\r\n").await;
    known.write_all(b":    9}").await.unwrap();
    assert!(read_head(&mut known).await.starts_with("HTTP/1.1 200 "));
}

/// `server.body_memory` bounds what is held, however many requests wait.
#[tokio::test]
async fn bodies_are_held_within_their_memory() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let queue = "queue: {timeout: 1d, max_waiting: 1000}";
    let models = format!("{{limits: [1/1m], key: [\"json:model\"], {queue}}}");
    let costs = format!("{{limits: [1000/1h], {queue}}}");
    let limiters = [("models", &*models), ("costs", &*costs)];
    let config = configuration("memory", &limiters, &ROUTES, &upstream);
    let weir = Weir::start(&format!("server: {{body_memory: 4MiB}}\n{config}")).await;
    assert_eq!(status(&weir, "/models", r#"{"model": "gpt-5"}"#).await, 200);
    let before = weir.rss_bytes();
    let padding = "x".repeat(62 * 1024);
    let body = format!("{{\"model\": \"gpt-5\", \"n\": 7, \"x\": \"{padding}\"}}");
    let url = weir.url("/models");
    let waiting: Vec<_> =
        (0..400).map(|_| client::Pending::send(&url, Request::post("/models", body.as_bytes()))).collect();
    // Which of them wait is not known: the others are refused at once.
    eventually("all others are refused", async || {
        let metrics = weir.metrics().await;
        metrics.sum("weir_requests_total", &[("code", "429")]) >= 336.0
    })
    .await;
    assert_eq!(weir.waiting().await, 64.0, "4 MiB of 64 KiB each");
    let more = weir.rss_bytes().saturating_sub(before);
    assert!(more < 24 * MIB as u64, "{more} bytes more");
    // A cost that cannot be read is the default.
    assert_eq!(post(&weir, "/costs", body.as_bytes()).await.status, 200);
    assert_eq!(weir.available("costs").await, [1000 - 2]);
    // Requests that leave give it back.
    let one = post(&weir, "/models", body.as_bytes()).await;
    assert_eq!((one.status, one.weir_error()), (429, Some("queue_full")), "{}", one.text());
    assert!(
        one.text().contains("server.body_memory") && one.header("retry-after").is_some(),
        "{}",
        one.text()
    );
    drop(waiting);
    weir.wait_for_empty_queue().await;
    assert_eq!(post(&weir, "/costs", body.as_bytes()).await.status, 200);
    assert_eq!(weir.available("costs").await, [1000 - 2 - 7]);
}

#[tokio::test]
async fn a_body_goes_upstream_as_it_came() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    // In chunks, with trailers, some of them late.
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    let head = "POST /models HTTP/1.1\r\nHost: a\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut expected = String::from("{\"x\": \"");
    let mut chunks = String::new();
    for number in 0..2000 {
        let piece = format!("{number:>8}");
        expected.push_str(&piece);
        write!(chunks, "8\r\n{piece}\r\n").unwrap();
    }
    stream.write_all(b"7\r\n{\"x\": \"\r\n").await.unwrap();
    stream.write_all(chunks.as_bytes()).await.unwrap();
    weir.wait_for_waiting(1).await;
    assert_eq!(upstream.count(), 0, "it waits for its body");
    stream.write_all(b"14\r\n\", \"model\": \"gpt-5\"}\r\n0\r\nx-sum: 1\r\n\r\n").await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200 "));
    expected.push_str("\", \"model\": \"gpt-5\"}");
    let seen = upstream.seen();
    assert_eq!(&seen[0].body[..], expected.as_bytes());
    assert_eq!(seen[0].headers.get("transfer-encoding").unwrap(), "chunked");
    assert_eq!(status(&weir, "/models", r#"{"model": "gpt-5"}"#).await, 429);
    // A client that waits for 100 Continue is told to continue before its request has a permit.
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    let head = "POST /models HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 18\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 100 "));
    stream.write_all(br#"{"model": "gpt-4"}"#).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200 "));
    // A connection of which a body was read ahead and refused serves on.
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    let refused = "POST /models HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{\"model\": \"gpt-4\"}";
    for _ in 0..2 {
        stream.write_all(refused.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut body).await.unwrap();
    }
}

#[tokio::test]
async fn a_body_over_http2_is_read_beyond_its_first_window() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    let mut connection = Http2::over(TcpStream::connect(weir.host()).await.unwrap());
    connection.shake_hands().await;
    let path = literal(":path", "/models");
    let head = [&[POST, HTTP][..], &path, &AUTHORITY].concat();
    let mut body = format!("{{\"x\": \"{}\", \"model\": \"gpt-5\"}}", "x".repeat(40_000)).into_bytes();
    for (stream, expected) in [(1, 200), (3, 429)] {
        connection.send(&frame(HEADERS, END_HEADERS, stream, &head)).await;
        let rest = body.split_off(10_000);
        connection.send(&frame(DATA, 0, stream, &body)).await;
        // The window is opened because the body is wanted.
        let is_opened = |event: &Event| matches!(event, Event::Frame { kind: 8, stream: opened, .. } if *opened == stream);
        connection.until(is_opened).await;
        for (index, piece) in rest.chunks(16_000).enumerate() {
            let flags = if index == rest.len().div_ceil(16_000) - 1 { END_STREAM } else { 0 };
            connection.send(&frame(DATA, flags, stream, piece)).await;
        }
        body.extend(rest);
        let is_answer =
            |event: &Event| matches!(event, Event::Frame { kind: HEADERS, stream: of, .. } if *of == stream);
        let Event::Frame { payload, .. } = connection.until(is_answer).await else { unreachable!() };
        // `:status: 200` of the static table.
        assert_eq!(payload.first() == Some(&0x88), expected == 200, "{payload:?}");
    }
    assert_eq!(upstream.seen()[0].body, body);
    // A stream that is reset takes no permit.
    let model = br#"{"model": "#;
    connection.send(&frame(HEADERS, END_HEADERS, 5, &head)).await;
    connection.send(&frame(DATA, 0, 5, model)).await;
    weir.wait_for_waiting(1).await;
    connection.send(&frame(RST_STREAM, 0, 5, &8_u32.to_be_bytes())).await;
    weir.wait_for_empty_queue().await;
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_body_that_was_read_ahead_is_sent_again() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiters = [("models", "{limits: [2/1h], key: [\"json:model\"], pause: off}")];
    let routes =
        [("path: /", "limiter: models, retry: {attempts: 2, on: [503], max_body: 1MiB, budget: off}")];
    let weir = Weir::start(&configuration("memory", &limiters, &routes, &upstream)).await;
    upstream.script(|number| (number == 1).then(|| Reply::status(503)));
    let body = format!("{{\"model\": \"gpt-5\", \"x\": \"{}\"}}", "x".repeat(500_000));
    let request = Request::post("/", body.as_bytes()).method("PUT");
    assert_eq!(client::send(&weir.url("/"), request).await.unwrap().status, 200);
    let seen = upstream.seen();
    assert!(seen.len() == 2 && seen.iter().all(|seen| seen.body == body), "{} requests", seen.len());
    assert_eq!(weir.available_of("models", "gpt-5").await, [0]);
}

/// The routes of a configuration in which some look into bodies stream all the same.
#[tokio::test]
async fn a_body_that_nobody_asks_for_streams() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    let plain = "POST /match HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n{";
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    stream.write_all(plain.as_bytes()).await.unwrap();
    // Too large to be looked into, so it is not waited for.
    upstream.wait_for(1, PATIENCE).await;
    stream.write_all(&vec![b' '; 1_999_999]).await.unwrap();
    let head = in_time("the answer", read_head(&mut stream)).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(upstream.seen()[0].headers["x-route"], "other");
    // A route behind its own asks for it.
    let routes = [("path: /upload", "limiters: off"), ("json: {model: gpt-5}", "limiter: models")];
    let weir = Weir::start(&configuration("memory", &LIMITERS, &routes, &upstream)).await;
    let mut stream = begin(&weir, "/upload", "").await;
    upstream.wait_for(2, PATIENCE).await;
    stream.write_all(b":    9}").await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200 "));
}

/// A shutdown answers requests whose body has not come.
#[tokio::test]
async fn a_request_that_waits_for_its_body_is_answered_at_shutdown() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = configuration("memory", &LIMITERS, &ROUTES, &upstream);
    let config = format!("server: {{drain_timeout: 300ms, header_timeout: 1h}}\n{config}");
    let mut weir = Weir::start(&config).await;
    let mut stream = begin(&weir, "/models", "").await;
    weir.wait_for_waiting(1).await;
    weir.sigterm();
    let answer = read_head(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("weir-error: draining"), "{answer}");
    weir.wait_exit(Duration::from_secs(10)).await;
}

/// Providers share one quota over a family of models, and some name the model in the path.
#[tokio::test]
async fn a_family_of_values_shares_a_partition() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiters = [
        ("body", "{limits: [1/1h], key: [{json: model, map: {\"claude-opus-4*\": opus, \"*-mini\": mini}}]}"),
        ("path", "{limits: [1/1h], key: [{path_regex: \"models/([^/:]+)\", map: {\"gemini-2.5-*\": new}}]}"),
    ];
    let routes = [("path: /body", "limiter: body"), ("path: /v1", "limiter: path")];
    let weir = Weir::start(&configuration("memory", &limiters, &routes, &upstream)).await;
    for (target, model, expected) in [
        ("/body", "claude-opus-4-1", 200),
        ("/body", "claude-opus-4", 429),
        ("/body", "opus", 429),
        ("/body", "claude-opus-3", 200),
        ("/body", "claude-opus-3", 429),
        ("/body", "gpt-5-mini", 200),
        ("/body", "o4-mini", 429),
        ("/v1/models/gemini-2.5-pro:generateContent", "", 200),
        ("/v1/models/gemini-2.5-flash:streamGenerateContent", "", 429),
        ("/v1/models/gemini%2d2.5-flash:streamGenerateContent", "", 429),
        ("/v1/models/gemini-1:generateContent", "", 200),
        ("/v1/models/gemini-1:streamGenerateContent?alt=sse", "", 429),
        ("/v1/models/gemini%2d1:countTokens", "", 429),
        ("/v1/models", "", 200),
        ("/v1/files", "", 429),
        // Some upstream may read another model.
        ("/v1/models/x/../gemini-1:generateContent", "", 400),
        ("/v1/models/gemini-1%3Ax:generateContent", "", 400),
    ] {
        let body = format!("{{\"model\": \"{model}\"}}");
        assert_eq!(status(&weir, target, &body).await, expected, "{target} {model}");
    }
    assert_eq!(weir.available_of("body", "opus").await, [0]);
    let explained = weir.ask("/api/explain?url=/v1/models/gemini-2.5-pro:x").await.json();
    assert_eq!(explained["limiters"][0]["partition"]["path_regex:models/([^/:]+)"], "new");
}
