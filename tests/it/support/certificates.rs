//! Certificates made for one test: an authority, what it signs, and one for `localhost` and `127.0.0.1` signed by it.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

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
        let authority = Authority::new();
        let signed = authority.sign(localhost());
        let files = Certificates {
            ca: directory.join("ca.pem"),
            certificate: directory.join("server.pem"),
            key: directory.join("server.key"),
        };
        std::fs::write(&files.ca, authority.pem()).expect("write the authority");
        std::fs::write(&files.certificate, signed.certificate).expect("write the certificate");
        std::fs::write(&files.key, signed.key).expect("write the key");
        files
    }
}

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut authority = CertificateParams::new(Vec::new()).expect("no names");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(authority, key).expect("an authority signs itself"))
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate with these names, and a key of its own.
    pub(crate) fn sign(&self, names: Vec<SanType>) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let mut wanted = CertificateParams::new(Vec::new()).expect("no names");
        wanted.subject_alt_names = names;
        let signed = wanted.signed_by(&key, &self.0).expect("the authority signs");
        Signed { certificate: signed.pem(), key: key.serialize_pem() }
    }
}

/// The names of a server on this machine.
pub(crate) fn localhost() -> Vec<SanType> {
    let name = "localhost".try_into().expect("a name");
    vec![SanType::DnsName(name), SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into())]
}
