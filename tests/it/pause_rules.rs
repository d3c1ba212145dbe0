//! Which responses of an upstream pause a limiter, by its rules. The client gets each response as it is.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Reply, SECOND, Upstream, Weir, client, configuration, eventually, lane};

/// A limiter of every kind of rule. Each guesses a minute, so that a guessed pause differs from a named one.
const LIMITERS: [(&str, &str); 6] = [
    ("usual", "{}"),
    (
        "github",
        "{guess: {first: 1m}, rules: [{status: 429}, {status: 403, header: {x-ratelimit-remaining: \"0\"}}]}",
    ),
    (
        "balance",
        "{guess: {first: 1m}, rules: [{status: 429, json: {error.code: insufficient_quota}, for: 1h}, {status: 429}]}",
    ),
    ("overloaded", "{guess: {first: 1m}, rules: [{status: 529}]}"),
    ("graphql", "{guess: {first: 1m}, rules: [{status: 200, json: {errors.0.extensions.code: THROTTLED}}]}"),
    ("off", "off"),
];

async fn start(upstream: &Upstream) -> Weir {
    let limiters = LIMITERS.map(|(name, pause)| (name, format!("{{limits: [100000/1s], pause: {pause}}}")));
    let limiters = limiters.each_ref().map(|(name, limiter)| (*name, limiter.as_str()));
    let routes = LIMITERS.map(|(name, _)| (format!("path: /{name}"), format!("limiter: {name}")));
    let routes = routes.each_ref().map(|(path, limiter)| (path.as_str(), limiter.as_str()));
    Weir::start(&configuration("memory", &limiters, &routes, upstream)).await
}

/// Returns how long a limiter is still paused.
async fn paused_for(weir: &Weir, limiter: &str) -> Option<Duration> {
    let until = weir.ask(&format!("/api/limiters/{limiter}")).await.json()["paused_until"].as_u64()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Some(Duration::from_millis(until).saturating_sub(now))
}

/// Sends a request of a limiter to an upstream that answers so; the client must get that. Expects a pause of a length, or none.
async fn answer(weir: &Weir, upstream: &Upstream, limiter: &str, reply: Reply, pause: Option<Duration>) {
    upstream.reply(&format!("/{limiter}"), reply.clone());
    let got = client::get(&weir.url(&format!("/{limiter}"))).await.unwrap();
    assert_eq!((got.status, got.body.as_ref()), (reply.status, reply.body.as_ref()), "{limiter}");
    match pause {
        None => {
            // A response that could pause is reported before the next request of the same limiter is answered, by the queue's one worker.
            upstream.reply(&format!("/{limiter}"), Reply::status(201));
            for _ in 0..3 {
                assert_eq!(weir.get(&format!("/{limiter}")).await.status, 201, "{limiter} is not paused");
            }
        }
        Some(expected) => {
            eventually("it is paused", async || paused_for(weir, limiter).await.is_some()).await;
            let lasts = paused_for(weir, limiter).await.expect("it lasts");
            // A pause is a little longer than asked, by at most a quarter of a second.
            let about = expected - 10 * SECOND..expected + SECOND;
            assert!(about.contains(&lasts), "{limiter} is paused for {lasts:?}, not {expected:?}");
            let resumed = weir.tell(&format!("/api/limiters/{limiter}/resume")).await;
            assert_eq!(resumed.status, 200, "{}", resumed.text());
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn the_first_rule_that_matches_decides() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    let in_an_hour = || (SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + HOUR).as_secs().to_string();
    let date = || httpdate::fmt_http_date(SystemTime::now() + HOUR);
    let limited = |status| Reply::status(status).header("x-ratelimit-reset", &in_an_hour());
    let json = |status, text: &str| {
        Reply::status(status).header("content-type", "application/json").body(text.to_owned())
    };
    let quota = "{\"error\": {\"message\": \"é\", \"code\": \"insufficient_quota\"}}";
    let throttled = "{\"data\": null, \"errors\": [{\"extensions\": {\"code\": \"THROTTLED\"}}]}";
    for (limiter, reply, pause) in [
        // A named instant is believed for longer than any guess.
        ("usual", Reply::status(429).header("retry-after", "10800"), Some(3 * HOUR)),
        ("usual", Reply::status(429).header("retry-after", &date()), Some(HOUR)),
        ("usual", limited(429), Some(HOUR)),
        ("usual", Reply::status(503), None),
        ("usual", Reply::status(503).header("retry-after", "60"), Some(MINUTE)),
        ("usual", limited(403).header("x-ratelimit-remaining", "0"), None),
        ("github", limited(403).header("x-ratelimit-remaining", "0"), Some(HOUR)),
        ("github", limited(403).header("x-ratelimit-remaining", "1"), None),
        ("github", Reply::status(503).header("retry-after", "60"), None),
        ("github", Reply::status(429), Some(MINUTE)),
        ("balance", json(429, quota), Some(HOUR)),
        ("balance", json(429, quota).header("retry-after", "2"), Some(HOUR)),
        ("balance", json(429, "{\"error\": {\"code\": \"rate_limit_exceeded\"}}"), Some(MINUTE)),
        ("balance", json(429, "{\"error\":"), Some(MINUTE)),
        ("balance", Reply::status(429), Some(MINUTE)),
        ("overloaded", Reply::status(529), Some(MINUTE)),
        ("overloaded", Reply::status(429).header("retry-after", "60"), None),
        ("graphql", json(200, throttled), Some(MINUTE)),
        ("graphql", json(200, "{\"data\": {\"shop\": \"THROTTLED\"}}"), None),
        ("off", Reply::status(429).header("retry-after", "60"), None),
    ] {
        answer(&weir, &upstream, limiter, reply, pause).await;
    }
    let metrics = weir.metrics().await;
    let rejections = |route| metrics.sum("weir_upstream_rejections_total", &[("route", route)]);
    assert_eq!(
        ["route-0", "route-1", "route-2", "route-3", "route-4", "route-5"].map(rejections),
        [4.0, 3.0, 5.0, 2.0, 1.0, 1.0]
    );
}

#[tokio::test]
async fn a_body_is_looked_at_as_far_as_64_kib() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    let quota = "{\"error\": {\"code\": \"insufficient_quota\"}";
    let padding = format!(", \"more\": \"{}\"}}", "x".repeat(1_000_000));
    let late = format!("{{\"more\": \"{}\", {}}}", "x".repeat(70_000), &quota[1..]);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(format!("{quota}{padding}").as_bytes()).unwrap();
    let gzip = Reply::status(429).header("content-encoding", "gzip").body(gzip.finish().unwrap());
    for (reply, pause) in [
        (Reply::status(429).body(format!("{quota}{padding}")), HOUR),
        (Reply::status(429).body(late), MINUTE),
        (gzip, HOUR),
        (Reply::status(429).header("content-encoding", "br").body(quota), MINUTE),
    ] {
        answer(&weir, &upstream, "balance", reply, Some(pause)).await;
    }
}

/// The response is for nobody: its status has to do.
#[tokio::test]
async fn a_client_that_leaves_within_a_rejection_leaves_its_pause() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = start(&upstream).await;
    upstream.reply("/balance", Reply::status(429).body("x".repeat(20_000_000)));
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    client.write_all(b"GET /balance HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 429");
    drop(client);
    eventually("it is paused", async || paused_for(&weir, "balance").await.is_some()).await;
}
