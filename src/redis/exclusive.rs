//! Connections that one call has to itself: `WAIT` keeps its connection from answering anything else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use deadpool::managed::{Manager, PoolError, TimeoutType};
use redis::RedisError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::servers::{Connection, Servers};

/// The reason why there is no connection.
pub(super) type NoConnection = PoolError<RedisError>;

/// Connections that are lent to one call at a time.
pub(super) struct Exclusive {
    idle: Arc<Mutex<Vec<Connection>>>,
    size: usize,
    places: ArcSwap<Semaphore>,
    create_timeout: Duration,
}

/// A connection on loan. One that is dropped is closed: an answer to an earlier call may be on its way.
pub(super) struct Lent {
    pub(super) connection: Connection,
    idle: Arc<Mutex<Vec<Connection>>>,
    _place: OwnedSemaphorePermit,
}

impl Exclusive {
    /// Returns so many connections at most, which are made when they are first needed.
    pub(super) fn new(size: usize, create_timeout: Duration) -> Exclusive {
        let places = ArcSwap::from_pointee(Semaphore::new(size));
        Exclusive { idle: Arc::default(), size, places, create_timeout }
    }

    /// Lends a connection, or makes one. Waits while all are on loan.
    pub(super) async fn lend(&self, servers: &Servers) -> Result<Lent, NoConnection> {
        let place = loop {
            // One that is closed was replaced meanwhile.
            if let Ok(place) = self.places.load_full().acquire_owned().await {
                break place;
            }
        };
        let era = servers.era();
        let kept = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|connection| connection.era == era);
            idle.pop()
        };
        let connection = match kept {
            Some(connection) => connection,
            None => timeout(self.create_timeout, servers.create())
                .await
                .map_err(|_| PoolError::Timeout(TimeoutType::Create))?
                .map_err(PoolError::Backend)?,
        };
        Ok(Lent { connection, idle: self.idle.clone(), _place: place })
    }

    /// Closes all connections that are not on loan, and waits no longer for those that are: their servers may be gone without closing them.
    /// Calls whose late answers are waited for keep theirs as long as they did before, so that there may be more than the size meanwhile.
    pub(super) fn replace_all(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.places.swap(Arc::new(Semaphore::new(self.size))).close();
    }
}

impl Lent {
    /// Gives the connection back after an answer.
    pub(super) fn give_back(self) {
        let Lent { connection, idle, _place: place } = self;
        idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        drop(place);
    }
}
