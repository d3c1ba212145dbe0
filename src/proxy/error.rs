//! The errors of the proxy: of a request, of a connection to an upstream, and of a configuration.
//!
//! Knows no status codes: [`super::messages::response`] alone decides how a client sees an error.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::limiter::model::{Limiter, Permits};
use crate::limiter::{LimiterSetError, Refusal};

/// The reason why a request was not forwarded, or its response could not be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// The request must not be forwarded.
    #[error("{0}")]
    BadRequest(&'static str),
    /// The request's body is not framed correctly, so the start of the next request is unknown.
    #[error("{0}")]
    BadFraming(&'static str),
    /// The request names a cost that is malformed or too large.
    #[error("{name} must be one whole number from 1 to {max}")]
    BadCost {
        /// The header, or the path in the JSON body, that names the cost.
        name: Box<str>,
        /// The largest cost allowed.
        max: Permits,
    },
    /// A header or a parameter that selects the route, the partition or the cost can be read in more than one way.
    #[error("the {kind} {name} selects a limit, so it must be given once and in one form")]
    Ambiguous {
        /// The kind of thing that it is: a header, for example.
        kind: &'static str,
        /// Its name, or its position.
        name: Box<str>,
    },
    /// A reverse proxy does not forward this method.
    #[error("{0}")]
    MethodNotAllowed(&'static str),
    /// The client shows no valid token or certificate.
    #[error("no valid token or certificate of a client")]
    UnknownClient,
    /// This client or address is not allowed.
    #[error("{0}")]
    Forbidden(&'static str),
    /// No route matches.
    #[error("no route matches")]
    NoRoute,
    /// The request has passed this proxy before.
    #[error("the request has passed this proxy before")]
    Loop,
    /// A limiter refused a permit.
    #[error("the limiter refused")]
    Refused {
        /// The reason, and when to try again.
        refusal: Refusal,
        /// The limiter that refused, for the response; `None` if it was removed meanwhile.
        limiter: Option<Arc<Limiter>>,
        /// The wait and the header that bounds it, if the request itself does.
        wait: Option<String>,
        /// The class of the caller, where callers share the quota.
        class: Option<Arc<str>>,
    },
    /// The request's body selects a limit, and there is no memory to read it ahead.
    #[error("the body selects a limit, and `server.body_memory` has no room to read it ahead")]
    NoBodyMemory,
    /// weir is shutting down, and the drain time is over.
    #[error("shutting down")]
    Draining,
    /// The client stalled in the middle of its request.
    #[error("the request's body stalled")]
    RequestTimeout,
    /// The client closed its connection and reads no response.
    #[error("the client went away")]
    ClientGone,
    /// The route's breaker is open: no connection to the upstream is tried for now.
    #[error("the upstream cannot be reached, and is not tried for now")]
    UpstreamUnavailable {
        /// The time until the next try.
        retry_after: Duration,
    },
    /// No connection to the upstream could be opened.
    #[error("no connection to the upstream: {0}")]
    UpstreamConnect(#[from] ConnectError),
    /// The upstream closed the connection, or the connection broke, before the head of the response had come.
    #[error("the upstream closed the connection without an answer")]
    UpstreamClosed,
    /// The upstream's response is not HTTP.
    #[error("the upstream's answer was not understood: {0}")]
    UpstreamProtocol(#[source] hyper::Error),
    /// The response's body has a transfer coding that weir does not undo (RFC 9112, 6.1).
    #[error("the upstream's answer has a transfer coding other than chunked")]
    UpstreamCoding,
    /// The upstream switched protocols without being asked, or to another one.
    #[error("the upstream switched protocols unasked")]
    UpgradeUnasked,
    /// The head of the response did not arrive in time.
    #[error("the upstream did not answer in time")]
    UpstreamTimeout,
}

/// The reason why a connection to an upstream could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The name could not be looked up, or has no address.
    #[error("cannot look up {host}: {reason}")]
    Lookup {
        /// The name.
        host: Arc<str>,
        /// The message of the resolver.
        reason: String,
    },
    /// There was no address to try.
    #[error("no address")]
    NoAddress,
    /// No address accepted a connection.
    #[error("{address}: {source}")]
    Tcp {
        /// The last address that failed.
        address: SocketAddr,
        /// The reason.
        source: Arc<io::Error>,
    },
    /// The outbound proxy opened no tunnel.
    #[error("the outbound proxy {proxy}: {source}")]
    Tunnel {
        /// The proxy's host and port.
        proxy: Arc<str>,
        /// The reason.
        source: TunnelError,
    },
    /// The TLS handshake failed.
    #[error("tls: {0}")]
    Tls(Arc<io::Error>),
    /// The HTTP handshake failed, or the connection closed before it could be used.
    #[error("http: {0}")]
    Http(Arc<hyper::Error>),
    /// The upstream allows no HTTP/2 stream.
    #[error("http: the upstream takes no streams")]
    NoStreams,
    /// Opening took longer than `connect_timeout`; the stage is the last one begun.
    #[error("took longer than connect_timeout, and had come to {0}")]
    Timeout(Stage),
}

/// A stage in the opening of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stage {
    /// Waiting for a connection that another request opens and that can be shared.
    #[error("the connection that another request opens")]
    Turn,
    /// Looking up the name and trying its addresses.
    #[error("the lookup and the TCP connection")]
    Dial,
    /// Asking the outbound proxy for a tunnel.
    #[error("the outbound proxy's answer to CONNECT")]
    Tunnel,
    /// The TLS handshake.
    #[error("the TLS handshake")]
    Tls,
    /// The HTTP handshake.
    #[error("the HTTP handshake")]
    Http,
}

/// The reason why an outbound proxy opened no tunnel.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum TunnelError {
    /// The proxy refused.
    #[error("it answered CONNECT with {status}: {advice}")]
    Refused {
        /// The status of the proxy's answer.
        status: u16,
        /// Advice for the operator.
        advice: &'static str,
    },
    /// The answer is not HTTP/1.1.
    #[error("its answer to CONNECT is not HTTP/1.1 ({0}); check that `upstream.proxy` is an HTTP proxy")]
    NotHttp(httparse::Error),
    /// The head of the answer is too large.
    #[error("the head of its answer to CONNECT is larger than {bytes_max} bytes")]
    TooLarge {
        /// The largest head that is read.
        bytes_max: usize,
    },
    /// The proxy closed the connection.
    #[error("it closed the connection before it had answered CONNECT")]
    Closed,
    /// The connection to the proxy broke.
    #[error("the connection broke: {0}")]
    Io(Arc<io::Error>),
}

impl From<io::Error> for TunnelError {
    fn from(error: io::Error) -> TunnelError {
        TunnelError::Io(Arc::new(error))
    }
}

/// The reason why a configuration cannot be put into force. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ProxyBuildError {
    /// A file of certificates, authorities or keys cannot be read or used.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The upstream's host is no valid TLS server name.
    #[error("{host} is not a TLS server name")]
    ServerName {
        /// The host.
        host: Arc<str>,
    },
    /// The upstream's authority is no valid header value.
    #[error("{authority} is no valid value of Host")]
    Host {
        /// The authority.
        authority: Arc<str>,
    },
    /// TLS cannot be set up.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    /// A route's limiters do not exist, or cannot be combined.
    #[error("route {route}: {source}")]
    Limiters {
        /// The route.
        route: Arc<str>,
        /// The reason.
        source: LimiterSetError,
    },
}

/// Returns the error of HTTP/2 behind one of hyper's.
pub(crate) fn http2_cause(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error)?.downcast_ref::<h2::Error>()
}
