//! One part of a store as this replica knows it: its clock, its epoch, and the permits granted there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use crate::clock::{Clock, Micros};
use crate::limiter::model::{Epoch, Reset};
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::ledger::Ledger;
use crate::limiter::recovery::peers::Peers;
use crate::limiter::store::Store;
use crate::limiter::store::clock::{SharedClock, StoreClock};

/// A part of a store, with this replica's knowledge of it. Limiters that are taken together share one.
pub(in crate::limiter) struct StoreSession {
    pub(in crate::limiter) store: Arc<dyn Store>,
    /// The store's clock.
    pub(in crate::limiter) clock: SharedClock,
    /// This process's clock, used before the store's first answer.
    pub(in crate::limiter) wall: Clock,
    /// The permits granted to this replica.
    pub(in crate::limiter) ledger: Ledger,
    /// The members that share the store, and what this replica has told it.
    pub(in crate::limiter) peers: Peers,
    /// The latest epoch that the store has answered; zero before its first answer.
    pub(in crate::limiter) epoch: AtomicU64,
    /// The store's memory in that epoch.
    memory: AtomicU64,
    /// When that epoch opens, by the store's clock, in microseconds; zero if it has.
    opens: AtomicU64,
    /// The epoch that the store must have reached: a new one is required after its clock was stepped.
    required_epoch: AtomicU64,
    /// The time of the latest reset of a limiter that the store has announced, by its clock.
    reset_at: AtomicU64,
    /// The time of the latest reset that the ledger has followed, by the store's clock.
    reset_followed: AtomicU64,
    /// Wakes the heartbeat.
    changed: Notify,
}

impl StoreSession {
    /// Creates the session with a store that has not answered yet.
    pub(in crate::limiter) fn new(store: Arc<dyn Store>, wall: Clock) -> StoreSession {
        let (clock, ledger) = (SharedClock::unheard(), Ledger::default());
        let zero = || AtomicU64::new(0);
        StoreSession {
            store,
            clock,
            wall,
            ledger,
            peers: Peers::default(),
            epoch: zero(),
            memory: zero(),
            opens: zero(),
            required_epoch: zero(),
            reset_at: zero(),
            reset_followed: zero(),
            changed: Notify::new(),
        }
    }

    /// Returns the interval at which the store is asked while slots of it are held: more than twice in each lease.
    pub(in crate::limiter) fn heartbeat(&self) -> Duration {
        self.store.lease().to_duration() * 2 / 5
    }

    /// Returns the interval of heartbeats: three in each lease.
    pub(in crate::limiter) fn beat_interval(&self) -> Duration {
        self.store.lease().to_duration() * 3 / 10
    }

    /// Returns the latest epoch that the store has answered; zero before its first answer.
    pub(in crate::limiter) fn epoch_known(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Takes in the epoch of an answer. Returns whether a new one has begun since the answer before.
    pub(in crate::limiter) fn observe_epoch(&self, epoch: Epoch) -> bool {
        let before = self.epoch.fetch_max(epoch.id, Ordering::AcqRel);
        let is_lost = before != 0 && before < epoch.id;
        self.opens.store(epoch.settles_until.unwrap_or_default().0, Ordering::Release);
        if self.memory.fetch_max(epoch.memory, Ordering::AcqRel) < epoch.memory {
            let latest = self.clock.heard().map_or_else(|| self.now(), |clock| clock.latest(Instant::now()));
            self.ledger.forget(epoch.memory, latest);
        }
        let is_reset = self.reset_at.fetch_max(epoch.reset_at.0, Ordering::AcqRel) < epoch.reset_at.0;
        if is_lost || is_reset {
            self.changed.notify_one();
        }
        is_lost
    }

    /// Returns whether the store's epoch was not open at its latest answer.
    pub(in crate::limiter) fn settles(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }

    /// Removes the grants from before these resets, from the ledger and from this replica's own memory.
    pub(in crate::limiter) fn follow_resets(&self, resets: &[Reset], fallback: &Fallback) {
        let (now, followed) = (self.now(), self.reset_followed.load(Ordering::Acquire));
        for reset in resets.iter().filter(|reset| reset.at.0 > followed) {
            let local_at = fallback.clock.now() - (now - reset.at);
            self.ledger.reset(reset, local_at);
            fallback.store.reset_at(local_at, &reset.name, reset.partition);
            self.reset_followed.fetch_max(reset.at.0, Ordering::AcqRel);
            info!(limiter = %reset.name, "reset: earlier use no longer counts");
        }
    }

    /// Returns the earliest epoch whose answers are accepted.
    pub(in crate::limiter) fn epoch_least(&self) -> u64 {
        self.epoch.load(Ordering::Acquire).max(self.required_epoch.load(Ordering::Acquire))
    }

    /// Takes in the store's clock from the answer to a call, and returns the clock as known now.
    ///
    /// After a step of that clock the instants in the store are meaningless: the ledger moves by the step, and a new epoch is
    /// required, into which all replicas write back their grants.
    pub(in crate::limiter) fn observe_clock(
        &self,
        sent: Instant,
        answered: Instant,
        now: Micros,
    ) -> StoreClock {
        self.peers.answered(now);
        let (clock, step) = self.clock.learn(sent, answered, now);
        if let Some(step) = step
            && self.store.may_fail()
        {
            warn!(?step, "the store's clock was stepped: replicas write back their grants into a new epoch");
            self.ledger.step(step);
            // The times of later resets are on another clock.
            self.reset_at.store(0, Ordering::Release);
            self.reset_followed.store(0, Ordering::Release);
            self.required_epoch.fetch_max(self.epoch.load(Ordering::Acquire) + 1, Ordering::AcqRel);
            self.changed.notify_one();
        }
        clock
    }

    /// Waits until the heartbeat has something to do: a new epoch has begun, or a limiter was reset.
    pub(in crate::limiter) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the least time that the store's clock shows now; this process's time before the store's first answer.
    pub(in crate::limiter) fn now(&self) -> Micros {
        let now = Instant::now();
        self.clock.heard().map_or_else(|| self.wall.at(now), |clock| clock.earliest(now))
    }
}
