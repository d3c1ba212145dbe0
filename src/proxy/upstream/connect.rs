//! Opens connections to one upstream: TCP ([`super::dial`]), the outbound proxy's tunnel ([`super::outbound`]), TLS, HTTP.
//!
//! Keeps none of them, and bounds no time: the caller does.

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::connection::{Connection, HTTP2_STREAMS_MAX, Http1, Load, Multiplexed};
use super::dial::Dialer;
use super::header_room::HeaderRoom;
use super::key::{Key, Reach};
use super::outbound::Outbound;
use super::progress::Progress;
use super::tls::Tls;
use crate::config::model::{Http2 as Http2Mode, Upstream as Settings};
use crate::proxy::error::{ConnectError, ProxyBuildError, Stage};
use crate::proxy::net::certificates::ALPN_HTTP2;
use crate::proxy::net::spawner::Spawner;
use crate::proxy::net::stream::{Probe, Stream};

/// The interval of PINGs on a shared connection with requests under way, and the time to answer one. Without them a peer that
/// vanished would hold the requests until their own timeouts.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of a response's head. HTTP/2 counts 32 more for each field (RFC 9113, 6.5.2).
const HEAD_BYTES_MAX: u32 = 64 * 1024;
/// The most bytes of such a head over HTTP/1.1, and of a request that wait for the upstream to take them.
const HTTP1_BUFFER: usize = HEAD_BYTES_MAX as usize;
/// The most unread bytes of bodies, per stream and per connection. The first is what a client that takes nothing makes weir hold, and
/// what a distant upstream can send in a round trip.
const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;
const HTTP2_CONNECTION_WINDOW: u32 = HTTP2_STREAM_WINDOW * HTTP2_STREAMS_MAX;
/// The most bytes of a request's body, per stream, that wait for the upstream to take them.
const HTTP2_SEND_BUFFER: usize = 64 * 1024;

/// The protocol that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The protocol of the upstream's settings and ALPN.
    Any,
    /// HTTP/1.1, because the request wants to switch to another protocol.
    Http1,
}

/// A connector for one upstream.
pub(crate) struct Connector {
    settings: Settings,
    dialer: Dialer,
    outbound: Option<Outbound>,
    tls: Option<Tls>,
    connection_age_max: Duration,
    write_timeout: Duration,
    header_room: HeaderRoom,
    tasks: TaskTracker,
}

impl Connector {
    /// Creates the connector and opens nothing.
    pub(crate) fn new(key: &Key, reach: &Reach, tasks: TaskTracker) -> Result<Connector, ProxyBuildError> {
        let settings = key.settings.clone();
        let tls = if settings.tls { Some(Tls::new(key)?) } else { None };
        let outbound = settings.proxy.as_ref().map(|proxy| Outbound::new(&settings, proxy));
        // An outbound proxy looks the upstream's name up itself.
        let (host, port) = match &settings.proxy {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (&settings.host, settings.port),
        };
        let dialer = Dialer::new(host, port, Arc::clone(&reach.resolver));
        let (connection_age_max, write_timeout) = (reach.connection_age_max, key.write_timeout);
        let header_room = HeaderRoom::default();
        Ok(Connector {
            dialer,
            outbound,
            tls,
            connection_age_max,
            write_timeout,
            header_room,
            tasks,
            settings,
        })
    }

    /// Opens a connection and notes its progress.
    pub(crate) async fn connect(
        &self,
        wanted: Wanted,
        progress: &Progress,
    ) -> Result<Connection, ConnectError> {
        progress.begin(Stage::Dial);
        let mut tcp = self.dialer.dial(self.settings.timeouts.connect).await?;
        if let Some(outbound) = &self.outbound {
            progress.begin(Stage::Tunnel);
            outbound.open(&mut tcp).await?;
        }
        let stream = Stream::new(tcp, self.write_timeout);
        let probe = stream.probe();
        let Some(tls) = &self.tls else {
            progress.begin(Stage::Http);
            let http2 = self.settings.http2 == Http2Mode::PriorKnowledge && wanted == Wanted::Any;
            return self.handshake(stream, probe, http2).await;
        };
        progress.begin(Stage::Tls);
        let connector = if wanted == Wanted::Http1 { &tls.http1 } else { &tls.any };
        let stream = connector.connect(tls.name.clone(), stream).await;
        let stream = stream.map_err(|error| ConnectError::Tls(Arc::new(error)))?;
        progress.begin(Stage::Http);
        let chosen = stream.get_ref().1.alpn_protocol();
        let http2 = match (self.settings.http2, wanted) {
            (_, Wanted::Http1) | (Http2Mode::Off, _) => false,
            (Http2Mode::Auto, _) => chosen == Some(ALPN_HTTP2),
            (Http2Mode::PriorKnowledge, _) => true,
        };
        self.handshake(stream, probe, http2).await
    }

    /// Shakes hands over an open stream.
    async fn handshake<S>(&self, stream: S, probe: Probe, http2: bool) -> Result<Connection, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        let retires_at = Instant::now() + spread(self.connection_age_max);
        if !http2 {
            let (mut builder, room) = (http1::Builder::new(), self.header_room.of_next());
            if let Some(headers_max) = room.headers_max() {
                builder.max_headers(headers_max);
            }
            let handshake = builder.max_buf_size(HTTP1_BUFFER).handshake(io);
            let (sender, connection) = handshake.await.map_err(http)?;
            let (wire, tasks) = (Box::pin(log_end(connection.with_upgrades())), self.tasks.clone());
            return Ok(Connection::Http1(Box::new(Http1::new(sender, wire, probe, retires_at, room, tasks))));
        }
        let (sender, connection) = http2::Builder::new(Spawner(self.tasks.clone()))
            .timer(TokioTimer::new())
            .initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
            .max_send_buf_size(HTTP2_SEND_BUFFER)
            .max_header_list_size(HEAD_BYTES_MAX)
            .keep_alive_interval(HTTP2_PING_INTERVAL)
            .keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .handshake(io)
            .await
            .map_err(http)?;
        // Until the upstream sends its number of streams, h2 assumes one that every server allows.
        let load = Arc::new(Load::new(connection.current_max_send_streams().max(1)));
        let shared_load = Arc::clone(&load);
        self.tasks.spawn(log_end(async move {
            let mut connection = pin!(connection);
            poll_fn(|context| {
                let end = connection.as_mut().poll(context);
                shared_load.set_streams_max(connection.current_max_send_streams());
                end
            })
            .await
        }));
        let scheme = if self.settings.tls { Scheme::HTTPS } else { Scheme::HTTP };
        let shared = Multiplexed::new(sender, load, scheme, retires_at);
        shared.stream(false).map(Connection::Http2).ok_or(ConnectError::NoStreams)
    }
}

/// Returns between seven and eight eighths of an age, so that the connections of a burst do not all end at once.
fn spread(age: Duration) -> Duration {
    // The standard library seeds every `RandomState` at random.
    let share = u32::try_from(RandomState::new().hash_one(0u8) % 512).unwrap_or_default();
    age / 4096 * (3584 + share)
}

fn http(error: hyper::Error) -> ConnectError {
    ConnectError::Http(Arc::new(error))
}

/// Logs the end of a connection. hyper reports it to the requests.
async fn log_end(connection: impl Future<Output = hyper::Result<()>>) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "upstream connection ended");
    }
}
