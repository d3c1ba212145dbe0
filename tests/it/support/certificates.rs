//! Certificates for one test: an authority, and the certificates that it signs, one for `localhost` and `127.0.0.1`
//! among them.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DnType, IsCa, KeyPair, SanType,
};
use rustls_pki_types::CertificateDer;

use super::replace_file;

/// The paths of PEM files: the authority's certificate, the server's, and its key.
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
        // A unique name, or another authority with the same name would be taken for this one.
        let name = format!("authority {:02x?}", &key.public_key_raw()[1..9]);
        authority.distinguished_name.push(DnType::CommonName, name);
        Authority(CertifiedIssuer::self_signed(authority, key).expect("an authority signs itself"))
    }

    /// Returns the authority's own certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes the authority's own certificate to a file.
    pub(crate) fn write_to(&self, path: &Path) -> PathBuf {
        replace_file(path, &self.pem());
        path.to_owned()
    }

    /// Returns the authority's own certificate for rustls.
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// Signs a new key with these names.
    pub(crate) fn sign(&self, names: Vec<SanType>) -> Signed {
        self.sign_with(names, |_| ())
    }

    /// Signs a new key with these names, and with an extension that nobody knows, whose name does not fit into 64 bits together with its first
    /// part.
    pub(crate) fn sign_beside_unknown(&self, names: Vec<SanType>) -> Signed {
        self.sign_with(names, |certificate| {
            let unknown = CustomExtension::from_oid_content(&[2, 25, u64::MAX], vec![5, 0]);
            certificate.custom_extensions.push(unknown);
        })
    }

    /// Signs an expired certificate with these names.
    pub(crate) fn sign_expired(&self, names: Vec<SanType>) -> Signed {
        self.sign_with(names, |certificate| {
            certificate.not_before = rcgen::date_time_ymd(2019, 1, 1);
            certificate.not_after = rcgen::date_time_ymd(2020, 1, 1);
        })
    }

    fn sign_with(&self, names: Vec<SanType>, change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let mut wanted = CertificateParams::new(Vec::new()).expect("no names");
        wanted.subject_alt_names = names;
        change(&mut wanted);
        let signed = wanted.signed_by(&key, &self.0).expect("the authority signs");
        Signed { certificate: signed.pem(), key: key.serialize_pem() }
    }
}

/// Returns a DNS name.
pub(crate) fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("a name"))
}

/// Returns the names of a server on this machine.
pub(crate) fn localhost() -> Vec<SanType> {
    vec![dns("localhost"), SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into())]
}
