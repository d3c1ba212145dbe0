//! Connections to upstreams: reuse, retirement, names and addresses.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use weir::config::model::{Http2, Retry, Route};
use weir::proxy::{Reach, Resolve};

use crate::support::{
    Weir, call, http2_client, in_time, mirror, read_head, rule, scripted_upstream, upstream, weir,
};

#[tokio::test]
async fn a_closed_idle_connection_fails_no_request() {
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    let up = scripted_upstream(move |mut socket, _| {
        let counted = Arc::clone(&counted);
        async move {
            read_head(&mut socket).await;
            counted.fetch_add(1, Ordering::SeqCst);
            // The response announces a persistent connection, and the upstream closes it nevertheless.
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
async fn connections_to_the_upstream_are_used_again() {
    let up = upstream(mirror).await;
    let weir = weir(vec![rule("/", &up)]).await;
    for _ in 0..20 {
        let answer = call(weir.address, "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert!(up.connections() <= 2, "{} connections", up.connections());
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

/// A resolver whose answer the test sets.
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
async fn a_changed_address_is_followed_on_busy_connections() {
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
        // Ages are shortened by up to an eighth.
        assert!(began.elapsed() >= AGE * 7 / 8, "{:?}", began.elapsed());
        assert_eq!((old.connections(), new.connections()), (1, 1), "{http2:?}");
        assert!(old.requests() > 1, "a connection is used again while it is young: {http2:?}");
    }
}

#[tokio::test]
async fn requests_go_on_while_their_connection_retires() {
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
async fn a_short_failure_of_the_resolver_fails_no_request() {
    let up = upstream(mirror).await;
    let names = Names::default();
    // At this age each request opens a connection and looks the name up.
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
async fn every_address_is_tried_within_a_short_connect_timeout() {
    // A listener with a full backlog, so that the kernel drops further connection attempts.
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
    rule.upstream.timeouts.connect = Duration::from_millis(600);
    let weir = Weir::reaching(vec![rule], names.reach(Duration::from_secs(600))).await;
    let answer = call(weir.address, GET).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// hyper would speak HTTP/1.0 to such an upstream from its first response on, and leave out a body whose length is not known.
#[tokio::test]
async fn a_connection_of_http_1_0_carries_no_further_request() {
    let up = scripted_upstream(|mut socket, up| async move {
        loop {
            let mut seen = read_head(&mut socket).await;
            if seen.is_empty() {
                return;
            }
            up.note_request();
            while seen.contains("chunked") && !seen.ends_with("0\r\n\r\n") {
                let mut piece = [0; 64];
                let length = socket.read(&mut piece).await.unwrap();
                seen += &String::from_utf8_lossy(&piece[..length]);
            }
            let head = "HTTP/1.0 200 OK\r\nConnection: keep-alive";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{seen}", seen.len());
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let weir = weir(vec![rule("/", &up)]).await;
    let upload = "POST / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                  5\r\nhello\r\n0\r\n\r\n";
    for number in 1..=3 {
        assert!(call(weir.address, GET).await.starts_with("HTTP/1.1 200"));
        let answer = call(weir.address, upload).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("POST / HTTP/1.1\r\n"), "{answer}");
        assert!(answer.contains("5\r\nhello\r\n0\r\n\r\n"), "{answer}");
        assert_eq!((up.connections(), up.requests()), (2 * number, 2 * number));
    }
}

#[tokio::test]
async fn a_reload_keeps_the_retries_that_are_left() {
    const REQUESTS: u32 = 50;
    let failed = Arc::new(AtomicUsize::new(0));
    let up = upstream(move |request: Request<Incoming>| {
        let is_failure = request.uri().path() == "/fail" && failed.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            let mut response = Response::new(Full::new(Bytes::from("ok")));
            if is_failure {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
    })
    .await;
    let mut rule = rule("/", &up);
    let budget_ppm = Some(1_000_000 / REQUESTS);
    rule.retry =
        Some(Retry { attempts: 2, on_connect: false, on_status: vec![503], body_bytes_max: 0, budget_ppm });
    let weir = weir(vec![rule.clone()]).await;
    for _ in 0..REQUESTS {
        assert!(call(weir.address, GET).await.starts_with("HTTP/1.1 200"));
    }
    rule.set_headers = vec![("x-new".parse().unwrap(), "1".parse().unwrap())];
    weir.apply(vec![rule]).unwrap();
    let answer = call(weir.address, &GET.replace("GET /", "GET /fail")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The upstream cannot know the second attempt by a key that it does not get.
#[tokio::test]
async fn only_a_key_that_goes_upstream_lets_a_post_be_repeated() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let up = upstream(move |_: Request<Incoming>| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut response = Response::new(Full::new(Bytes::new()));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        }
    })
    .await;
    let retry =
        Retry { attempts: 2, on_connect: false, on_status: vec![503], body_bytes_max: 0, budget_ppm: None };
    let route = |path: &str| Route { name: path.into(), retry: Some(retry.clone()), ..rule(path, &up) };
    let (mut removing, mut setting) = (route("/removed"), route("/set"));
    removing.remove_headers = vec!["idempotency-key".parse().unwrap()];
    setting.set_headers = vec![("idempotency-key".parse().unwrap(), "k".parse().unwrap())];
    let weir = weir(vec![removing, setting, route("/")]).await;
    const KEY: &str = "Idempotency-Key: k\r\n";
    for (path, headers, expected) in [
        ("/", "Connection: close\r\n", 1),
        ("/", &*format!("{KEY}Connection: close\r\n"), 2),
        ("/", &*format!("{KEY}Connection: close, idempotency-key\r\n"), 1),
        ("/removed", &*format!("{KEY}Connection: close\r\n"), 1),
        ("/set", "Connection: close\r\n", 2),
    ] {
        let request = format!("POST {path} HTTP/1.1\r\nHost: weir\r\nContent-Length: 0\r\n{headers}\r\n");
        let answer = call(weir.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert_eq!(sent.swap(0, Ordering::SeqCst), expected, "{path} {headers}");
    }
}
