//! All limiters of this process, kept over a reload.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Duration, Instant, sleep, timeout};
use tracing::{debug, info};

use crate::clock::Clock;
use crate::limiter::model::limit::{Limiter, LimiterName, OnStoreFailure, Scope};
use crate::limiter::model::partition::Partition;
use crate::limiter::model::pause::{Cause, PauseStretch, Reason};
use crate::limiter::model::replica::Replica;
use crate::limiter::model::replica::replica_name;
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::heartbeat::Recovery;
use crate::limiter::recovery::members::Fleet;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::registry::inspection::{Inspection, LimiterStatus, NotFound, Tally};
use crate::limiter::registry::limiter_set::{LimiterSet, LimiterSetError};
use crate::limiter::registry::queues::{LINGER, Queues};
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::store::{Announcement, Store};
use crate::telemetry::Metrics;

/// How often a store that settles is looked at, and for how long.
const SETTLING_LOOK: Duration = Duration::from_millis(50);
const SETTLING_MAX: Duration = Duration::from_secs(2);

/// All limiters. Cheap to clone.
#[derive(Clone)]
pub struct Limiters {
    inner: Arc<Inner>,
}

struct Inner {
    sessions: StoreSessions,
    queues: Arc<Queues>,
    metrics: Metrics,
    /// In the order of the configuration.
    lives: Mutex<Vec<Arc<ActiveLimiter>>>,
}

/// Where limiters active.
struct StoreSessions {
    /// Those that the fleet shares.
    overall: Arc<StoreSession>,
    /// Those that each replica has by itself.
    per_replica: Arc<StoreSession>,
    /// The sessions of groups, where each may be lost by itself, in use or not.
    parts: Mutex<HashMap<Arc<str>, Weak<StoreSession>>>,
    /// Told when there is another one.
    grown: Notify,
    clock: Clock,
}

impl StoreSessions {
    fn of(&self, limiter: &Limiter) -> Arc<StoreSession> {
        if limiter.scope == Scope::PerReplica {
            return self.per_replica.clone();
        }
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = parts.get(&limiter.group).and_then(Weak::upgrade) {
            return session;
        }
        let Some(store) = self.overall.store.part(&limiter.group) else { return self.overall.clone() };
        let session = Arc::new(StoreSession::new(store, self.clock));
        parts.retain(|_, session| session.strong_count() > 0);
        parts.insert(limiter.group.clone(), Arc::downgrade(&session));
        self.grown.notify_one();
        session
    }

    /// All whose memory may be lost.
    fn shared(&self) -> Vec<Arc<StoreSession>> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.values().filter_map(Weak::upgrade);
        parts.chain([self.overall.clone()]).filter(|session| session.store.may_fail()).collect()
    }
}

/// A number for this replica, below 2^53 because Lua must hold it, and not zero.
fn replica() -> u64 {
    // The standard library seeds each of these at random.
    (RandomState::new().hash_one(std::process::id()) >> 12) | 1
}

impl Limiters {
    /// No limiters yet, over this store. `fleet_size` divides the limits while the store is away and has never been seen.
    pub fn new(store: Arc<dyn Store>, clock: Clock, fleet_size: u32, metrics: Metrics) -> Limiters {
        Limiters::lingering(store, clock, fleet_size, metrics, LINGER)
    }

    pub(in crate::limiter) fn lingering(
        store: Arc<dyn Store>,
        clock: Clock,
        fleet_size: u32,
        metrics: Metrics,
        linger: Duration,
    ) -> Limiters {
        let replica = replica();
        let fleet = Fleet::new(replica, u64::from(fleet_size));
        let fallback = Fallback { replica, store: MemoryStore::new(clock), clock, fleet };
        let session = |store| Arc::new(StoreSession::new(store, clock));
        let sessions = StoreSessions {
            overall: session(store),
            per_replica: session(Arc::new(MemoryStore::new(clock))),
            parts: Mutex::default(),
            grown: Notify::new(),
            clock,
        };
        let inner = Inner {
            sessions,
            queues: Arc::new(Queues::new(Arc::new(fallback), linger)),
            metrics,
            lives: Mutex::default(),
        };
        Limiters { inner: Arc::new(inner) }
    }

    /// Puts these limiters in force. An unchanged one notices nothing; a changed one keeps its queues and
    /// what was used; the queues of a removed one end with their last request.
    ///
    /// One that changes its scope or moves to another memory, or that becomes partitioned or no longer is, is another one for gates made from now on.
    pub fn apply(&self, limiters: &[Arc<Limiter>]) {
        let Inner { queues, metrics, .. } = &*self.inner;
        let mut lives = self.inner.lives.lock().unwrap_or_else(PoisonError::into_inner);
        let known: HashMap<_, _> = lives.iter().map(|active| (&active.name, active)).collect();
        let mut changed: Vec<Arc<ActiveLimiter>> = Vec::new();
        let next = limiters.iter().map(|limiter| -> Arc<ActiveLimiter> {
            let Some(&active) = known.get(&limiter.name) else { return self.begin(limiter, None) };
            let before = active.limiter();
            if *before == *limiter {
                return active.clone();
            }
            let stays = Arc::ptr_eq(&active.session, &self.inner.sessions.of(limiter));
            if !stays || before.partitioned.is_some() != limiter.partitioned.is_some() {
                return self.begin(limiter, Some(active));
            }
            active.change(limiter.clone(), metrics.limiter(limiter));
            changed.push(active.clone());
            active.clone()
        });
        let next = next.collect();
        let before = std::mem::replace(&mut *lives, next);
        if !changed.is_empty() {
            queues
                .tell_changed(|instance| changed.iter().any(|active| Arc::ptr_eq(active, &instance.active)));
        }
        let kept: HashSet<_> = limiters.iter().map(|limiter| &limiter.name).collect();
        for active in before.iter().filter(|active| !kept.contains(&active.name)) {
            metrics.forget_limiter(&active.name);
        }
    }

    fn begin(&self, limiter: &Arc<Limiter>, before: Option<&Arc<ActiveLimiter>>) -> Arc<ActiveLimiter> {
        let session = self.inner.sessions.of(limiter);
        let counts = before.map(|before| before.counts.clone()).unwrap_or_default();
        let metrics = self.inner.metrics.limiter(limiter);
        Arc::new(ActiveLimiter::new(limiter.clone(), metrics, session, counts))
    }

    fn active_limiters(&self) -> Vec<Arc<ActiveLimiter>> {
        self.inner.lives.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The gate that takes all of these limiters together; `None` without any. A name that comes twice counts once.
    /// Its requests must enter within a Tokio runtime.
    ///
    /// # Errors
    /// The first name that no limiter has, or two limiters that cannot be taken together.
    pub fn gate(&self, names: &[LimiterName]) -> Result<Option<LimiterSet>, LimiterSetError> {
        let lives = self.inner.lives.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |name: &LimiterName| {
            let active = lives.iter().find(|active| active.name == *name);
            active.cloned().ok_or_else(|| LimiterSetError::Unknown(name.clone()))
        };
        let named = names.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = named.first() else { return Ok(None) };
        if let Some(other) = named.iter().find(|active| !Arc::ptr_eq(&active.session, &first.session)) {
            let name = |active: &ActiveLimiter| active.name.clone();
            return Err(LimiterSetError::Scopes(name(first), name(other)));
        }
        Ok(Some(LimiterSet::new(self.inner.queues.clone(), named)))
    }

    /// The active state of every limiter, in the order of the configuration. Asks the store, and changes nothing.
    pub async fn inspect(&self) -> Vec<LimiterStatus> {
        let (mut states, waits) = (Vec::new(), self.inner.queues.longest_waits());
        for active in self.active_limiters() {
            // As a whole there is each of them.
            if let Ok(chosen) = Inspection::new(active, None, &self.inner.queues) {
                states.push(chosen.inspect_with(&waits).await);
            }
        }
        states
    }

    /// What has become of the requests of every limiter, in the order of the configuration. Asks no store; the longest wait is that
    /// since this was asked last.
    pub fn tallies(&self) -> Vec<Tally> {
        let tally = |active: Arc<ActiveLimiter>| Tally {
            name: active.name.clone(),
            granted: active.counts.granted(),
            refused: active.counts.refused(),
            longest_wait: active.counts.take_longest_wait(),
        };
        self.active_limiters().into_iter().map(tally).collect()
    }

    /// One limiter, or one of its partitions, to be looked at or acted on by hand.
    ///
    /// # Errors
    /// If there is none.
    pub fn choose(&self, name: &LimiterName, partition: Option<Partition>) -> Result<Inspection, NotFound> {
        let active = self
            .active_limiters()
            .into_iter()
            .find(|active| active.name == *name)
            .ok_or(NotFound::Limiter)?;
        Inspection::new(active, partition, &self.inner.queues)
    }

    /// Brings up to date what metrics show and nothing else sets. Asks no store.
    pub fn refresh_metrics(&self) {
        let now = Instant::now();
        self.active_limiters().iter().for_each(|active| active.refresh_metrics(now));
    }

    /// The replicas that share the store, this one first; as the store told last.
    pub fn replicas(&self) -> Vec<Replica> {
        self.fleet().replicas()
    }

    /// The host of one of them, if that is known.
    pub fn host_of(&self, replica: u64) -> Option<Arc<str>> {
        self.fleet().host_of(replica)
    }

    /// Tells the fleet which configuration this replica has.
    pub fn configured(&self, configuration: &Arc<str>) {
        self.fleet().configured(configuration);
    }

    fn fleet(&self) -> &Fleet {
        &self.inner.queues.fallback.fleet
    }

    /// Whether the store answers, as far as is known.
    pub fn store_up(&self) -> bool {
        self.inner.sessions.overall.store.is_up()
    }

    /// Whether every limiter can serve by its policy: false while one that rejects has no store.
    pub fn ready(&self) -> bool {
        let rejects = |active: &Arc<ActiveLimiter>| {
            let limiter = active.limiter();
            limiter.on_store_failure == OnStoreFailure::Reject && !limiter.is_shadow()
        };
        !self.active_limiters().iter().any(|active| rejects(active) && !active.session.store.is_up())
    }

    /// Passes on what other replicas announce, until they no longer can.
    pub async fn follow(&self) {
        let Some(mut announcements) = self.inner.sessions.overall.store.announcements() else { return };
        loop {
            match announcements.recv().await {
                Ok(announcement) => self.announced(&announcement),
                // What was missed is heard with the next answer.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Ends when the store grants permits: one that is new, or has lost its memory, settles first. Ends at once if it does
    /// not answer, and after two seconds in any case.
    pub async fn settle(&self) {
        self.fleet().register_replica(&*self.inner.sessions.overall.store).await;
        let sessions = self.inner.sessions.shared();
        let settled = |session: Arc<StoreSession>| async move {
            while let Ok((epoch, _)) = session.store.epoch(session.epoch.load(Ordering::Acquire)).await {
                session.meet_epoch(epoch);
                if epoch.settles_until.is_none() {
                    return;
                }
                sleep(SETTLING_LOOK).await;
            }
        };
        let _ = timeout(SETTLING_MAX, join_all(sessions.into_iter().map(settled))).await;
    }

    /// Keeps the store's memory for as long as it is polled.
    pub async fn keep(&self) {
        let Inner { sessions, queues, .. } = &*self.inner;
        let mut kept: Vec<Weak<StoreSession>> = Vec::new();
        let mut keepers = FuturesUnordered::new();
        loop {
            kept.retain(|session| session.strong_count() > 0);
            for session in sessions.shared() {
                let session = Arc::downgrade(&session);
                if !kept.iter().any(|known| known.ptr_eq(&session)) {
                    kept.push(session.clone());
                    let recovery = Recovery::new(session, queues.fallback.clone(), || queues.wake_all());
                    keepers.push(recovery.run());
                }
            }
            tokio::select! {
                () = sessions.grown.notified() => {}
                Some(()) = keepers.next() => {}
                () = self.fleet().keep_attending(&*sessions.overall.store) => {}
            }
        }
    }

    fn announced(&self, announcement: &Announcement) {
        let (queue, room) = match announcement {
            Announcement::Freed { queue, room } => (queue, *room),
            Announcement::Pause { name, partition, stretch, cause } => {
                let is_meant = |instance: &LimiterInstance| {
                    instance.active.name == *name && (partition.is_none() || instance.partition == *partition)
                };
                for active in self.active_limiters().iter().filter(|active| active.name == *name) {
                    active.show_pause(stretch.until, *partition);
                    self.tell_of_pause(name, partition.is_some(), *stretch, *cause);
                }
                return self.inner.queues.pause(is_meant, *stretch);
            }
        };
        let lives = self.active_limiters();
        let instance = |(name, partition): &(LimiterName, Option<Partition>)| {
            let active = lives.iter().find(|active| active.name == *name)?.clone();
            Some(LimiterInstance { active, partition: *partition })
        };
        // Another replica's configuration may know limiters that this one does not.
        if let Some(instances) = queue.iter().map(instance).collect::<Option<Vec<_>>>() {
            self.inner.queues.tell_room(&instances, room);
        }
    }

    /// Tells of a pause that another replica has made: what this one does is told where it does it.
    fn tell_of_pause(&self, limiter: &LimiterName, is_part: bool, stretch: PauseStretch, cause: Cause) {
        let Cause { reason, replica } = cause;
        if replica == self.inner.queues.fallback.replica {
            return;
        }
        // Of a limiter with partitions there may be very many.
        if is_part {
            return debug!(%limiter, replica = replica_name(replica), "another replica paused a partition, or let it go on");
        }
        let by = self.host_of(replica).unwrap_or_else(|| replica_name(replica).into());
        let lasting = (stretch.until - stretch.from).to_duration();
        match reason {
            Reason::Upstream { status, is_named } => {
                info!(%limiter, %by, status, is_named, ?lasting, "another replica heard: the upstream asks for a pause");
            }
            Reason::ByHand if lasting.is_zero() => {
                info!(%limiter, %by, "resumed by hand over another replica");
            }
            Reason::ByHand => info!(%limiter, %by, ?lasting, "paused by hand over another replica"),
        }
    }

    /// Refuses all who wait, gives their slots back, leaves the fleet, and ends when every worker has ended.
    pub async fn close(&self) {
        self.inner.queues.close().await;
        self.fleet().leave(&*self.inner.sessions.overall.store).await;
    }

    /// How many queues there are.
    #[cfg(test)]
    pub(in crate::limiter) fn queues(&self) -> usize {
        self.inner.queues.len()
    }
}
