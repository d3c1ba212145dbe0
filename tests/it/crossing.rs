//! Headers, credentials and trailers: some pass through weir, others end at weir.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::support::raw::{RawUpstream, exchange, in_time, read_to_end};
use crate::support::{Weir, lane};

/// Starts an upstream, and a weir with one route that adds a credential.
async fn with_credential(answer: &'static [u8]) -> (RawUpstream, Weir) {
    let upstream = RawUpstream::start(move |mut connection, _| async move {
        connection.read_head().await;
        connection.write(answer).await;
        read_to_end(&mut connection.stream).await;
    })
    .await;
    let config = format!(
        "routes:\n  - {{name: all, match: {{path: /}}, upstream: \"{}\", \
         set_headers: {{authorization: Bearer ours, x-key: ours, x_plan: ours}}, remove_headers: [x-private]}}\n",
        upstream.url()
    );
    let weir = Weir::start(&config).await;
    (upstream, weir)
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn lines<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let is_named =
        |line: &&str| line.split(':').next().is_some_and(|own| own.trim().eq_ignore_ascii_case(name));
    head.lines().filter(is_named).collect()
}

/// Headers of the client's connection are removed first, so that a client cannot remove the credential by naming it in
/// `Connection`.
#[tokio::test]
async fn the_routes_credential_cannot_be_removed_or_doubled() {
    let _lane = lane::shared().await;
    let (upstream, weir) = with_credential(OK).await;
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, authorization, x-key, x-hop, host\r\n\
                   Authorization: mine\r\nAUTHORIZATION: mine too\r\nX-Key: mine\r\nX-Key: mine too\r\nX-Hop: 1\r\n\
                   X-Private: mine\r\nx-private: mine too\r\nX_Private: mine\r\nX_Key: mine\r\nX-Plan: mine\r\nKeep-Alive: 5\r\nProxy-Authorization: mine\r\nTE: gzip\r\n\
                   Proxy-Connection: keep-alive\r\nWeir-Timeout: 2s\r\nX-Kept: yes\r\n\r\n";
    let answer = exchange(&weir.host(), request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let heads = upstream.heads();
    let head = heads.first().expect("it has come");
    assert_eq!(lines(head, "authorization"), ["authorization: Bearer ours"], "{head}");
    assert_eq!(lines(head, "x-key"), ["x-key: ours"], "{head}");
    assert_eq!(lines(head, "x_plan"), ["x_plan: ours"], "{head}");
    assert_eq!(lines(head, "x-kept"), ["x-kept: yes"], "{head}");
    assert_eq!(lines(head, "host").len(), 1, "{head}");
    for gone in ["mine", "x-hop", "keep-alive", "proxy-", "te:", "weir-", "connection"] {
        assert!(!head.to_ascii_lowercase().contains(gone), "{gone} in {head}");
    }
}

#[tokio::test]
async fn hop_by_hop_headers_of_the_upstream_end_at_weir() {
    let _lane = lane::shared().await;
    let (_upstream, weir) = with_credential(
        b"HTTP/1.1 200 OK\r\nconnection: x-hop, close\r\nx-hop: 1\r\nkeep-alive: 5\r\nproxy-authenticate: x\r\n\
          weir-error: forged\r\nweir-wait-ms: 7\r\nx-kept: yes\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
          content-length: 2\r\n\r\nok",
    )
    .await;
    let answer = exchange(&weir.host(), b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert_eq!((lines(&answer, "set-cookie").len(), lines(&answer, "x-kept").len()), (2, 1), "{answer}");
    for gone in ["x-hop", "keep-alive", "proxy-authenticate", "weir-"] {
        assert!(!answer.contains(gone), "{gone} in {answer}");
    }
}

/// A request that has passed weir before is in a loop (RFC 9110, 7.6.3).
#[tokio::test]
async fn a_request_that_loops_is_refused() {
    let _lane = lane::shared().await;
    let (upstream, weir) = with_credential(OK).await;
    for via in ["1.1 weir", "1.0 cache, 1.1 WEIR", "2.0 weir (comment)", "HTTP/1.1 weir,1.1 x"] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nVia: {via}\r\nConnection: close\r\n\r\n");
        let answer = exchange(&weir.host(), request.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 508 ") && answer.contains("weir-error: loop"),
            "{via}: {answer}"
        );
    }
    assert!(upstream.heads().is_empty());
}

#[tokio::test]
async fn trailers_keep_only_allowed_fields() {
    let _lane = lane::shared().await;
    let (_upstream, weir) = with_credential(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\ntrailer: x-sum, content-length, set-cookie, host, weir-error\r\n\r\n\
          2\r\nok\r\n0\r\nx-sum: 17\r\ncontent-length: 99\r\nset-cookie: a=1\r\nhost: b\r\nweir-error: forged\r\nx-forwarded-for: 9.9.9.9\r\n\r\n",
    )
    .await;
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close\r\n\r\n";
    let answer = exchange(&weir.host(), request).await;
    let (_, trailers) =
        answer.split_once("\r\nok\r\n0\r\n").unwrap_or_else(|| panic!("no trailers: {answer}"));
    assert_eq!(trailers, "x-sum: 17\r\n\r\n");

    let stream = TcpStream::connect(weir.host()).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut client, connection) = handshake.await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request =
        Request::get(weir.url("/")).header("te", "trailers").body(Full::<Bytes>::default()).unwrap();
    let response = in_time("an answer", client.send_request(request)).await.unwrap();
    let body = in_time("its body", response.into_body().collect()).await.unwrap();
    let trailers = body.trailers().expect("trailers");
    assert_eq!(trailers.keys().map(http::HeaderName::as_str).collect::<Vec<_>>(), ["x-sum"]);
}
