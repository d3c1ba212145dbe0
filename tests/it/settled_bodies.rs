//! Costs that the body of a response tells, as JSON or in the events of a stream, while it goes on to the client.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::raw::{RawUpstream, in_time, read_head};
use crate::support::{RedisServer, Reply, Request, Upstream, Weir, client, eventually, lane};

/// Returns a configuration of 1000 permits an hour; a request costs 100 until its response says otherwise.
fn config(store: &str, url: &str) -> String {
    format!(
        "store: {store}\nlimiters:\n  api: {{limits: [1000/1h]}}\nroutes:\n  - name: all\n    match: {{}}\n    upstream: {url}\n    limiter: api\n    \
         cost: {{default: 100, settle: {{header: x-cost, json: [usage.total_tokens, response.usage.total_tokens], free: [304]}}}}\n"
    )
}

const STREAM: &str = "data: {\"choices\": [{\"delta\": {\"content\": \"\\\"usage\\\": {\\\"total_tokens\\\": 7}\"}}], \"usage\": null}\n\n\
    data: {\"choices\": [], \"usage\": {\"total_tokens\": 142}}\n\ndata: [DONE]\n\n";

#[tokio::test]
async fn a_body_tells_the_cost() {
    let _lane = lane::shared().await;
    let (upstream, redis) = (Upstream::start(), RedisServer::start().await);
    let weir = Weir::start(&config(&redis.store(), &upstream.url())).await;
    let json =
        |body: &str| Reply::status(200).header("content-type", "application/json").body(body.to_owned());
    let events =
        |body: &str| Reply::status(200).header("content-type", "text/event-stream").body(body.to_owned());
    let large = format!(
        "data: {{\"delta\": \"{}\", \"usage\": {{\"total_tokens\": 10}}}}\n\n",
        "x".repeat(1_000_000)
    );
    let mut left = 1000;
    for (reply, cost) in [
        (json(r#"{"usage": {"total_tokens": 29}, "x": [1, 2]}"#), 29),
        (json(r#"{"response": {"usage": {"total_tokens": 30}}, "usage": {"total_tokens": 28}}"#), 30),
        (json(r#"{"usage": {"total_tokens": 0}}"#), 0),
        (events(STREAM), 142),
        (events(&large), 10),
        // Nothing that can be meant leaves the cost as it is.
        (json(r#"{"usage": null}"#), 100),
        (json(r#"{"usage": {"total_tokens": 1000000000000000000}}"#), 100),
        (json(r#"{"usage": {"total_tokens": 29}}"#).header("content-encoding", "gzip"), 100),
        (Reply::status(200).body(r#"{"usage": {"total_tokens": 29}}"#), 100),
        // A header goes first.
        (json(r#"{"usage": {"total_tokens": 29}}"#).header("x-cost", "1"), 1),
    ] {
        upstream.reply("/", reply.clone());
        let request = Request::get("/").header("accept-encoding", "gzip, br");
        let answer = client::send(&weir.url("/"), request).await.unwrap();
        assert_eq!(answer.body, reply.body, "it goes on as it came");
        left -= cost;
        eventually(&format!("{left} are left"), async || weir.available("api").await == [left]).await;
    }
    assert!(upstream.seen().iter().all(|seen| seen.headers["accept-encoding"] == "identity"));
}

/// Starts an upstream whose answer is a stream of events, and ends as the request's path says.
async fn streaming() -> RawUpstream {
    RawUpstream::start(|mut connection, _| async move {
        let head = connection.read_head().await;
        connection
            .write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
            )
            .await;
        let (first, last) = STREAM.split_at(STREAM.len() - "data: [DONE]\n\n".len());
        let first =
            if head.starts_with("GET /more") { first.replace("142", "500") } else { first.to_owned() };
        let first = if head.starts_with("GET /done") { first.replace("142", "7") } else { first };
        for byte in first.as_bytes().chunks(1) {
            connection.write(&[&b"1\r\n"[..], byte, b"\r\n"].concat()).await;
        }
        if head.starts_with("GET /done") {
            connection.write(format!("{:x}\r\n{last}\r\n", last.len()).as_bytes()).await;
        }
        if head.starts_with("GET /whole") {
            connection.write(format!("{:x}\r\n{last}\r\n0\r\n\r\n", last.len()).as_bytes()).await;
        }
        if !head.starts_with("GET /breaks") {
            // Until the other side is gone.
            let _ = connection.stream.read(&mut [0]).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_stream_that_breaks_off_gives_nothing_back() {
    let _lane = lane::shared().await;
    let upstream = streaming().await;
    // Of 142, which the last whole event names, 42 are charged beyond the 100 that were taken.
    for (path, left) in
        [("/whole", 1000 - 142), ("/breaks", 1000 - 142), ("/leaves", 1000 - 142), ("/more", 1000 - 500)]
    {
        let weir = Weir::start(&config("memory", &upstream.url())).await;
        let mut stream = TcpStream::connect(weir.host()).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
        assert!(read_head(&mut stream).await.contains(" 200 "));
        let mut read = Vec::new();
        let is_read =
            |read: &[u8]| String::from_utf8_lossy(read).contains("0}}") || read.ends_with(b"142}}\n\n");
        while path == "/whole" || !is_read(&read) {
            let mut buffer = [0; 4096];
            match in_time("a piece", stream.read(&mut buffer)).await {
                Ok(0) | Err(_) => break,
                Ok(count) => read.extend_from_slice(&buffer[..count]),
            }
        }
        drop(stream);
        eventually(path, async || weir.available("api").await == [left]).await;
    }
}

/// Clients such as OpenAI's leave at `[DONE]`, before the end of the body has come.
#[tokio::test]
async fn a_stream_is_whole_when_it_says_so() {
    let _lane = lane::shared().await;
    let upstream = streaming().await;
    let weir = Weir::start(&config("memory", &upstream.url())).await;
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    stream.write_all(b"GET /done HTTP/1.0\r\nHost: a\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"data: [DONE]\n\n") {
        let mut buffer = [0; 4096];
        let count = in_time("a piece", stream.read(&mut buffer)).await.unwrap();
        assert!(count > 0, "it ends: {}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&buffer[..count]);
    }
    drop(stream);
    eventually("the rest is given back", async || weir.available("api").await == [993]).await;
}

/// A smaller number in a body that breaks off may have been followed by a larger one.
#[tokio::test]
async fn a_small_number_in_a_broken_body_is_not_believed() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::answering(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{\"usage\": {\"total_tokens\": 5}, ",
    )
    .await;
    let weir = Weir::start(&config("memory", &upstream.url())).await;
    let mut stream = TcpStream::connect(weir.host()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200 "));
    drop(stream);
    let over =
        || async { weir.metrics().await.sum("weir_requests_total", &[("outcome", "cancelled")]) > 0.0 };
    eventually("the request is over", over).await;
    assert_eq!(weir.available("api").await, [900]);
}
