//! TLS towards applications: both protocols, certificates that rotate, and clients known by certificate.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::SanType;
use rustls::CipherSuite;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::support::certificates::{Authority, dns, localhost};
use crate::support::weir::run;
use crate::support::{
    Connection, PATIENCE, Pending, Request, TlsClient, Upstream, Weir, eventually, lane, poll_for,
    replace_file,
};

/// The files that a configuration names, and the authority that signed them.
struct Files {
    directory: TempDir,
    authority: Authority,
    clients: Authority,
}

impl Files {
    fn new() -> Files {
        let (authority, clients) = (Authority::new(), Authority::new());
        let files = Files { directory: TempDir::new().unwrap(), authority, clients };
        fs::write(files.path("clients.pem"), files.clients.pem()).unwrap();
        files.rotate();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts another certificate and its key in place, one after the other.
    fn rotate(&self) {
        let signed = self.authority.sign(localhost());
        self.replace("server.pem", &signed.certificate);
        self.replace("server.key", &signed.key);
    }

    fn replace(&self, name: &str, text: &str) {
        replace_file(&self.path(name), text);
    }

    /// Returns `server` with further keys of `tls`.
    fn server(&self, more: &str) -> String {
        let (cert, key) = (self.path("server.pem"), self.path("server.key"));
        format!(
            "server: {{tls: {{cert: {}, key: {}{more}}}, header_timeout: 1s}}\n",
            cert.display(),
            key.display()
        )
    }

    /// Returns [`Files::server`] with `client_ca`.
    fn mutual(&self) -> String {
        self.server(&format!(", client_ca: {}", self.path("clients.pem").display()))
    }

    fn client(&self) -> TlsClient {
        TlsClient::trusting(&self.authority.pem())
    }
}

fn route(upstream: &Upstream, limiter: &str) -> String {
    let url = upstream.url();
    format!(
        "limiters: {{api: {limiter}}}\nroutes:\n  - {{name: all, match: {{path: /}}, upstream: \"{url}\", \
         limiter: api, forwarded_headers: true}}\n"
    )
}

const HUNDRED: &str = "{limits: [100/1h]}";

/// Returns the certificate that the server shows to a new connection.
async fn shown(client: &TlsClient, weir: &Weir) -> Vec<u8> {
    let stream = client.connect(&weir.host()).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// Sends a GET over HTTP/2; returns the status.
async fn get_http2(client: &TlsClient, weir: &Weir) -> u16 {
    let stream = TokioIo::new(client.connect(&weir.host()).await.unwrap());
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
    let (mut sender, connection) = handshake.await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = http::Request::get(format!("https://{}/", weir.host())).body(Empty::<Bytes>::new());
    let response = sender.send_request(request.unwrap()).await.unwrap();
    let status = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    status
}

#[tokio::test]
async fn both_protocols_are_spoken_and_the_upstream_learns_which() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.server("") + &route(&upstream, HUNDRED))).await;
    for offered in [&["http/1.1"][..], &["http/1.1", "h2"], &["h2", "http/1.1"], &["h2"], &[]] {
        let client = files.client().offering(offered);
        let stream = client.connect(&weir.host()).await.unwrap();
        let expected = ["h2", "http/1.1"].into_iter().find(|name| offered.contains(name));
        assert_eq!(stream.get_ref().1.alpn_protocol(), expected.map(str::as_bytes), "{offered:?}");
    }
    let mut connection = files.client().offering(&["http/1.1"]).open(&weir.host()).await.unwrap();
    let claims = Request::get("/").header("x-forwarded-proto", "http");
    assert_eq!(connection.statuses(&claims, 2).await, [200, 200]);
    assert_eq!(get_http2(&files.client().offering(&["h2"]), &weir).await, 200);
    // Without ALPN, the first bytes decide.
    assert_eq!(get_http2(&files.client(), &weir).await, 200);
    assert_eq!(upstream.count(), 4);
    for seen in upstream.seen() {
        assert_eq!(seen.headers["x-forwarded-proto"], "https");
    }
    // A client that negotiates HTTP/2 and speaks something else is cut off.
    let mut stream = files.client().offering(&["h2"]).connect(&weir.host()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.expect("closed").ok();
    // So is a client that speaks in the clear.
    let mut clear = weir.connect().await;
    clear.send(&Request::get("/")).await.unwrap();
    assert!(clear.answer().await.is_err());
    assert_eq!((upstream.count(), weir.available("api").await), (4, vec![96]));
}

/// weir chooses the client's strongest cipher suite, whatever the client prefers.
#[tokio::test]
async fn the_cipher_suite_is_chosen_by_strength() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.server("") + &route(&upstream, HUNDRED))).await;
    for liked in [
        [CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_256_GCM_SHA384],
        [
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ],
    ] {
        let stream = files.client().preferring(&liked).connect(&weir.host()).await.unwrap();
        let spoken = stream.get_ref().1.negotiated_cipher_suite().unwrap();
        assert_eq!(spoken.suite(), liked[1]);
    }
}

#[tokio::test]
async fn a_rotated_certificate_is_followed_and_a_broken_one_is_not() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.server("") + &route(&upstream, HUNDRED))).await;
    let client = files.client();
    let mut connection = client.open(&weir.host()).await.unwrap();
    let mut before = shown(&client, &weir).await;
    for _ in 0..2 {
        files.rotate();
        let new = poll_for("another certificate", async || {
            Some(shown(&client, &weir).await).filter(|new| *new != before)
        });
        before = new.await;
        assert_eq!(connection.ask(&Request::get("/")).await.status, 200, "open connections stay open");
    }
    // The operator who renews a certificate learns that it was taken up.
    let told = run(&["reload", "--admin", &weir.admin("")]).await;
    told.assert_code(0);
    assert!(told.stdout.contains("server.tls.cert: changed"), "{}", told.stdout);

    let other = files.authority.sign(localhost());
    let (certificate, key) = (other.certificate, other.key);
    for (name, text) in [("server.pem", "gone wrong"), ("server.pem", &certificate), ("server.key", "gone")] {
        let refused = weir.reloads("error").await;
        files.replace(name, text);
        eventually("a counted failure", async || weir.reloads("error").await > refused).await;
        assert_eq!(shown(&client, &weir).await, before, "{name}");
        assert_eq!(connection.ask(&Request::get("/")).await.status, 200);
    }
    let config = weir.ask("/api/config").await.text();
    assert!(config.contains("server.tls.key"), "{config}");
    files.replace("server.key", &key);
    let mended = async || shown(&client, &weir).await != before;
    eventually("the certificate that was mended", mended).await;
    assert_eq!(connection.ask(&Request::get("/")).await.status, 200);
}

#[tokio::test]
async fn new_connections_follow_when_tls_comes_and_goes() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let (clear, secure) = (route(&upstream, HUNDRED), files.server("") + &route(&upstream, HUNDRED));
    let weir = Weir::start(&clear).await;
    let mut in_the_clear = weir.connect().await;
    assert_eq!(in_the_clear.ask(&Request::get("/")).await.status, 200);
    weir.reload(&secure).await;
    let mut inside_tls = files.client().open(&weir.host()).await.unwrap();
    weir.reload(&clear).await;
    let mut again = weir.connect().await;
    for connection in [&mut in_the_clear, &mut inside_tls, &mut again] {
        assert_eq!(connection.ask(&Request::get("/")).await.status, 200);
    }
}

#[tokio::test]
async fn a_handshake_that_stalls_is_closed() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.server("") + &route(&upstream, HUNDRED))).await;
    // Three silent clients: one sends nothing, one the beginning of a hello, one a whole handshake without a request.
    let mut silent = TcpStream::connect(weir.host()).await.unwrap();
    let mut begun = TcpStream::connect(weir.host()).await.unwrap();
    begun.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).await.unwrap();
    let mut shaken = files.client().connect(&weir.host()).await.unwrap();
    for socket in [&mut silent, &mut begun] {
        let closed = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut Vec::new())).await;
        closed.expect("closed after header_timeout").ok();
    }
    tokio::time::timeout(PATIENCE, shaken.read_to_end(&mut Vec::new())).await.expect("closed").ok();
    let mut connection = files.client().open(&weir.host()).await.unwrap();
    assert_eq!(connection.ask(&Request::get("/")).await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_takes_nothing() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let limiter = "{limits: [1/2s], queue: {timeout: 60s, max_waiting: 10}}";
    let weir = Weir::start(&(files.server("") + &route(&upstream, limiter))).await;
    let mut connection = files.client().open(&weir.host()).await.unwrap();
    assert_eq!(connection.ask(&Request::get("/first")).await.status, 200);
    // The request's body is not read, so nothing reads from the connection.
    let mut leaving = files.client().open(&weir.host()).await.unwrap();
    leaving.send(&Request::post("/left", b"unread")).await.unwrap();
    weir.wait_for_waiting(1).await;
    let mut staying = files.client().open(&weir.host()).await.unwrap();
    staying.send(&Request::get("/stayed")).await.unwrap();
    let staying = Pending::on(staying);
    weir.wait_for_waiting(2).await;
    drop(leaving);
    eventually("one to wait", async || weir.waiting().await <= 1.0).await;
    assert_eq!(staying.answer().await.status, 200);
    assert_eq!(upstream.targets(), ["/first", "/stayed"]);
}

/// Returns a configuration of clients, one for each kind of name, and one route for some of them.
fn named(upstream: &Upstream, tokens: &str) -> String {
    let url = upstream.url();
    format!(
        "limiters: {{api: {{limits: [100/1h]}}}}\n\
         clients:\n  reports: {{certificate: {{san: Reports.internal}}}}\n  \
         billing: {{certificate: {{san: \"spiffe://example.org/billing\"}}}}\n  \
         nightly: {{certificate: {{san: 10.9.8.7}}}}\n  \
         ops: {{certificate: {{san: ops@example.org}}{tokens}}}\n\
         routes:\n  - {{name: some, match: {{path: /some}}, upstream: \"{url}\", limiter: api, clients: [reports, ops]}}\n  \
         - {{name: all, match: {{path: /}}, upstream: \"{url}\", limiter: api}}\n"
    )
}

async fn status(connection: &mut Connection, request: &Request) -> (u16, Option<String>) {
    let answer = connection.ask(request).await;
    (answer.status, answer.weir_error().map(ToOwned::to_owned))
}

/// Returns whether the handshake is refused.
async fn is_refused(client: &TlsClient, weir: &Weir) -> bool {
    match client.open(&weir.host()).await {
        Err(_) => true,
        // In TLS 1.3 the client has finished before the server judges it.
        Ok(mut connection) => {
            connection.send(&Request::get("/all")).await.is_err() || connection.answer().await.is_err()
        }
    }
}

#[tokio::test]
async fn clients_are_known_by_their_certificates() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.mutual() + &named(&upstream, ""))).await;
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let forbidden = (403, Some("forbidden".to_owned()));
    let unknown = (401, Some("unknown_client".to_owned()));
    let served = (200, None);
    let cases = [
        (vec![dns("reports.internal")], &served, &served),
        (vec![dns("other.internal"), dns("REPORTS.internal")], &served, &served),
        (vec![uri("spiffe://example.org/billing")], &forbidden, &served),
        (vec![SanType::IpAddress([10, 9, 8, 7].into())], &forbidden, &served),
        (vec![SanType::Rfc822Name("ops@example.org".try_into().unwrap())], &served, &served),
        // Signed by the authority, but the name of no client.
        (vec![dns("other.internal")], &unknown, &unknown),
        (vec![dns("*.internal")], &unknown, &unknown),
        (vec![uri("spiffe://example.org/billing/x")], &unknown, &unknown),
        // A URI does not count as a DNS name.
        (vec![uri("reports.internal")], &unknown, &unknown),
        (vec![], &unknown, &unknown),
    ];
    let mut spent = 0;
    for (names, some, all) in cases {
        let shown = format!("{names:?}");
        let client = files.client().showing(&files.clients.sign_beside_unknown(names));
        let mut connection = client.open(&weir.host()).await.unwrap();
        assert_eq!(status(&mut connection, &Request::get("/some")).await, *some, "{shown}");
        assert_eq!(status(&mut connection, &Request::get("/all")).await, *all, "{shown}");
        spent += [some, all].iter().filter(|outcome| outcome.0 == 200).count();
    }
    // A foreign certificate, and none: the handshake is refused.
    let stranger = Authority::new().sign(vec![dns("reports.internal")]);
    for client in [files.client().showing(&stranger), files.client()] {
        assert!(is_refused(&client, &weir).await);
    }
    assert_eq!((upstream.count(), weir.available("api").await), (spent, vec![100 - spent as u64]));
}

#[tokio::test]
async fn without_clients_any_certificate_of_the_authority_will_do() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.mutual() + &route(&upstream, HUNDRED))).await;
    let client = files.client().showing(&files.clients.sign(vec![dns("anybody")]));
    let mut connection = client.open(&weir.host()).await.unwrap();
    assert_eq!(connection.ask(&Request::get("/")).await.status, 200);
    assert!(is_refused(&files.client(), &weir).await);
    // A replaced authority holds for new connections.
    files.replace("clients.pem", &Authority::new().pem());
    eventually("the authority is followed", async || is_refused(&client, &weir).await).await;
    assert_eq!(connection.ask(&Request::get("/")).await.status, 200);
}

#[tokio::test]
async fn with_tokens_a_certificate_is_one_of_two_ways_in() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let weir = Weir::start(&(files.mutual() + &named(&upstream, ", tokens: [ops-t0ken]"))).await;
    let token = Request::get("/some").header("weir-authorization", "Bearer ops-t0ken");
    let wrong = Request::get("/some").header("weir-authorization", "Bearer wrong");
    let unknown = (401, Some("unknown_client".to_owned()));

    let mut bare = files.client().open(&weir.host()).await.unwrap();
    assert_eq!(status(&mut bare, &Request::get("/some")).await, unknown);
    assert_eq!(status(&mut bare, &token).await, (200, None));
    let billing = SanType::URI("spiffe://example.org/billing".try_into().unwrap());
    let client = files.client().showing(&files.clients.sign(vec![billing]));
    let mut shown = client.open(&weir.host()).await.unwrap();
    assert_eq!(status(&mut shown, &Request::get("/some")).await, (403, Some("forbidden".to_owned())));
    assert_eq!(status(&mut shown, &Request::get("/all")).await, (200, None));
    // A token decides where one is given.
    assert_eq!(status(&mut shown, &token).await, (200, None));
    assert_eq!(status(&mut shown, &wrong).await, unknown);

    // A removed client is refused on its open connection.
    let without =
        named(&upstream, ", tokens: [ops-t0ken]").replace("example.org/billing", "example.org/other");
    weir.reload(&(files.mutual() + &without)).await;
    assert_eq!(status(&mut shown, &Request::get("/all")).await, unknown);
    let reports = files.client().showing(&files.clients.sign(vec![dns("reports.internal")]));
    let mut reports = reports.open(&weir.host()).await.unwrap();
    assert_eq!(status(&mut reports, &Request::get("/some")).await, (200, None));
    assert_eq!(upstream.count(), 4);
}

#[tokio::test]
async fn a_waiting_client_keeps_its_place_through_a_rotation() {
    let _lane = lane::shared().await;
    let (upstream, files) = (Upstream::start(), Files::new());
    let gate = upstream.hold("/slow");
    let weir = Weir::start(&(files.server("") + &route(&upstream, HUNDRED))).await;
    let mut connection = files.client().open(&weir.host()).await.unwrap();
    connection.send(&Request::get("/slow")).await.unwrap();
    upstream.wait_for(1, PATIENCE).await;
    let before = shown(&files.client(), &weir).await;
    files.rotate();
    let rotated = async || shown(&files.client(), &weir).await != before;
    eventually("another certificate", rotated).await;
    gate.open();
    let answer = tokio::time::timeout(Duration::from_secs(10), connection.answer()).await.expect("an answer");
    assert_eq!(answer.unwrap().status, 200);
}
