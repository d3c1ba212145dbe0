//! Why weir answers a request itself. What the client then sees is decided in [`super::messages::response`] alone.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderName;

use super::upstream::outbound::HEAD_BYTES_MAX;
use crate::limiter::model::limit::{Limiter, Permits};
use crate::limiter::{LimiterSetError, Refusal};

/// Why a request was not forwarded, or its answer could not be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// The request must not be forwarded.
    #[error("{0}")]
    BadRequest(&'static str),
    /// The request's body is not framed as HTTP has it: nobody knows where the next request would begin.
    #[error("{0}")]
    BadFraming(&'static str),
    /// The request names no cost that it may.
    #[error("{header} must be one whole number from 1 to {max}")]
    BadCost {
        /// Where it names it.
        header: HeaderName,
        /// The most that it may name.
        max: Permits,
    },
    /// A method that a reverse proxy does not forward.
    #[error("this method is not forwarded")]
    MethodNotAllowed,
    /// Nobody that is listed, or nobody says so.
    #[error("no valid token or certificate of a client")]
    UnknownClient,
    /// Not for this client or address.
    #[error("{0}")]
    Forbidden(&'static str),
    /// No route matches.
    #[error("no route matches")]
    NoRoute,
    /// The request has passed this proxy before.
    #[error("the request has passed this proxy before")]
    Loop,
    /// The limiter said no.
    #[error("the limiter refused")]
    Refused {
        /// Why, and when to come back.
        refusal: Refusal,
        /// The limits of the one that refused, for the response; `None` if it has gone meanwhile.
        limiter: Option<Arc<Limiter>>,
    },
    /// Shutting down, and the drain time is over.
    #[error("shutting down")]
    Draining,
    /// The client stalls in the middle of its request.
    #[error("the request's body stalled")]
    RequestTimeout,
    /// The client went away. Nobody reads the answer.
    #[error("the client went away")]
    ClientGone,
    /// No connection to the upstream.
    #[error("no connection to the upstream: {0}")]
    UpstreamConnect(#[from] ConnectError),
    /// The upstream's answer is not HTTP, or it hung up in the middle.
    #[error("the upstream's answer was not understood: {0}")]
    UpstreamProtocol(#[source] hyper::Error),
    /// The upstream switched protocols without being asked, or to none that was asked for.
    #[error("the upstream switched protocols unasked")]
    UpgradeUnasked,
    /// The upstream's headers did not come in time.
    #[error("the upstream did not answer in time")]
    UpstreamTimeout,
}

/// Why a connection to an upstream could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The name has no address, or could not be looked up.
    #[error("cannot look up {host}: {reason}")]
    Lookup {
        /// The name.
        host: Arc<str>,
        /// What the resolver said.
        reason: String,
    },
    /// The name has no address at all.
    #[error("no address")]
    NoAddress,
    /// No address accepted a connection.
    #[error("{address}: {source}")]
    Tcp {
        /// The last one that failed.
        address: SocketAddr,
        /// Why.
        source: Arc<io::Error>,
    },
    /// The outbound proxy opened no tunnel.
    #[error("the outbound proxy {proxy}: {source}")]
    Tunnel {
        /// Its host and port.
        proxy: Arc<str>,
        /// Why not.
        source: TunnelError,
    },
    /// The TLS handshake failed.
    #[error("tls: {0}")]
    Tls(Arc<io::Error>),
    /// The HTTP handshake failed, or the connection closed before it could be used.
    #[error("http: {0}")]
    Http(Arc<hyper::Error>),
    /// The upstream accepts no stream at all.
    #[error("http: the upstream takes no streams")]
    NoStreams,
    /// All of it took longer than `connect_timeout`.
    #[error("took longer than connect_timeout, and had come to {0}")]
    Timeout(Stage),
}

/// How far the opening of a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for a connection that another request opens and that it may share.
    Turn,
    /// The name is looked up and its addresses are tried.
    Dial,
    /// The outbound proxy is asked for a tunnel.
    Tunnel,
    /// The upstream is asked who it is.
    Tls,
    /// The upstream is told which HTTP is spoken.
    Http,
}

impl fmt::Display for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Stage::Turn => "the connection that another request opens",
            Stage::Dial => "the lookup and the TCP connection",
            Stage::Tunnel => "the outbound proxy's answer to CONNECT",
            Stage::Tls => "the TLS handshake",
            Stage::Http => "the HTTP handshake",
        })
    }
}

/// Why an outbound proxy opened no tunnel.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum TunnelError {
    /// It says no.
    #[error("it answered CONNECT with {status}: {advice}")]
    Refused {
        /// Its status.
        status: u16,
        /// What to do.
        advice: &'static str,
    },
    /// It speaks something else.
    #[error("its answer to CONNECT is not HTTP/1.1 ({0}); check that `upstream.proxy` is an HTTP proxy")]
    NotHttp(httparse::Error),
    /// Its answer has no end.
    #[error("the head of its answer to CONNECT is larger than {HEAD_BYTES_MAX} bytes")]
    TooLarge,
    /// It hung up.
    #[error("it closed the connection before it had answered CONNECT")]
    Closed,
    /// The connection to it broke.
    #[error("the connection broke: {0}")]
    Io(Arc<io::Error>),
}

impl From<io::Error> for TunnelError {
    fn from(error: io::Error) -> TunnelError {
        TunnelError::Io(Arc::new(error))
    }
}

/// Why a configuration cannot be routed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ProxyBuildError {
    /// The file behind an upstream's `ca` cannot be read.
    #[error("cannot read {path}: {source}")]
    CaUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of authorities, `ca` or `client_ca`, holds no certificate that can be used.
    #[error("{path}: {reason}")]
    CaInvalid {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file behind `server.tls` cannot be read or used.
    #[error("{path}: {reason}")]
    ServerCertificate {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The upstream's host can be no TLS server name.
    #[error("{host} is not a TLS server name")]
    ServerName {
        /// The host.
        host: Arc<str>,
    },
    /// The upstream's authority can be no header's value.
    #[error("{authority} cannot be said in Host")]
    Host {
        /// The authority.
        authority: Arc<str>,
    },
    /// A file behind an upstream's `cert` or `key` cannot be read or used.
    #[error("{path}: {reason}")]
    ClientCertificate {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// TLS cannot be set up at all.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    /// A route's limiters do not exist, or cannot be taken together.
    #[error("route {route}: {source}")]
    Limiters {
        /// The route.
        route: Arc<str>,
        /// Why not.
        source: LimiterSetError,
    },
}
