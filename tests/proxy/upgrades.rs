//! Connections whose clients have named another protocol that nobody speaks: they end as any other.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use weir::config::model::Cost;
use weir::limiter::model::limit::Permits;
use weir::proxy::Reach;

use crate::support::{
    Weir, call, in_time, limiter, mirror, read_head, rule, scripted_upstream, upstream, weir,
};

const UPLOAD: usize = 12 * 1000 * 1000;

#[tokio::test]
async fn a_refused_upload_is_taken_whatever_protocol_its_client_has_named() {
    let up = upstream(mirror).await;
    let mut limited = rule("/a", &up);
    limited.limiters = vec![limiter("hourly")];
    limited.cost = Cost::Fixed(Permits::new(10).unwrap());
    let get = "GET /a HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    let upload = format!("POST /a HTTP/1.1\r\nHost: weir\r\nContent-Length: {UPLOAD}\r\n");
    let by_java =
        format!("{upload}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n");
    // It names no protocol.
    let switching = scripted_upstream(|mut socket, _| async move {
        read_head(&mut socket).await;
        socket.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await.unwrap();
        let _ = socket.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let weir = weir(vec![limited, rule("/switching", &switching)]).await;
    let switching =
        "GET /switching HTTP/1.1\r\nHost: weir\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let websocket = "GET /missing HTTP/1.1\r\nHost: weir\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                     Content-Length: 0\r\n\r\n";
    assert!(call(weir.address, get).await.starts_with("HTTP/1.1 200"));
    let behind_another = format!("{upload}\r\n");
    let connect = "CONNECT weir:443 HTTP/1.1\r\nHost: weir:443\r\n\r\n".to_owned();
    for (before, head, status) in [
        ("", by_java, "429"),
        (websocket, behind_another.clone(), "429"),
        (switching, behind_another, "429"),
        ("", connect, "405"),
    ] {
        let mut client = TcpStream::connect(weir.address).await.unwrap();
        if !before.is_empty() {
            client.write_all(before.as_bytes()).await.unwrap();
            let answer = read_head(&mut client).await;
            let length = answer.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            let mut body = vec![0; length.unwrap().parse().unwrap()];
            in_time(client.read_exact(&mut body)).await.unwrap();
        }
        client.write_all(head.as_bytes()).await.unwrap();
        // It sends all that it has before it reads.
        in_time(client.write_all(&vec![b'x'; UPLOAD])).await.expect("the upload is not reset");
        let mut answer = String::new();
        in_time(client.read_to_string(&mut answer)).await.expect("nor is the answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
    }
}

/// A client that sends more than anybody reads, and takes the response slowly.
#[tokio::test]
async fn a_response_is_whole_whatever_protocol_its_client_has_named() {
    let up = scripted_upstream(|mut socket, _| async move {
        let head = read_head(&mut socket).await;
        let length: usize = head[6..].split(' ').next().unwrap().parse().unwrap();
        let answer = format!("HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        socket.write_all(answer.as_bytes()).await.unwrap();
        socket.write_all(&vec![b'x'; length]).await.unwrap();
        socket.shutdown().await.unwrap();
        let _ = socket.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let listener = TcpSocket::new_v4().unwrap();
    listener.set_send_buffer_size(4096).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.listen(1024).unwrap();
    let weir = Weir::start_at(listener, vec![rule("/", &up)], |_| (), Reach::default());
    // Of some of these the kernel has taken so much that weir has given hyper the rest.
    let calls = (1..=48).map(|step| step * 4096).map(async |length: usize| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = socket.connect(weir.address).await.unwrap();
        let request = format!(
            "POST /{length} HTTP/1.1\r\nHost: weir\r\nConnection: close, upgrade\r\nUpgrade: websocket\r\n\
             Content-Length: 1000000\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        // Long enough for all of it to come from the upstream.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let head = read_head(&mut client).await;
        let mut body = Vec::new();
        let read = in_time(client.read_to_end(&mut body)).await;
        (length, head.starts_with("HTTP/1.1 413") && read.is_ok() && body.len() == length)
    });
    let answers = futures_util::future::join_all(calls).await;
    let cut: Vec<_> = answers.iter().filter(|(_, is_whole)| !is_whole).collect();
    assert!(cut.is_empty(), "{cut:?}");
}
