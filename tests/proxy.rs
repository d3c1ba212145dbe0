//! The proxy by itself, over real sockets: the view that a client and an upstream have of each other through weir.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod proxy_support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use weir::config::model::{Cost, Http2};
use weir::limiter::model::limit::Permits;
use weir::proxy::{Drained, Reach, Resolve};

use proxy_support::{
    Weir, call, http2_client, in_time, limiter, read_head, rule, scripted_upstream, tls_upstream, upstream,
    weir,
};

/// Answers with a description of the request.
async fn mirror(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let mut seen = format!("{:?} {} {}\n", request.version(), request.method(), request.uri());
    for (name, value) in request.headers() {
        seen += &format!("{name}: {}\n", value.to_str().unwrap());
    }
    let body = request.into_body().collect().await.unwrap().to_bytes();
    seen += &String::from_utf8_lossy(&body);
    let mut response = Response::new(Full::new(Bytes::from(seen)));
    response.headers_mut().insert("weir-error", "made_up".parse().unwrap());
    response.headers_mut().insert("x-kept", "yes".parse().unwrap());
    response
}

#[tokio::test]
async fn http1_reaches_an_http1_upstream() {
    let up = upstream(mirror).await;
    let mut rule = rule("/api", &up);
    rule.strip_prefix = Some("/api".into());
    rule.set_headers = vec![("authorization".parse().unwrap(), "Bearer secret".parse().unwrap())];
    rule.remove_headers = vec!["cookie".parse().unwrap()];
    let weir = weir(vec![rule]).await;
    let request = "POST /api/a%2Fb?q=1&q=%20 HTTP/1.1\r\nHost: weir\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
                   Keep-Alive: 5\r\nWeir-Timeout: 2s\r\nWeir-Cost: 3\r\nCookie: a\r\nAuthorization: mine\r\n\
                   X-Forwarded-For: 9.9.9.9\r\nVia: 1.1 other\r\nX-End: 1\r\nContent-Length: 5\r\n\r\nhello";
    let answer = call(weir.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("x-kept: yes") && !answer.contains("weir-error"), "{answer}");
    assert!(answer.contains("HTTP/1.1 POST /a%2Fb?q=1&q=%20\n"), "{answer}");
    assert!(answer.contains(&format!("host: {up}\n")) && answer.contains("authorization: Bearer secret\n"));
    assert!(answer.contains("x-end: 1\n") && answer.ends_with("hello"), "{answer}");
    for gone in ["x-hop", "keep-alive", "weir-timeout", "weir-cost", "cookie", "mine", "9.9.9.9", "via"] {
        assert!(!answer.contains(gone), "{gone} in {answer}");
    }
}

#[tokio::test]
async fn http2_reaches_an_http1_upstream() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/", &up)]).await;
    let mut client = http2_client(weir.address).await;
    let request = Request::post(format!("http://{}/x", weir.address))
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Full::new(Bytes::from("hello")))
        .unwrap();
    let response = in_time(client.send_request(request)).await.unwrap();
    assert_eq!((response.status(), response.version()), (StatusCode::OK, Version::HTTP_2));
    let seen = response.into_body().collect().await.unwrap().to_bytes();
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains("HTTP/1.1 POST /x\n") && seen.contains("cookie: a=1; b=2\n"), "{seen}");
    assert!(seen.ends_with("hello"), "{seen}");
}

#[tokio::test]
async fn http1_reaches_an_http2_upstream_by_prior_knowledge() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.upstream.http2 = Http2::PriorKnowledge;
    let weir = weir(vec![rule]).await;
    for _ in 0..3 {
        let answer =
            call(weir.address, "GET /x HTTP/1.1\r\nHost: weir\r\nTE: trailers\r\nConnection: close\r\n\r\n")
                .await;
        assert!(answer.contains(&format!("HTTP/2.0 GET http://{up}/x\n")), "{answer}");
        assert!(answer.contains("te: trailers"), "{answer}");
    }
    assert_eq!(up.connections(), 1);
}

#[tokio::test]
async fn an_upstream_over_tls_speaks_http2_by_alpn() {
    let (up, ca) = tls_upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.upstream.tls = true;
    rule.upstream.host = "localhost".into();
    rule.upstream.ca = Some(ca.path().to_owned());
    let mut off = rule.clone();
    off.upstream.http2 = Http2::Off;
    off.matches.host = Some(weir::config::model::HostMatch::Exact("off".into()));
    let weir = weir(vec![off, rule]).await;
    let answer = call(weir.address, "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("HTTP/2.0 GET https://"), "{answer}");
    let answer = call(weir.address, "GET / HTTP/1.1\r\nHost: OFF.:80\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("HTTP/1.1 GET /\n"), "{answer}");
}

#[tokio::test]
async fn bodies_stream_both_ways_piece_by_piece() {
    let up = upstream(|request: Request<Incoming>| async move { Response::new(request.into_body()) }).await;
    let weir = weir(vec![rule("/", &up)]).await;
    let mut client = TcpStream::connect(weir.address).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        .await
        .unwrap();
    read_head(&mut client).await;
    for piece in ["a", "b", "c"] {
        if piece != "a" {
            client.write_all(format!("1\r\n{piece}\r\n").as_bytes()).await.unwrap();
        }
        let mut chunk = [0; 6];
        in_time(client.read_exact(&mut chunk)).await.unwrap();
        assert_eq!(&chunk, format!("1\r\n{piece}\r\n").as_bytes());
    }
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let up = upstream(|request: Request<Incoming>| async move {
        let mut trailers = request.into_body().collect().await.unwrap().trailers().cloned().unwrap();
        trailers.insert("weir-x", "1".parse().unwrap());
        let frames = [Ok::<_, std::io::Error>(Frame::data(Bytes::from("x"))), Ok(Frame::trailers(trailers))];
        let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
        response.headers_mut().insert("trailer", "x-sum, weir-x".parse().unwrap());
        response
    })
    .await;
    let weir = weir(vec![rule("/", &up)]).await;
    let request = "POST / HTTP/1.1\r\nHost: weir\r\nTE: trailers\r\nTrailer: x-sum\r\nConnection: close\r\n\
                   Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 17\r\n\r\n";
    let answer = call(weir.address, request).await;
    assert!(answer.ends_with("1\r\nx\r\n0\r\nx-sum: 17\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_websocket_goes_end_to_end() {
    let up = scripted_upstream(|mut socket, _| async move {
        let head = read_head(&mut socket).await;
        assert!(head.contains("upgrade: websocket"), "{head}");
        socket
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhi",
            )
            .await
            .unwrap();
        let mut echo = [0; 3];
        socket.read_exact(&mut echo).await.unwrap();
        socket.write_all(&echo).await.unwrap();
    })
    .await;
    let weir = weir(vec![rule("/", &up)]).await;
    let mut client = TcpStream::connect(weir.address).await.unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: weir\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 101") && head.contains("upgrade: websocket"), "{head}");
    client.write_all(b"abc").await.unwrap();
    let mut rest = String::new();
    in_time(client.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "hiabc");
}

#[tokio::test]
async fn an_idle_connection_that_the_upstream_closed_costs_no_request() {
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    let up = scripted_upstream(move |mut socket, _| {
        let counted = Arc::clone(&counted);
        async move {
            read_head(&mut socket).await;
            counted.fetch_add(1, Ordering::SeqCst);
            // Promises to keep the connection, and closes it.
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        }
    })
    .await;
    let weir = weir(vec![rule("/", &up)]).await;
    let mut client = TcpStream::connect(weir.address).await.unwrap();
    for number in 0..200 {
        let method = if number % 2 == 0 { "GET" } else { "POST" };
        let request = format!("{method} / HTTP/1.1\r\nHost: weir\r\nContent-Length: 0\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 200"), "request {number}: {head}");
        client.read_exact(&mut [0; 2]).await.unwrap();
    }
    assert_eq!(served.load(Ordering::SeqCst), 200);
}

#[tokio::test]
async fn connections_to_the_upstream_are_reused() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/", &up)]).await;
    for _ in 0..20 {
        let answer = call(weir.address, "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert!(up.connections() <= 2, "{} connections", up.connections());
}

#[tokio::test]
async fn weirs_own_answers_have_their_status_and_code() {
    let up = upstream(mirror).await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut other = rule("/a/b", &up);
    other.name = "other".into();
    let weir = weir(vec![other, rule("/a", &up), rule("/dead", nobody)]).await;
    let host = "Host: weir\r\nConnection: close\r\n\r\n";
    for (request, status, code) in [
        (format!("GET /x HTTP/1.1\r\n{host}"), 404, "no_route"),
        (format!("GET /dead HTTP/1.1\r\n{host}"), 502, "upstream_connect"),
        (format!("GET /a/%2e%2e/a/x/../b HTTP/1.1\r\n{host}"), 400, "bad_request"),
        (format!("GET /a%00 HTTP/1.1\r\n{host}"), 400, "bad_request"),
        (format!("GET /a HTTP/1.1\r\nWeir-Timeout: soon\r\n{host}"), 400, "bad_request"),
        (format!("TRACE /a HTTP/1.1\r\n{host}"), 405, "method_not_allowed"),
        (format!("CONNECT weir:1 HTTP/1.1\r\n{host}"), 405, "method_not_allowed"),
        (format!("OPTIONS * HTTP/1.1\r\n{host}"), 405, "method_not_allowed"),
        (format!("GET /a HTTP/1.1\r\nVia: 1.0 x, 1.1 weir\r\n{host}"), 508, "loop"),
        ("GET /a HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), 400, "bad_request"),
        (format!("GET /a HTTP/1.1\r\nHost: other\r\n{host}"), 400, "bad_request"),
        (format!("GET /a HTTP/1.1\r\nHost: a@b\r\n{}", "Connection: close\r\n\r\n"), 400, "bad_request"),
    ] {
        let answer = call(weir.address, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}{answer}");
        assert!(answer.contains(&format!("weir-error: {code}\r\n")), "{request}{answer}");
        assert!(answer.contains("content-type: application/problem+json\r\n"), "{answer}");
        assert!(answer.ends_with("}\n"), "{answer}");
        let problem: serde_json::Value =
            serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((&problem["status"], &problem["code"]), (&status.into(), &code.into()));
        assert_eq!(problem["type"], "about:blank");
    }
    let head = call(weir.address, &format!("HEAD /x HTTP/1.1\r\n{host}")).await;
    assert!(head.starts_with("HTTP/1.1 404") && head.ends_with("\r\n\r\n"), "{head}");
    let grpc =
        format!("POST /x HTTP/1.1\r\nContent-Type: application/grpc+proto\r\nContent-Length: 0\r\n{host}");
    let grpc = call(weir.address, &grpc).await;
    assert!(grpc.starts_with("HTTP/1.1 200") && grpc.contains("grpc-status: 14\r\n"), "{grpc}");
}

#[tokio::test]
async fn a_refused_upload_still_gets_its_answer() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/a", &up)]).await;
    let body = "x".repeat(200_000);
    let request = format!("POST /x HTTP/1.1\r\nHost: weir\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut client = TcpStream::connect(weir.address).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn a_redirect_to_the_upstream_leads_back_through_weir() {
    let up = upstream(|request: Request<Incoming>| async move {
        let location = request.headers()["x-location"].clone();
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = StatusCode::FOUND;
        response.headers_mut().insert("location", location);
        response
    })
    .await;
    let mut rule = rule("/hub", &up);
    rule.strip_prefix = Some("/hub".into());
    rule.upstream.base_path = "/v1".into();
    let weir = weir(vec![rule]).await;
    for (from, to) in [
        (format!("http://{up}/v1/x?y=1#z"), "/hub/x?y=1#z"),
        (format!("http://{up}/v1"), "/hub"),
        ("/v1/x".to_owned(), "/hub/x"),
        ("/elsewhere".to_owned(), "/elsewhere"),
        ("x/y".to_owned(), "x/y"),
        ("https://other.example/v1/x".to_owned(), "https://other.example/v1/x"),
        ("//other.example/v1/x".to_owned(), "//other.example/v1/x"),
    ] {
        let request =
            format!("GET /hub HTTP/1.1\r\nHost: weir\r\nX-Location: {from}\r\nConnection: close\r\n\r\n");
        let answer = call(weir.address, &request).await;
        assert!(answer.contains(&format!("location: {to}\r\n")), "{from}: {answer}");
    }
}

#[tokio::test]
async fn timeouts_of_the_upstream_and_of_the_client_are_kept() {
    let up = scripted_upstream(|mut socket, _| async move {
        let head = read_head(&mut socket).await;
        if head.starts_with("GET /body") {
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await.unwrap();
        } else if head.starts_with("GET /nonsense") {
            socket.write_all(b"SSH-2.0-what\r\n\r\n").await.unwrap();
        } else if head.starts_with("GET /hangup") {
            return;
        }
        let _ = socket.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let mut rule = rule("/", &up);
    rule.upstream.timeout = Duration::from_millis(300);
    rule.upstream.idle_timeout = Duration::from_millis(150);
    let weir = weir(vec![rule]).await;
    let host = "Host: weir\r\nConnection: close\r\n";
    let answer = call(weir.address, &format!("GET /head HTTP/1.1\r\n{host}\r\n")).await;
    assert!(
        answer.starts_with("HTTP/1.1 504") && answer.contains("weir-error: upstream_timeout"),
        "{answer}"
    );
    for path in ["/nonsense", "/hangup"] {
        let answer = call(weir.address, &format!("GET {path} HTTP/1.1\r\n{host}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("upstream_protocol"), "{answer}");
    }
    let answer = call(weir.address, &format!("GET /body HTTP/1.1\r\n{host}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nhalf"), "{answer}");
    let answer =
        call(weir.address, &format!("POST /x HTTP/1.1\r\n{host}Content-Length: 9\r\n\r\nhalf")).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
}

#[tokio::test]
async fn a_stalled_upload_to_an_http2_upstream_is_the_clients_fault() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.upstream.http2 = Http2::PriorKnowledge;
    rule.upstream.idle_timeout = Duration::from_millis(150);
    let weir = weir(vec![rule]).await;
    let request = "POST / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nContent-Length: 9\r\n\r\nhalf";
    let answer = call(weir.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
}

#[tokio::test]
async fn silent_and_boundless_clients_are_closed() {
    let up = upstream(mirror).await;
    let weir = Weir::start(vec![rule("/", &up)], |server| {
        server.header_timeout = Duration::from_millis(200);
        server.idle_timeout = Duration::from_millis(400);
        server.max_header_bytes = 2048;
    })
    .await;
    let mut nothing = TcpStream::connect(weir.address).await.unwrap();
    assert_eq!(in_time(nothing.read(&mut [0; 9])).await.unwrap(), 0);
    let mut half = TcpStream::connect(weir.address).await.unwrap();
    half.write_all(b"GET / HTTP/1.1\r\nHost: we").await.unwrap();
    assert_eq!(in_time(half.read(&mut [0; 9])).await.unwrap(), 0);

    let mut idle = TcpStream::connect(weir.address).await.unwrap();
    idle.write_all(b"HEAD / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    read_head(&mut idle).await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    idle.write_all(b"HEAD / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    read_head(&mut idle).await;
    assert_eq!(in_time(idle.read(&mut [0; 9])).await.unwrap(), 0);

    let long = format!("GET / HTTP/1.1\r\nHost: weir\r\nX-Long: {}\r\n\r\n", "x".repeat(3000));
    let answer = call(weir.address, &long).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let up = upstream(mirror).await;
    let weir = Weir::start(vec![rule("/", &up)], |server| server.max_connections = 1).await;
    let mut first = TcpStream::connect(weir.address).await.unwrap();
    first.write_all(b"HEAD / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    read_head(&mut first).await;
    let mut second = TcpStream::connect(weir.address).await.unwrap();
    second.write_all(b"HEAD / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), second.readable()).await;
    assert!(early.is_err(), "the second connection was served beside the first");
    drop(first);
    assert!(read_head(&mut second).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_drain_lets_active_requests_finish() {
    let (release, gate) = tokio::sync::watch::channel(false);
    let up = upstream(move |_: Request<Incoming>| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|open| *open).await.unwrap();
            Response::new(Full::new(Bytes::from("done")))
        }
    })
    .await;
    let weir = weir(vec![rule("/", &up)]).await;
    let mut idle = TcpStream::connect(weir.address).await.unwrap();
    let mut busy = TcpStream::connect(weir.address).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    in_time(up.requested()).await;
    weir.shutdown.cancel();
    assert_eq!(in_time(idle.read(&mut [0; 9])).await.unwrap(), 0);
    release.send(true).unwrap();
    let mut answer = String::new();
    in_time(busy.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains("connection: close") && answer.ends_with("done"), "{answer}");
    assert_eq!(in_time(weir.served).await.unwrap(), Drained::Clean);
}

#[tokio::test]
async fn a_drain_ends_in_time() {
    let up = scripted_upstream(|mut socket, _| async move {
        let _ = socket.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let weir =
        Weir::start(vec![rule("/", &up)], |server| server.drain_timeout = Duration::from_millis(100)).await;
    let mut busy = TcpStream::connect(weir.address).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    in_time(up.accepted()).await;
    weir.shutdown.cancel();
    assert_eq!(in_time(weir.served).await.unwrap(), Drained::Cut);
    in_time(weir.proxy.close()).await;
}

#[tokio::test]
async fn a_reload_keeps_the_connections_of_an_unchanged_upstream() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/a", &up)]).await;
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n");
    assert!(call(weir.address, &request("/a")).await.starts_with("HTTP/1.1 200"));
    weir.apply(vec![rule("/b", &up)]).unwrap();
    assert!(call(weir.address, &request("/a")).await.starts_with("HTTP/1.1 404"));
    assert!(call(weir.address, &request("/b")).await.starts_with("HTTP/1.1 200"));
    assert_eq!(up.connections(), 1);
    let mut broken = rule("/c", &up);
    broken.upstream.tls = true;
    broken.upstream.ca = Some("/nonexistent/ca.pem".into());
    assert!(weir.apply(vec![broken]).is_err());
    assert!(call(weir.address, &request("/b")).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn forwarded_headers_are_sent_only_on_request() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.forwarded_headers = true;
    rule.preserve_host = true;
    let weir = weir(vec![rule]).await;
    let request = "GET / HTTP/1.1\r\nHost: my.host\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: gopher\r\n\
                   Via: 1.0 cache\r\nConnection: close\r\n\r\n";
    let answer = call(weir.address, request).await;
    for line in [
        "host: my.host\n",
        "x-forwarded-for: 9.9.9.9, 127.0.0.1\n",
        "x-forwarded-proto: http\n",
        "x-forwarded-host: my.host\n",
        "via: 1.0 cache, 1.1 weir\n",
    ] {
        assert!(answer.contains(line), "{line} missing in {answer}");
    }
}

#[tokio::test]
async fn a_message_with_two_framings_smuggles_nothing() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/", &up)]).await;
    let request = "POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n\
                   1\r\na\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: weir\r\n\r\n";
    let answer = call(weir.address, request).await;
    assert!(!answer.contains("content-length: 60"), "{answer}");
    assert!(!answer.contains("/smuggled"), "{answer}");
}

#[tokio::test]
async fn many_http2_requests_share_connections_within_the_upstreams_limit() {
    let up = upstream(|_: Request<Incoming>| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut response = Response::new(Full::new(Bytes::from("ok")));
        response.headers_mut().insert("x", "y".parse().unwrap());
        response
    })
    .await;
    let mut rule = rule("/", &up);
    rule.upstream.http2 = Http2::PriorKnowledge;
    let weir = weir(vec![rule]).await;
    let client = http2_client(weir.address).await;
    let calls = (0..300).map(|_| {
        let mut client = client.clone();
        let request = Request::get(format!("http://{}/", weir.address)).body(Full::default()).unwrap();
        async move { client.send_request(request).await.unwrap().status() }
    });
    let statuses = in_time(futures_util::future::join_all(calls)).await;
    assert!(statuses.iter().all(|status| *status == StatusCode::OK));
    assert!((1..=4).contains(&up.connections()), "{} connections", up.connections());
}

#[tokio::test]
async fn an_uploader_that_leaves_while_waiting_takes_no_permit() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("slow")];
    let weir = weir(vec![rule]).await;
    let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    assert!(call(weir.address, get).await.starts_with("HTTP/1.1 200"));
    let began = tokio::time::Instant::now();
    let mut leavers = Vec::new();
    for _ in 0..8 {
        let mut leaver = TcpStream::connect(weir.address).await.unwrap();
        let upload = "POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 1000000\r\n\r\n";
        leaver.write_all(upload.as_bytes()).await.unwrap();
        leaver.write_all(&[b'x'; 100_000]).await.unwrap();
        leavers.push(leaver);
    }
    let waiting = async || weir.limiters.inspect().await[0].waiting;
    in_time(async {
        while waiting().await < 8 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(leavers);
    let answer = call(weir.address, get).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("weir-wait-ms: "), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(2), "it waited behind clients that left");
    assert_eq!(up.requests(), 2);
}

#[tokio::test]
async fn queued_requests_are_refused_when_the_drain_time_is_over() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("slow")];
    let weir = Weir::start(vec![rule], |server| server.drain_timeout = Duration::from_millis(700)).await;
    let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    let calls: Vec<_> = (0..5).map(|_| tokio::spawn(call(weir.address, get))).collect();
    in_time(async {
        while weir.limiters.inspect().await[0].waiting < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    weir.shutdown.cancel();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(in_time(call).await.unwrap());
    }
    let told =
        |answer: &&String| answer.starts_with("HTTP/1.1 503") && answer.contains("weir-error: draining");
    let served = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count();
    let refused = answers.iter().filter(told).count();
    assert!(served >= 2 && refused >= 1 && served + refused == 5, "{answers:?}");
    assert_eq!(in_time(weir.served).await.unwrap(), Drained::Cut);
}

/// Returns the permits that the limiter `hourly` has left of its ten.
async fn left(weir: &Weir) -> u64 {
    let states = weir.limiters.inspect().await;
    let hourly = states.iter().find(|state| state.limiter.name.as_str() == "hourly").unwrap();
    hourly.available.as_ref().unwrap()[0]
}

fn with_cost(header: &str) -> Cost {
    let permits = |count| Permits::new(count).unwrap();
    Cost::Header { name: header.parse().unwrap(), default: permits(2), max: permits(20) }
}

#[tokio::test]
async fn an_invalid_cost_is_refused_and_takes_nothing() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("hourly")];
    rule.cost = with_cost("weir-cost");
    let weir = weir(vec![rule]).await;
    let get = |lines: &str| format!("GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n{lines}\r\n");
    for value in
        ["0", "-1", "+1", "1.5", "4294967296", "21", "many", "", "1 2", "1,2", "0x1", "99999999999999999999"]
    {
        let answer = call(weir.address, &get(&format!("Weir-Cost: {value}\r\n"))).await;
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("weir-error: bad_request"),
            "{value}: {answer}"
        );
        assert!(answer.contains("weir-cost must be one whole number from 1 to 20"), "{value}: {answer}");
    }
    let answer = call(weir.address, &get("Weir-Cost: 1\r\nWeir-Cost: 1\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let answer = call(weir.address, &get("Weir-Cost: 11\r\n")).await;
    assert!(answer.contains("weir-error: cost_exceeds_limit"), "{answer}");
    assert_eq!((left(&weir).await, up.requests()), (10, 0));

    let answer = call(weir.address, &get("Weir-Cost: 7\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("weir-cost"), "{answer}");
    assert_eq!(left(&weir).await, 3);
    assert!(call(weir.address, &get("")).await.starts_with("HTTP/1.1 200"));
    assert_eq!(left(&weir).await, 1);
    let answer = call(weir.address, &get("Weir-Cost: 2\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("\"limiter\":\"hourly\""), "{answer}");
}

#[tokio::test]
async fn a_cost_header_of_the_applications_own_passes() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("hourly")];
    rule.cost = with_cost("x-units");
    let weir = weir(vec![rule]).await;
    let request = "GET / HTTP/1.1\r\nHost: weir\r\nX-Units: 3\r\nConnection: close\r\n\r\n";
    let answer = call(weir.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("x-units: 3\n"), "{answer}");
    assert_eq!(left(&weir).await, 7);
}

#[tokio::test]
async fn several_limiters_are_all_satisfied() {
    let up = upstream(mirror).await;
    for names in [["slow", "hourly"], ["hourly", "slow"]] {
        let mut rule = rule("/", &up);
        rule.limiters = names.map(limiter).to_vec();
        let weir = weir(vec![rule]).await;
        let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
        for number in 0..10 {
            let answer = call(weir.address, get).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer}");
            assert_eq!(answer.contains("weir-wait-ms: "), number > 0, "{number}: {answer}");
        }
        assert_eq!(left(&weir).await, 0);
        let answer = call(weir.address, get).await;
        assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("\"limiter\":\"hourly\""), "{answer}");
    }
}

/// A resolver whose names lead to the addresses of the test, or nowhere.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<Vec<SocketAddr>>>);

impl Names {
    fn lead(&self, to: &[SocketAddr]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = to.to_vec();
    }

    fn reach(&self, connection_age_max: Duration) -> Reach {
        Reach { resolver: Arc::new(self.clone()), connection_age_max }
    }
}

impl Resolve for Names {
    fn resolve(&self, _: Arc<str>, _: u16) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> {
        let to = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(
            async move { if to.is_empty() { Err(std::io::Error::other("no such name")) } else { Ok(to) } },
        )
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn a_name_with_a_new_address_is_followed_however_busy_its_connections_are() {
    const AGE: Duration = Duration::from_millis(400);
    for http2 in [Http2::Off, Http2::PriorKnowledge] {
        let (old, new) = (upstream(mirror).await, upstream(mirror).await);
        let names = Names::default();
        names.lead(&[*old]);
        let mut rule = rule("/", &old);
        rule.upstream.host = "api.test".into();
        rule.upstream.http2 = http2;
        let weir = Weir::reaching(vec![rule], names.reach(AGE)).await;
        let began = tokio::time::Instant::now();
        assert!(call(weir.address, GET).await.starts_with("HTTP/1.1 200"));
        names.lead(&[*new]);
        in_time(async {
            while new.requests() == 0 {
                assert!(call(weir.address, GET).await.starts_with("HTTP/1.1 200"));
            }
        })
        .await;
        // Less an eighth, by which ages are spread.
        assert!(began.elapsed() >= AGE * 7 / 8, "{:?}", began.elapsed());
        assert_eq!((old.connections(), new.connections()), (1, 1), "{http2:?}");
        assert!(old.requests() > 1, "a connection is used again while it is young: {http2:?}");
    }
}

#[tokio::test]
async fn active_requests_finish_while_their_connection_retires() {
    let (release, gate) = tokio::sync::watch::channel(false);
    let old = upstream(move |request: Request<Incoming>| {
        let mut gate = gate.clone();
        async move {
            if request.uri().path() == "/slow" {
                gate.wait_for(|open| *open).await.unwrap();
            }
            Response::new(Full::new(Bytes::from("old")))
        }
    })
    .await;
    let new = upstream(mirror).await;
    let names = Names::default();
    names.lead(&[*old]);
    let mut rule = rule("/", &old);
    rule.upstream.http2 = Http2::PriorKnowledge;
    let weir = Weir::reaching(vec![rule], names.reach(Duration::from_millis(100))).await;
    let slow = "GET /slow HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    let slow = tokio::spawn(call(weir.address, slow));
    in_time(old.requested()).await;
    names.lead(&[*new]);
    in_time(async {
        while new.requests() == 0 {
            assert!(call(weir.address, GET).await.starts_with("HTTP/1.1 200"));
        }
    })
    .await;
    release.send(true).unwrap();
    let answer = in_time(slow).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("old"), "{answer}");
}

#[tokio::test]
async fn a_resolver_that_fails_for_a_moment_breaks_no_upstream() {
    let up = upstream(mirror).await;
    let names = Names::default();
    // Each request has a connection of its own, and so a lookup.
    let weir = Weir::reaching(vec![rule("/", &up)], names.reach(Duration::ZERO)).await;
    let answer = call(weir.address, GET).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("upstream_connect"), "{answer}");
    names.lead(&[*up]);
    assert!(call(weir.address, GET).await.starts_with("HTTP/1.1 200"));
    names.lead(&[]);
    for _ in 0..3 {
        assert!(call(weir.address, GET).await.starts_with("HTTP/1.1 200"));
    }
    assert_eq!((up.connections(), up.requests()), (4, 4));
}

#[tokio::test]
async fn every_address_is_tried_however_little_time_there_is() {
    // A listener whose backlog is full: the kernel drops further connection attempts.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = socket.listen(1).unwrap();
    let silent = silent.local_addr().unwrap();
    let mut held = Vec::new();
    let connect = || tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(silent));
    while let Ok(Ok(stream)) = connect().await {
        held.push(stream);
        assert!(held.len() < 64, "the backlog is never full");
    }
    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let up = upstream(mirror).await;
    let names = Names::default();
    names.lead(&[silent, refusing, silent, silent, *up]);
    let mut rule = rule("/", &up);
    rule.upstream.host = "api.test".into();
    rule.upstream.connect_timeout = Duration::from_millis(600);
    let weir = Weir::reaching(vec![rule], names.reach(Duration::from_secs(600))).await;
    let answer = call(weir.address, GET).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
