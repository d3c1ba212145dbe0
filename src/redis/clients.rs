//! Clients of Redis's servers, with the certificates and keys that their files hold now: a renewed one holds for the next connection.
//!
//! Opens no connection.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use redis::{Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::spawn_blocking;
use tokio::time::{Duration, timeout};

use super::setup_error::RedisSetupError;
use super::sockets::tcp_settings;
use crate::config::model::{RedisNode, RedisTls};

/// How long a new connection waits for the files. A mount may hang, and then the last certificates hold.
const READ_TIME_MAX: Duration = Duration::from_millis(200);

/// An address, to try certificates with.
const SOME_ADDRESS: &str = "rediss://localhost";

/// Makes clients.
pub(super) struct Clients {
    files: RedisTls,
    /// The content of the files when they could last be used; `None` if none are named.
    last: Mutex<Option<TlsCertificates>>,
    /// Held while the files are read: nobody can end that, so no other one begins beside it.
    reading: Arc<AsyncMutex<()>>,
}

impl Clients {
    /// Reads the files. Blocks.
    pub(super) fn new(files: &RedisTls) -> Result<Clients, RedisSetupError> {
        let last = match is_named(files) {
            true => Some(usable(read(files)?)?),
            false => None,
        };
        Ok(Clients { files: files.clone(), last: Mutex::new(last), reading: Arc::default() })
    }

    /// Returns a client of a node.
    pub(super) async fn of(&self, node: &RedisNode) -> Result<Client, RedisError> {
        self.to(address_of(node)?).await
    }

    /// Returns a client of the server at an address.
    pub(super) async fn to(&self, address: ConnectionInfo) -> Result<Client, RedisError> {
        match self.certificates().await {
            Some(certificates) => Client::build_with_tls(address, certificates),
            None => Client::open(address),
        }
    }

    /// Returns what the files hold now, or held last if they cannot be used: somebody may be writing them.
    pub(super) async fn certificates(&self) -> Option<TlsCertificates> {
        if is_named(&self.files) {
            match timeout(READ_TIME_MAX, self.read_again()).await {
                Ok(Ok(read)) => *self.last() = Some(read),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "connecting to Redis with the certificates of before");
                }
                Err(_) => {
                    tracing::warn!("reading store.redis.tls takes long: the certificates of before hold");
                }
            }
        }
        self.last().clone()
    }

    async fn read_again(&self) -> Result<TlsCertificates, RedisSetupError> {
        let (turn, files) = (Arc::clone(&self.reading).lock_owned().await, self.files.clone());
        let reading = spawn_blocking(move || {
            let read = read(&files).and_then(usable);
            drop(turn);
            read
        });
        reading.await.unwrap_or_else(|error| Err(RedisSetupError::Tls(error.to_string())))
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<TlsCertificates>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a node's address and user. The client library does not introduce itself (`CLIENT SETINFO`): the user would need a right for
/// it on some servers, and without it each connection would be in the server's log of denied calls.
pub(super) fn address_of(node: &RedisNode) -> Result<ConnectionInfo, RedisError> {
    let info = node.url.reveal().into_connection_info()?;
    let user = info.redis_settings().clone().set_skip_set_lib_name();
    Ok(info.set_redis_settings(user).set_tcp_settings(tcp_settings()))
}

fn is_named(files: &RedisTls) -> bool {
    *files != RedisTls::default()
}

fn read(files: &RedisTls) -> Result<TlsCertificates, RedisSetupError> {
    let read = |path: &Path| {
        let failed = |error: io::Error| RedisSetupError::File { path: path.display().to_string(), error };
        std::fs::read(path).map_err(failed)
    };
    let root_cert = files.ca.as_deref().map(read).transpose()?;
    let client_tls = match &files.identity {
        Some((cert, key)) => Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? }),
        None => None,
    };
    Ok(TlsCertificates { client_tls, root_cert })
}

fn usable(certificates: TlsCertificates) -> Result<TlsCertificates, RedisSetupError> {
    match Client::build_with_tls(SOME_ADDRESS, certificates.clone()) {
        Ok(_) => Ok(certificates),
        Err(error) => Err(RedisSetupError::Tls(error.category().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[tokio::test]
    async fn a_renewed_authority_holds_for_the_next_client_and_a_broken_one_for_none() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("ca.pem");
        let renew = || {
            let pem = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
            std::fs::write(&path, &pem).unwrap();
            pem.into_bytes()
        };
        let before = renew();
        let clients = Clients::new(&RedisTls { ca: Some(path.clone()), identity: None }).unwrap();
        let authority = async || clients.certificates().await.and_then(|certificates| certificates.root_cert);
        assert_eq!(authority().await, Some(before));
        let renewed = renew();
        assert_eq!(authority().await, Some(renewed.clone()));
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert_eq!(authority().await, Some(renewed.clone()), "it is being written");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(authority().await, Some(renewed), "it is being replaced");
    }
}
