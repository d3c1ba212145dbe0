//! Opens a connection: the TLS handshake, and the version of HTTP, by ALPN or by the first bytes.
//!
//! Reads no request.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::client::Client;
use super::tls::{Acceptor, Secured, Wire, is_of_tls};
use crate::config::model::SubjectName;
use crate::proxy::net::stream::Stream;
use crate::telemetry::ConnectionError;

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The version of HTTP on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1 or HTTP/1.0.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A connection with a known protocol.
pub(crate) struct Opened {
    /// The stream inside TLS, if there is TLS.
    pub(crate) wire: Wire,
    /// The protocol.
    pub(crate) protocol: Protocol,
    /// The bytes that were read to find the protocol.
    pub(crate) first: FirstBytes,
    /// The names in the client's certificate.
    pub(crate) names: Vec<SubjectName>,
}

/// Shakes hands until a deadline if `tls` is set, and finds the protocol. Returns `None` if the client leaves, breaks the protocol or is too
/// slow, of which the first is not counted.
pub(crate) async fn open(
    mut stream: Stream,
    tls: Option<Acceptor>,
    deadline: Instant,
    client: &Client,
) -> Option<Opened> {
    let client_ip = client.peer.to_canonical();
    let secured = match tls {
        None => Secured { wire: Wire::Left(stream), is_http2: false, names: Vec::new() },
        Some(tls) => {
            // A client that sends nothing is not slow: browsers connect ahead.
            stream.first_arrival().await;
            // Boxed, because the handshake is large and soon over.
            match timeout_at(deadline, Box::pin(tls.accept(stream))).await {
                Ok(Ok(secured)) => secured,
                Ok(Err(error)) => {
                    tracing::debug!(%client_ip, %error, "a client's TLS handshake failed");
                    if is_of_tls(&error) {
                        client.errors.ended(ConnectionError::TlsHandshake);
                    }
                    return None;
                }
                Err(_) => {
                    tracing::debug!(%client_ip, "a client's TLS handshake took too long");
                    client.errors.ended(ConnectionError::TlsHandshake);
                    return None;
                }
            }
        }
    };
    let Secured { mut wire, is_http2, names } = secured;
    let (protocol, first) = sniff(&mut wire).await?;
    // A client that agreed on HTTP/2 must use it. Another may, by its preface.
    if is_http2 && protocol != Protocol::Http2 {
        tracing::debug!(%client_ip, "a client has agreed on HTTP/2 and does not speak it");
        client.errors.ended(ConnectionError::Http2Protocol);
        let _ = wire.shutdown().await;
        return None;
    }
    Some(Opened { wire, protocol, first, names })
}

/// The first bytes of a connection, to be read once more.
pub(crate) struct FirstBytes {
    bytes: [u8; PREFACE.len()],
    length: u8,
    given: u8,
}

impl FirstBytes {
    /// Copies what is left into `buffer`; returns whether anything was.
    pub(crate) fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let left = self.bytes.get(usize::from(self.given)..usize::from(self.length)).unwrap_or_default();
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(left.get(..count).unwrap_or_default());
        self.given += u8::try_from(count).unwrap_or(self.length);
        count > 0
    }
}

/// Reads until the protocol is clear; returns `None` if the client leaves before.
async fn sniff(stream: &mut (impl AsyncRead + Unpin)) -> Option<(Protocol, FirstBytes)> {
    let mut bytes = [0; PREFACE.len()];
    let mut length = 0;
    while bytes.get(..length) == PREFACE.get(..length) && length < bytes.len() {
        match stream.read(bytes.get_mut(length..)?).await {
            Ok(read) if read > 0 => length += read,
            _ => return None,
        }
    }
    let protocol = if bytes == *PREFACE { Protocol::Http2 } else { Protocol::Http1 };
    Some((protocol, FirstBytes { bytes, length: u8::try_from(length).ok()?, given: 0 }))
}
