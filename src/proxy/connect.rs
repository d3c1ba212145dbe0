//! Opens connections to an upstream: name, TCP, TLS, and which HTTP is spoken. Keeps none of them.

use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

use super::error::{ConnectError, ProxyBuildError};
use super::io::{Probe, Stream};
use super::pool::{Connection, Http1, Load, Multiplexed};
use super::tasks::Spawner;
use crate::config::model::{Http2 as Http2Mode, Upstream as Settings};

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
    tls: Option<Tls>,
    tasks: TaskTracker,
}

struct Tls {
    name: ServerName<'static>,
    any: TlsConnector,
    http1: TlsConnector,
}

impl Connector {
    /// `ca` is the content of the file that the settings name.
    pub(crate) fn new(
        settings: &Settings,
        ca: Option<&[u8]>,
        tasks: TaskTracker,
    ) -> Result<Connector, ProxyBuildError> {
        let tls = if settings.tls { Some(Tls::new(settings, ca)?) } else { None };
        Ok(Connector { settings: settings.clone(), tls, tasks })
    }

    /// Opens a connection; the caller bounds the time that it takes.
    pub(crate) async fn connect(&self, wanted: Wanted) -> Result<Connection, ConnectError> {
        let stream = Stream::new(self.dial().await?);
        let probe = stream.probe();
        let Some(tls) = &self.tls else {
            let http2 = self.settings.http2 == Http2Mode::PriorKnowledge && wanted == Wanted::Any;
            return self.speak(stream, probe, http2).await;
        };
        let connector = if wanted == Wanted::Http1 { &tls.http1 } else { &tls.any };
        let stream = connector.connect(tls.name.clone(), stream).await;
        let stream = stream.map_err(|error| ConnectError::Tls(Arc::new(error)))?;
        let chosen = stream.get_ref().1.alpn_protocol();
        let http2 = match (self.settings.http2, wanted) {
            (_, Wanted::Http1) | (Http2Mode::Off, _) => false,
            (Http2Mode::Auto, _) => chosen == Some(ALPN_HTTP2),
            (Http2Mode::PriorKnowledge, _) => true,
        };
        self.speak(stream, probe, http2).await
    }

    /// Tries the addresses in turn; each may take its share of the time that is left, so that one that
    /// swallows packets does not hide the next.
    async fn dial(&self) -> Result<TcpStream, ConnectError> {
        let Settings { host, port, connect_timeout, .. } = &self.settings;
        let unknown = |reason: String| ConnectError::Lookup { host: Arc::clone(host), reason };
        let found = lookup_host((&**host, *port)).await.map_err(|error| unknown(error.to_string()))?;
        let addresses: Vec<_> = found.collect();
        let share = *connect_timeout / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let mut last = unknown("no address".to_owned());
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(error)) => last = ConnectError::Tcp(Arc::new(error)),
                Err(_) => last = ConnectError::Tcp(Arc::new(io::ErrorKind::TimedOut.into())),
            }
        }
        Err(last)
    }

    async fn speak<S>(&self, stream: S, probe: Probe, http2: bool) -> Result<Connection, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        if !http2 {
            let (sender, connection) = http1::Builder::new().handshake(io).await.map_err(http)?;
            let wire = Box::pin(log_end(connection.with_upgrades()));
            return Ok(Connection::Http1(Http1::new(sender, wire, probe, self.tasks.clone())));
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
        let shared = Multiplexed::new(sender, load, scheme);
        shared.stream(false).map(Connection::Http2).ok_or(ConnectError::NoStreams)
    }
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
    fn new(settings: &Settings, ca: Option<&[u8]>) -> Result<Tls, ProxyBuildError> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        if let (Some(path), Some(pem)) = (&settings.ca, ca) {
            add_roots(&mut roots, path, pem)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut http1 = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
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
