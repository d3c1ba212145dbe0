//! The access log: one line for each request, as JSON or text, with its outcome, the reason and the wait.

use serde_json::Value;

use crate::support::weir::with_preamble;
use crate::support::{Upstream, Weir, eventually, lane, poll_for};

fn config(upstream: &Upstream, format: &str) -> String {
    let routes = format!(
        "limiters: {{api: {{limits: [1/1s, 2/1h], queue: {{timeout: 5s, max_waiting: 10}}}}}}\n\
         routes:\n\
         - {{name: down, match: {{path: /down}}, upstream: \"http://127.0.0.1:1\"}}\n\
         - {{name: all, match: {{path: /}}, upstream: \"{}\", limiter: api}}\n",
        upstream.url()
    );
    with_preamble(&routes).replace("format: json, access: false", &format!("format: {format}, access: true"))
}

#[tokio::test]
async fn every_request_is_logged_with_its_outcome_its_wait_and_the_reason() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start_whole(&config(&upstream, "json")).await;
    for (target, status) in [("/a?key=s3cret", 200), ("/b", 200), ("/c", 429), ("/down", 502)] {
        assert_eq!(weir.get(target).await.status, status, "{target}");
    }
    // A client that leaves while its request waits.
    weir.tell("/api/limiters/api/reset").await;
    weir.tell_with("/api/limiters/api/pause", "{\"for\": \"4s\"}").await;
    let leaving = weir.begin(1, "/left");
    weir.wait_for_waiting(1).await;
    drop(leaving);
    weir.wait_for_empty_queue().await;

    let lines = poll_for("every line", async || {
        let lines = weir.log_of("weir::access");
        (lines.len() == 5).then_some(lines)
    })
    .await;
    let told: Vec<_> = lines
        .iter()
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
            (text("path"), line["status"].as_u64().unwrap(), text("route"), text("outcome"), text("error"))
        })
        .collect();
    let expected = [
        ("/a", 200, "all", "forwarded", "-"),
        ("/b", 200, "all", "forwarded", "-"),
        ("/c", 429, "all", "refused", "rate_limited"),
        ("/down", 502, "down", "failed", "upstream_connect"),
        ("/left", 499, "all", "cancelled", "-"),
    ];
    let expected = expected.map(|(path, status, route, outcome, error)| {
        (path.to_owned(), status, route.to_owned(), outcome.to_owned(), error.to_owned())
    });
    assert_eq!(told, expected);
    let wait_ms = |index: usize| lines[index]["wait_ms"].as_u64().unwrap();
    assert_eq!((wait_ms(0), wait_ms(2)), (0, 0));
    assert!((500..3000).contains(&wait_ms(1)), "{} ms", wait_ms(1));
    assert!((1..4000).contains(&wait_ms(4)), "{} ms: one that leaves has waited, too", wait_ms(4));
    assert_eq!(lines[2]["reason"], "limiter api has no permit within the wait");
    assert!(lines[3]["reason"].as_str().unwrap().contains("127.0.0.1:1"), "{}", lines[3]);
    assert!(!weir.log().contains("s3cret"));
}

#[tokio::test]
async fn the_access_log_becomes_text_with_a_reload() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start_whole(&config(&upstream, "json")).await;
    std::fs::write(weir.config(), config(&upstream, "text")).unwrap();
    assert_eq!(weir.tell("/api/reload").await.status, 200);
    for (target, status) in [("/a", 200), ("/b", 200), ("/c", 429)] {
        assert_eq!(weir.get(target).await.status, status);
    }
    let line = async || weir.log().lines().find(|line| line.contains("/c")).map(ToOwned::to_owned);
    let line = poll_for("the line", line).await;
    assert!(serde_json::from_str::<Value>(&line).is_err());
    for part in [
        "weir::access",
        "GET",
        "status=429",
        "outcome=\"refused\"",
        "error=\"rate_limited\"",
        "wait_ms=0",
        "reason=",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains('\u{1b}'), "no colours outside a terminal: {line:?}");
    eventually("no line without its request", async || weir.log().matches("weir::access").count() == 3).await;
}

#[tokio::test]
async fn a_malformed_body_is_not_logged_as_a_client_that_left() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start_whole(&config(&upstream, "json")).await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
    for end in [&b"zz\r\n"[..], b""] {
        let mut connection = weir.connect().await;
        connection.send_raw(&[head, end].concat()).await.unwrap();
        // The malformed chunk is answered; the other connection closes in the middle of the body.
        if end.is_empty() {
            weir.tell("/api/limiters/api/reset").await;
        } else {
            assert_eq!(connection.answer().await.unwrap().weir_error(), Some("bad_request"));
        }
    }
    let told = poll_for("both lines", async || {
        let lines = weir.log_of("weir::access");
        let told: Vec<_> =
            lines.iter().map(|line| (line["status"].clone(), line["outcome"].clone())).collect();
        (told.len() == 2).then_some(told)
    })
    .await;
    assert_eq!(told, [(400.into(), "refused".into()), (499.into(), "cancelled".into())]);
}

#[tokio::test]
async fn a_rule_names_failures_and_slow_requests_alone() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = config(&upstream, "json").replace("access: true", "access: {sample: 0%, slow: 500ms}");
    let weir = Weir::start_whole(&config).await;
    // The second waits for its permit, the third is refused.
    for (target, status) in [("/quick", 200), ("/slow", 200), ("/refused", 429), ("/down", 502)] {
        assert_eq!(weir.get(target).await.status, status, "{target}");
    }
    let named = poll_for("both lines", async || {
        let lines = weir.log_of("weir::access");
        let paths: Vec<_> = lines.iter().map(|line| line["path"].as_str().unwrap().to_owned()).collect();
        (paths.len() == 2).then_some(paths)
    })
    .await;
    assert_eq!(named, ["/slow", "/down"]);
}
