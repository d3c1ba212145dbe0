//! A client leaves while its request waits, in every way that a client can leave: weir notices within a second, takes
//! no permit and sends nothing.

use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::raw::read_to_end;
use crate::support::{PATIENCE, Upstream, Weir, eventually, lane, spent};

/// The time in which weir must notice, and the delay that the machine may add.
const NOTICED_IN: Duration = Duration::from_millis(1500);

async fn waiting(weir: &Weir, request: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(weir.host()).await.unwrap();
    client.write_all(request).await.unwrap();
    weir.wait_for_waiting(1).await;
    client
}

/// Waits until no request waits any more; `what` names the way in which the client left.
pub(crate) async fn is_noticed(weir: &Weir, what: &str) {
    let left = Instant::now();
    eventually(what, PATIENCE, async || weir.waiting().await == 0.0).await;
    assert!(left.elapsed() < NOTICED_IN, "{what}: noticed after {:?}", left.elapsed());
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_within_a_second() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 10).await;
    for (what, request) in [
        ("a GET", &b"GET /left HTTP/1.1\r\nHost: a\r\n\r\n"[..]),
        (
            "a body that is not read",
            b"POST /left HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\na part of it",
        ),
        ("a whole body", b"POST /left HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"),
        (
            "a chunked body",
            b"POST /left HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n",
        ),
        ("pipelined requests", b"GET /left HTTP/1.1\r\nHost: a\r\n\r\nGET /left HTTP/1.1\r\nHost: a\r\n\r\n"),
        (
            "a client that expects 100-continue",
            b"POST /left HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        ),
    ] {
        let client = waiting(&weir, request).await;
        drop(client);
        is_noticed(&weir, &format!("{what}, closed")).await;
        let client = waiting(&weir, request).await;
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        is_noticed(&weir, &format!("{what}, reset")).await;
    }
    assert_eq!(upstream.targets(), ["/"]);
    assert_eq!(weir.metrics().await.sum("weir_permits_total", &[("result", "granted")]), 1.0);
}

/// A client that closes its sending side counts as gone, as with nginx: nobody can tell it from a client that has left.
#[tokio::test]
async fn a_client_that_closes_its_sending_side_has_left() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = spent(&upstream, 10).await;
    let mut client = waiting(&weir, b"GET /left HTTP/1.1\r\nHost: a\r\n\r\n").await;
    client.shutdown().await.unwrap();
    is_noticed(&weir, "half closed").await;
    let read = read_to_end(&mut client).await;
    assert!(!read.contains("HTTP/1.1 200"), "{read}");
    assert_eq!(upstream.targets(), ["/"]);
}
