//! The export of spans to a collector, as the standard `OTEL_*` variables name it. Knows nothing of the spans' content.

use std::env;
use std::error::Error;
use std::fmt;
use std::iter;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry::KeyValue;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::runtime::Handle;

/// The default timeout of a call to the collector, by the specification of OTLP exporters.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest time between two warnings that the collector takes no spans.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The reason why there are no traces although an endpoint is set.
#[derive(Debug, Error)]
pub(super) enum OtlpError {
    #[error("OTEL_TRACES_EXPORTER is {0:?}: weir has `otlp` and `none`")]
    Exporter(String),
    #[error(
        "the OTLP protocol is {0:?}, and weir has `http/protobuf`: set OTEL_EXPORTER_OTLP_PROTOCOL to that and name the \
         collector's port for HTTP (4318, unless it was changed)"
    )]
    Protocol(String),
    #[error("{variable} names a file that cannot be used: {reason}")]
    File { variable: &'static str, reason: String },
    #[error("cannot speak TLS: {0}")]
    Tls(rustls::Error),
    #[error("OTEL_EXPORTER_OTLP_TIMEOUT must be a whole number of milliseconds")]
    Timeout,
    // The exporter's own message is left out: it repeats the endpoint, which may contain a password.
    #[error("the OTLP endpoint must be a URL such as http://collector:4318")]
    Endpoint,
}

/// Sets up the exporter as the process's environment asks for it; `None` unless it names an endpoint and enables traces.
/// Must be called within a Tokio runtime, on which the collector is then called.
pub(super) fn provider() -> Result<Option<SdkTracerProvider>, OtlpError> {
    let is_disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if is_disabled || of_traces("ENDPOINT").is_none() {
        return Ok(None);
    }
    match variable("OTEL_TRACES_EXPORTER").as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(other) => return Err(OtlpError::Exporter(other.to_owned())),
    }
    if let Some(protocol) = of_traces("PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
        return Err(OtlpError::Protocol(protocol));
    }
    let timeout =
        of_traces("TIMEOUT").map_or(Ok(TIMEOUT), |millis| millis.parse().map(Duration::from_millis));
    let timeout = timeout.map_err(|_| OtlpError::Timeout)?;
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls()?).https_or_http().enable_http1().build();
    let client = HyperClient::new(connector, timeout, None);
    let client = OnRuntime { client, runtime: Handle::current(), warned_at: Mutex::new(None) };
    let exporter = SpanExporter::builder().with_http().with_http_client(client).build();
    let exporter = exporter.map_err(|_| OtlpError::Endpoint)?;
    Ok(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build()))
}

/// Returns the service that the spans belong to.
fn resource() -> Resource {
    let resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let is_named = variable("OTEL_SERVICE_NAME").is_some()
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|attributes| {
            attributes.split(',').any(|attribute| attribute.trim_start().starts_with("service.name="))
        });
    if is_named { resource.build() } else { resource.with_service_name("weir").build() }
}

/// Sets up TLS: the public roots or configured ones, and weir's own certificate if one is configured.
fn tls() -> Result<rustls::ClientConfig, OtlpError> {
    let unusable =
        |variable| move |error: &dyn fmt::Display| OtlpError::File { variable, reason: error.to_string() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(OtlpError::Tls)?;
    let builder = match of_traces("CERTIFICATE") {
        None => builder.with_webpki_roots(),
        Some(path) => {
            let unusable = unusable("OTEL_EXPORTER_OTLP_CERTIFICATE");
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(&path).map_err(|error| unusable(&error))? {
                roots.add(certificate).map_err(|error| unusable(&error))?;
            }
            builder.with_root_certificates(roots)
        }
    };
    let (Some(chain), Some(key)) = (of_traces("CLIENT_CERTIFICATE"), of_traces("CLIENT_KEY")) else {
        return Ok(builder.with_no_client_auth());
    };
    let unusable_key = unusable("OTEL_EXPORTER_OTLP_CLIENT_KEY");
    let unusable = unusable("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE");
    let chain = certificates(&chain).map_err(|error| unusable(&error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable_key(&error))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| unusable(&error))
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, rustls_pki_types::pem::Error> {
    CertificateDer::pem_file_iter(path)?.collect()
}

/// Returns a variable of the environment that is not empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns one of the exporter's variables: the one for traces, or else the general one.
fn of_traces(name: &str) -> Option<String> {
    variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
        .or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
}

/// Calls the collector on weir's runtime: the exporter's own thread has none.
#[derive(Debug)]
struct OnRuntime {
    client: HyperClient<HttpsConnector<HttpConnector>>,
    runtime: Handle,
    /// The time of the last warning.
    warned_at: Mutex<Option<Instant>>,
}

impl OnRuntime {
    /// Logs why spans are lost, but not for each of what may be an export a second.
    fn warn(&self, error: &str) {
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        if warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            *warned_at = Some(Instant::now());
            tracing::warn!(error, "the collector takes no traces");
        }
    }
}

/// Returns an error with its causes: a client tells the reason only there.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |error| Error::source(*error));
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl HttpClient for OnRuntime {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> BoxFuture<'b, Result<Response<Bytes>, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        let client = self.client.clone();
        let sending = self.runtime.spawn(async move { client.send_bytes(request).await });
        Box::pin(async move {
            let sent = sending.await?;
            match &sent {
                Ok(response) if response.status().is_success() => {}
                Ok(response) => self.warn(&format!("it answers {}", response.status())),
                Err(error) => self.warn(&with_causes(&**error)),
            }
            sent
        })
    }
}
