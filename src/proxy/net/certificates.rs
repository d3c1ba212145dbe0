//! The parts of TLS that both sides of the proxy share: protocol names, and files of authorities, certificates and keys.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::proxy::error::ProxyBuildError;

/// The name of HTTP/1.1 in a TLS handshake.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";
/// The name of HTTP/2 in a TLS handshake.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";

/// The largest certificate or key file that is read. The configuration refuses larger ones.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads a file of certificates or keys.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ProxyBuildError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|error| unusable(path, &format!("cannot be read: {error}")))?;
    Ok(bytes)
}

/// Adds the authorities of a PEM file to `roots`; the path is for errors alone.
pub(crate) fn add_roots(roots: &mut RootCertStore, path: &Path, pem: &[u8]) -> Result<(), ProxyBuildError> {
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| unusable(path, &error))?;
        roots.add(certificate).map_err(|error| unusable(path, &error))?;
        count += 1;
    }
    if count == 0 { Err(unusable(path, &"holds no certificate")) } else { Ok(()) }
}

/// Reads a certificate chain and its private key from two PEM files; the paths are for errors alone.
pub(crate) fn identity(
    (cert, key): (&PathBuf, &PathBuf),
    (chain, private): (&[u8], &[u8]),
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ProxyBuildError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| unusable(cert, &error))?;
    let private = PrivateKeyDer::from_pem_slice(private).map_err(|error| unusable(key, &error))?;
    Ok((chain, private))
}

/// Returns the error of a file of certificates or keys.
pub(crate) fn unusable(path: &Path, reason: &impl ToString) -> ProxyBuildError {
    ProxyBuildError::File { path: path.to_owned(), reason: reason.to_string() }
}
