//! Connections of clients: timeouts, bounds, the drain.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use weir::config::model::{Http2, Server, ServerTls};
use weir::proxy::{Drained, Reach};

use crate::support::{
    Weir, call, in_time, mirror, read_head, rule, scripted_upstream, tls_client, upstream, weir,
};

#[tokio::test]
async fn timeouts_of_upstream_and_client_have_their_statuses() {
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
    rule.upstream.timeouts.headers = Duration::from_millis(300);
    rule.upstream.timeouts.idle = Duration::from_millis(150);
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
    rule.upstream.timeouts.idle = Duration::from_millis(150);
    let weir = weir(vec![rule]).await;
    let request = "POST / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nContent-Length: 9\r\n\r\nhalf";
    let answer = call(weir.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
}

#[tokio::test]
async fn clients_that_are_silent_or_send_too_large_heads_are_closed() {
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
async fn a_connection_whose_head_cannot_be_read_is_closed_in_order() {
    let up = upstream(mirror).await;
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = tempfile::tempdir().unwrap();
    let (cert, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
    std::fs::write(&cert, signed.cert.pem()).unwrap();
    std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let weir = Weir::start(vec![rule("/", &up)], |server| {
        server.tls = Some(ServerTls { cert, key, client_ca: None });
        server.max_header_bytes = 100_000;
    })
    .await;
    let (target, line) = ("x".repeat(66_000), "x".repeat(200_000));
    for (head, status) in [
        ("GET / HTTP/1.1\r\nHost weir\r\n\r\n".to_owned(), 400),
        (format!("GET /{target} HTTP/1.1\r\nHost: weir\r\n\r\n"), 414),
        (format!("GET / HTTP/1.1\r\nHost: weir\r\nX: {line}\r\n\r\n"), 431),
    ] {
        let mut client = tls_client(weir.address, signed.cert.der().clone()).await;
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        in_time(client.read_to_string(&mut answer)).await.expect("a close_notify ends it");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
    }
}

#[tokio::test]
async fn a_head_of_a_hundred_lines_passes() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    // The upstream itself takes no more than a hundred over HTTP/1, and weir adds some.
    rule.upstream.http2 = Http2::PriorKnowledge;
    let weir = weir(vec![rule]).await;
    // Beside Host and Connection.
    for (lines, status) in [(98, 200), (99, 431), (400, 431)] {
        let many: String = (0..lines).map(|line| format!("X-{line}: v\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n{many}\r\n");
        let answer = call(weir.address, &head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{lines}: {answer}");
        let all = (0..lines).all(|line| answer.contains(&format!("x-{line}: v")));
        assert!(status == 431 || all, "{lines}: {answer}");
    }
}

#[tokio::test]
async fn connections_beyond_the_maximum_wait() {
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
async fn a_drain_finishes_requests_under_way() {
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
    let mut silent = TcpStream::connect(weir.address).await.unwrap();
    let mut busy = TcpStream::connect(weir.address).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    in_time(up.requested()).await;
    weir.shutdown.cancel();
    in_time(async { while TcpStream::connect(weir.address).await.is_ok() {} }).await;
    release.send(true).unwrap();
    silent.write_all(b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    for mut client in [busy, silent] {
        let mut answer = String::new();
        in_time(client.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.contains("connection: close") && answer.ends_with("done"), "{answer}");
    }
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
async fn a_stream_ends_whose_client_does_not_take_the_last_piece() {
    let up = upstream(mirror).await;
    let weir =
        Weir::start(vec![rule("/a", &up)], |server| server.write_timeout = Duration::from_millis(300)).await;
    let socket = TcpStream::connect(weir.address).await.unwrap();
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(socket).await.unwrap();
    tokio::spawn(connection);
    let mut client = in_time(client.ready()).await.unwrap();
    // One from the upstream, and one from weir itself.
    for (path, status) in [("/a", 200), ("/missing", 404)] {
        let request = Request::get(format!("http://{}{path}", weir.address)).body(()).unwrap();
        let response = in_time(client.send_request(request, true).unwrap().0).await.unwrap();
        assert_eq!(response.status(), status);
        let piece = in_time(response.into_body().data()).await;
        assert!(piece.as_ref().is_some_and(|piece| piece.is_err()), "{path}: {piece:?}");
    }
}

/// Reads frames of HTTP/2 until one of this kind; false if the connection ends first.
async fn read_until(socket: &mut TcpStream, kind: u8) -> bool {
    let mut head = [0; 9];
    while socket.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        socket.read_exact(&mut vec![0; length]).await.unwrap();
        if head[3] == kind {
            return true;
        }
    }
    false
}

const HEADERS_FRAME: u8 = 1;
const GOAWAY_FRAME: u8 = 7;

#[tokio::test]
async fn a_request_that_crosses_the_end_of_an_idle_connection_is_answered() {
    let up = upstream(|_: Request<Incoming>| async {
        // Longer than an idle connection has to close.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        Response::new(Full::new(Bytes::from("done")))
    })
    .await;
    let weir =
        Weir::start(vec![rule("/", &up)], |server| server.idle_timeout = Duration::from_millis(200)).await;
    let mut client = TcpStream::connect(weir.address).await.unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    assert!(in_time(read_until(&mut client, GOAWAY_FRAME)).await, "it is told");
    // `GET http://weir/` on the first stream, in HPACK's static table but for the authority.
    client.write_all(b"\0\0\x09\x01\x05\0\0\0\x01\x82\x86\x84\x41\x04weir").await.unwrap();
    assert!(in_time(read_until(&mut client, HEADERS_FRAME)).await, "it is answered");
    assert_eq!(up.requests(), 1);
    assert!(!in_time(read_until(&mut client, u8::MAX)).await, "it is closed");
}

#[tokio::test]
async fn an_idle_timeout_cuts_no_response_that_its_client_takes_slowly() {
    /// `server.idle_timeout`, and the time in which a connection must close.
    const CUT_AFTER: Duration = Duration::from_millis(200 + 1000);
    let up = upstream(|request: Request<Incoming>| async move {
        let length = request.uri().path()[1..].parse().unwrap();
        Response::new(Full::new(Bytes::from(vec![b'x'; length])))
    })
    .await;
    let listener = TcpSocket::new_v4().unwrap();
    listener.set_send_buffer_size(4096).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.listen(1024).unwrap();
    let adjust = |server: &mut Server| server.idle_timeout = Duration::from_millis(200);
    let weir = Weir::start_at(listener, vec![rule("/", &up)], adjust, Reach::default());
    // Of some of these the kernel has taken so much that weir has given hyper the rest.
    let calls = (1..=48).map(|step| step * 4096).map(async |length: usize| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = socket.connect(weir.address).await.unwrap();
        client.write_all(format!("GET /{length} HTTP/1.1\r\nHost: weir\r\n\r\n").as_bytes()).await.unwrap();
        // It reads nothing for longer than an idle connection stays open.
        tokio::time::sleep(CUT_AFTER + CUT_AFTER / 2).await;
        let head = read_head(&mut client).await;
        let read = in_time(client.read_exact(&mut vec![0; length])).await;
        (length, head.starts_with("HTTP/1.1 200") && read.is_ok())
    });
    let answers = futures_util::future::join_all(calls).await;
    let cut: Vec<_> = answers.iter().filter(|(_, is_whole)| !is_whole).collect();
    assert!(cut.is_empty(), "{cut:?}");
}

/// An upstream may answer before it has the body, and read on.
#[tokio::test]
async fn an_upload_may_outlast_its_response() {
    const PIECES: usize = 30;
    let up = scripted_upstream(|mut socket, up| async move {
        let head = read_head(&mut socket).await;
        up.note_request();
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        if head.starts_with("POST") {
            socket.read_exact(&mut [0; PIECES]).await.unwrap();
            up.note_request();
        }
        let _ = socket.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let weir = Weir::start(vec![rule("/", &up)], |server| {
        server.header_timeout = Duration::from_millis(200);
        server.idle_timeout = Duration::from_secs(5);
    })
    .await;
    let mut client = TcpStream::connect(weir.address).await.unwrap();
    let upload = format!("POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: {PIECES}\r\n\r\n");
    client.write_all(upload.as_bytes()).await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"));
    in_time(client.read_exact(&mut [0; 2])).await.unwrap();
    // In all far longer than a head may take, and a connection to close.
    for _ in 0..PIECES {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.write_all(b"x").await.unwrap();
    }
    client.write_all(b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n").await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"), "the connection serves on");
    assert_eq!(up.requests(), 3, "the upload is whole, and there was one request more");
}

/// Sends a body of nine bytes by two halves, with a pause in between; returns the answer.
async fn by_halves(weir: &Weir, pause: Option<Duration>) -> String {
    let mut client = TcpStream::connect(weir.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nContent-Length: 9\r\n\r\nhalf";
    client.write_all(head.as_bytes()).await.unwrap();
    if let Some(pause) = pause {
        tokio::time::sleep(pause).await;
        client.write_all(b"other").await.unwrap();
    }
    let mut answer = Vec::new();
    let _ = in_time(client.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn the_time_to_answer_does_not_run_while_the_client_is_awaited() {
    let up = upstream(mirror).await;
    for http2 in [Http2::Off, Http2::PriorKnowledge] {
        let mut rule = rule("/", &up);
        rule.upstream.http2 = http2;
        rule.upstream.timeouts.headers = Duration::from_millis(600);
        rule.upstream.timeouts.idle = Duration::from_secs(2);
        let stalled = by_halves(&weir(vec![rule.clone()]).await, None).await;
        assert!(stalled.starts_with("HTTP/1.1 408"), "{http2:?}: {stalled}");
        assert!(stalled.contains("weir-error: request_timeout"), "{http2:?}: {stalled}");
        rule.upstream.timeouts.idle = Duration::from_secs(10);
        let slow = by_halves(&weir(vec![rule]).await, Some(Duration::from_millis(1500))).await;
        assert!(slow.starts_with("HTTP/1.1 200") && slow.ends_with("halfother"), "{http2:?}: {slow}");
    }
}

#[tokio::test]
async fn the_time_to_answer_runs_from_the_end_of_the_request() {
    let up = scripted_upstream(|mut socket, _| async move {
        let _ = socket.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let mut rule = rule("/", &up);
    rule.upstream.timeouts.headers = Duration::from_millis(150);
    let answer = by_halves(&weir(vec![rule]).await, Some(Duration::from_millis(300))).await;
    assert!(answer.starts_with("HTTP/1.1 504") && answer.contains("upstream_timeout"), "{answer}");
}
