//! TLS in front of an [`Upstream`], with certificates as the test wants: of any authority, for any name, expired; with
//! or without a request for the client's certificate.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::ring::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::Upstream;
use super::certificates::{Authority, Signed};
use super::raw::RawUpstream;

/// A TLS server that passes everything on to an upstream. Dropping it closes every connection.
pub(crate) struct TlsUpstream {
    raw: RawUpstream,
    peers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl TlsUpstream {
    /// Starts a server with this certificate; with `clients`, requires a client certificate of that authority.
    pub(crate) async fn before(
        upstream: &Upstream,
        own: &Signed,
        clients: Option<&Authority>,
    ) -> TlsUpstream {
        let acceptor = TlsAcceptor::from(Arc::new(config(own, clients)));
        let (to, peers) = (upstream.address(), Arc::<Mutex<Vec<Vec<u8>>>>::default());
        let seen = Arc::clone(&peers);
        let raw = RawUpstream::start(move |connection, _| {
            let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
            async move {
                let Ok(mut stream) = acceptor.accept(connection.stream).await else { return };
                if let Some([first, ..]) = stream.get_ref().1.peer_certificates() {
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(first.to_vec());
                }
                let Ok(mut upstream) = TcpStream::connect(to).await else { return };
                let _ = copy_bidirectional(&mut stream, &mut upstream).await;
            }
        });
        TlsUpstream { raw: raw.await, peers }
    }

    /// Returns `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> SocketAddr {
        self.raw.address()
    }

    /// Returns `https://localhost:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.address().port())
    }

    /// Returns whether the last client certificate was this one.
    pub(crate) fn has_seen_last(&self, client: &Signed) -> bool {
        let certificate =
            CertificateDer::from_pem_slice(client.certificate.as_bytes()).expect("a certificate");
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.last().is_some_and(|last| last.as_slice() == certificate.as_ref())
    }
}

fn config(own: &Signed, clients: Option<&Authority>) -> ServerConfig {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has them");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der()).expect("an authority");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("roots"))
        }
    };
    let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("a key");
    let mut config = builder.with_single_cert(vec![certificate], key).expect("the key of the certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}
