//! Messages between client and upstream as each sees them through weir: heads, bodies, errors.

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir::config::model::{Http2, Route, Server};

use crate::support::{
    Weir, call, http2_client, in_time, mirror, read_head, rule, scripted_upstream, tls_upstream, upstream,
    weir,
};

#[tokio::test]
async fn an_http1_request_passes_with_its_headers_translated() {
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
async fn an_http2_request_reaches_an_http1_upstream() {
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
async fn prior_knowledge_sends_http2_to_the_upstream() {
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
async fn alpn_chooses_http2_unless_it_is_off() {
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

/// Sends a request over HTTP/2 whose body, if it has one, has no announced length; returns what the upstream got.
async fn by_http2(weir: &Weir, method: &str, body: Option<&'static str>) -> String {
    let socket = TcpStream::connect(weir.address).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let mut client = in_time(client.ready()).await.unwrap();
    let uri = format!("http://{}/x", weir.address);
    let request = Request::builder().method(method).uri(uri).body(()).unwrap();
    let (response, mut sending) = client.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        sending.send_data(Bytes::from(body), true).unwrap();
    }
    let mut incoming = in_time(response).await.unwrap().into_body();
    let mut seen = Vec::new();
    while let Some(piece) = in_time(incoming.data()).await {
        seen.extend(piece.unwrap());
    }
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn a_body_of_unknown_length_passes_whatever_the_method() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/", &up)]).await;
    for method in ["GET", "DELETE", "POST"] {
        let request = format!(
            "{method} /x HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
             5\r\nhello\r\n0\r\n\r\n"
        );
        for seen in [call(weir.address, &request).await, by_http2(&weir, method, Some("hello")).await] {
            assert!(seen.contains(&format!("HTTP/1.1 {method} /x\n")) && seen.ends_with("hello"), "{seen}");
            assert!(seen.contains("transfer-encoding: chunked\n"), "{seen}");
        }
    }
}

#[tokio::test]
async fn a_request_without_a_body_has_a_length_where_its_method_expects_one() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/", &up)]).await;
    for (method, has_length) in
        [("POST", true), ("PUT", true), ("PATCH", true), ("GET", false), ("DELETE", false)]
    {
        let seen = by_http2(&weir, method, None).await;
        assert!(seen.contains(&format!("HTTP/1.1 {method} /x\n")), "{seen}");
        assert_eq!(seen.contains("content-length: 0\n"), has_length, "{seen}");
        assert!(!seen.contains("transfer-encoding"), "{seen}");
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
    // Messages that end with trailers are whole: their connections serve the next ones.
    for _ in 0..3 {
        let answer = call(weir.address, request).await;
        assert!(answer.ends_with("1\r\nx\r\n0\r\nx-sum: 17\r\n\r\n"), "{answer}");
    }
    assert_eq!(up.connections(), 1);
}

#[tokio::test]
async fn a_websocket_passes_end_to_end() {
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
async fn errors_are_problem_documents_with_a_code() {
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
        assert!(answer.contains("content-type: application/json\r\n"), "{answer}");
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
    assert!(grpc.starts_with("HTTP/1.1 200") && grpc.contains("grpc-status: 12\r\n"), "{grpc}");
}

#[tokio::test]
async fn a_refused_upload_still_gets_its_response() {
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
        (format!("http://{up}/v1/x?y=1#z"), "http://weir:8080/hub/x?y=1#z"),
        (format!("http://{up}/v1"), "http://weir:8080/hub"),
        (format!("//{up}/v1/x"), "//weir:8080/hub/x"),
        (format!("http://{up}/v10/x"), &*format!("http://{up}/v10/x")),
        ("/v1/x".to_owned(), "/hub/x"),
        ("/elsewhere".to_owned(), "/elsewhere"),
        ("x/y".to_owned(), "x/y"),
        ("https://other.example/v1/x".to_owned(), "https://other.example/v1/x"),
        ("//other.example/v1/x".to_owned(), "//other.example/v1/x"),
    ] {
        let request = format!(
            "GET /hub HTTP/1.1\r\nHost: weir:8080\r\nX-Location: {from}\r\nConnection: close\r\n\r\n"
        );
        let answer = call(weir.address, &request).await;
        assert!(answer.contains(&format!("location: {to}\r\n")), "{from}: {answer}");
    }
}

/// Through weir, which asks by `http` again, the client would go around for ever.
#[tokio::test]
async fn a_redirect_to_tls_leads_out_of_weir() {
    let up = upstream(|request: Request<Incoming>| async move {
        let target =
            format!("https://{}{}", request.headers()["x-up"].to_str().unwrap(), request.uri().path());
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = request.headers()["x-status"].to_str().unwrap().parse().unwrap();
        response.headers_mut().insert("link", format!("<{target}>; rel=next").parse().unwrap());
        response.headers_mut().insert("content-location", target.parse().unwrap());
        response.headers_mut().insert("location", target.parse().unwrap());
        response
    })
    .await;
    let told = Route { name: "told".into(), forwarded_headers: true, ..rule("/told", &up) };
    let server = |server: &mut Server| server.public_url = Some("https://weir".into());
    let weir = Weir::start(vec![told, rule("/", &up)], server).await;
    let (here, there) = ("https://weir".to_owned(), format!("https://{up}"));
    for (path, status, location) in [
        ("/x", 301, &there),
        ("/x", 308, &there),
        // Pages and what was made are not asked for in place of this one.
        ("/x", 200, &here),
        ("/x", 201, &here),
        // An upstream that was told of https means itself.
        ("/told", 301, &here),
    ] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: h\r\nX-Up: {up}\r\nX-Status: {status}\r\nConnection: close\r\n\r\n"
        );
        let answer = call(weir.address, &request).await;
        assert!(answer.contains(&format!("\r\nlocation: {location}{path}\r\n")), "{answer}");
        assert!(answer.contains(&format!("\r\ncontent-location: {here}{path}\r\n")), "{answer}");
        assert!(answer.contains(&format!("\r\nlink: <{here}{path}>; rel=next\r\n")), "{answer}");
    }
}

/// A path that begins with two slashes names another host where it stands by itself.
#[tokio::test]
async fn no_redirect_of_an_upstream_with_a_base_path_leads_elsewhere() {
    let up = upstream(|request: Request<Incoming>| async move {
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = StatusCode::FOUND;
        let location = format!("{}/", request.uri().path());
        response.headers_mut().insert("location", location.parse().unwrap());
        response
    })
    .await;
    let mut rule = rule("/", &up);
    rule.upstream.base_path = "/api".into();
    let weir = weir(vec![rule]).await;
    for (host, to) in [
        ("HTTP/1.1\r\nHost: weir:8080", "http://weir:8080//evil.example/x/"),
        ("HTTP/1.0", "/api//evil.example/x/"),
    ] {
        let request = format!("GET //evil.example/x {host}\r\nConnection: close\r\n\r\n");
        let answer = call(weir.address, &request).await;
        assert!(answer.contains(&format!("location: {to}\r\n")), "{host}: {answer}");
    }
}

#[tokio::test]
async fn headers_of_a_trusted_proxy_about_the_caller_are_forwarded() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.forwarded_headers = true;
    let weir =
        Weir::start(vec![rule], |server| server.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()])
            .await;
    for (claims, scheme, host) in [
        ("X-Forwarded-Proto: http, https\r\nX-Forwarded-Host: api.example\r\n", "https", "api.example"),
        ("X-Forwarded-Proto: https\r\n", "https", "my.host"),
        ("X-Forwarded-Proto: gopher\r\n", "http", "my.host"),
        ("", "http", "my.host"),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: my.host\r\n{claims}Connection: close\r\n\r\n");
        let answer = call(weir.address, &request).await;
        for line in [format!("x-forwarded-proto: {scheme}\n"), format!("x-forwarded-host: {host}\n")] {
            assert!(answer.contains(&line), "{line} missing in {answer}");
        }
    }
}

#[tokio::test]
async fn forwarded_headers_are_sent_only_where_the_route_asks() {
    let up = upstream(mirror).await;
    let mut asking = rule("/", &up);
    asking.forwarded_headers = true;
    asking.preserve_host = true;
    asking.set_headers = vec![("x-forwarded-port".parse().unwrap(), "443".parse().unwrap())];
    let weir = weir(vec![Route { name: "other".into(), ..rule("/other", &up) }, asking]).await;
    let ask = async |path: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: my.host\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: gopher\r\n\
             Via: 1.0 cache\r\nForwarded: for=claim\r\nX-Forwarded-Port: claim\r\nX-Forwarded-Client-Cert: claim\r\n\
             X_Forwarded_For: claim\r\nX_Forwarded_Prefix: claim\r\nX-Real-IP: claim\r\nConnection: close\r\n\r\n"
        );
        call(weir.address, &request).await
    };
    let other = ask("/other").await;
    assert!(!other.contains("forwarded") && !other.contains("via:") && !other.contains("claim"), "{other}");
    let answer = ask("/").await;
    assert!(!answer.contains("claim"), "{answer}");
    for line in [
        "host: my.host\n",
        "x-forwarded-for: 9.9.9.9, 127.0.0.1\n",
        "x-forwarded-proto: http\n",
        "x-forwarded-host: my.host\n",
        "x-forwarded-port: 443\n",
        "via: 1.0 cache, 1.1 weir\n",
    ] {
        assert!(answer.contains(line), "{line} missing in {answer}");
    }
}

#[tokio::test]
async fn a_length_beside_a_transfer_coding_is_dropped() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/", &up)]).await;
    let request = "POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n\
                   1\r\na\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: weir\r\n\r\n";
    let answer = call(weir.address, request).await;
    assert!(!answer.contains("content-length: 60"), "{answer}");
    assert!(!answer.contains("/smuggled"), "{answer}");
}

/// weir would pass on a coded body without the label that says so.
#[tokio::test]
async fn an_answer_with_another_transfer_coding_is_not_understood() {
    for (coding, is_understood) in [
        ("chunked", true),
        ("Chunked", true),
        ("gzip, chunked", false),
        ("gzip\r\nTransfer-Encoding: chunked", false),
        ("gzip", false),
        ("chunked, chunked", false),
    ] {
        let up = scripted_upstream(move |mut socket, _| async move {
            let head = read_head(&mut socket).await;
            let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n");
            socket.write_all(answer.as_bytes()).await.unwrap();
            if head.starts_with("GET") {
                socket.write_all(b"2\r\nok\r\n0\r\n\r\n").await.unwrap();
            }
        })
        .await;
        let weir = weir(vec![rule("/", &up)]).await;
        let ask = async |method: &str| {
            call(weir.address, &format!("{method} / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n"))
                .await
        };
        let answer = ask("GET").await;
        if is_understood {
            assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("ok"), "{coding}: {answer}");
        } else {
            assert!(answer.starts_with("HTTP/1.1 502"), "{coding}: {answer}");
            assert!(answer.contains("weir-error: upstream_protocol"), "{coding}: {answer}");
        }
        let answer = ask("HEAD").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "there is no body that is coded: {coding}: {answer}");
    }
}
