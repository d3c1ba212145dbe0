//! What this replica knows of one part of a store: its clock, its epoch, and what was granted there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use crate::clock::{Clock, Micros};
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::epoch::Reset;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::ledger::Ledger;
use crate::limiter::store::Store;
use crate::limiter::store::clock::{SharedClock, StoreClock};

/// Where the state of limiters lives, and what this replica knows of that place's clock.
pub(in crate::limiter) struct StoreSession {
    pub(in crate::limiter) store: Arc<dyn Store>,
    pub(in crate::limiter) clock: SharedClock,
    /// The best guess until it has been heard.
    pub(in crate::limiter) wall: Clock,
    /// What was granted there.
    pub(in crate::limiter) ledger: Ledger,
    /// The latest epoch of the store that was heard of; zero before the first.
    pub(in crate::limiter) epoch: AtomicU64,
    /// The least epoch that will do: one that has begun since its clock was stepped.
    demanded: AtomicU64,
    /// The last reset that was heard of, and that which was followed, by the store's clock.
    reset_at: AtomicU64,
    reset_followed: AtomicU64,
    /// Told when the keeper has something to do.
    news: Notify,
}

impl StoreSession {
    pub(in crate::limiter) fn new(store: Arc<dyn Store>, wall: Clock) -> StoreSession {
        let (clock, ledger) = (SharedClock::unheard(), Ledger::default());
        let zero = || AtomicU64::new(0);
        StoreSession {
            store,
            clock,
            wall,
            ledger,
            epoch: zero(),
            demanded: zero(),
            reset_at: zero(),
            reset_followed: zero(),
            news: Notify::new(),
        }
    }

    /// How often the store is heard, while anything of it is held: twice in a lease, and some of that to spare.
    pub(in crate::limiter) fn heartbeat(&self) -> Duration {
        self.store.lease().to_duration() * 2 / 5
    }

    /// Hears of an epoch. Returns whether what was booked before is lost.
    pub(in crate::limiter) fn meet_epoch(&self, epoch: Epoch) -> bool {
        let before = self.epoch.fetch_max(epoch.id, Ordering::AcqRel);
        let is_lost = before != 0 && before < epoch.id;
        let is_reset = self.reset_at.fetch_max(epoch.reset_at.0, Ordering::AcqRel) < epoch.reset_at.0;
        if is_lost || is_reset {
            self.news.notify_one();
        }
        is_lost
    }

    /// Whether something was reset that the ledger still holds.
    pub(in crate::limiter) fn has_reset(&self) -> bool {
        self.reset_at.load(Ordering::Acquire) > self.reset_followed.load(Ordering::Acquire)
    }

    /// Forgets what was granted before these resets, and in `fallback` what it was charged with.
    pub(in crate::limiter) fn follow_resets(&self, resets: &[Reset], fallback: &Fallback) {
        let (now, followed) = (self.now(), self.reset_followed.load(Ordering::Acquire));
        for reset in resets.iter().filter(|reset| reset.at.0 > followed) {
            let local_at = fallback.clock.now() - (now - reset.at);
            self.ledger.reset(reset, local_at);
            fallback.store.reset_at(local_at, &reset.name, reset.partition);
            self.reset_followed.fetch_max(reset.at.0, Ordering::AcqRel);
            info!(limiter = %reset.name, "reset: what was used before no longer counts");
        }
    }

    /// The least epoch that will do, for a call to say.
    pub(in crate::limiter) fn epoch_least(&self) -> u64 {
        self.epoch.load(Ordering::Acquire).max(self.demanded.load(Ordering::Acquire))
    }

    /// Hears what a call tells of the store's clock. One that was stepped no longer says when anything was: what was granted is
    /// moved with it, and the store is to begin another epoch, in which all is written back.
    pub(in crate::limiter) fn hear_clock(&self, sent: Instant, answered: Instant, now: Micros) -> StoreClock {
        let (clock, step) = self.clock.learn(sent, answered, now);
        if let Some(step) = step
            && self.store.may_fail()
        {
            warn!(?step, "the store's clock was stepped: its state begins anew with what replicas remember");
            self.ledger.step(step);
            // What is told of resets from now on is by another clock.
            self.reset_at.store(0, Ordering::Release);
            self.reset_followed.store(0, Ordering::Release);
            self.demanded.fetch_max(self.epoch.load(Ordering::Acquire) + 1, Ordering::AcqRel);
            self.news.notify_one();
        }
        clock
    }

    /// Ends when the keeper has something to do: another epoch has begun, or something was reset.
    pub(in crate::limiter) async fn news(&self) {
        self.news.notified().await;
    }

    /// About what the store's clock shows.
    pub(in crate::limiter) fn now(&self) -> Micros {
        let now = Instant::now();
        self.clock.heard().map_or_else(|| self.wall.at(now), |clock| clock.earliest(now))
    }
}
