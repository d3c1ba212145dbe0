//! TLS towards clients: weir's certificate, and the names in a client's certificate.
//!
//! Knows nothing of the protocol inside, and nothing of the configured clients.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use der::asn1::AnyRef;
use der::{Decode, Tag, TagNumber, Tagged};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::config::model::{ServerTls, SubjectName};
use crate::proxy::error::ProxyBuildError;
use crate::proxy::net::certificates::{ALPN_HTTP1, ALPN_HTTP2, add_roots, identity, read, unusable};
use crate::proxy::net::stream::Stream;

/// The most bytes of records that wait for the client to take them.
const WRITE_BUFFER: usize = 16 * 1024;

/// The server side of handshakes, with the certificate files as they were when the configuration was built.
#[derive(Clone)]
pub(crate) struct Acceptor(TlsAcceptor);

/// The result of a handshake.
pub(crate) struct Secured {
    /// The stream inside TLS.
    pub(crate) wire: Wire,
    /// True if both sides have agreed on HTTP/2.
    pub(crate) is_http2: bool,
    /// The names in the client's certificate; empty without one.
    pub(crate) names: Vec<SubjectName>,
}

impl Acceptor {
    /// Reads the files. With `client_ca` a client's certificate must be valid, and with `certificate_required` it must be present.
    pub(crate) fn new(settings: &ServerTls, certificate_required: bool) -> Result<Acceptor, ProxyBuildError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = match &settings.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                add_roots(&mut roots, path, &read(path)?)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = if certificate_required { verifier } else { verifier.allow_unauthenticated() };
                builder.with_client_cert_verifier(verifier.build().map_err(|error| unusable(path, &error))?)
            }
        };
        let ServerTls { cert, key, .. } = settings;
        let (chain, private) = identity((cert, key), (&read(cert)?, &read(key)?))?;
        let config = builder.with_single_cert(chain, private);
        let mut config = config.map_err(|error| unusable(cert, &error))?;
        // The server's order is by strength; a client's may be arbitrary.
        config.ignore_client_order = true;
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()];
        Ok(Acceptor(Arc::new(config).into()))
    }

    /// Shakes hands. The caller limits the time.
    pub(crate) async fn accept(&self, stream: Stream) -> io::Result<Secured> {
        let limit = |session: &mut ServerConnection| session.set_buffer_limit(Some(WRITE_BUFFER));
        let stream = self.0.accept_with(stream, limit).await?;
        let session = stream.get_ref().1;
        let is_http2 = session.alpn_protocol() == Some(ALPN_HTTP2);
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let names = certificate.map(|certificate| subject_names(certificate)).unwrap_or_default();
        Ok(Secured { wire: Wire::Right(Box::new(stream)), is_http2, names })
    }
}

/// Returns whether a handshake failed by what one side sent, and not because the client has left.
pub(crate) fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<rustls::Error>())
}

/// Returns the subject alternative names of a verified certificate, in order, of the kinds that can identify a client. A certificate
/// that cannot be parsed has none.
fn subject_names(certificate: &[u8]) -> Vec<SubjectName> {
    alternative_names(certificate).unwrap_or_default()
}

/// Reads the extension of a certificate that has the names (RFC 5280, 4.1 and 4.2.1.6), and looks at no other part, which may be in a form that
/// nobody here knows.
fn alternative_names(certificate: &[u8]) -> der::Result<Vec<SubjectName>> {
    /// `id-ce-subjectAltName`, 2.5.29.17.
    const SUBJECT_ALTERNATIVE_NAME: [u8; 3] = [0x55, 0x1d, 0x11];
    const EXTENSIONS: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(3) };
    fn parts<'a>(sequence: &AnyRef<'a>) -> der::Result<Vec<AnyRef<'a>>> {
        sequence.decode_as()
    }
    let whole = Vec::<AnyRef<'_>>::from_der(certificate)?;
    let signed = whole.first().map(parts).transpose()?.unwrap_or_default();
    let Some(extensions) = signed.iter().find(|part| Tagged::tag(*part) == EXTENSIONS) else {
        return Ok(Vec::new());
    };
    for extension in Vec::<AnyRef<'_>>::from_der(extensions.value())? {
        let extension = parts(&extension)?;
        if let [identifier, .., value] = &extension[..]
            && identifier.value() == SUBJECT_ALTERNATIVE_NAME
        {
            let names = Vec::<AnyRef<'_>>::from_der(value.value())?;
            return Ok(names.into_iter().filter_map(subject_name).collect());
        }
    }
    Ok(Vec::new())
}

/// Reads one `GeneralName` of RFC 5280, 4.2.1.6. Other kinds are passed over.
fn subject_name(name: AnyRef<'_>) -> Option<SubjectName> {
    let Tag::ContextSpecific { constructed: false, number } = Tagged::tag(&name) else { return None };
    let text = || str::from_utf8(name.value()).ok();
    match number.value() {
        1 => Some(SubjectName::Email(text()?.to_owned())),
        2 => Some(SubjectName::dns(text()?)),
        6 => Some(SubjectName::Uri(text()?.to_owned())),
        7 => {
            let v4 = <[u8; 4]>::try_from(name.value()).ok().map(IpAddr::from);
            v4.or_else(|| <[u8; 16]>::try_from(name.value()).ok().map(IpAddr::from)).map(SubjectName::Ip)
        }
        _ => None,
    }
}

/// A client's stream: in plain text, or inside TLS. TLS is boxed because it is far larger, and most connections are idle most of the
/// time.
pub(crate) type Wire = Either<Stream, Box<TlsStream<Stream>>>;

/// Returns the stream below TLS.
pub(crate) fn tcp_of(wire: &Wire) -> &Stream {
    match wire {
        Wire::Left(stream) => stream,
        Wire::Right(tls) => tls.get_ref().0,
    }
}
