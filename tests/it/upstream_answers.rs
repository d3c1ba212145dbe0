//! Upstreams that answer with malformed HTTP or hang up: the client sees it, and the next request is unharmed.

use std::time::Duration;

use crate::support::raw::{RawUpstream, exchange, in_time, read_head};
use crate::support::weir::with_preamble;
use crate::support::{Request, Weir, client, lane, one_route};

/// Sends a request to an upstream that answers with these bytes, then another one on a new connection, which the
/// upstream answers well. Returns the first response.
async fn told(answer: &'static [u8]) -> (String, Weir, RawUpstream) {
    let upstream = RawUpstream::start(move |mut connection, index| async move {
        let answer =
            if index == 0 { answer } else { &b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnext"[..] };
        while !connection.read_head().await.is_empty() {
            connection.write(answer).await;
            if index == 0 {
                // The upstream sends nothing more and closes.
                return;
            }
        }
    })
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let read = exchange(
        &weir.host(),
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    (read, weir, upstream)
}

#[tokio::test]
async fn a_malformed_answer_is_a_502() {
    let _lane = lane::shared().await;
    for answer in [
        &b"SSH-2.0-what\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"",
    ] {
        let (read, weir, _upstream) = told(answer).await;
        let shown = String::from_utf8_lossy(answer);
        assert!(
            read.starts_with("HTTP/1.1 502 ") && read.contains("weir-error: upstream_"),
            "{shown:?}: {read}"
        );
        let next = weir.get("/").await;
        assert_eq!((next.status, next.text().as_str()), (200, "next"), "{shown:?}");
    }
}

#[tokio::test]
async fn a_hang_up_is_told_as_one() {
    let _lane = lane::shared().await;
    for (answer, detail) in [
        (&b""[..], "the upstream closed the connection without an answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "the upstream closed the connection without an answer"),
        (b"SSH-2.0-what\r\n\r\n", "the upstream's answer was not understood"),
    ] {
        let (read, _weir, _upstream) = told(answer).await;
        assert!(read.contains("weir-error: upstream_protocol") && read.contains(detail), "{detail}: {read}");
    }
}

#[tokio::test]
async fn the_log_says_why_a_response_broke_off() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, _| async move {
        connection.read_head().await;
        connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await;
    })
    .await;
    let config = with_preamble(&one_route(&upstream.url())).replace("access: false", "access: true");
    let weir = Weir::start_whole(&config).await;
    let read = exchange(&weir.host(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(read.ends_with("half"), "{read}");
    weir.wait_for_log(&["failed", "the response broke off: end of file"]).await;
}

/// A client must be able to see that the answer is only a part.
#[tokio::test]
async fn a_truncated_answer_is_passed_on_as_truncated() {
    let _lane = lane::shared().await;
    for (answer, part) in [
        (&b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"[..], "half"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "half"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\nx\r\n0\r\n\r\n", "half"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf", "half"),
    ] {
        let (read, weir, _upstream) = told(answer).await;
        let shown = String::from_utf8_lossy(answer);
        if read.starts_with("HTTP/1.1 502 ") {
            continue;
        }
        assert!(read.starts_with("HTTP/1.1 200 ") && read.contains(part), "{shown:?}: {read}");
        let is_whole = read.ends_with("0\r\n\r\n") || read.contains("content-length: 4");
        assert!(!is_whole, "{shown:?}: {read}");
        assert_eq!(weir.get("/").await.text(), "next", "{shown:?}");
    }
}

/// A transfer coding beside a length: the coding counts (RFC 9112, 6.3), and at most one length is passed on.
#[tokio::test]
async fn an_answer_that_is_framed_twice_is_framed_anew() {
    let _lane = lane::shared().await;
    let answer =
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let (read, weir, _upstream) = told(answer).await;
    let is_clean =
        read.starts_with("HTTP/1.1 200 ") && !read.contains("content-length: 50") && read.contains("ok");
    assert!(is_clean || read.starts_with("HTTP/1.1 502 "), "{read}");
    assert_eq!(weir.get("/").await.text(), "next");
}

/// An answer that no request asked for reaches no client.
#[tokio::test]
async fn an_unrequested_answer_reaches_no_client() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, index| async move {
        while !connection.read_head().await.is_empty() {
            let first = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{index:02}");
            let second = if index == 0 { "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil" } else { "" };
            connection.write(format!("{first}{second}").as_bytes()).await;
        }
    })
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let mut client = weir.connect().await;
    for _ in 0..20 {
        let answer = client.ask(&Request::get("/")).await;
        assert_eq!(answer.status, 200);
        assert_ne!(answer.text(), "evil");
    }
}

/// An upstream that closes after every answer without notice, after various delays.
#[tokio::test]
async fn a_connection_that_closes_as_it_is_reused_costs_nothing() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, _| async move {
        if !connection.read_head().await.is_empty() {
            connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    })
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let mut client = weir.connect().await;
    for index in 0..400 {
        let answer = client.ask(&Request::get(&format!("/get/{index}"))).await;
        assert_eq!(answer.status, 200, "{index}: {}", answer.text());
    }
    let mut refused = 0;
    for index in 0..400 {
        let answer = client.ask(&Request::post(&format!("/post/{index}"), b"")).await;
        // The upstream may have read the request: it must not be sent again.
        refused += usize::from(answer.status == 502);
        assert!(matches!(answer.status, 200 | 502), "{index}: {}", answer.text());
    }
    let heads = upstream.heads();
    for index in 0..400 {
        let posts = heads.iter().filter(|head| head.starts_with(&format!("POST /post/{index} "))).count();
        assert!(posts <= 1, "{index}: {posts} times upstream");
    }
    println!("{refused} of 400 POSTs were answered 502");
    assert!(refused < 100, "{refused} of 400 POSTs were answered 502");
}

/// The connection closes while the next request is on its way: a request that may be repeated is repeated, on another
/// connection and with a permit of its own.
#[tokio::test]
async fn a_request_that_meets_a_closing_connection_is_repeated_if_it_may_be() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, _| async move {
        let head = connection.read_head().await;
        if !head.is_empty() {
            if head.contains("content-length: 4\r\n") {
                let _ = tokio::io::AsyncReadExt::read_exact(&mut connection.stream, &mut [0; 4]).await;
            }
            connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            let _ = connection.stream.peek(&mut [0]).await;
        }
    })
    .await;
    let config = format!(
        "limiters: {{api: {{limits: [1000/1h]}}}}\n{}",
        one_route(&upstream.url()).replace("}\n", ", limiter: api}\n")
    );
    let weir = Weir::start(&config).await;
    let mut client = weir.connect().await;
    for index in 0..40 {
        let answer = client.ask(&Request::get(&format!("/get/{index}"))).await;
        assert_eq!(answer.status, 200, "{index}: {}", answer.text());
    }
    // All but the first met a connection that closed.
    assert_eq!(weir.metrics().await.sum("weir_permits_total", &[("result", "granted")]), 79.0);
    // So is one with a body, as long as it does no harm to send it twice.
    for index in 0..40 {
        let put = Request::post(&format!("/put/{index}"), b"body").method("PUT");
        let answer = client.ask(&put).await;
        assert_eq!(answer.status, 200, "{index}: {}", answer.text());
    }
    let mut lost = 0;
    for index in 0..40 {
        let answer = client.ask(&Request::post(&format!("/post/{index}"), b"body")).await;
        lost += usize::from(answer.status == 502);
        assert!(matches!(answer.status, 200 | 502), "{index}: {}", answer.text());
    }
    assert!(lost > 0, "no POST met a closing connection");
    let heads = upstream.heads();
    for index in 0..40 {
        let came = heads.iter().filter(|head| head.starts_with(&format!("POST /post/{index} "))).count();
        assert!(came <= 1, "POST {index} came {came} times");
    }
}

/// Such a response keeps its `Content-Length`, although no body follows.
#[tokio::test]
async fn an_answer_without_a_body_keeps_its_length() {
    let _lane = lane::shared().await;
    for (method, answer, line) in [
        ("HEAD", &b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n"[..], "content-length: 1234\r\n"),
        (
            "GET",
            b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\ncontent-length: 1234\r\n\r\n",
            "content-length: 1234\r\n",
        ),
        ("GET", b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n", "x: y\r\n"),
    ] {
        let upstream = RawUpstream::answering(answer).await;
        let weir = Weir::start(&one_route(&upstream.url())).await;
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").repeat(2);
        let mut client = tokio::net::TcpStream::connect(weir.host()).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut client, request.as_bytes()).await.unwrap();
        let read = [read_head(&mut client).await, read_head(&mut client).await].concat();
        assert_eq!(read.matches(line).count(), 2, "{method}: {read}");
        assert!(!read.contains("transfer-encoding"), "{method}: {read}");
    }
}

/// Interim answers end at weir: the final one passes.
#[tokio::test]
async fn interim_answers_are_passed_over() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::answering(
        b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let read = exchange(&weir.host(), b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(read.starts_with("HTTP/1.1 200 ") && read.ends_with("ok"), "{read}");
}

/// Events arrive as they are sent.
#[tokio::test]
async fn events_are_not_held_back() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, _| async move {
        connection.read_head().await;
        connection
            .write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
            )
            .await;
        // Each event is sent when the one before has been read, so a held-back event would stop the test.
        loop {
            connection.write(b"9\r\ndata: x\n\n\r\n").await;
            if connection.read_head().await.is_empty() {
                return;
            }
        }
    })
    .await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let mut client = tokio::net::TcpStream::connect(weir.host()).await.unwrap();
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut client, request).await.unwrap();
    read_head(&mut client).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let begun = std::time::Instant::now();
        let mut event = [0; b"9\r\ndata: x\n\n\r\n".len()];
        in_time("an event", tokio::io::AsyncReadExt::read_exact(&mut client, &mut event)).await.unwrap();
        slowest = slowest.max(begun.elapsed());
        // The upstream's signal to go on: a chunk that looks like a head.
        tokio::io::AsyncWriteExt::write_all(&mut client, b"5\r\nx\r\n\r\n\r\n").await.unwrap();
    }
    println!("the slowest event took {slowest:?}");
}

/// Answers `/many` with two hundred headers, and others with few, on connections that it keeps.
async fn upstream_of_many_headers() -> RawUpstream {
    RawUpstream::start(|mut connection, _| async move {
        loop {
            let head = connection.read_head().await;
            if head.is_empty() {
                return;
            }
            let count = if head.contains("/many ") { 200 } else { 2 };
            let headers: String = (0..count).map(|number| format!("x-{number}: {number}\r\n")).collect();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n{headers}\r\nok");
            connection.write(answer.as_bytes()).await;
        }
    })
    .await
}

/// The upstream is asked once more, by a connection with more room, as all later ones have it.
#[tokio::test]
async fn an_answer_with_two_hundred_headers_passes() {
    let _lane = lane::shared().await;
    for is_reused in [false, true] {
        let upstream = upstream_of_many_headers().await;
        let weir = Weir::start(&one_route(&upstream.url())).await;
        if is_reused {
            assert_eq!(weir.get("/few").await.status, 200);
        }
        for requests in [2, 3] {
            let answer = weir.get("/many").await;
            assert_eq!(
                (answer.status, answer.header("x-199"), answer.text().as_str()),
                (200, Some("199"), "ok")
            );
            assert_eq!(answer.header("content-length"), Some("2"));
            assert_eq!(upstream.heads().len(), requests + usize::from(is_reused));
        }
    }
}

/// No request is sent twice that may do harm twice. The next one finds the room.
#[tokio::test]
async fn a_post_whose_answer_has_two_hundred_headers_is_sent_once() {
    let _lane = lane::shared().await;
    let upstream = upstream_of_many_headers().await;
    let weir = Weir::start(&one_route(&upstream.url())).await;
    for (status, requests) in [(502, 1), (200, 2)] {
        let answer = client::send(&weir.url(""), Request::post("/many", b"x")).await.unwrap();
        assert_eq!((answer.status, upstream.heads().len()), (status, requests), "{}", answer.text());
    }
}
