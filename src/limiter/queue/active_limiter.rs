//! One limiter of this process as all its queues see it: how it is configured now, who uses it, and what became of its
//! permits. Knows no queue.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use tokio::time::{Duration, Instant};

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::limit::{Limiter, LimiterName};
use crate::limiter::model::partition::Partition;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::recovery::session::StoreSession;
use crate::telemetry::LimiterMetrics;

/// For how long the tightest partition is shown after its last answer, before any other may take its place: a scrape
/// or two.
const TIGHTEST_FOR: Duration = Duration::from_secs(30);

/// A map is made smaller when it is down to this part of what it could hold.
const SPARSE: usize = 4;

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
