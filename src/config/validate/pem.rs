//! Certificates and private keys, by the paths of their PEM files.

use std::fs;
use std::path::{Path, PathBuf};

use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use super::check::Check;
use super::place::{At, Given};

/// The largest PEM file.
const PEM_BYTES_MAX: u64 = 1024 * 1024;

impl Check<'_> {
    /// Checks that a file holds certificates.
    pub(super) fn certificates(&mut self, given: &Given<'_, String>) -> Option<PathBuf> {
        self.pem(given, "certificate", |bytes| {
            let mut count = 0;
            CertificateDer::pem_slice_iter(bytes).all(|item| item.map(|_| count += 1).is_ok()) && count > 0
        })
    }

    /// Checks that a file holds a private key.
    pub(super) fn private_key(&mut self, given: &Given<'_, String>) -> Option<PathBuf> {
        self.pem(given, "private key", |bytes| PrivateKeyDer::from_pem_slice(bytes).is_ok())
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

    fn pem(&mut self, given: &Given<'_, String>, what: &str, holds: fn(&[u8]) -> bool) -> Option<PathBuf> {
        let path = self.base.join(given.value);
        let fault = match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > PEM_BYTES_MAX => {
                format!("is larger than {PEM_BYTES_MAX} bytes")
            }
            Ok(_) => match fs::read(&path) {
                Ok(bytes) if holds(&bytes) => {
                    self.content.pem.insert(path.clone(), Sha256::digest(bytes).into());
                    return Some(path);
                }
                Ok(_) => format!("holds no {what} in PEM form"),
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
