//! The sessions with the store: which part of it holds the state of which limiter.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::limiter::model::{Limiter, Scope};
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::store::Store;
use crate::limiter::store::memory::MemoryStore;

/// All sessions of this process.
pub(super) struct StoreSessions {
    /// The session of limiters that the fleet shares.
    pub(super) overall: Arc<StoreSession>,
    /// The session of limiters that each replica has by itself.
    per_replica: Arc<StoreSession>,
    /// The sessions of groups, where the store may lose each group by itself. Limiters hold them.
    groups: Mutex<BTreeMap<Arc<str>, Weak<StoreSession>>>,
    /// Notified when a group was added.
    added: Notify,
    clock: Clock,
}

/// Sessions of groups that no limiter in force has.
#[derive(Default)]
pub(super) struct NewSessions(HashMap<Arc<str>, Arc<StoreSession>>);

impl StoreSessions {
    pub(super) fn new(store: Arc<dyn Store>, clock: Clock) -> StoreSessions {
        let session = |store| Arc::new(StoreSession::new(store, clock));
        StoreSessions {
            overall: session(store),
            per_replica: session(Arc::new(MemoryStore::new(clock))),
            groups: Mutex::default(),
            added: Notify::new(),
            clock,
        }
    }

    /// Returns the session of a limiter. The session of a new group is put into `new`, and comes into use by
    /// [`StoreSessions::add`].
    pub(super) fn of(&self, limiter: &Limiter, new: &mut NewSessions) -> Arc<StoreSession> {
        if limiter.scope == Scope::PerReplica {
            return self.per_replica.clone();
        }
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = groups.get(&limiter.group).and_then(Weak::upgrade);
        if let Some(session) = in_use.or_else(|| new.0.get(&limiter.group).cloned()) {
            return session;
        }
        let Some(store) = self.overall.store.part(&limiter.group) else { return self.overall.clone() };
        let session = Arc::new(StoreSession::new(store, self.clock));
        new.0.insert(limiter.group.clone(), session.clone());
        session
    }

    /// Brings new sessions into use.
    pub(super) fn add(&self, new: &NewSessions) {
        if new.0.is_empty() {
            return;
        }
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|_, session| session.strong_count() > 0);
        groups.extend(new.0.iter().map(|(group, session)| (group.clone(), Arc::downgrade(session))));
        self.added.notify_one();
    }

    /// Ends when sessions were added.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// Returns the sessions with a store that may lose its state.
    pub(super) fn that_may_fail(&self) -> Vec<Arc<StoreSession>> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = groups.values().filter_map(Weak::upgrade);
        groups.chain([self.overall.clone()]).filter(|session| session.store.may_fail()).collect()
    }
}
