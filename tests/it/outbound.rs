//! Connections to upstreams: through an outbound proxy, over verified TLS, with a client certificate, and in time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::Version;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::support::certificates::{Authority, Signed, dns};
use crate::support::outbound_proxy::{Manner, OutboundProxy};
use crate::support::raw::RawUpstream;
use crate::support::tls_upstream::TlsUpstream;
use crate::support::{Answer, Request, Upstream, Weir, client, closed_port, eventually, lane, replace_file};

/// A time far longer than immediate work takes on a busy machine, and far shorter than any default timeout.
const SOON: Duration = Duration::from_secs(3);

/// Returns a route by path; `upstream` is the inside of a mapping in flow style.
fn route(name: &str, upstream: &str) -> String {
    format!("  - {{name: {name}, match: {{path: /{name}}}, upstream: {{{upstream}}}}}\n")
}

fn routes(routes: &[(&str, String)]) -> String {
    let routes: String = routes.iter().map(|(name, upstream)| route(name, upstream)).collect();
    format!("routes:\n{routes}")
}

fn assert_own(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.weir_error()), (status, Some(code)), "{}", answer.text());
}

async fn counted(weir: &Weir, route: &str, code: &str, outcome: &str) -> f64 {
    let labels = [("route", route), ("code", code), ("outcome", outcome)];
    weir.metrics().await.sum("weir_requests_total", &labels)
}

#[tokio::test]
async fn plain_and_tls_upstreams_are_reached_through_a_tunnel() {
    let _lane = lane::shared().await;
    let (upstream, directory, authority) = (Upstream::start(), TempDir::new().unwrap(), Authority::new());
    let ca = authority.write_to(&directory.path().join("ca.pem"));
    let secure = TlsUpstream::before(&upstream, &authority.sign(vec![dns("secure.test")]), None).await;
    for manner in [Manner::Tunnel, Manner::Dribble] {
        let leads = [("plain.test:8000", upstream.address()), ("secure.test:443", secure.address())];
        let proxy = OutboundProxy::start(manner, &leads).await;
        let through = format!("proxy: \"http://{}\"", proxy.address());
        let weir = Weir::start(&routes(&[
            ("plain", format!("url: \"http://plain.test:8000\", {through}")),
            ("secure", format!("url: \"https://secure.test\", ca: {ca:?}, {through}")),
            ("elsewhere", format!("url: \"http://elsewhere.test\", {through}")),
        ]))
        .await;
        let before = upstream.count();
        for target in ["/plain", "/plain", "/secure", "/secure"] {
            let request = Request::get(target).header("proxy-authorization", "Basic bWluZQ==");
            assert_eq!(client::send(&weir.url(target), request).await.unwrap().status, 200, "{target}");
        }
        assert_own(&weir.get("/elsewhere").await, 502, "upstream_connect");
        let asked = |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        let expected = ["plain.test:8000", "secure.test:443", "elsewhere.test:80"].map(asked);
        assert_eq!(proxy.heads(), expected, "one tunnel for each upstream, used again");
        let seen = &upstream.seen()[before..];
        let versions: Vec<_> = seen.iter().map(|seen| seen.version).collect();
        assert_eq!(versions, [Version::HTTP_11, Version::HTTP_11, Version::HTTP_2, Version::HTTP_2]);
        assert_eq!(seen[0].headers["host"], "plain.test:8000");
        assert!(seen.iter().all(|seen| !seen.headers.contains_key("proxy-authorization")), "{seen:?}");
    }
}

#[tokio::test]
async fn the_proxys_password_goes_to_the_proxy_alone() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let leads = [("plain.test:80", upstream.address())];
    // `jane:s3cr:et` and `jane:wr0ng`.
    let proxy = OutboundProxy::start(Manner::Ask("Basic amFuZTpzM2NyOmV0"), &leads).await;
    let at = proxy.address();
    let config = routes(&[
        ("right", format!("url: \"http://plain.test\", proxy: \"http://jane:s3cr%3Aet@{at}\"")),
        ("wrong", format!("url: \"http://plain.test\", proxy: \"http://jane:wr0ng@{at}\"")),
        ("none", format!("url: \"http://plain.test\", proxy: \"http://{at}\"")),
    ]);
    let listeners = "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nlog: {level: trace, format: json}\n";
    let weir = Weir::start_whole(&format!("{listeners}{config}")).await;
    let mut shown = String::new();
    for (target, status) in [("/right", 200), ("/wrong", 502), ("/none", 502)] {
        let answer = weir.get(target).await;
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
        shown += &answer.text();
    }
    let sent: Vec<bool> = proxy.heads().iter().map(|head| head.contains("Proxy-Authorization: ")).collect();
    assert_eq!(sent, [true, true, false]);
    assert!(!upstream.seen()[0].headers.contains_key("proxy-authorization"));
    let asked = "answered CONNECT with 407: set the user and password that it wants in `upstream.proxy`";
    weir.wait_for_log(&[asked]).await;
    for target in ["/api/config", "/api/limiters", "/metrics"] {
        shown += &weir.ask(target).await.text();
    }
    assert!(shown.contains(&format!("http://jane:***@{at}")), "{shown}");
    shown += &weir.log();
    for secret in ["s3cr", "wr0ng", "amFuZTp"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
}

#[tokio::test]
async fn a_proxy_that_opens_no_tunnel_is_named_in_the_log() {
    let _lane = lane::shared().await;
    let nobody = SocketAddr::from(([127, 0, 0, 1], closed_port()));
    let say = |text: &str| Manner::Say(text.as_bytes().to_vec());
    let endless = format!("HTTP/1.1 200 OK\r\nX-More: {}", "and more ".repeat(5000)).into_bytes();
    let mut proxies = Vec::new();
    for (name, manner, told) in [
        (
            "a",
            say("HTTP/1.1 403 Forbidden\r\n\r\n"),
            "answered CONNECT with 403: it does not allow this upstream",
        ),
        (
            "b",
            say("HTTP/1.0 502 Bad Gateway\r\n\r\n"),
            "answered CONNECT with 502: it does not reach the upstream",
        ),
        (
            "c",
            say("HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n"),
            "answered CONNECT with 302: it opens no tunnels",
        ),
        ("d", say("SSH-2.0-what\r\n"), "is not HTTP/1.1"),
        ("e", Manner::Say(endless), "is larger than 16384 bytes"),
        ("f", say("HTTP/1.1 200 OK\r\nX-Cut: "), "closed the connection before it had answered CONNECT"),
        ("g", say(""), "closed the connection before it had answered CONNECT"),
    ] {
        proxies.push((name, told, OutboundProxy::start(manner, &[]).await));
    }
    let through = |at: SocketAddr| format!("url: \"http://plain.test\", proxy: \"http://{at}\"");
    let mut given: Vec<_> =
        proxies.iter().map(|(name, _, proxy)| (*name, through(proxy.address()))).collect();
    given.push(("away", through(nobody)));
    let limited = "limiters: {api: {limits: [1/1h]}}\n";
    let given = routes(&given).replace("}}\n", "}, limiter: api}\n");
    let weir = Weir::start(&format!("{limited}{given}")).await;
    for (name, told, _) in &proxies {
        let began = Instant::now();
        assert_own(&weir.get(&format!("/{name}")).await, 502, "upstream_connect");
        assert!(began.elapsed() < SOON, "{name}: {:?}", began.elapsed());
        weir.wait_for_log(&[told]).await;
        assert_eq!(counted(&weir, name, "502", "failed").await, 1.0, "{name}");
    }
    assert_own(&weir.get("/away").await, 502, "upstream_connect");
    weir.wait_for_log(&[&nobody.to_string()]).await;
    assert_eq!(weir.available("api").await, [1], "nothing went upstream, so nothing is spent");
}

#[tokio::test]
async fn connect_timeout_covers_the_whole_time_of_a_slow_proxy() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let proxies = [
        OutboundProxy::start(Manner::Stall, &[]).await,
        OutboundProxy::start(Manner::Repeat(b"H", Duration::from_millis(50)), &[]).await,
        OutboundProxy::start(
            Manner::Repeat(b"HTTP/1.1 100 Continue\r\n\r\n", Duration::from_millis(50)),
            &[],
        )
        .await,
    ];
    // A tunnel to a silent server: the time of the TLS handshake counts as well.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let leads = [("secure.test:443", mute.local_addr().unwrap())];
    let tunnel = OutboundProxy::start(Manner::Tunnel, &leads).await;
    let through = |url: &str, proxy: &OutboundProxy| {
        format!("url: \"{url}\", connect_timeout: 400ms, proxy: \"http://{}\"", proxy.address())
    };
    let weir = Weir::start(&routes(&[
        ("stalls", through("http://plain.test", &proxies[0])),
        ("garbles", through("http://plain.test", &proxies[1])),
        ("goes-on", through("http://plain.test", &proxies[2])),
        ("handshake", through("https://secure.test", &tunnel)),
    ]))
    .await;
    for (name, at_least) in [("stalls", 400), ("garbles", 0), ("goes-on", 400), ("handshake", 400)] {
        let began = Instant::now();
        assert_own(&weir.get(&format!("/{name}")).await, 502, "upstream_connect");
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(at_least) && took < SOON, "{name}: {took:?}");
    }
    for stage in ["the outbound proxy's answer to CONNECT", "the TLS handshake"] {
        weir.wait_for_log(&[&format!("took longer than connect_timeout, and had come to {stage}")]).await;
    }
    assert_eq!(upstream.count(), 0);
}

/// A client certificate and its key, as two files that can be rotated.
struct Identity {
    directory: TempDir,
}

impl Identity {
    fn new(issued: &Signed) -> Identity {
        let identity = Identity { directory: TempDir::new().unwrap() };
        identity.rotate(issued);
        identity
    }

    fn rotate(&self, issued: &Signed) {
        replace_file(&self.directory.path().join("weir.key"), &issued.key);
        replace_file(&self.directory.path().join("weir.crt"), &issued.certificate);
    }

    /// Returns the keys for a configuration.
    fn keys(&self) -> String {
        let file = |name| self.directory.path().join(name);
        format!("cert: {:?}, key: {:?}", file("weir.crt"), file("weir.key"))
    }
}

#[tokio::test]
async fn an_upstream_that_asks_for_a_certificate_gets_it() {
    let _lane = lane::shared().await;
    let (upstream, directory) = (Upstream::start(), TempDir::new().unwrap());
    let (servers, clients) = (Authority::new(), Authority::new());
    let ca = servers.write_to(&directory.path().join("ca.pem"));
    let secure = TlsUpstream::before(&upstream, &servers.sign(vec![dns("localhost")]), Some(&clients)).await;
    let (ours, strange) = (clients.sign(vec![dns("weir")]), servers.sign(vec![dns("weir")]));
    let (given, other) = (Identity::new(&ours), Identity::new(&strange));
    let to = format!("url: \"{}\", ca: {ca:?}", secure.url());
    let weir = Weir::start(&routes(&[
        ("given", format!("{to}, {}", given.keys())),
        ("http1", format!("{to}, {}, http2: off", given.keys())),
        ("other", format!("{to}, {}", other.keys())),
        ("missing", to.clone()),
    ]))
    .await;
    assert_eq!(weir.get("/given").await.status, 200);
    assert!(secure.has_seen_last(&ours));
    assert_eq!(weir.get("/http1").await.status, 200);
    // With TLS 1.3 the upstream refuses after the handshake, so the code may be that of either.
    for target in ["/other", "/missing"] {
        let refused = weir.get(target).await;
        assert_eq!(refused.status, 502, "{target}: {}", refused.text());
    }
    assert_eq!(upstream.targets(), ["/given", "/http1"]);
}

#[tokio::test]
async fn rotated_client_certificates_are_followed() {
    let _lane = lane::shared().await;
    let (upstream, directory) = (Upstream::start(), TempDir::new().unwrap());
    let (servers, clients) = (Authority::new(), Authority::new());
    let ca = servers.write_to(&directory.path().join("ca.pem"));
    let secure = TlsUpstream::before(&upstream, &servers.sign(vec![dns("localhost")]), Some(&clients)).await;
    let (first, second, third) =
        (clients.sign(vec![dns("weir")]), clients.sign(vec![dns("weir")]), clients.sign(vec![dns("weir")]));
    let identity = Identity::new(&first);
    let to = format!("url: \"{}\", ca: {ca:?}, {}", secure.url(), identity.keys());
    let weir = Weir::start(&routes(&[("all", to)])).await;
    assert_eq!(weir.get("/all").await.status, 200);
    assert!(secure.has_seen_last(&first));

    identity.rotate(&second);
    eventually("the second certificate", async || {
        assert_eq!(weir.get("/all").await.status, 200);
        secure.has_seen_last(&second)
    })
    .await;

    // A file without a certificate, and one that does not fit its key, are ignored.
    for broken in ["what?\n", &third.certificate] {
        let before = weir.reloads("error").await;
        replace_file(&identity.directory.path().join("weir.crt"), broken);
        eventually("a counted failure", async || weir.reloads("error").await > before).await;
        assert_eq!(weir.get("/all").await.status, 200);
        assert!(secure.has_seen_last(&second));
    }
    weir.wait_for_log(&["is not the key of the certificate"]).await;
    identity.rotate(&third);
    eventually("the third certificate", async || {
        assert_eq!(weir.get("/all").await.status, 200);
        secure.has_seen_last(&third)
    })
    .await;

    // The trusted authority is rotated too: the upstream's authority is no longer trusted.
    Authority::new().write_to(&ca);
    eventually("the new authority", async || weir.get("/all").await.weir_error() == Some("upstream_connect"))
        .await;
}

#[tokio::test]
async fn an_upstream_with_a_wrong_certificate_gets_nothing() {
    let _lane = lane::shared().await;
    let (upstream, directory, authority) = (Upstream::start(), TempDir::new().unwrap(), Authority::new());
    let ca = authority.write_to(&directory.path().join("ca.pem"));
    let cases = [
        ("name", authority.sign(vec![dns("elsewhere.test")])),
        ("expired", authority.sign_expired(vec![dns("localhost")])),
        ("unknown", Authority::new().sign(vec![dns("localhost")])),
        ("right", authority.sign(vec![dns("localhost")])),
    ];
    let mut fronts = Vec::new();
    for (_, issued) in &cases {
        fronts.push(TlsUpstream::before(&upstream, issued, None).await);
    }
    let mut given: Vec<_> = cases
        .iter()
        .zip(&fronts)
        .map(|((name, _), front)| (*name, format!("url: \"{}\", ca: {ca:?}", front.url())))
        .collect();
    // Through a tunnel the checked name is that of the upstream too, not that of the proxy or of the tunnel's end.
    let proxy = OutboundProxy::start(Manner::Tunnel, &[("secure.test:443", fronts[3].address())]).await;
    given.push((
        "tunnel",
        format!("url: \"https://secure.test\", ca: {ca:?}, proxy: \"http://{}\"", proxy.address()),
    ));
    let weir = Weir::start(&routes(&given)).await;
    for name in ["name", "expired", "unknown", "tunnel"] {
        let request = Request::post(&format!("/{name}"), b"secret");
        let answer = client::send(&weir.url("/"), request).await.unwrap();
        assert_own(&answer, 502, "upstream_connect");
        assert_eq!(counted(&weir, name, "502", "failed").await, 1.0, "{name}");
    }
    assert_eq!((upstream.connections(), upstream.count()), (0, 0), "nothing was sent");
    assert_eq!(weir.get("/right").await.status, 200);
    for why in ["not valid for name", "certificate expired", "UnknownIssuer"] {
        weir.wait_for_log(&["cannot connect", why]).await;
    }
}

/// Listens with a full backlog, so that packets of further connections are dropped.
async fn swallower() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    let connect = || tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address));
    while let Ok(Ok(stream)) = connect().await {
        held.push(stream);
        assert!(held.len() < 64, "the backlog is never full");
    }
    (listener, held)
}

#[tokio::test]
async fn each_timeout_has_its_code_and_its_count() {
    let _lane = lane::shared().await;
    let (silent, _held) = swallower().await;
    let half = RawUpstream::start(|mut connection, _| async move {
        if connection.read_head().await.starts_with("GET /body") {
            connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
        }
        std::future::pending::<()>().await;
    })
    .await;
    let times = "connect_timeout: 300ms, timeout: 300ms, idle_timeout: 300ms";
    let weir = Weir::start(&routes(&[
        ("connect", format!("url: \"http://{}\", {times}", silent.local_addr().unwrap())),
        ("head", format!("url: \"{}\", {times}", half.url())),
        ("body", format!("url: \"{}\", {times}", half.url())),
    ]))
    .await;
    let began = Instant::now();
    assert_own(&weir.get("/connect").await, 502, "upstream_connect");
    assert_own(&weir.get("/head").await, 504, "upstream_timeout");
    let cut = client::get(&weir.url("/body")).await;
    assert_eq!(cut.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof, "the client sees that it is cut");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(900) && took < 3 * SOON, "{took:?}");
    for (route, code) in [("connect", "502"), ("head", "504"), ("body", "200")] {
        let what = format!("the count of {route}");
        eventually(&what, async || counted(&weir, route, code, "failed").await == 1.0).await;
    }
    let told = "took longer than connect_timeout, and had come to the lookup and the TCP connection";
    weir.wait_for_log(&[told]).await;
}

/// With their slots in hand, two hundred requests at 20/s would take nine seconds to begin, and five more to fail.
#[tokio::test]
async fn a_host_that_does_not_answer_uses_up_no_slots() {
    lane::calm(async || {
        let (silent, _held) = swallower().await;
        let silent = format!("url: \"http://{}\", connect_timeout: 5s", silent.local_addr().unwrap());
        let upstream = Upstream::start();
        let limiter = "limiters:\n  api: {limits: [20/1s], queue: {timeout: 60s, max_waiting: 1000}}\n";
        let route = |name: &str, upstream: &str| {
            let place = format!("name: {name}, match: {{path: /{name}}}, limiter: api");
            format!("  - {{{place}, upstream: {{{upstream}}}}}\n")
        };
        let alive = route("alive", &format!("url: \"{}\"", upstream.url()));
        let weir = Weir::start(&format!("{limiter}routes:\n{}{alive}", route("dead", &silent))).await;
        let begun = Instant::now();
        let dead = weir.begin(200, "/dead");
        client::assert_all_ok(&client::answers(weir.begin(20, "/alive")).await);
        for answer in client::answers(dead).await {
            assert_own(&answer, 502, "upstream_connect");
        }
        assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    })
    .await;
}
