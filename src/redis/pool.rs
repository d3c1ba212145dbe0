//! Connections to Redis.
//!
//! Each queue's worker keeps to one connection, so its calls cost no extra PING. The pool makes connections and drops broken
//! ones. A caller may give up waiting for a new connection, which is made all the same, for the next caller.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{self, Arc, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use deadpool::Runtime;
use deadpool::managed::{Object, Pool, PoolError};
use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::exclusive::{Exclusive, NoConnection};
use super::servers::{Connection, Servers, Transport};
use super::setup_error::RedisSetupError;
use crate::config::model;

/// Connect timeouts that a connection to a Cluster may take: it asks some nodes for all nodes, then connects to each.
const CLUSTER_STEPS_MAX: u32 = 4;

/// Long-lived connections, made at the start, or when they are first needed.
#[derive(Clone)]
pub(super) struct Connections {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool<Servers>,
    places: Vec<Place>,
    /// The connections for calls that replicas of the server have to confirm, of the parts that are in use.
    exclusive: sync::Mutex<Vec<Weak<Exclusive>>>,
    create_timeout: Duration,
    /// The tasks that make new connections.
    renewals: TaskTracker,
}

#[derive(Default)]
struct Place {
    kept: ArcSwapOption<Object<Servers>>,
    making: Mutex<()>,
}

impl Connections {
    /// Returns connections to the configured servers.
    pub(super) fn new(settings: &model::RedisStore) -> Result<Connections, RedisSetupError> {
        let servers = Servers::new(settings, connect_timeout(settings.timeout))?;
        Connections::to(servers, settings)
    }

    /// Returns connections to one server that is reached over `transport`.
    pub(super) fn over(
        transport: Arc<dyn Transport>,
        settings: &model::RedisStore,
    ) -> Result<Connections, RedisSetupError> {
        Connections::to(Servers::over(transport, connect_timeout(settings.timeout))?, settings)
    }

    fn to(servers: Servers, settings: &model::RedisStore) -> Result<Connections, RedisSetupError> {
        let size = settings.pool_size.max(1) as usize;
        let connect_timeout = connect_timeout(settings.timeout);
        let create_timeout = connect_timeout * if servers.are_cluster() { CLUSTER_STEPS_MAX } else { 1 };
        let pool = Pool::builder(servers)
            // On a Cluster the next one is made before the last one goes.
            .max_size(2 * size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(connect_timeout))
            .create_timeout(Some(create_timeout))
            .recycle_timeout(Some(settings.timeout))
            .build()
            .map_err(|error| RedisSetupError::Address(error.to_string()))?;
        let places = (0..size).map(|_| Place::default()).collect();
        let (exclusive, renewals) = (sync::Mutex::default(), TaskTracker::new());
        Ok(Connections { inner: Arc::new(Inner { pool, places, exclusive, create_timeout, renewals }) })
    }

    /// Returns the servers, for connections that are not for calls.
    pub(super) fn servers(&self) -> &Servers {
        self.inner.pool.manager()
    }

    /// Returns whether the connections lead to the nodes of a Cluster.
    pub(super) fn are_cluster(&self) -> bool {
        self.servers().are_cluster()
    }

    /// Returns the connection for calls of an owner, always the same one while it works.
    pub(super) async fn get(&self, owner: &impl Hash) -> Result<Connection, NoConnection> {
        let place = self.inner.place(owner);
        if let Some(kept) = &*self.inner.places[place].kept.load() {
            return Ok(Connection::clone(kept));
        }
        let inner = self.inner.clone();
        let making = tokio::spawn(async move { inner.make(place).await });
        making.await.unwrap_or(Err(PoolError::Closed))
    }

    /// Makes all connections that calls may need. On a Cluster few are needed, each of which leads to all nodes.
    pub(super) async fn make_all(&self) {
        if !self.are_cluster() {
            // One that fails is made with the first call that needs it.
            join_all((0..self.inner.places.len()).map(|place| self.inner.make(place))).await;
        }
    }

    /// Returns the connections for calls that replicas of the server have to confirm, of one part: calls that wait for a frozen node of a
    /// Cluster hold up no group at another one. They end with the part.
    pub(super) fn exclusive(&self) -> Arc<Exclusive> {
        let new = Arc::new(Exclusive::new(self.inner.places.len(), self.inner.create_timeout));
        let mut exclusive = self.inner.exclusive.lock().unwrap_or_else(PoisonError::into_inner);
        exclusive.retain(|known| known.strong_count() > 0);
        exclusive.push(Arc::downgrade(&new));
        new
    }

    /// Follows the primary that sentinels name: drops all connections to an earlier one. Never returns.
    pub(super) async fn follow_primary(&self) {
        self.servers()
            .watch(|| {
                tracing::warn!("another server is the primary now: connecting to it");
                self.replace_all();
            })
            .await;
    }

    /// Drops an owner's connection. A connection to a Cluster repairs itself where it notices a lost node, which it may not: it stays
    /// in use until another connection is made, which knows the present nodes.
    pub(super) fn replace(&self, owner: &impl Hash) {
        let place = self.inner.place(owner);
        if self.are_cluster() {
            let inner = self.inner.clone();
            self.inner.renewals.spawn(async move { inner.renew(place).await });
        } else {
            self.inner.places[place].replace();
        }
    }

    /// Drops all connections to a server: each may lead to a server that is gone without closing it.
    pub(super) fn replace_all(&self) {
        self.inner.places.iter().for_each(Place::replace);
        let exclusive = self.inner.exclusive.lock().unwrap_or_else(PoisonError::into_inner);
        exclusive.iter().filter_map(Weak::upgrade).for_each(|exclusive| exclusive.replace_all());
    }
}

impl Inner {
    fn place(&self, owner: &impl Hash) -> usize {
        let mut hasher = DefaultHasher::new();
        owner.hash(&mut hasher);
        usize::try_from(hasher.finish() % self.places.len() as u64).unwrap_or_default()
    }

    /// Makes the connection of a place. Only one task does; the others find the result.
    async fn make(&self, place: usize) -> Result<Connection, NoConnection> {
        let place = &self.places[place];
        let _making = place.making.lock().await;
        if let Some(kept) = &*place.kept.load() {
            return Ok(Connection::clone(kept));
        }
        loop {
            let made = self.pool.get().await?;
            if made.era != self.pool.manager().era() {
                // Another server has become the primary meanwhile.
                drop(Object::take(made));
                continue;
            }
            let connection = Connection::clone(&made);
            place.kept.store(Some(Arc::new(made)));
            return Ok(connection);
        }
    }

    /// Makes another connection, unless a task does so already.
    async fn renew(&self, place: usize) {
        let place = &self.places[place];
        let Ok(_making) = place.making.try_lock() else { return };
        // A failed attempt is repeated when the old connection fails again.
        if let Ok(made) = self.pool.get().await {
            place.replace();
            place.kept.store(Some(Arc::new(made)));
        }
    }
}

impl Place {
    fn replace(&self) {
        if let Some(kept) = self.kept.swap(None).and_then(Arc::into_inner) {
            drop(Object::take(kept));
        }
    }
}

/// Returns the deadline for connecting: several round trips, with TLS and AUTH, where a call takes one.
pub(super) fn connect_timeout(call: Duration) -> Duration {
    call * 5
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::{Confirm, RedisNode, RedisServers, RedisTls, Secret};

    #[test]
    fn nothing_is_kept_of_a_part_that_is_over() {
        let node = RedisNode { url: Secret::new("redis://127.0.0.1:1"), address: "127.0.0.1:1".to_owned() };
        let settings = model::RedisStore {
            servers: RedisServers::One(node),
            tls: RedisTls::default(),
            timeout: Duration::from_secs(1),
            pool_size: 1,
            key_prefix: "weir".to_owned(),
            fleet_size: 1,
            confirm: Confirm::Replica,
        };
        let connections = Connections::new(&settings).unwrap();
        let kept = connections.exclusive();
        (0..1000).for_each(|_| drop(connections.exclusive()));
        let known = connections.inner.exclusive.lock().unwrap();
        assert!(known.len() <= 2, "{}", known.len());
        assert_eq!(known.iter().filter(|known| known.strong_count() > 0).count(), 1);
        drop(kept);
    }
}
