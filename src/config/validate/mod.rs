//! Schema to [`Config`]: what every value means, and every problem of meaning at once.
//!
//! A section gives `None` once it has reported a problem, so nothing half-valid leaves this module. What belongs
//! to a later version is checked like the rest and then refused, never ignored in silence.

mod clients;
mod limit;
mod limiter;
mod place;
mod retry;
mod route;
mod server;
mod store;
mod upstream;

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::model::{Config, RedisServers, Store};
use super::problem::Report;
use super::schema;
use super::schema::forms::Text;
use super::units::{Size, show_duration, show_size};
pub(crate) use place::At;

/// The largest PEM file.
const PEM_BYTES_MAX: u64 = 1024 * 1024;

const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Turns what was written into what is used, or reports every problem. `root` is the same file, for the places;
/// relative paths begin at `base`.
pub(crate) fn validate(
    file: &schema::File,
    root: &At<'_>,
    base: &Path,
    hash: Arc<str>,
    report: &mut Report,
) -> Option<Config> {
    let mut check = Check { report, base };
    let listen = server::listen(&mut check, file.listen.as_deref(), &root.key("listen"));
    let server = server::server(&mut check, file.server.as_ref(), &root.key("server"));
    let admin = server::admin(&mut check, file.admin.as_ref(), listen, &root.key("admin"));
    let log = server::log(file.log.as_ref());
    let has_client_ca = root.key("server").key("tls").key("client_ca").is_given();
    let clients = clients::clients(&mut check, file.clients.as_ref(), has_client_ca, &root.key("clients"));
    let store = store::store(&mut check, file.store.as_ref(), &root.key("store"));
    let limiters = file.limiters.as_ref();
    let has_clients = root.key("clients").is_given();
    let limiters = limiter::limiters(&mut check, limiters, has_clients, &root.key("limiters"));
    let known = route::Known {
        limiters: &limiters,
        limiter_names: root.key("limiters").names(),
        client_names: root.key("clients").names(),
        has_groups_apart: matches!(&store, Some(Store::Redis(redis)) if matches!(redis.servers, RedisServers::Cluster(_))),
    };
    let routes = route::routes(&mut check, file.routes.as_deref(), &known, &root.key("routes"));
    if !check.report.is_empty() {
        return None;
    }
    let (listen, server, admin, store) = (listen?, server?, admin?, store?);
    let limiters = limiters.into_iter().map(|(limiter, _)| limiter).collect();
    Some(Config { listen, server, admin, log, clients, store, limiters, routes, hash })
}

/// What the checks share: where problems go, and the judgements that many keys need.
struct Check<'a> {
    report: &'a mut Report,
    base: &'a Path,
}

impl Check<'_> {
    /// Reports a problem of a value.
    fn problem(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.report.add(at.mark, at.path.clone(), message);
    }

    /// Reports a problem of a key itself, where the value is beside the point.
    fn problem_of_key(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.report.add(at.key_mark, at.path.clone(), message);
    }

    /// A whole number within bounds.
    fn count(
        &mut self,
        given: Option<i64>,
        default: u32,
        bounds: RangeInclusive<u32>,
        at: &At<'_>,
    ) -> Option<u32> {
        let Some(given) = given else { return Some(default) };
        let count = u32::try_from(given).ok().filter(|count| bounds.contains(count));
        if count.is_none() {
            self.problem(at, format!("must be from {} to {}", bounds.start(), bounds.end()));
        }
        count
    }

    /// A size within bounds.
    fn size(
        &mut self,
        given: Option<Text<Size>>,
        default: Size,
        bounds: RangeInclusive<Size>,
        at: &At<'_>,
    ) -> Option<Size> {
        self.bounded(given, default, bounds, show_size, at)
    }

    /// A duration within bounds.
    fn duration(
        &mut self,
        given: Option<Text<Duration>>,
        default: Duration,
        bounds: RangeInclusive<Duration>,
        at: &At<'_>,
    ) -> Option<Duration> {
        self.bounded(given, default, bounds, show_duration, at)
    }

    fn bounded<T: PartialOrd + Copy>(
        &mut self,
        given: Option<Text<T>>,
        default: T,
        bounds: RangeInclusive<T>,
        show: fn(T) -> String,
        at: &At<'_>,
    ) -> Option<T> {
        let Some(Text(given)) = given else { return Some(default) };
        if bounds.contains(&given) {
            return Some(given);
        }
        let (from, to) = (show(*bounds.start()), show(*bounds.end()));
        self.problem(at, format!("must be from {from} to {to}"));
        None
    }

    /// A PEM file with certificates, by its path.
    fn certificates(&mut self, given: &str, at: &At<'_>) -> Option<PathBuf> {
        self.pem(given, at, "certificate", |bytes| {
            let mut count = 0;
            CertificateDer::pem_slice_iter(bytes).all(|item| item.map(|_| count += 1).is_ok()) && count > 0
        })
    }

    /// A PEM file with a private key, by its path.
    fn private_key(&mut self, given: &str, at: &At<'_>) -> Option<PathBuf> {
        self.pem(given, at, "private key", |bytes| PrivateKeyDer::from_pem_slice(bytes).is_ok())
    }

    /// Whether a key is that of the first certificate in a file; reports it otherwise.
    fn belong_together(&mut self, certificates: &Path, key: &Path, at_key: &At<'_>) -> bool {
        let chain = CertificateDer::pem_file_iter(certificates).and_then(Iterator::collect);
        let (Ok(chain), Ok(key)) = (chain, PrivateKeyDer::from_pem_file(key)) else {
            // Read a moment ago: they are being replaced.
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

    fn pem(&mut self, given: &str, at: &At<'_>, what: &str, holds: fn(&[u8]) -> bool) -> Option<PathBuf> {
        let path = self.base.join(given);
        let fault = match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > PEM_BYTES_MAX => {
                format!("is larger than {PEM_BYTES_MAX} bytes")
            }
            Ok(_) => match fs::read(&path) {
                Ok(bytes) if holds(&bytes) => return Some(path),
                Ok(_) => format!("holds no {what} in PEM form"),
                Err(error) => format!("cannot be read: {error}"),
            },
            Err(error) => format!("cannot be read: {error}"),
        };
        // A path that came out of a reference may be a secret put in the wrong place.
        let shown = if at.is_interpolated() { String::new() } else { format!(" {}", path.display()) };
        self.problem(at, format!("the file{shown} {fault}"));
        None
    }

    /// A certificate chain and its private key, by their paths: both, or neither.
    fn identity(
        &mut self,
        cert: Option<&str>,
        key: Option<&str>,
        at: &At<'_>,
    ) -> Option<Option<(PathBuf, PathBuf)>> {
        let (at_cert, at_key) = (at.key("cert"), at.key("key"));
        let cert = cert.map(|path| self.certificates(path, &at_cert));
        let key = key.map(|path| self.private_key(path, &at_key));
        match (cert, key) {
            (None, None) => Some(None),
            (Some(cert), Some(key)) => {
                let (cert, key) = (cert?, key?);
                self.belong_together(&cert, &key, &at_key).then_some(Some((cert, key)))
            }
            (Some(_), None) => self.needs_beside(&at_cert, &at_key),
            (None, Some(_)) => self.needs_beside(&at_key, &at_cert),
        }
    }

    /// Half of what belongs together is given, and not the other half.
    fn needs_beside<T>(&mut self, given: &At<'_>, other: &At<'_>) -> Option<T> {
        if !other.is_given() {
            self.problem_of_key(given, format!("needs `{}` beside it", other.path));
        }
        None
    }
}
