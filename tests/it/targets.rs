//! A request's target: its host and its path, in every spelling. None escapes its route's limiter, and weir connects
//! only to its upstreams.

use crate::support::raw::exchange;
use crate::support::{Upstream, Weir, lane, one_route};

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}

async fn ask(weir: &Weir, request_line: &str, headers: &str) -> (u16, String) {
    let request = format!("{request_line}\r\n{headers}Connection: close\r\n\r\n");
    let answer = exchange(&weir.host(), request.as_bytes()).await;
    (status(&answer), answer)
}

#[tokio::test]
async fn a_host_is_named_once_and_is_valid() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    for hosts in [
        "",
        "Host: \r\n",
        "Host: a\r\nHost: a\r\n",
        "Host: a\r\nHost: b\r\n",
        "Host: a b\r\n",
        "Host: user@a\r\n",
        "Host: a:b:c\r\n",
        "Host: a:99999999\r\n",
        "Host: :80\r\n",
        "Host: [::1\r\n",
        "Host: a/b\r\n",
        "Host: a?b\r\n",
        "Host: a,b\r\n",
    ] {
        let (status, answer) = ask(&weir, "GET / HTTP/1.1", hosts).await;
        assert_eq!(status, 400, "{hosts:?}: {answer}");
    }
    assert_eq!(upstream.count(), 0);
    for hosts in ["Host: a\r\n", "Host: a:8080\r\n", "Host: [::1]:80\r\n", "Host: a.\r\n", "Host: A\r\n"] {
        assert_eq!(ask(&weir, "GET / HTTP/1.1", hosts).await.0, 200, "{hosts:?}");
    }
    assert_eq!(ask(&weir, "GET / HTTP/1.0", "").await.0, 200, "HTTP/1.0 need not name one");
}

#[tokio::test]
async fn a_target_is_a_path_or_the_authority_of_its_host() {
    let _lane = lane::shared().await;
    let (upstream, other) = (Upstream::start(), Upstream::start());
    let config = format!(
        "routes:\n  - {{name: known, match: {{host: known.example}}, upstream: \"{}\"}}\n",
        upstream.url()
    );
    let weir = Weir::start(&config).await;
    for (line, host, expected) in [
        ("GET http://known.example/x HTTP/1.1", "known.example", 200),
        ("GET http://KNOWN.example/x HTTP/1.1", "known.EXAMPLE", 200),
        ("GET http://known.example./x HTTP/1.1", "known.example.", 200),
        ("GET http://other.example/x HTTP/1.1", "other.example", 404),
        // The target is what counts (RFC 9112, 3.2.2).
        ("GET http://known.example/x HTTP/1.1", "other.example", 200),
        ("GET http://known.example:80/x HTTP/1.1", "known.example", 200),
        ("GET http://known.example/x HTTP/1.1", "known.example:80", 200),
        ("GET http://other.example/x HTTP/1.1", "known.example", 404),
        ("GET http://known.example/x HTTP/1.1", "user@known.example", 400),
        ("GET http://known.example/x HTTP/1.1", "known.example\r\nHost: known.example", 400),
        ("GET http://user@known.example/x HTTP/1.1", "known.example", 400),
        ("GET @known.example/x HTTP/1.1", "known.example", 400),
        ("GET x HTTP/1.1", "known.example", 400),
        ("GET ?x HTTP/1.1", "known.example", 400),
        ("CONNECT known.example:443 HTTP/1.1", "known.example:443", 405),
        ("TRACE /x HTTP/1.1", "known.example", 405),
        ("OPTIONS * HTTP/1.1", "known.example", 405),
        ("OPTIONS /x HTTP/1.1", "known.example", 200),
    ] {
        let (status, answer) = ask(&weir, line, &format!("Host: {host}\r\n")).await;
        assert_eq!(status, expected, "{line}, {host}: {answer}");
        // A client that has weir as its proxy learns what to do.
        assert_eq!(
            answer.contains("set weir's address as the base URL"),
            line.starts_with("CONNECT"),
            "{answer}"
        );
    }
    // An open proxy would connect there.
    let there = format!("GET {}/x HTTP/1.1", other.url());
    assert_eq!(ask(&weir, &there, &format!("Host: {}\r\n", other.address())).await.0, 404);
    assert_eq!(other.count(), 0);
    assert!(upstream.targets().iter().all(|target| target == "/x"), "{:?}", upstream.targets());
}

/// Routes, keys and the upstream have the authority of the target, whatever `Host` says beside it.
#[tokio::test]
async fn an_absolute_target_has_one_authority() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = upstream.url();
    let config = format!(
        "limiters: {{by_host: {{limits: [1/1h], key: [host]}}, by_header: {{limits: [1/1h], key: ['header:host']}}}}\nroutes:\n  \
         - {{name: kept, match: {{host: kept.example}}, upstream: \"{url}\", preserve_host: true, forwarded_headers: true}}\n  \
         - {{name: a, match: {{path: /a}}, upstream: \"{url}\", limiter: by_host}}\n  \
         - {{name: b, match: {{path: /b, headers: {{host: tight.example}}}}, upstream: \"{url}\", limiter: by_header}}\n"
    );
    let weir = Weir::start(&config).await;
    let get = async |target: &str, host: &str| {
        ask(&weir, &format!("GET {target} HTTP/1.1"), &format!("Host: {host}\r\n")).await.0
    };
    assert_eq!(get("http://kept.example:8080/x", "other.example").await, 200);
    let seen = upstream.seen();
    for name in ["host", "x-forwarded-host"] {
        assert_eq!(seen[0].headers[name], "kept.example:8080", "{name}");
    }
    for path in ["/a", "/b"] {
        let target = format!("http://tight.example{path}");
        assert_eq!(get(&target, "tight.example").await, 200, "{path}");
        for host in ["free.example", "TIGHT.example", "tight.example:80"] {
            assert_eq!(get(&target, host).await, 429, "{path} {host}");
        }
    }
    assert_eq!(get("http://free.example/a", "tight.example").await, 200);
    assert_eq!(get("http://free.example/b", "tight.example").await, 404);
}

/// The limiters of `/a` and of the host have no permit left; beside them is a route without a limiter.
#[tokio::test]
async fn no_spelling_of_a_path_escapes_its_limiter() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = upstream.url();
    let config = format!(
        "limiters: {{tight: {{limits: [1/1h]}}, hosted: {{limits: [1/1h]}}}}\nroutes:\n  \
         - {{name: a, match: {{path: /a}}, upstream: \"{url}\", limiter: tight}}\n  \
         - {{name: only, match: {{path: /only, methods: [GET]}}, upstream: \"{url}\", limiter: tight}}\n  \
         - {{name: host, match: {{host: tight.example}}, upstream: \"{url}\", limiter: hosted}}\n  \
         - {{name: rest, match: {{path: /}}, upstream: \"{url}\"}}\n"
    );
    let weir = Weir::start(&config).await;
    let get = async |path: &str, host: &str| {
        ask(&weir, &format!("GET {path} HTTP/1.1"), &format!("Host: {host}\r\n")).await
    };
    assert_eq!(get("/a/x", "h").await.0, 200);
    assert_eq!(get("/", "tight.example").await.0, 200);
    let before = upstream.count();
    let mut escaped = Vec::new();
    for path in [
        "/a/x",
        "//a/x",
        "///a//x",
        "/./a/x",
        "/b/../a/x",
        "/b/%2e%2e/a/x",
        "/b/%2E./a/x",
        "/b/..%2fa/x",
        "/%61/x",
        "/%2561/x",
        "/a%2fx",
        "/a%2Fx",
        "/a%5cx",
        "/b%5c..%5ca/x",
        "/a/./x",
        "/a/",
        "/a",
        "/a;x/y",
        "/a;x=1",
        "/a%3bx/y",
        "/b;x/../a",
        "/b/..;/a/x",
        "/%2e/a/x",
        "/a/x%00",
        "/%00/a",
        "/a%252fx",
        "/.%2e/a",
        "/%2f/a",
        "/%2fa",
        "/a/../a",
        "/a?b",
        "/a/%zz",
        "/b/%c0%ae%c0%ae/a/x",
        "/b/%e0%80%ae%e0%80%ae/a/x",
        "/b%c0%af..%c0%afa/x",
        "/%c1%a1/x",
        "/%u0061/x",
        "/b/%u002e%u002e/a/x",
        "/b/%25u002e./a/x",
        "/a./x",
        "/a.",
        "/a%20/x",
        "/a%20",
        "/b/..%20/a/x",
    ] {
        let (status, answer) = get(path, "h").await;
        if !matches!(status, 400 | 429) {
            escaped.push((path, answer));
        }
    }
    for method in ["get", "Get", "gET"] {
        let (status, answer) = ask(&weir, &format!("{method} /only HTTP/1.1"), "Host: h\r\n").await;
        if !matches!(status, 400 | 429) {
            escaped.push((method, answer));
        }
    }
    for host in ["tight.example.", "TIGHT.example", "tight.example:80", "Tight.Example.:8080"] {
        let (status, answer) = get("/", host).await;
        if !matches!(status, 400 | 429) {
            escaped.push((host, answer));
        }
    }
    assert!(escaped.is_empty(), "{escaped:#?}");
    assert_eq!(upstream.count(), before);
    // Paths with another meaning pass, byte for byte.
    for path in
        ["/A/x", "/ab", "/b/a", "/b%2fc?d=%2e%2e", "/b;x/y", "/b./c", "/b/%e9", "/b/%c0%ae", "/%7Eb//c/./d"]
    {
        assert_eq!(get(path, "h").await.0, 200, "{path}");
        assert_eq!(upstream.targets().last().map(String::as_str), Some(path));
    }
}
