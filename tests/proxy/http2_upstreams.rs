//! HTTP/2 upstreams: streams that they have not processed, slow readers beside others, and large heads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir::config::model::{Http2, Route};

use crate::support::{
    Up, call, http2_client, in_time, mirror, rule, scripted_upstream, speak, upstream, weir,
};

/// An empty SETTINGS frame, by which a server begins.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// GOAWAY without an error: no stream has been processed.
const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn http2_rule(prefix: &str, up: &Up) -> Route {
    let mut rule = rule(prefix, up);
    rule.upstream.http2 = Http2::PriorKnowledge;
    rule
}

/// Reads the client's preface, and frames up to the first HEADERS; answers by this frame.
async fn answer_first(socket: &mut TcpStream, frame: &[u8]) {
    socket.read_exact(&mut [0; 24]).await.unwrap();
    socket.write_all(&SETTINGS).await.unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        socket.read_exact(&mut vec![0; length]).await.unwrap();
        if head[3] == 1 {
            break;
        }
    }
    socket.write_all(frame).await.unwrap();
    // Until the client closes the connection.
    let _ = socket.read_to_end(&mut Vec::new()).await;
}

/// Starts an upstream whose first connection is retired by its first request, and whose others echo.
async fn retiring() -> Up {
    let connections = Arc::new(AtomicUsize::new(0));
    scripted_upstream(move |mut socket, up| {
        let is_first = connections.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                answer_first(&mut socket, &GOAWAY).await;
            } else {
                speak(socket, up, mirror).await;
            }
        }
    })
    .await
}

/// Starts an upstream that ends the first stream for a reason, and answers the others.
async fn ending_the_first(reason: Reason) -> Up {
    scripted_upstream(move |socket, _| async move {
        let mut connection = h2::server::handshake(socket).await.unwrap();
        let mut is_first = true;
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            if std::mem::take(&mut is_first) {
                respond.send_reset(reason);
            } else {
                respond.send_response(Response::new(()), true).unwrap();
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_request_that_the_upstream_has_not_processed_is_sent_again_whatever_its_method() {
    for method in ["GET", "POST"] {
        for (up, status, connections) in [
            (retiring().await, "200", 2),
            (ending_the_first(Reason::REFUSED_STREAM).await, "200", 1),
            // Nobody knows what has become of it.
            (ending_the_first(Reason::CANCEL).await, "502", 1),
        ] {
            let weir = weir(vec![http2_rule("/", &up)]).await;
            let request = format!(
                "{method} / HTTP/1.1\r\nHost: weir\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
            );
            let answer = in_time(call(weir.address, &request)).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method}: {answer}");
            assert_eq!(up.connections(), connections, "{method} {status}");
        }
    }
}

#[tokio::test]
async fn slow_readers_stop_no_other_response_of_their_connection() {
    let up = upstream(|request: Request<Incoming>| async move {
        let length = if request.uri().path() == "/long" { 1024 * 1024 } else { 2 };
        Response::new(Full::new(Bytes::from(vec![b'x'; length])))
    })
    .await;
    let weir = weir(vec![http2_rule("/", &up)]).await;
    let get =
        |path: &str| Request::get(format!("http://{}{path}", weir.address)).body(Full::default()).unwrap();
    // Nobody reads their bodies.
    let mut client = http2_client(weir.address).await;
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(in_time(client.send_request(get("/long"))).await.unwrap());
    }
    assert_eq!(up.connections(), 1, "they share a connection");
    let mut other = http2_client(weir.address).await;
    let answer = in_time(other.send_request(get("/short"))).await.unwrap();
    let body = in_time(answer.into_body().collect()).await.unwrap().to_bytes();
    assert_eq!((&body[..], held.len()), (&b"xx"[..], 100));
}

#[tokio::test]
async fn a_head_of_many_kilobytes_passes_over_http2_too() {
    let up = upstream(|_: Request<Incoming>| async {
        let mut response = Response::new(Full::new(Bytes::new()));
        for field in 0..40 {
            let name = http::HeaderName::try_from(format!("x-field-{field}")).unwrap();
            response.headers_mut().insert(name, "v".repeat(1000).parse().unwrap());
        }
        response
    })
    .await;
    let weir = weir(vec![http2_rule("/", &up)]).await;
    let request = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    let answer = in_time(call(weir.address, request)).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {}", StatusCode::OK.as_u16())), "{answer:.100}");
    assert!(answer.contains("x-field-39: vvv"), "{answer:.100}");
}

/// How long a request waits for its connection at most.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_request_whose_client_leaves_during_the_connect_is_not_sent() {
    // It accepts connections, and takes no part in the handshake of TLS.
    let up = scripted_upstream(|mut socket, up| async move {
        let _ = socket.read_to_end(&mut Vec::new()).await;
        up.note_request();
    })
    .await;
    let mut rule = rule("/", &up);
    rule.upstream.tls = true;
    rule.upstream.timeouts.connect = CONNECT_TIME_MAX;
    let weir = weir(vec![rule]).await;
    let mut client = TcpStream::connect(weir.address).await.unwrap();
    // More than hyper reads ahead: it does not look behind the body, and sees no end of the connection.
    let head = format!("POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: {}\r\n\r\n", 1024 * 1024);
    client.write_all(head.as_bytes()).await.unwrap();
    let _ = client.write(&vec![b'x'; 64 * 1024]).await.unwrap();
    in_time(up.accepted()).await;
    let left = std::time::Instant::now();
    drop(client);
    in_time(up.requested()).await;
    assert!(left.elapsed() < CONNECT_TIME_MAX / 2, "noticed after {:?}", left.elapsed());
}

#[tokio::test]
async fn a_query_without_a_path_has_the_path_of_the_root() {
    let up = upstream(|request: Request<Incoming>| async move {
        // As it was sent: a `Uri` is shown with the slash.
        let target = request.uri().path_and_query().unwrap().as_str().to_owned();
        Response::new(Full::new(Bytes::from(target)))
    })
    .await;
    for http2 in [Http2::PriorKnowledge, Http2::Off] {
        let mut rule = rule("/", &up);
        rule.upstream.http2 = http2;
        let weir = weir(vec![rule]).await;
        for target in ["http://weir?x=1", "http://weir/?x=1", "/?x=1"] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n");
            let answer = call(weir.address, &request).await;
            assert!(answer.ends_with("\r\n\r\n/?x=1"), "{http2:?}, {target}: {answer}");
        }
    }
}
