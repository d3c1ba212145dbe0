//! The interface between the listener and the rest of the proxy.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};

use super::client::Client;
use super::tls::Acceptor;
use crate::config::model::Server;
use crate::proxy::messages::client_body::ClientBody;
use crate::proxy::net::body_memory::BodyMemory;
use crate::telemetry::ConnectionErrors;

/// The settings of new connections, as they are in force now.
pub(crate) struct Settings {
    /// Timeouts and bounds.
    pub(crate) server: Arc<Server>,
    /// TLS; `None` means plain text.
    pub(crate) tls: Option<Acceptor>,
    /// The memory for what arrives while requests wait.
    pub(crate) body_memory: Arc<BodyMemory>,
}

/// A service that answers the requests of all connections of a listener.
pub(crate) trait Service: Clone + Send + Sync + Unpin + 'static {
    /// The body of the service's responses.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Returns the settings in force.
    fn settings(&self) -> Settings;

    /// Returns the counters of connections that an error of their client has ended.
    fn connection_errors(&self) -> ConnectionErrors;

    /// Answers a request. Every error is a response.
    fn answer(
        self,
        client: Arc<Client>,
        request: Request<ClientBody>,
    ) -> impl Future<Output = Result<Response<Self::Body>, Infallible>> + Send + Unpin + 'static;

    /// Closes connections to upstreams that have been idle for too long. The listener calls it from time to time.
    fn sweep(&self);
}
