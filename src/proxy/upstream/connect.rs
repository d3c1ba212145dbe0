//! Opens connections to an upstream: TCP ([`crate::proxy::upstream::dial`]), the tunnel where one is needed ([`crate::proxy::upstream::outbound`]), TLS, and
//! which HTTP is spoken. Keeps none of them.

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

use crate::config::model::{Http2 as Http2Mode, Upstream as Settings};
use crate::proxy::Reach;
use crate::proxy::error::{ConnectError, ProxyBuildError, Stage};
use crate::proxy::net::spawner::Spawner;
use crate::proxy::net::stream::{Probe, Stream};
use crate::proxy::upstream::dial::Dialer;
use crate::proxy::upstream::outbound::Outbound;
use crate::proxy::upstream::pool::{Connection, Http1, Load, Multiplexed};
use crate::proxy::upstream::upstream::Key;

/// What HTTP is called in a TLS handshake.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";
/// The same for HTTP/2.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// A shared connection that has requests under way is asked for a sign of life this often, and given up when
/// none comes in time: a peer that vanished would otherwise hold them until their own timeouts.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Which HTTP a connection has to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// What the upstream's settings and ALPN say.
    Any,
    /// HTTP/1.1, because the request wants to change to another protocol.
    Http1,
}

/// Opens connections to one upstream.
pub(crate) struct Connector {
    settings: Settings,
    dialer: Dialer,
    outbound: Option<Outbound>,
    tls: Option<Tls>,
    connection_age_max: Duration,
    tasks: TaskTracker,
}

/// How far the opening of a connection has come, for whoever bounds its time.
pub(crate) struct Progress(Mutex<Stage>);

impl Progress {
    /// It has not begun yet.
    pub(crate) fn new() -> Progress {
        Progress(Mutex::new(Stage::Turn))
    }

    fn come_to(&self, stage: Stage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// The last stage that was begun.
    pub(crate) fn stage(&self) -> Stage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Tls {
    name: ServerName<'static>,
    any: TlsConnector,
    http1: TlsConnector,
}

impl Connector {
    /// Opens nothing yet.
    pub(crate) fn new(key: &Key, reach: &Reach, tasks: TaskTracker) -> Result<Connector, ProxyBuildError> {
        let settings = key.settings.clone();
        let tls = if settings.tls { Some(Tls::new(key)?) } else { None };
        let outbound = settings.proxy.as_ref().map(|proxy| Outbound::new(&settings, proxy));
        // Behind a proxy the upstream's name is for the proxy to look up.
        let (host, port) = match &settings.proxy {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (&settings.host, settings.port),
        };
        let dialer = Dialer::new(host, port, Arc::clone(&reach.resolver));
        Ok(Connector { dialer, outbound, tls, connection_age_max: reach.connection_age_max, tasks, settings })
    }

    /// Opens a connection, and says how far it has come; the caller bounds the time that it takes.
    pub(crate) async fn connect(
        &self,
        wanted: Wanted,
        progress: &Progress,
    ) -> Result<Connection, ConnectError> {
        progress.come_to(Stage::Dial);
        let mut tcp = self.dialer.dial(self.settings.connect_timeout).await?;
        if let Some(outbound) = &self.outbound {
            progress.come_to(Stage::Tunnel);
            outbound.open(&mut tcp).await?;
        }
        let stream = Stream::new(tcp);
        let probe = stream.probe();
        let Some(tls) = &self.tls else {
            progress.come_to(Stage::Http);
            let http2 = self.settings.http2 == Http2Mode::PriorKnowledge && wanted == Wanted::Any;
            return self.speak(stream, probe, http2).await;
        };
        progress.come_to(Stage::Tls);
        let connector = if wanted == Wanted::Http1 { &tls.http1 } else { &tls.any };
        let stream = connector.connect(tls.name.clone(), stream).await;
        let stream = stream.map_err(|error| ConnectError::Tls(Arc::new(error)))?;
        progress.come_to(Stage::Http);
        let chosen = stream.get_ref().1.alpn_protocol();
        let http2 = match (self.settings.http2, wanted) {
            (_, Wanted::Http1) | (Http2Mode::Off, _) => false,
            (Http2Mode::Auto, _) => chosen == Some(ALPN_HTTP2),
            (Http2Mode::PriorKnowledge, _) => true,
        };
        self.speak(stream, probe, http2).await
    }

    async fn speak<S>(&self, stream: S, probe: Probe, http2: bool) -> Result<Connection, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        let retires_at = Instant::now() + spread(self.connection_age_max);
        if !http2 {
            let (sender, connection) = http1::Builder::new().handshake(io).await.map_err(http)?;
            let wire = Box::pin(log_end(connection.with_upgrades()));
            return Ok(Connection::Http1(Http1::new(sender, wire, probe, retires_at, self.tasks.clone())));
        }
        let (sender, connection) = http2::Builder::new(Spawner(self.tasks.clone()))
            .timer(TokioTimer::new())
            .keep_alive_interval(HTTP2_PING_INTERVAL)
            .keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .handshake(io)
            .await
            .map_err(http)?;
        // Until the upstream has said how many streams it takes, h2 assumes a number that all take.
        let load = Arc::new(Load::new(connection.current_max_send_streams().max(1)));
        let seen = Arc::clone(&load);
        self.tasks.spawn(log_end(async move {
            let mut connection = pin!(connection);
            poll_fn(|context| {
                let end = connection.as_mut().poll(context);
                seen.set_streams_max(connection.current_max_send_streams());
                end
            })
            .await
        }));
        let scheme = if self.settings.tls { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP };
        let shared = Multiplexed::new(sender, load, scheme, retires_at);
        shared.stream(false).map(Connection::Http2).ok_or(ConnectError::NoStreams)
    }
}

/// Seven to eight eighths of an age, so that connections which a burst has opened do not all have to be opened again at
/// once.
fn spread(age: Duration) -> Duration {
    // The standard library seeds each of these at random.
    let share = u32::try_from(RandomState::new().hash_one(0u8) % 512).unwrap_or_default();
    age / 4096 * (3584 + share)
}

fn http(error: hyper::Error) -> ConnectError {
    ConnectError::Http(Arc::new(error))
}

/// How a connection ends concerns its requests, and those are told by hyper.
async fn log_end(connection: impl Future<Output = hyper::Result<()>>) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "upstream connection ended");
    }
}

impl Tls {
    fn new(key: &Key) -> Result<Tls, ProxyBuildError> {
        let Key { settings, ca, .. } = key;
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        if let (Some(path), Some(pem)) = (&settings.ca, ca) {
            add_roots(&mut roots, path, pem)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifying = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut http1 = match (&settings.identity, &key.identity) {
            (Some(paths), Some(pems)) => {
                let (chain, private) = identity(paths, pems)?;
                let set = verifying.with_client_auth_cert(chain, private);
                set.map_err(|error| unusable(&paths.1, &error))?
            }
            _ => verifying.with_no_client_auth(),
        };
        http1.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
        let mut any = http1.clone();
        any.alpn_protocols = match settings.http2 {
            Http2Mode::Auto => vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()],
            Http2Mode::Off => vec![ALPN_HTTP1.to_vec()],
            Http2Mode::PriorKnowledge => vec![ALPN_HTTP2.to_vec()],
        };
        let name = ServerName::try_from(settings.host.to_string())
            .map_err(|_| ProxyBuildError::ServerName { host: Arc::clone(&settings.host) })?;
        Ok(Tls { name, any: Arc::new(any).into(), http1: Arc::new(http1).into() })
    }
}

/// Trusts the authorities of a PEM file, whose path is for messages.
pub(crate) fn add_roots(roots: &mut RootCertStore, path: &Path, pem: &[u8]) -> Result<(), ProxyBuildError> {
    let invalid = |reason: String| ProxyBuildError::CaInvalid { path: path.to_owned(), reason };
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
        roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        count += 1;
    }
    if count == 0 {
        return Err(invalid("holds no certificate".to_owned()));
    }
    Ok(())
}

/// The client's certificate chain and its key, of two files that belong together.
fn identity(
    (cert, key): &(PathBuf, PathBuf),
    (chain, private): &(Vec<u8>, Vec<u8>),
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ProxyBuildError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| unusable(cert, &error))?;
    let private = PrivateKeyDer::from_pem_slice(private).map_err(|error| unusable(key, &error))?;
    Ok((chain, private))
}

fn unusable(path: &Path, reason: &impl ToString) -> ProxyBuildError {
    ProxyBuildError::ClientCertificate { path: path.to_owned(), reason: reason.to_string() }
}
