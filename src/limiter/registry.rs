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
use crate::limiter::chosen::{Chosen, LimiterState, NotFound, Tally};
use crate::limiter::fleet::{Fleet, Replica, replica_name};
use crate::limiter::gate::{Gate, GateError};
use crate::limiter::keeper::Keeper;
use crate::limiter::limit::{Limiter, LimiterName, OnStoreFailure, Scope};
use crate::limiter::live::{Home, Live, Member};
use crate::limiter::memory::MemoryStore;
use crate::limiter::partition::Partition;
use crate::limiter::pause::{Cause, Reason};
use crate::limiter::queues::{LINGER, Queues};
use crate::limiter::store::{Announcement, PauseStretch, Store};
use crate::limiter::worker::Fallback;
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
    homes: Homes,
    queues: Arc<Queues>,
    metrics: Metrics,
    /// In the order of the configuration.
    lives: Mutex<Vec<Arc<Live>>>,
}

/// Where limiters live.
struct Homes {
    /// Those that the fleet shares.
    overall: Arc<Home>,
    /// Those that each replica has by itself.
    per_replica: Arc<Home>,
    /// The homes of groups, where each may be lost by itself, in use or not.
    parts: Mutex<HashMap<Arc<str>, Weak<Home>>>,
    /// Told when there is another one.
    grown: Notify,
    clock: Clock,
}

impl Homes {
    fn of(&self, limiter: &Limiter) -> Arc<Home> {
        if limiter.scope == Scope::PerReplica {
            return self.per_replica.clone();
        }
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = parts.get(&limiter.group).and_then(Weak::upgrade) {
            return home;
        }
        let Some(store) = self.overall.store.part(&limiter.group) else { return self.overall.clone() };
        let home = Arc::new(Home::new(store, self.clock));
        parts.retain(|_, home| home.strong_count() > 0);
        parts.insert(limiter.group.clone(), Arc::downgrade(&home));
        self.grown.notify_one();
        home
    }

    /// All whose memory may be lost.
    fn shared(&self) -> Vec<Arc<Home>> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.values().filter_map(Weak::upgrade);
        parts.chain([self.overall.clone()]).filter(|home| home.store.may_fail()).collect()
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

    pub(super) fn lingering(
        store: Arc<dyn Store>,
        clock: Clock,
        fleet_size: u32,
        metrics: Metrics,
        linger: Duration,
    ) -> Limiters {
        let replica = replica();
        let fleet = Fleet::new(replica, u64::from(fleet_size));
        let fallback = Fallback { replica, store: MemoryStore::new(clock), clock, fleet };
        let home = |store| Arc::new(Home::new(store, clock));
        let homes = Homes {
            overall: home(store),
            per_replica: home(Arc::new(MemoryStore::new(clock))),
            parts: Mutex::default(),
            grown: Notify::new(),
            clock,
        };
        let inner = Inner {
            homes,
            queues: Arc::new(Queues::new(fallback, linger)),
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
        let known: HashMap<_, _> = lives.iter().map(|live| (&live.name, live)).collect();
        let mut changed: Vec<Arc<Live>> = Vec::new();
        let next = limiters.iter().map(|limiter| -> Arc<Live> {
            let Some(&live) = known.get(&limiter.name) else { return self.begin(limiter, None) };
            let before = live.limiter();
            if *before == *limiter {
                return live.clone();
            }
            let stays = Arc::ptr_eq(&live.home, &self.inner.homes.of(limiter));
            if !stays || before.partitioned.is_some() != limiter.partitioned.is_some() {
                return self.begin(limiter, Some(live));
            }
            live.change(limiter.clone(), metrics.limiter(limiter));
            changed.push(live.clone());
            live.clone()
        });
        let next = next.collect();
        let before = std::mem::replace(&mut *lives, next);
        if !changed.is_empty() {
            queues.tell_changed(|member| changed.iter().any(|live| Arc::ptr_eq(live, &member.live)));
        }
        let kept: HashSet<_> = limiters.iter().map(|limiter| &limiter.name).collect();
        for live in before.iter().filter(|live| !kept.contains(&live.name)) {
            metrics.forget_limiter(&live.name);
        }
    }

    fn begin(&self, limiter: &Arc<Limiter>, before: Option<&Arc<Live>>) -> Arc<Live> {
        let home = self.inner.homes.of(limiter);
        let counts = before.map(|before| before.counts.clone()).unwrap_or_default();
        let metrics = self.inner.metrics.limiter(limiter);
        Arc::new(Live::new(limiter.clone(), metrics, home, counts))
    }

    fn lives(&self) -> Vec<Arc<Live>> {
        self.inner.lives.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The gate that takes all of these limiters together; `None` without any. A name that comes twice counts once.
    /// Its requests must enter within a Tokio runtime.
    ///
    /// # Errors
    /// The first name that no limiter has, or two limiters that cannot be taken together.
    pub fn gate(&self, names: &[LimiterName]) -> Result<Option<Gate>, GateError> {
        let lives = self.inner.lives.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |name: &LimiterName| {
            let live = lives.iter().find(|live| live.name == *name);
            live.cloned().ok_or_else(|| GateError::Unknown(name.clone()))
        };
        let named = names.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = named.first() else { return Ok(None) };
        if let Some(other) = named.iter().find(|live| !Arc::ptr_eq(&live.home, &first.home)) {
            let name = |live: &Live| live.name.clone();
            return Err(GateError::Scopes(name(first), name(other)));
        }
        Ok(Some(Gate::new(self.inner.queues.clone(), named)))
    }

    /// The live state of every limiter, in the order of the configuration. Asks the store, and changes nothing.
    pub async fn inspect(&self) -> Vec<LimiterState> {
        let (mut states, waits) = (Vec::new(), self.inner.queues.longest_waits());
        for live in self.lives() {
            // As a whole there is each of them.
            if let Ok(chosen) = Chosen::new(live, None, &self.inner.queues) {
                states.push(chosen.inspect_with(&waits).await);
            }
        }
        states
    }

    /// What has become of the requests of every limiter, in the order of the configuration. Asks no store; the longest wait is that
    /// since this was asked last.
    pub fn tallies(&self) -> Vec<Tally> {
        let tally = |live: Arc<Live>| Tally {
            name: live.name.clone(),
            granted: live.counts.granted(),
            refused: live.counts.refused(),
            longest_wait: live.counts.take_longest_wait(),
        };
        self.lives().into_iter().map(tally).collect()
    }

    /// One limiter, or one of its partitions, to be looked at or acted on by hand.
    ///
    /// # Errors
    /// If there is none.
    pub fn choose(&self, name: &LimiterName, partition: Option<Partition>) -> Result<Chosen, NotFound> {
        let live = self.lives().into_iter().find(|live| live.name == *name).ok_or(NotFound::Limiter)?;
        Chosen::new(live, partition, &self.inner.queues)
    }

    /// Brings up to date what metrics show and nothing else sets. Asks no store.
    pub fn refresh_metrics(&self) {
        let now = Instant::now();
        self.lives().iter().for_each(|live| live.refresh_metrics(now));
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
        self.inner.homes.overall.store.is_up()
    }

    /// Whether every limiter can serve by its policy: false while one that rejects has no store.
    pub fn ready(&self) -> bool {
        let rejects = |live: &Arc<Live>| {
            let limiter = live.limiter();
            limiter.on_store_failure == OnStoreFailure::Reject && !limiter.is_shadow()
        };
        !self.lives().iter().any(|live| rejects(live) && !live.home.store.is_up())
    }

    /// Passes on what other replicas announce, until they no longer can.
    pub async fn follow(&self) {
        let Some(mut announcements) = self.inner.homes.overall.store.announcements() else { return };
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
        self.fleet().attend(&*self.inner.homes.overall.store).await;
        let homes = self.inner.homes.shared();
        let settled = |home: Arc<Home>| async move {
            while let Ok((epoch, _)) = home.store.epoch(home.epoch.load(Ordering::Acquire)).await {
                home.meet_epoch(epoch);
                if epoch.settles_until.is_none() {
                    return;
                }
                sleep(SETTLING_LOOK).await;
            }
        };
        let _ = timeout(SETTLING_MAX, join_all(homes.into_iter().map(settled))).await;
    }

    /// Keeps the store's memory for as long as it is polled.
    pub async fn keep(&self) {
        let Inner { homes, queues, .. } = &*self.inner;
        let mut kept: Vec<Weak<Home>> = Vec::new();
        let mut keepers = FuturesUnordered::new();
        loop {
            kept.retain(|home| home.strong_count() > 0);
            for home in homes.shared() {
                let home = Arc::downgrade(&home);
                if !kept.iter().any(|known| known.ptr_eq(&home)) {
                    kept.push(home.clone());
                    keepers.push(Keeper::new(home, queues.clone()).run());
                }
            }
            tokio::select! {
                () = homes.grown.notified() => {}
                Some(()) = keepers.next() => {}
                () = self.fleet().keep_attending(&*homes.overall.store) => {}
            }
        }
    }

    fn announced(&self, announcement: &Announcement) {
        let (queue, room) = match announcement {
            Announcement::Room { queue, room } => (queue, *room),
            Announcement::Pause { name, partition, stretch, cause } => {
                let is_meant = |member: &Member| {
                    member.live.name == *name && (partition.is_none() || member.partition == *partition)
                };
                for live in self.lives().iter().filter(|live| live.name == *name) {
                    live.show_pause(stretch.until, *partition);
                    self.tell_of_pause(name, partition.is_some(), *stretch, *cause);
                }
                return self.inner.queues.pause(is_meant, *stretch);
            }
        };
        let lives = self.lives();
        let member = |(name, partition): &(LimiterName, Option<Partition>)| {
            let live = lives.iter().find(|live| live.name == *name)?.clone();
            Some(Member { live, partition: *partition })
        };
        // Another replica's configuration may know limiters that this one does not.
        if let Some(members) = queue.iter().map(member).collect::<Option<Vec<_>>>() {
            self.inner.queues.tell_room(&members, room);
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
        self.fleet().leave(&*self.inner.homes.overall.store).await;
    }

    /// How many queues there are.
    #[cfg(test)]
    pub(super) fn queues(&self) -> usize {
        self.inner.queues.len()
    }
}
