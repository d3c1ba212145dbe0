//! The TLS settings of one upstream: trusted roots, weir's certificate, and the protocols offered.
//!
//! Opens nothing: [`super::connect`] shakes hands.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::key::Key;
use crate::config::model::Http2 as Http2Mode;
use crate::proxy::error::ProxyBuildError;
use crate::proxy::net::certificates::{ALPN_HTTP1, ALPN_HTTP2, add_roots, identity, unusable};

/// The connectors of one upstream.
pub(crate) struct Tls {
    /// The name that the upstream's certificate must have.
    pub(crate) name: ServerName<'static>,
    /// A connector that offers what `http2` allows.
    pub(crate) any: TlsConnector,
    /// A connector that offers HTTP/1.1 alone.
    pub(crate) http1: TlsConnector,
}

impl Tls {
    /// Builds the connectors from the settings and the files of `key`.
    pub(crate) fn new(key: &Key) -> Result<Tls, ProxyBuildError> {
        let Key { settings, ca, .. } = key;
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        if let (Some(path), Some(pem)) = (&settings.ca, ca) {
            add_roots(&mut roots, path, pem)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifying = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut http1 = match (&settings.identity, &key.identity) {
            (Some(paths), Some(pems)) => {
                let (chain, private) = identity((&paths.0, &paths.1), (&pems.0, &pems.1))?;
                let set = verifying.with_client_auth_cert(chain, private);
                set.map_err(|error| unusable(&paths.1, &error))?
            }
            _ => verifying.with_no_client_auth(),
        };
        http1.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
        let mut any = http1.clone();
        any.alpn_protocols = match settings.http2 {
            Http2Mode::Auto => vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()],
            Http2Mode::Off => vec![ALPN_HTTP1.to_vec()],
            Http2Mode::PriorKnowledge => vec![ALPN_HTTP2.to_vec()],
        };
        let name = ServerName::try_from(settings.host.to_string())
            .map_err(|_| ProxyBuildError::ServerName { host: Arc::clone(&settings.host) })?;
        Ok(Tls { name, any: Arc::new(any).into(), http1: Arc::new(http1).into() })
    }
}
