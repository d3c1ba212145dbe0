//! More than a request and a response: protocol upgrades, and gRPC calls.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::support::raw::{RawUpstream, in_time, read_head, read_to_end};
use crate::support::{PATIENCE, Weir, lane, one_route};

const HANDSHAKE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nfirst";

/// Starts an upstream that echoes bytes after the handshake.
async fn echo() -> RawUpstream {
    RawUpstream::start(|mut connection, _| async move {
        let head = connection.read_head().await;
        assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
        connection
            .write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            .await;
        let (mut read, mut write) = connection.stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await
}

async fn websocket(weir: &Weir) -> TcpStream {
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    client.write_all(HANDSHAKE).await.unwrap();
    let head = read_head(&mut client).await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 ") && head.contains("upgrade: websocket\r\n"), "{head}");
    // Bytes that were sent with the handshake are not lost.
    let mut first = [0; 5];
    in_time("the first bytes", client.read_exact(&mut first)).await.unwrap();
    assert_eq!(&first, b"first");
    client
}

#[tokio::test]
async fn a_websocket_goes_end_to_end() {
    let _lane = lane::shared().await;
    let upstream = echo().await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let mut client = websocket(&weir).await;
    for word in [&b"\x81\x02hi"[..], b"\x00\r\n\r\nGET / HTTP/1.1\r\n\r\n", &[b'x'; 100_000]] {
        client.write_all(word).await.unwrap();
        let mut heard = vec![0; word.len()];
        in_time("the echo", client.read_exact(&mut heard)).await.unwrap();
        assert_eq!(heard, word);
    }
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await, "", "it ends when both have");
}

/// A WebSocket may last as long as the drain does, and no longer.
#[tokio::test]
async fn a_websocket_ends_with_the_drain() {
    let _lane = lane::shared().await;
    let upstream = echo().await;
    let config = format!("server: {{drain_timeout: 1s}}\n{}", one_route(&upstream.url()));
    let mut weir = Weir::start(&config).await;
    let mut client = websocket(&weir).await;
    weir.sigterm();
    client.write_all(b"still").await.unwrap();
    let mut heard = [0; 5];
    in_time("the echo", client.read_exact(&mut heard)).await.unwrap();
    assert_eq!(read_to_end(&mut client).await, "");
    weir.wait_exit(PATIENCE).await;
}

/// Starts an upstream that answers each call with the message that it got and a status.
async fn grpc_upstream() -> RawUpstream {
    RawUpstream::start(|connection, _| async move {
        let answer = service_fn(|request: Request<Incoming>| async move {
            assert_eq!(request.headers()["te"], "trailers");
            let sent = request.into_body().collect().await?.to_bytes();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("5"));
            trailers.insert("grpc-message", HeaderValue::from_static("no such thing"));
            let frames = [Ok::<_, hyper::Error>(Frame::data(sent)), Ok(Frame::trailers(trailers))];
            let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
            response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            Ok::<_, hyper::Error>(response)
        });
        let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = http2.serve_connection(TokioIo::new(connection.stream), answer).await;
    })
    .await
}

/// Messages and trailers pass, and a refusal speaks gRPC.
#[tokio::test]
async fn grpc_goes_end_to_end() {
    let _lane = lane::shared().await;
    let upstream = grpc_upstream().await;
    let url = upstream.url();
    let config = format!(
        "limiters: {{api: {{limits: [1/1h]}}}}\nroutes:\n  - {{name: all, match: {{path: /}}, limiter: api, \
         upstream: {{url: \"{url}\", http2: prior_knowledge}}}}\n"
    );
    let weir = Weir::start(&config).await;
    let stream = TcpStream::connect(weir.host()).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut client, connection) = handshake.await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let message = Bytes::from_static(b"\0\0\0\0\x02hi");
    let mut call = async || {
        let request = Request::post(weir.url("/package.Service/Call"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(message.clone()))
            .unwrap();
        let response = in_time("the call", client.send_request(request)).await.unwrap();
        let (head, body) = response.into_parts();
        (head, in_time("the message", body.collect()).await.unwrap())
    };
    let (head, body) = call().await;
    assert_eq!(
        (head.status.as_u16(), &head.headers["content-type"]),
        (200, &HeaderValue::from_static("application/grpc"))
    );
    let trailers = body.trailers().cloned().expect("trailers");
    assert_eq!(
        (trailers["grpc-status"].as_bytes(), trailers["grpc-message"].as_bytes()),
        (&b"5"[..], &b"no such thing"[..])
    );
    assert_eq!(body.to_bytes(), message);
    // The refusal has the status RESOURCE_EXHAUSTED, which a gRPC client understands.
    let (head, _) = call().await;
    assert_eq!((head.status.as_u16(), head.headers["grpc-status"].as_bytes()), (200, &b"8"[..]));
}
