//! The series of connections that an error of their client has ended.

use std::sync::Arc;

use prometheus::IntCounter;

use crate::telemetry::metrics::Families;

/// An error of a client that ends its connection, and leaves no request to be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionError {
    /// The TLS handshake failed.
    TlsHandshake,
    /// The head of a request cannot be parsed.
    MalformedHead,
    /// The head of a request is too large.
    HeadTooLarge,
    /// The head of a request does not come in time.
    HeadTooSlow,
    /// Frames of HTTP/2 break its rules, or are a flood.
    Http2Protocol,
    /// The client speaks another protocol than HTTP.
    OtherProtocol,
}

impl ConnectionError {
    /// The values of the label `reason`, in the order of the variants.
    const NAMES: [&str; 6] = [
        "tls_handshake",
        "malformed_head",
        "head_too_large",
        "head_too_slow",
        "http2_protocol",
        "other_protocol",
    ];
}

/// The counters of connections that an error of their client has ended. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionErrors {
    /// Indexed by [`ConnectionError`].
    counters: Arc<[IntCounter; ConnectionError::NAMES.len()]>,
}

impl ConnectionErrors {
    pub(in crate::telemetry) fn new(families: &Families) -> ConnectionErrors {
        let counter = |reason| families.client_connection_errors_total.with_label_values(&[reason]);
        ConnectionErrors { counters: ConnectionError::NAMES.map(counter).into() }
    }

    /// Counts a connection that ends with an error of its client.
    pub fn ended(&self, error: ConnectionError) {
        self.counters[error as usize].inc();
    }
}
