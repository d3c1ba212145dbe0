//! Certificates and private keys, by the paths of their PEM files.

use std::fs;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use super::check::Check;
use super::place::{At, Given};

/// The largest PEM file.
const PEM_BYTES_MAX: u64 = 1024 * 1024;
const NO_CERTIFICATE: &str = "holds no certificate in PEM form";

impl Check<'_> {
    /// Checks that a file holds certificates.
    pub(super) fn certificates(&mut self, given: &Given<'_, String>) -> Option<PathBuf> {
        self.pem(given, |bytes| if chain(bytes).is_some() { Ok(()) } else { Err(NO_CERTIFICATE.to_owned()) })
    }

    /// Checks that a file holds certificates of authorities. These are read at the start, other than those that go to a peer.
    pub(super) fn authorities(&mut self, given: &Given<'_, String>) -> Option<PathBuf> {
        self.pem(given, |bytes| {
            let mut roots = RootCertStore::empty();
            let chain = chain(bytes).ok_or(NO_CERTIFICATE)?;
            let added = chain.into_iter().try_for_each(|certificate| roots.add(certificate));
            added.map_err(|error| format!("holds a certificate that cannot be used: {error}"))
        })
    }

    /// Checks that a file holds a private key.
    pub(super) fn private_key(&mut self, given: &Given<'_, String>) -> Option<PathBuf> {
        let fault = || "holds no private key in PEM form".to_owned();
        self.pem(given, |bytes| PrivateKeyDer::from_pem_slice(bytes).map(drop).map_err(|_| fault()))
    }

    /// Checks an optional certificate chain and its private key: both are given, or neither.
    pub(super) fn identity(
        &mut self,
        cert: &Given<'_, Option<String>>,
        key: &Given<'_, Option<String>>,
    ) -> Option<Option<(PathBuf, PathBuf)>> {
        let cert_path = cert.checked(|cert| self.certificates(&cert));
        let key_path = key.checked(|key| self.private_key(&key));
        match (cert.value, key.value) {
            (None, None) => Some(None),
            (Some(_), None) => self.needs_beside(&cert.at, &key.at),
            (None, Some(_)) => self.needs_beside(&key.at, &cert.at),
            (Some(_), Some(_)) => {
                let (cert_path, key_path) = (cert_path??, key_path??);
                self.belong_together(&cert_path, &key_path, &key.at).then_some(Some((cert_path, key_path)))
            }
        }
    }

    /// Returns whether a key is that of the first certificate in a file; reports a problem if it is not.
    pub(super) fn belong_together(&mut self, certificates: &Path, key: &Path, at_key: &At<'_>) -> bool {
        let chain = CertificateDer::pem_file_iter(certificates).and_then(Iterator::collect);
        let (Ok(chain), Ok(key)) = (chain, PrivateKeyDer::from_pem_file(key)) else {
            // Both were readable a moment ago: they are being replaced.
            self.problem(at_key, "`cert` and `key` cannot be read together");
            return false;
        };
        let fault = match CertifiedKey::from_der(chain, key, &ring::default_provider()) {
            Ok(_) => return true,
            Err(rustls::Error::InconsistentKeys(_)) => {
                "is not the key of the certificate in `cert`".to_owned()
            }
            Err(error) => format!("cannot be used with `cert`: {error}"),
        };
        self.problem(at_key, fault);
        false
    }

    /// Checks a file by its content, of which `judge` returns the fault.
    fn pem(
        &mut self,
        given: &Given<'_, String>,
        judge: impl Fn(&[u8]) -> Result<(), String>,
    ) -> Option<PathBuf> {
        let path = self.base.join(given.value);
        let fault = match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > PEM_BYTES_MAX => {
                format!("is larger than {PEM_BYTES_MAX} bytes")
            }
            Ok(_) => match fs::read(&path) {
                Ok(bytes) => match judge(&bytes) {
                    Ok(()) => {
                        self.content.pem.insert(path.clone(), Sha256::digest(bytes).into());
                        return Some(path);
                    }
                    Err(fault) => fault,
                },
                Err(error) => format!("cannot be read: {error}"),
            },
            Err(error) => format!("cannot be read: {error}"),
        };
        // A path that came out of a reference may be a secret in the wrong place.
        let shown = if given.at.is_interpolated() { String::new() } else { format!(" {}", path.display()) };
        self.refuse(&given.at, format!("the file{shown} {fault}"))
    }

    fn needs_beside<T>(&mut self, given: &At<'_>, other: &At<'_>) -> Option<T> {
        if !other.is_given() {
            self.problem_of_key(given, format!("needs `{}` beside it", other.path));
        }
        None
    }
}

/// Returns the certificates of a PEM file; `None` if there are none, or one of them is not whole.
fn chain(bytes: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(bytes).collect::<Result<_, _>>().ok()?;
    Some(chain).filter(|chain| !chain.is_empty())
}
