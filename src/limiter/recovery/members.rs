//! The replicas that share a store: who they are, as the store last told, and so by how many a limit is divided while it
//! is away.

use crate::limiter::model::replica::{Replica, printable};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::system::uname;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::limiter::store::{Store, StoreError};

/// How often a replica says that it is there.
const EVERY: Duration = Duration::from_secs(5);

/// How often at first: those that were started with it come in the next moments.
const EVERY_AT_FIRST: Duration = Duration::from_secs(1);
const AT_FIRST: Duration = Duration::from_secs(5);

/// For how long one counts that says nothing: it may miss two of three.
pub(crate) const COUNTS_FOR: Duration = Duration::from_secs(15);

/// How long one that leaves takes to say so, at most.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// The replicas that share a store.
pub(in crate::limiter) struct Fleet {
    /// How many to assume at least, before the others can have said that they are there.
    assumed: u64,
    start: Instant,
    me: Mutex<Replica>,
    seen: Mutex<Option<Seen>>,
    changed: Notify,
}

/// What the store told.
struct Seen {
    at: Instant,
    replicas: Vec<Replica>,
    /// When each was heard that may still be there. A store that has lost its memory names only those that have said so since,
    /// and a share must not grow by that; so one that left counts for as long as one that fell silent.
    heard: BTreeMap<u64, Instant>,
}

impl Seen {
    fn after(before: Option<Seen>, replicas: Vec<Replica>) -> Seen {
        let at = Instant::now();
        let mut heard = before.map(|before| before.heard).unwrap_or_default();
        heard.retain(|_, heard| at - *heard < COUNTS_FOR);
        heard.extend(
            replicas.iter().map(|replica| (replica.id, at.checked_sub(replica.seen_ago).unwrap_or(at))),
        );
        Seen { at, replicas, heard }
    }
}

impl Fleet {
    pub(in crate::limiter) fn new(id: u64, assumed: u64) -> Fleet {
        // On Kubernetes that is the pod's name.
        let host = printable(&uname().nodename().to_string_lossy());
        let me = Replica { host, ..Replica::new(id) };
        Fleet {
            assumed: assumed.max(1),
            start: Instant::now(),
            me: Mutex::new(me),
            seen: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// This replica.
    pub(in crate::limiter) fn me(&self) -> Replica {
        lock(&self.me).clone()
    }

    /// By how many replicas a limit is divided.
    pub(in crate::limiter) fn size(&self) -> u64 {
        let least = if self.is_new() { self.assumed } else { 1 };
        match &*lock(&self.seen) {
            Some(seen) => (seen.heard.len() as u64).max(least),
            None => self.assumed,
        }
    }

    /// Whether those that were started with it may not have been seen yet.
    fn is_new(&self) -> bool {
        self.start.elapsed() < AT_FIRST
    }

    /// Takes another configuration, of which the others hear at once.
    pub(in crate::limiter) fn configured(&self, configuration: &Arc<str>) {
        lock(&self.me).configuration = configuration.clone();
        self.changed.notify_one();
    }

    /// This replica, then those of which the store told last and that may still be there.
    pub(in crate::limiter) fn replicas(&self) -> Vec<Replica> {
        let mut replicas = vec![self.me()];
        if let Some(Seen { at, replicas: seen, .. }) = &*lock(&self.seen) {
            let others = seen.iter().filter(|replica| replica.id != replicas[0].id).cloned();
            let aged = others.map(|replica| Replica { seen_ago: replica.seen_ago + at.elapsed(), ..replica });
            replicas.extend(aged.collect::<Vec<_>>());
        }
        replicas
    }

    /// The host of one of them, if that is known.
    pub(in crate::limiter) fn host_of(&self, id: u64) -> Option<Arc<str>> {
        let host = self.replicas().into_iter().find(|replica| replica.id == id)?.host;
        Some(host).filter(|host| !host.is_empty())
    }

    /// Asks once.
    pub(in crate::limiter) async fn register_replica(&self, store: &dyn Store) {
        match store.register_replica(&self.me(), false).await {
            Ok(replicas) => {
                let mut seen = lock(&self.seen);
                *seen = Some(Seen::after(seen.take(), replicas));
            }
            // It stays so until somebody deletes what is there.
            Err(error @ StoreError::Unreadable(_)) => warn!(%error, "the fleet is not known"),
            // Counted and told by the store. Who was there is assumed to be there still.
            Err(error) => debug!(%error, "the fleet is not known"),
        }
    }

    /// Asks for as long as it is polled.
    pub(in crate::limiter) async fn keep_attending(&self, store: &dyn Store) {
        loop {
            let pause = if self.is_new() { EVERY_AT_FIRST } else { EVERY };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.changed.notified() => {}
            }
            self.register_replica(store).await;
        }
    }

    /// Tells the others not to count on this replica any more.
    pub(in crate::limiter) async fn leave(&self, store: &dyn Store) {
        // Who is not told notices by itself.
        let _ = timeout(LEAVING_MAX, store.register_replica(&self.me(), true)).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_has_lost_its_memory_makes_no_share_larger() {
        let fleet = Fleet::new(1, 1);
        let hear = |ids: &[u64]| {
            let mut seen = lock(&fleet.seen);
            *seen = Some(Seen::after(seen.take(), ids.iter().copied().map(Replica::new).collect()));
        };
        hear(&[1, 2, 3]);
        tokio::time::advance(EVERY).await;
        hear(&[1]);
        assert_eq!((fleet.size(), fleet.replicas().len()), (3, 1));
        tokio::time::advance(EVERY).await;
        hear(&[1, 2]);
        assert_eq!(fleet.size(), 3);
        // The third has been silent for as long as it counts.
        tokio::time::advance(EVERY).await;
        hear(&[1, 2]);
        assert_eq!(fleet.size(), 2);
    }
}
