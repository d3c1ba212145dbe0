//! The parts of TLS that both sides of the proxy share: protocol names, and files of authorities.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::proxy::error::ProxyBuildError;

/// The name of HTTP/1.1 in a TLS handshake.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";
/// The name of HTTP/2 in a TLS handshake.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";

/// Adds the authorities of a PEM file to `roots`; the path is for errors alone.
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
