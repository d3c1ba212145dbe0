//! Certificates made for one test: an authority, and one for `localhost` and `127.0.0.1` signed by it.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// PEM files.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificates {
    /// Writes the three files into a directory.
    pub(crate) fn write_to(directory: &Path) -> Certificates {
        let mut authority = CertificateParams::new(Vec::new()).expect("no names");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key"))
            .expect("an authority signs itself");
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = CertificateParams::new(names).expect("valid names");
        let server = server.signed_by(&key, &authority).expect("the authority signs");

        let files = Certificates {
            ca: directory.join("ca.pem"),
            certificate: directory.join("server.pem"),
            key: directory.join("server.key"),
        };
        std::fs::write(&files.ca, authority.pem()).expect("write the authority");
        std::fs::write(&files.certificate, server.pem()).expect("write the certificate");
        std::fs::write(&files.key, key.serialize_pem()).expect("write the key");
        files
    }
}
