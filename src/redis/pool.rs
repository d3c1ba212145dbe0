//! Connections to one Redis server.
//!
//! Each queue's worker keeps to one multiplexed connection, so its calls cost no extra PING; the pool makes
//! connections and replaces those that broke.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use deadpool_redis::{Connection, Manager, Pool, PoolError, Runtime};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, IntoConnectionInfo, RedisError, TlsCertificates,
};

use crate::config::model;

/// Why a Redis store cannot be set up from its configuration. No server has been asked yet.
#[derive(Debug, thiserror::Error)]
pub enum RedisSetupError {
    /// The address is not one.
    #[error("store.redis.url: {0}")]
    Address(String),
    /// A PEM file cannot be read.
    #[error("store.redis.tls: cannot read {path}: {error}")]
    File {
        /// Which.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// TLS cannot be set up with what the files hold.
    #[error("store.redis.tls: {0}")]
    Tls(String),
}

/// Long-lived connections, made when they are first needed.
pub(super) struct Connections {
    client: Client,
    pool: Pool,
    kept: Vec<ArcSwapOption<Kept>>,
}

/// A connection that is in use.
struct Kept {
    connection: Connection,
    /// The run of the server at its other end: another one may have another memory.
    run: Arc<str>,
}

impl Connections {
    pub(super) fn new(settings: &model::RedisStore) -> Result<Connections, RedisSetupError> {
        let size = settings.pool_size.max(1) as usize;
        // Errors of the client library may quote the address, password included: they are not shown.
        let unusable = |_: RedisError| RedisSetupError::Address(format!("cannot use {}", settings.address));
        let client = match tls(&settings.tls)? {
            Some(certificates) => Client::build_with_tls(settings.url.reveal(), certificates)
                .map_err(|error| RedisSetupError::Tls(error.category().to_owned()))?,
            None => Client::open(settings.url.reveal()).map_err(unusable)?,
        };
        let address = client.get_connection_info().clone().into_connection_info().map_err(unusable)?;
        // The deadline of a call is kept by the store, so that a late answer is not mistaken for a broken connection.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect_timeout(settings.timeout)))
            .set_response_timeout(None);
        let manager = Manager::new_with_config(address, config).map_err(unusable)?;
        let pool = Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(settings.timeout))
            .create_timeout(Some(connect_timeout(settings.timeout)))
            .recycle_timeout(Some(settings.timeout))
            .build()
            .map_err(|error| RedisSetupError::Address(error.to_string()))?;
        let kept = (0..size).map(|_| ArcSwapOption::empty()).collect();
        Ok(Connections { client, pool, kept })
    }

    /// What makes a connection that is not for calls.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The connection for calls of this owner, always the same one while it works, and the run of its server; empty if
    /// that must not be asked for.
    pub(super) async fn get(
        &self,
        owner: &impl Hash,
    ) -> Result<(MultiplexedConnection, Arc<str>), PoolError> {
        let place = self.place(owner);
        if let Some(kept) = &*place.load() {
            return Ok(((*kept.connection).clone(), kept.run.clone()));
        }
        let made = self.pool.get().await?;
        let mut connection = (*made).clone();
        let run = run_of(&mut connection).await?;
        place.store(Some(Arc::new(Kept { connection: made, run: run.clone() })));
        Ok((connection, run))
    }

    /// Gives this owner's connection back to the pool, which looks at it before anybody gets it again.
    pub(super) fn replace(&self, owner: &impl Hash) {
        self.place(owner).store(None);
    }

    fn place(&self, owner: &impl Hash) -> &ArcSwapOption<Kept> {
        let mut hasher = DefaultHasher::new();
        owner.hash(&mut hasher);
        let index = hasher.finish() % self.kept.len() as u64;
        &self.kept[usize::try_from(index).unwrap_or_default()]
    }
}

/// The run of a server: it has another after each start.
async fn run_of(connection: &mut MultiplexedConnection) -> Result<Arc<str>, RedisError> {
    let told: Result<String, RedisError> = redis::cmd("INFO").arg("server").query_async(connection).await;
    match told {
        Ok(told) => Ok(told.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().into()),
        Err(error) if error.is_io_error() || error.is_unrecoverable_error() => Err(error),
        // A user without INFO.
        Err(_) => Ok("".into()),
    }
}

/// A connection takes several round trips, with TLS and AUTH; a call takes one.
pub(super) fn connect_timeout(call: Duration) -> Duration {
    call * 5
}

fn tls(files: &model::RedisTls) -> Result<Option<TlsCertificates>, RedisSetupError> {
    if *files == model::RedisTls::default() {
        return Ok(None);
    }
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| RedisSetupError::File { path: path.display().to_string(), error })
    };
    let root_cert = files.ca.as_deref().map(read).transpose()?;
    let client_tls = match &files.identity {
        Some((cert, key)) => Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? }),
        None => None,
    };
    Ok(Some(TlsCertificates { client_tls, root_cert }))
}
