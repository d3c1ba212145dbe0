//! All limiters of this process, over reloads.

use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Duration, sleep, timeout};
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::limiter::model::{
    Cause, Limiter, LimiterName, Partition, PauseStretch, Reason, Replica, replica_name,
};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::queue::worker::report_pauses;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::fleet::Fleet;
use crate::limiter::recovery::heartbeat::{HeartbeatNotice, Recovery, beat, leave};
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::registry::in_force::InForce;
use crate::limiter::registry::inspection::{Inspection, LimiterStatus, NotFound, Tally};
use crate::limiter::registry::limiter_set::{LimiterSet, LimiterSetError};
use crate::limiter::registry::outages;
use crate::limiter::registry::prepared_limiters::PreparedLimiters;
use crate::limiter::registry::queues::{LINGER, Queues};
use crate::limiter::registry::readings;
use crate::limiter::registry::shares::Shares;
use crate::limiter::registry::store_sessions::StoreSessions;
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::store::{Announcement, Store};
use crate::telemetry::Metrics;
use crate::usage::{Depth, Reading};

/// Time between two looks at a store that settles, or does not answer.
const SETTLING_LOOK: Duration = Duration::from_millis(50);
/// The longest that a start waits for a store to settle.
const SETTLING_MAX: Duration = Duration::from_secs(2);

/// How many limiters are inspected at once: hundreds of them take a few of the store's answers, one after the other, and their calls hold up
/// nobody else's.
const INSPECTED_AT_ONCE: usize = 32;

/// All limiters of this process. Cheap to clone.
#[derive(Clone)]
pub struct Limiters {
    in_force: Arc<InForce>,
}

/// Draws a number for this replica: below 2^53 because Lua must hold it, and not zero.
fn draw_replica(entropy: &Entropy) -> u64 {
    (entropy.draw() >> 12) | 1
}

impl Limiters {
    /// Creates a registry without limiters over this store. Until the store has answered once, an outage divides the
    /// limits by `fleet_size`.
    pub fn new(store: Arc<dyn Store>, clock: Clock, fleet_size: u32, metrics: Metrics) -> Limiters {
        Limiters::drawing(store, clock, Entropy::system(), fleet_size, metrics, LINGER)
    }

    /// Like [`Limiters::new`], with a source of random numbers.
    pub fn with_entropy(
        store: Arc<dyn Store>,
        clock: Clock,
        entropy: Entropy,
        fleet_size: u32,
        metrics: Metrics,
    ) -> Limiters {
        Limiters::drawing(store, clock, entropy, fleet_size, metrics, LINGER)
    }

    /// Like [`Limiters::new`], with another time for which an idle queue stays.
    #[cfg(test)]
    pub(in crate::limiter) fn lingering(
        store: Arc<dyn Store>,
        clock: Clock,
        fleet_size: u32,
        metrics: Metrics,
        linger: Duration,
    ) -> Limiters {
        Limiters::drawing(store, clock, Entropy::system(), fleet_size, metrics, linger)
    }

    fn drawing(
        store: Arc<dyn Store>,
        clock: Clock,
        entropy: Entropy,
        fleet_size: u32,
        metrics: Metrics,
        linger: Duration,
    ) -> Limiters {
        let replica = draw_replica(&entropy);
        let fleet = Fleet::new(replica, u64::from(fleet_size));
        let fallback = Fallback { replica, store: MemoryStore::for_outages(clock), clock, entropy, fleet };
        let queues = Arc::new(Queues::new(Arc::new(fallback), linger));
        Limiters { in_force: Arc::new(InForce::new(StoreSessions::new(store, clock), queues, metrics)) }
    }

    /// Prepares these limiters to come into force in place of the present ones. Changes nothing yet.
    ///
    /// A limiter keeps its queues over a reload unless its scope changes, its state moves to another part of the store,
    /// or it gets or loses its key. Then it is another limiter of the same name, for limiter sets created from now on.
    pub fn prepare(&self, limiters: &[Arc<Limiter>]) -> PreparedLimiters {
        PreparedLimiters::new(&self.in_force, limiters)
    }

    /// Prepares these limiters and puts them in force.
    pub fn apply(&self, limiters: &[Arc<Limiter>]) {
        self.prepare(limiters).commit();
    }

    fn active_limiters(&self) -> Vec<Arc<ActiveLimiter>> {
        self.in_force.limiters()
    }

    /// Returns the set of these limiters as they are in force; `None` without any. A name that comes twice counts once.
    /// Requests must enter the set within a Tokio runtime.
    ///
    /// # Errors
    /// The first name that no limiter has, or two limiters that cannot be taken together.
    pub fn limiter_set(&self, names: &[LimiterName]) -> Result<Option<LimiterSet>, LimiterSetError> {
        LimiterSet::of(&self.in_force.queues, &self.active_limiters(), names)
    }

    /// Returns the status of every limiter, in the order of the configuration. Asks the store, and changes nothing.
    pub async fn inspect(&self) -> Vec<LimiterStatus> {
        let (waits, shares) = (self.in_force.queues.longest_waits(), Shares::now(&self.in_force.queues));
        let (waits, shares) = (&waits, &shares);
        // Without a partition it never fails.
        let inspections = self
            .active_limiters()
            .into_iter()
            .filter_map(|it| Inspection::new(it, None, &self.in_force.queues).ok());
        stream::iter(inspections)
            .map(|inspection| async move { inspection.inspect_with(waits, shares).await })
            .buffered(INSPECTED_AT_ONCE)
            .collect()
            .await
    }

    /// Returns the counts of every limiter, in the order of the configuration. Asks no store. Each longest wait is of the
    /// time since the last call.
    pub fn tallies(&self) -> Vec<Tally> {
        let tally = |active: Arc<ActiveLimiter>| Tally {
            name: active.name.clone(),
            granted: active.counts.granted(),
            refused: active.counts.refused(),
            longest_wait: active.counts.take_longest_wait(),
        };
        self.active_limiters().into_iter().map(tally).collect()
    }

    /// Returns what this replica tells the fleet of every limiter, in the order of the configuration. Asks no store.
    pub fn readings(&self, depth: Depth) -> Vec<Reading> {
        if depth == Depth::Partitions {
            self.in_force.queues.note_waits();
        }
        self.active_limiters().iter().map(|active| readings::reading(active, depth)).collect()
    }

    /// Returns what looks up the value of a limiter's partition that matters, by its hash in hexadecimal, where it may be shown.
    pub fn partition_values(&self, name: &LimiterName) -> impl Fn(&str) -> Option<Arc<str>> + use<> {
        let active = self.active_limiters().into_iter().find(|active| active.name == *name);
        move |hash| active.as_ref()?.partition_value(hash)
    }

    /// Returns one limiter, or one of its partitions, to be looked at or acted on by hand.
    ///
    /// # Errors
    /// If no limiter has this name, or it has no partitions and one is given.
    pub fn find(&self, name: &LimiterName, partition: Option<Partition>) -> Result<Inspection, NotFound> {
        let active = self
            .active_limiters()
            .into_iter()
            .find(|active| active.name == *name)
            .ok_or(NotFound::Limiter)?;
        Inspection::new(active, partition, &self.in_force.queues)
    }

    /// Updates the metrics that change with time alone. Asks no store.
    pub fn refresh_metrics(&self) {
        let shares = Shares::now(&self.in_force.queues);
        self.active_limiters().iter().for_each(|active| active.refresh_metrics(&shares.by_class(active)));
    }

    /// Returns the replicas that share the store, this one first, as of the store's last answer.
    pub fn replicas(&self) -> Vec<Replica> {
        self.fleet().replicas()
    }

    /// Returns the number of this replica.
    pub fn replica(&self) -> u64 {
        self.in_force.queues.fallback.replica
    }

    /// Returns the host of a replica, if it is known.
    pub fn host_of(&self, replica: u64) -> Option<Arc<str>> {
        self.fleet().host_of(replica)
    }

    /// Reports the hash of this replica's configuration to the fleet.
    pub fn configured(&self, configuration: &Arc<str>) {
        self.fleet().configured(configuration);
    }

    fn fleet(&self) -> &Fleet {
        &self.in_force.queues.fallback.fleet
    }

    /// Returns whether the store answered last.
    pub fn store_up(&self) -> bool {
        self.in_force.sessions.overall.store.is_up()
    }

    /// Returns whether each limiter can serve, by name: one that rejects without its store cannot while that is away.
    pub fn readiness(&self) -> Vec<(LimiterName, bool)> {
        let active = self.active_limiters();
        active.iter().map(|active| (active.name.clone(), active.can_serve())).collect()
    }

    /// Passes announcements of other replicas on to the queues. Ends when the store has none any more.
    pub async fn follow(&self) {
        let Some(mut announcements) = self.in_force.sessions.overall.store.announcements() else { return };
        loop {
            match announcements.recv().await {
                Ok(announcement) => self.announced(&announcement),
                // Heartbeats tell of pauses by hand, too, and answers of others. Freed room is lost, but not to the next booking.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Logs each minute of an outage of the store, with the limiters that it concerns. Does not end.
    pub async fn tell_outages(&self) {
        let limiters = || self.active_limiters().into_iter().filter(|active| active.session.store.may_fail());
        outages::tell(|| limiters().collect(), self.in_force.queues.fallback.clock).await;
    }

    /// Waits until the store grants permits: a store that is new, or has lost its state, settles first. Ends at once if
    /// the store does not answer, and after two seconds in any case.
    pub async fn settle(&self) {
        self.fleet().register_replica(&*self.in_force.sessions.overall.store).await;
        let (sessions, queues) = (self.in_force.sessions.that_may_fail(), &self.in_force.queues);
        let settled = |session: Arc<StoreSession>| async move {
            let tell = |notice: HeartbeatNotice<'_>| self.in_force.notify(notice);
            while beat(&session, &queues.fallback, &tell).await.is_ok()
                && session.advance(session.moment()).link.is_settling()
            {
                sleep(SETTLING_LOOK).await;
            }
        };
        let _ = timeout(SETTLING_MAX, join_all(sessions.into_iter().map(settled))).await;
    }

    /// Restores what the store has lost, and reports this replica to it, for as long as it is polled.
    pub async fn keep(&self) {
        let InForce { sessions, queues, .. } = &*self.in_force;
        let mut recovered: Vec<Weak<StoreSession>> = Vec::new();
        let mut recoveries = FuturesUnordered::new();
        loop {
            recovered.retain(|session| session.strong_count() > 0);
            for session in sessions.that_may_fail() {
                let session = Arc::downgrade(&session);
                if !recovered.iter().any(|other| other.ptr_eq(&session)) {
                    recovered.push(session.clone());
                    let tell = |notice: HeartbeatNotice<'_>| self.in_force.notify(notice);
                    recoveries.push(Recovery::new(session, queues.fallback.clone(), tell).run());
                }
            }
            tokio::select! {
                biased;
                () = sessions.added() => {}
                Some(()) = recoveries.next() => {}
                () = self.fleet().keep_registered(&*sessions.overall.store) => {}
                () = self.keep_pauses_reported() => {}
            }
        }
    }

    /// Tells the store of the pauses that this replica alone knows, as soon as it answers. Never returns.
    async fn keep_pauses_reported(&self) {
        let queues = &self.in_force.queues;
        loop {
            queues.pauses_changed().await;
            while !self.report_pauses().await {
                sleep(SETTLING_LOOK).await;
            }
        }
    }

    /// Reports the pauses that this replica alone knows to the store. Returns whether the store knows all of them by now.
    async fn report_pauses(&self) -> bool {
        let queues = &self.in_force.queues;
        let mut are_reported = true;
        for active in self.active_limiters() {
            if active.pauses.unreported().is_empty() {
                continue;
            }
            let is_told = active.session.store.is_up()
                && report_pauses(&active, &queues.fallback, &**queues).await.is_ok()
                && active.pauses.unreported().is_empty();
            are_reported &= is_told;
        }
        are_reported
    }

    fn announced(&self, announcement: &Announcement) {
        let (queue, freed) = match announcement {
            Announcement::Freed { queue, freed } => (queue, *freed),
            Announcement::Pause { name, partition, stretch, cause } => {
                for active in self.active_limiters().into_iter().filter(|active| active.name == *name) {
                    self.log_pause(name, partition.is_some(), *stretch, *cause);
                    let instance = LimiterInstance { active, partition: *partition };
                    self.in_force.queues.note_pause(&instance, *stretch, *cause);
                }
                return;
            }
        };
        let limiters = self.active_limiters();
        let instance = |(name, partition): &(LimiterName, Option<Partition>)| {
            let active = limiters.iter().find(|active| active.name == *name)?.clone();
            Some(LimiterInstance { active, partition: *partition })
        };
        // Another replica may have limiters that this one's configuration does not name.
        if let Some(instances) = queue.iter().map(instance).collect::<Option<Vec<_>>>() {
            self.in_force.queues.notify_freed(&instances, freed);
        }
    }

    /// Logs a pause by another replica. This replica's own pauses are logged where they begin.
    fn log_pause(&self, limiter: &LimiterName, is_part: bool, stretch: PauseStretch, cause: Cause) {
        let Cause { reason, replica } = cause;
        if replica == self.in_force.queues.fallback.replica {
            return;
        }
        // A limiter may have very many partitions.
        if is_part {
            return debug!(%limiter, replica = replica_name(replica), "another replica paused or resumed a partition");
        }
        let by = self.host_of(replica).unwrap_or_else(|| replica_name(replica).into());
        let lasting = (stretch.until - stretch.from).to_duration();
        match reason {
            Reason::Upstream { status, is_named } => {
                warn!(%limiter, %by, status, is_named, ?lasting, "paused by an upstream through another replica");
            }
            Reason::ByHand if lasting.is_zero() => {
                info!(%limiter, %by, "resumed by hand through another replica");
            }
            Reason::ByHand => warn!(%limiter, %by, ?lasting, "paused by hand through another replica"),
        }
    }

    /// Refuses every waiting request, gives the slots back and leaves the fleet. Ends when every worker has ended.
    pub async fn close(&self) {
        let InForce { queues, sessions, .. } = &*self.in_force;
        queues.close().await;
        join_all(sessions.that_may_fail().iter().map(|session| leave(session, &queues.fallback))).await;
        self.fleet().leave(&*self.in_force.sessions.overall.store).await;
    }

    /// Returns the number of queues.
    #[cfg(test)]
    pub(in crate::limiter) fn queues(&self) -> usize {
        self.in_force.queues.len()
    }
}
