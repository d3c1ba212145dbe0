//! A running proxy, and upstreams behind it.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use weir::clock::Clock;
use weir::config::model::{KeyPart, Match, PathMatch, Route, Server, Upstream};
use weir::config::{self, Config};
use weir::limiter::Limiters;
use weir::limiter::model::limit::LimiterName;
use weir::limiter::store::memory::MemoryStore;
use weir::proxy::{Drained, Proxy, ProxyBuildError, Reach, serve};
use weir::telemetry::{Metrics, Spans};
use weir::usage::Usage;

/// A deadline that no step of a test reaches.
const DEADLINE: Duration = Duration::from_secs(20);

/// Returns the result of a future that must not hang.
pub(crate) async fn in_time<F: IntoFuture>(future: F) -> F::Output {
    tokio::time::timeout(DEADLINE, future).await.expect("it hangs")
}

/// A running proxy.
pub(crate) struct Weir {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) served: JoinHandle<Drained>,
    pub(crate) proxy: Proxy,
    pub(crate) limiters: Limiters,
    pub(crate) metrics: Metrics,
    server: Server,
}

/// Starts a proxy with these routes.
pub(crate) async fn weir(routes: Vec<Route>) -> Weir {
    Weir::start(routes, |_| ()).await
}

impl Weir {
    pub(crate) async fn start(routes: Vec<Route>, adjust: impl FnOnce(&mut Server)) -> Weir {
        Weir::start_reaching(routes, adjust, Reach::default()).await
    }

    /// Starts a proxy with these routes and this way to reach upstreams.
    pub(crate) async fn reaching(routes: Vec<Route>, reach: Reach) -> Weir {
        Weir::start_reaching(routes, |_| (), reach).await
    }

    async fn start_reaching(routes: Vec<Route>, adjust: impl FnOnce(&mut Server), reach: Reach) -> Weir {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Weir::start_at(listener, routes, adjust, reach)
    }

    /// Starts a proxy that listens here.
    pub(crate) fn start_at(
        listener: TcpListener,
        routes: Vec<Route>,
        adjust: impl FnOnce(&mut Server),
        reach: Reach,
    ) -> Weir {
        let mut server = written().server;
        adjust(&mut server);
        let config = config(routes, server.clone());
        let (metrics, clock) = (Metrics::new(), Clock::start());
        let limiters = Limiters::new(Arc::new(MemoryStore::new(clock)), clock, 1, metrics.clone());
        let prepared = limiters.prepare(&config.limiters);
        let (usage, spans) = (Usage::default(), Spans::default());
        let proxy = Proxy::new(metrics.clone(), usage, spans, &config, &prepared, reach).unwrap();
        prepared.commit();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(listener, proxy.clone(), shutdown.clone()));
        Weir { address, shutdown, served, proxy, server, limiters, metrics }
    }

    pub(crate) fn apply(&self, routes: Vec<Route>) -> Result<(), ProxyBuildError> {
        let config = config(routes, self.server.clone());
        let limiters = self.limiters.prepare(&config.limiters);
        let proxy = self.proxy.prepare(&config, &limiters)?;
        limiters.commit();
        proxy.commit();
        Ok(())
    }
}

/// The limiters of every proxy: one permit every half second, and ten an hour, which is longer than a request may wait, both with a queue;
/// and one permit an hour without a queue. The route is an example.
const WRITTEN: &str = "
listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
log: {format: text}
server: {max_connections: 1000, drain_timeout: 10s}
limiters:
  slow: {limits: [1/500ms], queue: {timeout: 20s, max_waiting: 100}}
  hourly: {limits: [10/1h], queue: {timeout: 20s, max_waiting: 100}}
  single: {limits: [1/1h]}
routes:
  - {name: test, match: {}, upstream: http://127.0.0.1}
";

fn written() -> Config {
    let loaded = config::parse(Path::new("weir.yaml"), WRITTEN).unwrap();
    Config::clone(&loaded.config)
}

fn config(routes: Vec<Route>, server: Server) -> Config {
    Config { server, routes, ..written() }
}

/// Returns a limiter without a key, as a route names it.
pub(crate) fn limiter(name: &str) -> (LimiterName, Arc<[KeyPart]>) {
    (LimiterName::parse(name).unwrap(), Arc::new([]))
}

/// Returns a route by the prefix of a path, without a limiter.
pub(crate) fn rule(prefix: &str, upstream: impl Into<SocketAddr>) -> Route {
    let address: SocketAddr = upstream.into();
    let example = written().routes.remove(0);
    Route {
        matches: Match { path: PathMatch::Prefix(prefix.into()), ..Match::default() },
        upstream: Upstream {
            host: address.ip().to_string().into(),
            port: address.port(),
            authority: address.to_string().into(),
            ..example.upstream
        },
        ..example
    }
}

/// An upstream that counts its connections and requests.
#[derive(Clone)]
pub(crate) struct Up {
    address: SocketAddr,
    connections: watch::Sender<usize>,
    requests: watch::Sender<usize>,
}

impl Up {
    pub(crate) fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    pub(crate) fn note_request(&self) {
        self.requests.send_modify(|count| *count += 1);
    }

    pub(crate) fn requests(&self) -> usize {
        *self.requests.borrow()
    }

    /// Waits until the upstream has accepted a connection.
    pub(crate) async fn accepted(&self) {
        self.connections.subscribe().wait_for(|count| *count > 0).await.unwrap();
    }

    /// Waits until the upstream has got a request.
    pub(crate) async fn requested(&self) {
        self.requests.subscribe().wait_for(|count| *count > 0).await.unwrap();
    }
}

impl fmt::Display for Up {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(formatter)
    }
}

impl Deref for Up {
    type Target = SocketAddr;
    fn deref(&self) -> &SocketAddr {
        &self.address
    }
}

impl From<&Up> for SocketAddr {
    fn from(up: &Up) -> SocketAddr {
        up.address
    }
}

/// Starts an upstream that runs a script for each connection.
pub(crate) async fn scripted_upstream<F, T>(script: F) -> Up
where
    F: Fn(TcpStream, Up) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let up = Up { address, connections: watch::Sender::new(0), requests: watch::Sender::new(0) };
    let counted = up.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            counted.connections.send_modify(|count| *count += 1);
            tokio::spawn(script(socket, counted.clone()));
        }
    });
    up
}

/// Starts an upstream that speaks HTTP/1.1 and HTTP/2.
pub(crate) async fn upstream<F, T, B>(answer: F) -> Up
where
    F: Fn(Request<Incoming>) -> T + Clone + Send + 'static,
    T: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    scripted_upstream(move |socket, up| speak(socket, up, answer.clone())).await
}

/// Starts an upstream that speaks HTTP/1.1 and HTTP/2 over TLS; returns the certificate to trust as well.
pub(crate) async fn tls_upstream<F, T, B>(answer: F) -> (Up, tempfile::NamedTempFile)
where
    F: Fn(Request<Incoming>) -> T + Clone + Send + 'static,
    T: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    moody_upstream(|_| Mood::Prompt, answer).await
}

/// The way in which an upstream takes a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// It shakes hands at once.
    Prompt,
    /// It shakes hands after this time.
    Slow(Duration),
    /// It closes the connection.
    Refusing,
    /// It never shakes hands.
    Silent,
}

/// Starts an upstream over TLS that takes its connections, counted from 1, in these ways; returns the certificate to trust as well.
pub(crate) async fn moody_upstream<F, T, B>(
    mood: impl Fn(usize) -> Mood + Send + 'static,
    answer: F,
) -> (Up, tempfile::NamedTempFile)
where
    F: Fn(Request<Incoming>) -> T + Clone + Send + 'static,
    T: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), signed.cert.pem()).unwrap();
    let up = scripted_upstream(move |mut socket, up| {
        let (acceptor, answer, mood) = (acceptor.clone(), answer.clone(), mood(up.connections()));
        async move {
            match mood {
                Mood::Prompt => {}
                Mood::Slow(time) => tokio::time::sleep(time).await,
                Mood::Refusing => return,
                Mood::Silent => {
                    let _ = socket.read_to_end(&mut Vec::new()).await;
                    return;
                }
            }
            if let Ok(socket) = acceptor.accept(socket).await {
                speak(socket, up, answer).await;
            }
        }
    });
    (up.await, ca)
}

/// Returns a route to an upstream over TLS.
pub(crate) fn tls_rule(prefix: &str, (up, ca): &(Up, tempfile::NamedTempFile)) -> Route {
    let mut rule = rule(prefix, up);
    rule.upstream.tls = true;
    rule.upstream.host = "localhost".into();
    rule.upstream.ca = Some(ca.path().to_owned());
    rule
}

pub(crate) async fn speak<S, F, T, B>(socket: S, up: Up, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> T + Clone + Send + 'static,
    T: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let service = service_fn(move |request| {
        up.requests.send_modify(|count| *count += 1);
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let server = auto::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection(TokioIo::new(socket), service).await;
}

/// Opens an HTTP/2 connection.
pub(crate) async fn http2_client(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let socket = TcpStream::connect(address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
    let (client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    client
}

/// Opens a connection inside TLS to a server with this certificate.
pub(crate) async fn tls_client(
    address: SocketAddr,
    certificate: rustls_pki_types::CertificateDer<'static>,
) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let socket = TcpStream::connect(address).await.unwrap();
    connector.connect("localhost".try_into().unwrap(), socket).await.unwrap()
}

/// Sends bytes and reads until the other side closes.
pub(crate) async fn call(address: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The response may have arrived before the connection was cut.
    let _ = in_time(socket.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads a head up to and including the empty line.
pub(crate) async fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if in_time(socket.read(&mut byte)).await.unwrap() == 0 {
            break;
        }
        head.extend(byte);
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// Answers with the request that it got.
pub(crate) async fn mirror(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let mut seen = format!("{:?} {} {}\n", request.version(), request.method(), request.uri());
    for (name, value) in request.headers() {
        seen += &format!("{name}: {}\n", value.to_str().unwrap());
    }
    let body = request.into_body().collect().await.unwrap().to_bytes();
    seen += &String::from_utf8_lossy(&body);
    let mut response = Response::new(Full::new(Bytes::from(seen)));
    response.headers_mut().insert("weir-error", "made_up".parse().unwrap());
    response.headers_mut().insert("x-kept", "yes".parse().unwrap());
    response
}
