//! weir's own responses and the upstream's: exactly as documented.

use std::time::Duration;

use crate::support::raw::RawUpstream;
use crate::support::{Answer, Connection, Reply, Request, Upstream, Weir, client, closed_port, lane};

fn route(name: &str, path: &str, upstream: &str, more: &str) -> String {
    format!("  - {{name: {name}, match: {{path: {path}}}, upstream: {upstream}{more}}}\n")
}

fn assert_own(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.weir_error()), (status, Some(code)), "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let problem = answer.json();
    assert_eq!((&problem["status"], &problem["code"]), (&status.into(), &code.into()));
    assert_eq!(problem["type"], "about:blank");
    for text in ["title", "detail", "message"] {
        assert!(problem[text].as_str().is_some_and(|text| !text.is_empty()), "{text} in {problem}");
    }
}

#[tokio::test]
async fn unknown_routes_and_forbidden_methods_are_refused() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir =
        Weir::start(&format!("routes:\n{}", route("a", "/a", &format!("\"{}\"", upstream.url()), ""))).await;
    assert_own(&weir.get("/b").await, 404, "no_route");
    assert_own(&weir.get("/ab").await, 404, "no_route");
    assert_eq!(weir.get("/a/b?c=d").await.status, 200);
    let trace = client::send(&weir.url("/a"), Request::get("/a").method("TRACE")).await.unwrap();
    assert_own(&trace, 405, "method_not_allowed");
    let connect = b"CONNECT api.example.com:443 HTTP/1.1\r\nhost: api.example.com:443\r\n\r\n";
    let mut connection = weir.connect().await;
    // The next bytes are meant for the other end of the tunnel.
    connection
        .send_raw(&[&connect[..], b"GET /a/tunnelled HTTP/1.1\r\nhost: h\r\n\r\n"].concat())
        .await
        .unwrap();
    let answer = connection.answer().await.unwrap();
    assert_own(&answer, 405, "method_not_allowed");
    assert!(answer.text().contains("set weir's address as the base URL"), "{}", answer.text());
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(connection.answer().await.is_err(), "the rest was read as a request");
    assert_eq!(upstream.targets(), ["/a/b?c=d"]);
}

#[tokio::test]
async fn a_path_that_escapes_its_route_is_refused() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = format!("\"{}\"", upstream.url());
    let weir =
        Weir::start(&format!("routes:\n{}{}", route("a", "/a", &url, ""), route("b", "/b", &url, ""))).await;
    for target in ["/a/../b", "/a/%2e%2e/b", "/a/%2E./b", "/a%2f..%2fb", "/a/x%00"] {
        assert_own(&weir.get(target).await, 400, "bad_request");
    }
    assert_eq!(upstream.count(), 0);
    for target in ["/a/x%2Fy?z=%20", "/a//x", "/a/./x"] {
        assert_eq!(weir.get(target).await.status, 200, "{target}");
    }
    assert_eq!(upstream.targets(), ["/a/x%2Fy?z=%20", "/a//x", "/a/./x"], "byte for byte");
}

#[tokio::test]
async fn an_unreachable_slow_or_malformed_upstream_has_its_own_status_each() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let _closed = upstream.hold("/slow");
    let mad = RawUpstream::answering(b"SSH-2.0-mad\r\n\r\n").await;
    let slow = format!("{{url: \"{}\", timeout: 300ms}}", upstream.url());
    let weir = Weir::start(&format!(
        "routes:\n{}{}{}",
        route("away", "/away", &format!("\"http://127.0.0.1:{}\"", closed_port()), ""),
        route("mad", "/mad", &format!("\"{}\"", mad.url()), ""),
        route("slow", "/slow", &slow, ""),
    ))
    .await;
    assert_own(&weir.get("/away").await, 502, "upstream_connect");
    assert_own(&weir.get("/mad").await, 502, "upstream_protocol");
    assert_own(&weir.get("/slow").await, 504, "upstream_timeout");
}

#[tokio::test]
async fn an_upstreams_answer_passes_unchanged() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let reply = Reply::status(429)
        .header("retry-after", "7")
        .header("weir-error", "forged")
        .header("weir-wait-ms", "1")
        .header("connection", "x-hop")
        .header("x-hop", "ends here")
        .header("x-end", "passes")
        .body("slow down");
    upstream.reply("/limited", reply);
    let weir =
        Weir::start(&format!("routes:\n{}", route("all", "/", &format!("\"{}\"", upstream.url()), ""))).await;
    let answer = weir.get("/limited").await;
    assert_eq!((answer.status, answer.text().as_str()), (429, "slow down"));
    assert_eq!((answer.header("retry-after"), answer.header("x-end")), (Some("7"), Some("passes")));
    for name in ["weir-error", "weir-wait-ms", "x-hop"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn requests_are_rewritten_as_the_route_asks() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let more =
        ", strip_prefix: /api, set_headers: {authorization: \"Bearer kept\"}, remove_headers: [cookie]";
    let url = format!("\"{}\"", upstream.url());
    let weir = Weir::start(&format!("routes:\n{}", route("api", "/api", &url, more))).await;
    let body = vec![b'x'; 300_000];
    let request = Request::post("/api/v1/things?q=1", &body)
        .header("authorization", "Bearer client's")
        .header("cookie", "a=b")
        .header("connection", "close, x-hop")
        .header("x-hop", "ends here")
        .header("weir-timeout", "5s");
    assert_eq!(client::send(&weir.url("/"), request).await.unwrap().status, 200);

    let seen = &upstream.seen()[0];
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/v1/things?q=1"));
    assert_eq!(seen.body, body);
    assert_eq!(seen.headers["authorization"], "Bearer kept");
    assert_eq!(seen.headers["host"], upstream.address().to_string().as_str());
    for name in ["cookie", "x-hop", "weir-timeout", "x-forwarded-for", "via"] {
        assert!(!seen.headers.contains_key(name), "{name} went upstream");
    }
}

#[tokio::test]
async fn a_second_request_inside_a_body_reaches_no_upstream() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir =
        Weir::start(&format!("routes:\n{}", route("all", "/", &format!("\"{}\"", upstream.url()), ""))).await;
    let mut connection = Connection::open(&weir.host()).await.unwrap();
    let smuggled = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
                     0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    connection.send_raw(smuggled).await.unwrap();
    // Refused, or framed anew and the connection closed after it: never two requests.
    connection.answer().await.ok();
    let second = tokio::time::timeout(Duration::from_secs(5), connection.answer()).await;
    assert!(matches!(second, Ok(Err(_))), "the connection closes");
    assert!(!upstream.targets().contains(&"/smuggled".to_owned()));
}

#[tokio::test]
async fn http2_reaches_an_upstream_that_speaks_it() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = format!("{{url: \"{}\", http2: prior_knowledge}}", upstream.url());
    let weir = Weir::start(&format!("routes:\n{}", route("all", "/", &url, ""))).await;
    assert_eq!(weir.get("/").await.status, 200);
    assert_eq!(upstream.seen()[0].version, http::Version::HTTP_2);
}
