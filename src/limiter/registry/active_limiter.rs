//! One limiter of this process as all its queues see it: how it is configured now, who uses it, and what became of its
//! permits. Knows no queue.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use crate::clock::{Clock, Micros};
use crate::limiter::model::limit::{Limiter, LimiterName};
use crate::limiter::model::partition::Partition;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::worker::Fallback;
use crate::limiter::recovery::ledger::Ledger;
use crate::limiter::store::clock::{SharedClock, StoreClock};
use crate::limiter::store::{Epoch, LimiterRef, Reset, Store};
use crate::telemetry::LimiterMetrics;

/// For how long the tightest partition is shown after its last answer, before any other may take its place: a scrape
/// or two.
const TIGHTEST_FOR: Duration = Duration::from_secs(30);

/// A map is made smaller when it is down to this part of what it could hold.
const SPARSE: usize = 4;

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

/// What became of a limiter's requests since this process started, over all its queues.
#[derive(Default)]
pub(in crate::limiter) struct Counts {
    waiting: AtomicI64,
    granted: AtomicU64,
    refused: AtomicU64,
    /// The longest wait for a permit since it was asked for.
    longest_wait_us: AtomicU64,
}

impl Counts {
    pub(in crate::limiter) fn waiting(&self) -> u32 {
        u32::try_from(self.waiting.load(Ordering::Relaxed).max(0)).unwrap_or(u32::MAX)
    }

    pub(in crate::limiter) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    pub(in crate::limiter) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The longest wait for a permit since this was asked for last.
    pub(in crate::limiter) fn take_longest_wait(&self) -> Duration {
        Duration::from_micros(self.longest_wait_us.swap(0, Ordering::Relaxed))
    }
}

/// The partition whose answer the metrics show.
struct Tightest {
    partition: Option<Partition>,
    /// What it has left under its tightest limit, in thousandths.
    left: u64,
    at: Instant,
}

/// A limiter in use. Whether it is partitioned, and its scope, never change: a reload that changes those makes another.
pub(in crate::limiter) struct ActiveLimiter {
    pub(in crate::limiter) name: LimiterName,
    limiter: ArcSwap<Limiter>,
    metrics: ArcSwap<LimiterMetrics>,
    is_shadow: AtomicBool,
    is_partitioned: bool,
    pub(in crate::limiter) session: Arc<StoreSession>,
    pub(in crate::limiter) counts: Arc<Counts>,
    /// How many active queues each partition has.
    partitions: Mutex<HashMap<Partition, u32>>,
    tightest: Mutex<Option<Tightest>>,
    /// Until when the last pause of it lasts that was heard of, of whichever partition.
    paused_until: Mutex<Option<Instant>>,
}

impl ActiveLimiter {
    pub(in crate::limiter) fn new(
        limiter: Arc<Limiter>,
        metrics: LimiterMetrics,
        session: Arc<StoreSession>,
        counts: Arc<Counts>,
    ) -> ActiveLimiter {
        let name = limiter.name.clone();
        let (is_shadow, is_partitioned) =
            (AtomicBool::new(limiter.is_shadow()), limiter.partitioned.is_some());
        let (limiter, metrics) = (ArcSwap::new(limiter), ArcSwap::from_pointee(metrics));
        let (partitions, tightest, paused_until) = (Mutex::default(), Mutex::default(), Mutex::default());
        ActiveLimiter {
            name,
            limiter,
            metrics,
            is_shadow,
            is_partitioned,
            session,
            counts,
            partitions,
            tightest,
            paused_until,
        }
    }

    /// As configured now.
    pub(in crate::limiter) fn limiter(&self) -> Guard<Arc<Limiter>> {
        self.limiter.load()
    }

    pub(in crate::limiter) fn metrics(&self) -> Guard<Arc<LimiterMetrics>> {
        self.metrics.load()
    }

    /// Puts a changed limiter in force. Its queues must be told.
    pub(in crate::limiter) fn change(&self, limiter: Arc<Limiter>, metrics: LimiterMetrics) {
        self.is_shadow.store(limiter.is_shadow(), Ordering::Relaxed);
        self.limiter.store(limiter);
        self.metrics.store(Arc::new(metrics));
        // The series of a new limit have not been set.
        *self.tightest.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether it stands outside all-or-nothing.
    pub(in crate::limiter) fn is_shadow(&self) -> bool {
        self.is_shadow.load(Ordering::Relaxed)
    }

    /// Whether it has a state for each value of a key.
    pub(in crate::limiter) fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    pub(in crate::limiter) fn add_waiting(&self, more: i64) {
        self.counts.waiting.fetch_add(more, Ordering::Relaxed);
        self.metrics().add_waiting(more);
    }

    pub(in crate::limiter) fn count_waited(&self, waited: Duration) {
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        // Most waits are no longer than the longest, and nothing is written then.
        if micros > self.counts.longest_wait_us.load(Ordering::Relaxed) {
            self.counts.longest_wait_us.fetch_max(micros, Ordering::Relaxed);
        }
        self.metrics().waited(waited);
    }

    pub(in crate::limiter) fn count_granted(&self, cost: u64) {
        self.counts.granted.fetch_add(cost, Ordering::Relaxed);
    }

    pub(in crate::limiter) fn count_refused(&self, cost: u64) {
        self.counts.refused.fetch_add(cost, Ordering::Relaxed);
        self.metrics().refused(cost);
    }

    /// Shows that it is paused until an instant. A pause of another partition that lasts longer goes on.
    pub(in crate::limiter) fn pause_until(&self, until: Instant) {
        let mut paused = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = self.is_partitioned && paused.is_some_and(|known| known > until);
        *paused = if goes_on { *paused } else { Some(until) };
    }

    /// The same, by its store's clock, of one partition or of all of it: then no other pause goes on.
    pub(in crate::limiter) fn show_pause(&self, until: Micros, partition: Option<Partition>) {
        let Some(clock) = self.session.clock.heard() else { return };
        if partition.is_none() {
            *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        self.pause_until(clock.due(until));
    }

    /// Shows whether it is paused.
    pub(in crate::limiter) fn refresh_metrics(&self, now: Instant) {
        let mut paused = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        paused.take_if(|until| *until <= now);
        self.metrics().set_paused(paused.is_some());
    }

    /// Shows what a partition has left, if none that has less was heard of lately. The one that is shown stays so until
    /// another has as little, or until it has not been heard of for [`TIGHTEST_FOR`].
    pub(in crate::limiter) fn answered(&self, partition: Option<Partition>, available: &[u64]) {
        let limiter = self.limiter.load();
        let left =
            limiter.limits.iter().zip(available).map(|(limit, left)| left * 1000 / limit.cost_max().get());
        let (left, at) = (left.min().unwrap_or_default(), Instant::now());
        let mut tightest = self.tightest.lock().unwrap_or_else(PoisonError::into_inner);
        let gives_way = |shown: &Tightest| {
            shown.partition == partition || left <= shown.left || at - shown.at >= TIGHTEST_FOR
        };
        if tightest.as_ref().is_none_or(gives_way) {
            *tightest = Some(Tightest { partition, left, at });
            let metrics = self.metrics();
            for (limit, permits) in available.iter().enumerate() {
                metrics.set_available(limit, *permits);
            }
        }
    }

    /// Makes room for one more queue of a partition.
    fn admit(&self, partition: Partition, retry_after: Duration) -> Result<(), Refusal> {
        let limiter = self.limiter.load();
        let partitions_max = limiter.partitioned.map_or(u32::MAX, |partitioned| partitioned.max_partitions);
        let mut partitions = self.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = partitions.len() >= usize::try_from(partitions_max).unwrap_or(usize::MAX)
            || !self.session.store.has_room(&self.name, partition, partitions_max);
        if is_full && !partitions.contains_key(&partition) {
            let (limiter, retry_after) = (self.name.clone(), retry_after.into());
            return Err(Refusal::QueueFull { limiter, limit: 0, retry_after });
        }
        *partitions.entry(partition).or_default() += 1;
        Ok(())
    }

    fn dismiss(&self, partition: Partition) {
        let mut partitions = self.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queues) = partitions.get_mut(&partition) {
            *queues -= 1;
            if *queues == 0 {
                partitions.remove(&partition);
                shrink(&mut partitions);
            }
        }
    }
}

/// Gives memory back when a map has become sparse; a few at a time, so that it stays cheap on average.
pub(in crate::limiter) fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 64 && map.len() < map.capacity() / SPARSE / 2 {
        map.shrink_to(map.len() * 2);
    }
}

/// A limiter, or one of its partitions, as a part of a queue.
#[derive(Clone)]
pub(in crate::limiter) struct LimiterInstance {
    pub(in crate::limiter) active: Arc<ActiveLimiter>,
    pub(in crate::limiter) partition: Option<Partition>,
}

impl LimiterInstance {
    /// What a store needs to know of it, as configured now.
    pub(in crate::limiter) fn limiter_ref(&self) -> LimiterRef {
        LimiterRef::new(&self.active.limiter(), self.partition, self.active.session.now())
    }

    /// Counts one more queue of it. `retry_after` is for who is refused.
    pub(in crate::limiter) fn admit(&self, retry_after: Duration) -> Result<(), Refusal> {
        self.partition.map_or(Ok(()), |partition| self.active.admit(partition, retry_after))
    }

    /// Counts one queue less.
    pub(in crate::limiter) fn dismiss(&self) {
        if let Some(partition) = self.partition {
            self.active.dismiss(partition);
        }
    }
}

impl PartialEq for LimiterInstance {
    /// The same limiter, not one that has taken its place under the same name.
    fn eq(&self, other: &LimiterInstance) -> bool {
        Arc::ptr_eq(&self.active, &other.active) && self.partition == other.partition
    }
}

impl Eq for LimiterInstance {}

impl Hash for LimiterInstance {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.active).hash(state);
        self.partition.hash(state);
    }
}
