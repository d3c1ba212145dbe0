//! The client's side of TLS: the trusted authority, its own certificate, and the server's.

use std::io::Result;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CipherSuite, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificates::Signed;
use super::client::Connection;
use super::raise_open_files;

/// A client that speaks TLS.
#[derive(Clone)]
pub(crate) struct TlsClient {
    /// The trusted authority, as PEM.
    authority: String,
    identity: Option<Signed>,
    alpn: Vec<Vec<u8>>,
    /// The cipher suites, best first; all known ones if empty.
    suites: Vec<CipherSuite>,
}

impl TlsClient {
    /// Returns a client that trusts one authority, has no certificate and offers no protocol.
    pub(crate) fn trusting(authority: &str) -> TlsClient {
        TlsClient { authority: authority.to_owned(), identity: None, alpn: Vec::new(), suites: Vec::new() }
    }

    /// Adds a certificate.
    pub(crate) fn showing(&self, identity: &Signed) -> TlsClient {
        TlsClient { identity: Some(identity.clone()), ..self.clone() }
    }

    /// Sets the offered protocols.
    pub(crate) fn offering(&self, protocols: &[&str]) -> TlsClient {
        let alpn = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsClient { alpn, ..self.clone() }
    }

    /// Restricts the cipher suites to these, best first.
    pub(crate) fn preferring(&self, suites: &[CipherSuite]) -> TlsClient {
        TlsClient { suites: suites.to_vec(), ..self.clone() }
    }

    /// Connects to `127.0.0.1:PORT` and shakes hands by that address.
    pub(crate) async fn connect(&self, host: &str) -> Result<TlsStream<TcpStream>> {
        raise_open_files();
        let tcp = TcpStream::connect(host).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        TlsConnector::from(Arc::new(self.config())).connect(name, tcp).await
    }

    /// Opens a connection for HTTP/1.1 requests.
    pub(crate) async fn open(&self, host: &str) -> Result<Connection> {
        Ok(Connection::over(self.connect(host).await?, host))
    }

    /// Returns a new configuration each time, so that no session is resumed.
    fn config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(self.authority.as_bytes()) {
            roots.add(authority.expect("PEM")).expect("an authority");
        }
        let mut provider = rustls::crypto::ring::default_provider();
        if !self.suites.is_empty() {
            let known = std::mem::take(&mut provider.cipher_suites);
            let wanted =
                self.suites.iter().filter_map(|wanted| known.iter().find(|suite| suite.suite() == *wanted));
            provider.cipher_suites = wanted.copied().collect();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Signed { certificate, key }) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
                let chain = chain.map(|certificate| certificate.expect("PEM")).collect();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("they belong together")
            }
        };
        config.alpn_protocols.clone_from(&self.alpn);
        config
    }
}
