//! The replicas that share a store, as its last answer listed them, for people.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::system::uname;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::limiter::model::replica::{Replica, printable};
use crate::limiter::store::{Store, StoreError};

/// How often a replica registers itself.
const INTERVAL: Duration = Duration::from_secs(5);

/// How often a new replica registers itself: others may be starting at the same time.
const INTERVAL_WHEN_NEW: Duration = Duration::from_secs(1);

/// How long a replica counts as new.
const NEW_FOR: Duration = Duration::from_secs(5);

/// Membership TTL of a silent replica: it may miss two of three registrations.
pub(crate) const MEMBERSHIP_TTL: Duration = Duration::from_secs(15);

/// The longest time that a replica spends on signing off.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// The replicas that share a store.
pub(in crate::limiter) struct Fleet {
    /// The number of replicas to assume before the store has answered.
    assumed: u64,
    start: Instant,
    me: Mutex<Replica>,
    /// The last answer of the store; `None` before the first.
    listed: Mutex<Option<Listed>>,
    /// Notified when this replica's entry has changed.
    changed: Notify,
}

/// An answer of the store.
struct Listed {
    at: Instant,
    replicas: Vec<Replica>,
}

impl Fleet {
    /// Creates the fleet as known to the replica `id`, of `assumed` members until the store has answered.
    pub(in crate::limiter) fn new(id: u64, assumed: u64) -> Fleet {
        // On Kubernetes the host name is the pod's name.
        let host = printable(&uname().nodename().to_string_lossy());
        let me = Replica { host, ..Replica::new(id) };
        Fleet {
            assumed: assumed.max(1),
            start: Instant::now(),
            me: Mutex::new(me),
            listed: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Returns this replica.
    pub(in crate::limiter) fn me(&self) -> Replica {
        lock(&self.me).clone()
    }

    /// Returns the number of replicas to assume before the store has answered.
    pub(in crate::limiter) fn assumed(&self) -> u64 {
        self.assumed
    }

    /// Returns whether replicas that started at the same time may not be listed yet.
    fn is_new(&self) -> bool {
        self.start.elapsed() < NEW_FOR
    }

    /// Sets the hash of this replica's configuration, and registers it at once.
    pub(in crate::limiter) fn configured(&self, configuration: &Arc<str>) {
        lock(&self.me).configuration = configuration.clone();
        self.changed.notify_one();
    }

    /// Returns this replica, then the others that the store listed last.
    pub(in crate::limiter) fn replicas(&self) -> Vec<Replica> {
        let mut replicas = vec![self.me()];
        if let Some(Listed { at, replicas: listed, .. }) = &*lock(&self.listed) {
            let others = listed.iter().filter(|replica| replica.id != replicas[0].id).cloned();
            let aged = others.map(|replica| Replica { seen_ago: replica.seen_ago + at.elapsed(), ..replica });
            replicas.extend(aged.collect::<Vec<_>>());
        }
        replicas
    }

    /// Returns the replicas that the store listed last, of every layout of keys.
    pub(in crate::limiter) fn listed(&self) -> Vec<u64> {
        let listed = lock(&self.listed);
        listed.iter().flat_map(|listed| &listed.replicas).map(|replica| replica.id).collect()
    }

    /// Returns the host of a replica, if it is known.
    pub(in crate::limiter) fn host_of(&self, id: u64) -> Option<Arc<str>> {
        let host = self.replicas().into_iter().find(|replica| replica.id == id)?.host;
        Some(host).filter(|host| !host.is_empty())
    }

    /// Registers this replica and takes in the list of members.
    pub(in crate::limiter) async fn register_replica(&self, store: &dyn Store) {
        match store.register_replica(&self.me(), false).await {
            Ok(replicas) => {
                let mut listed = lock(&self.listed);
                *listed = Some(Listed { at: Instant::now(), replicas });
            }
            // The key holds something else, until somebody deletes that.
            Err(error @ StoreError::Unreadable(_)) => warn!(%error, "the fleet is not known"),
            // The store counts and logs the error. The members stay as they were listed.
            Err(error) => debug!(%error, "the fleet is not known"),
        }
    }

    /// Registers this replica again and again, for as long as it is polled.
    pub(in crate::limiter) async fn keep_registered(&self, store: &dyn Store) {
        loop {
            let pause = if self.is_new() { INTERVAL_WHEN_NEW } else { INTERVAL };
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = self.changed.notified() => {}
            }
            self.register_replica(store).await;
        }
    }

    /// Signs this replica off.
    pub(in crate::limiter) async fn leave(&self, store: &dyn Store) {
        // After a failure its membership ends by the TTL.
        let _ = timeout(LEAVING_MAX, store.register_replica(&self.me(), true)).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
