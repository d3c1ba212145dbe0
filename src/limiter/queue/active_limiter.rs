//! A limiter of this process, as all its queues share it: its configuration, its partitions, its counters, and what answers of the store
//! have told of its use.
//!
//! Knows no queue.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{Flow, Limiter, LimiterName, OnStoreFailure, Partition, Permits, Refusal};
use crate::limiter::queue::limiter_pauses::LimiterPauses;
use crate::limiter::queue::upstream_counts::UpstreamCounts;
use crate::limiter::recovery::session::StoreSession;
use crate::telemetry::{ClassMetrics, LimiterMetrics};
use crate::usage::{PartitionUse, TopPartitions};

/// How long the metrics show the tightest partition after its latest answer, before any other may take its place: a scrape
/// or two.
const TIGHTEST_FOR: Micros = Micros::from_millis(30_000);

/// A map is shrunk when it uses only one in this many of its places.
const SPARSE: usize = 4;

/// Counters of a limiter over all its queues, since this process started.
#[derive(Default)]
pub(in crate::limiter) struct Counts {
    waiting: AtomicI64,
    /// Those among them that have not asked yet.
    outside: AtomicI64,
    granted: AtomicU64,
    refused: AtomicU64,
    /// The longest wait for a permit since [`Counts::take_longest_wait`] was last called.
    longest_wait_us: AtomicU64,
}

impl Counts {
    pub(in crate::limiter) fn waiting(&self) -> u32 {
        u32::try_from(self.waiting.load(Ordering::Relaxed).max(0)).unwrap_or(u32::MAX)
    }

    /// Counts requests that wait before they ask; returns how many did before.
    pub(in crate::limiter) fn add_outside(&self, more: i64) -> u32 {
        u32::try_from(self.outside.fetch_add(more, Ordering::Relaxed)).unwrap_or_default()
    }

    pub(in crate::limiter) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    pub(in crate::limiter) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the longest wait for a permit since the last call.
    pub(in crate::limiter) fn take_longest_wait(&self) -> Duration {
        Duration::from_micros(self.longest_wait_us.swap(0, Ordering::Relaxed))
    }
}

/// The fleet's usage of a limiter, as an answer told it.
#[derive(Clone, Copy, Default)]
pub(in crate::limiter) struct Usage {
    /// The permits in use.
    pub(in crate::limiter) used: u64,
    /// When the answered call was sent; `None` before the first one.
    pub(in crate::limiter) at: Option<Moment>,
    /// When it was carried out, by the store's clock.
    pub(in crate::limiter) answered: Micros,
    /// The last booked slot, if it lay in the future and requests waited for the limiter.
    pub(in crate::limiter) booked_until: Option<Micros>,
}

impl Usage {
    /// Returns whether others may have been granted much that is not in it when the store went away. Before the first answer nothing is,
    /// however lately this process was started.
    pub(in crate::limiter) fn is_stale(&self, away_since: Option<Moment>, lately: Micros) -> bool {
        let is_late = |at: Moment| away_since.is_some_and(|away_since| at + lately < away_since);
        self.at.is_none_or(is_late)
    }
}

/// The partition of which the metrics show a limit.
struct Tightest {
    partition: Option<Partition>,
    /// The permits left of the limit.
    left: u64,
    at: Moment,
}

/// Returns for how long permits of a limiter matter, in whichever partition they do longest.
pub(in crate::limiter) fn seen_for(limiter: &Limiter, session: &StoreSession) -> Micros {
    let (guard, now) = (Micros::from(limiter.guard), session.now());
    let limits = limiter.overrides().flat_map(|limiter| &limiter.limits).chain(&limiter.limits);
    limits.map(|limit| Rule::new(limit, guard, now).0.seen_for()).max().unwrap_or_default()
}

/// Notes a limiter, and for how long its permits matter, which its members tell each other.
fn serve(session: &StoreSession, limiter: &Limiter, seen_for: Micros) {
    session.earlier_layout.serve(limiter);
    session.members().serve(seen_for);
}

/// The use of a limiter, as the store's answers have told it, and since when its callers share it as they do.
#[derive(Default)]
struct Told {
    /// The partition that is shown for each limit; for the limiter's own first.
    tightest: Vec<Option<Tightest>>,
    /// The fleet's usage, as any queue has last heard; not that of a partition.
    usage: Option<Usage>,
    /// When a reload last changed how callers share the quota. Queues end and are made anew meanwhile.
    shared_since: Moment,
}

/// A limiter in use. A reload that changes its scope, or whether it is partitioned, makes another one.
pub(in crate::limiter) struct ActiveLimiter {
    pub(in crate::limiter) name: LimiterName,
    limiter: ArcSwap<Limiter>,
    metrics: ArcSwap<LimiterMetrics>,
    is_shadow: AtomicBool,
    is_partitioned: bool,
    pub(in crate::limiter) session: Arc<StoreSession>,
    pub(in crate::limiter) counts: Arc<Counts>,
    /// The number of queues of each partition.
    partitions: Mutex<HashMap<Partition, u32>>,
    told: Mutex<Told>,
    /// The pauses that are known of it.
    pub(in crate::limiter) pauses: LimiterPauses,
    /// The partitions that use most and wait longest.
    partition_use: Mutex<PartitionUse<Partition>>,
    /// The upstream's own count of it.
    pub(in crate::limiter) upstream_counts: UpstreamCounts,
}

impl ActiveLimiter {
    pub(in crate::limiter) fn new(
        limiter: Arc<Limiter>,
        metrics: LimiterMetrics,
        session: Arc<StoreSession>,
        counts: Arc<Counts>,
    ) -> ActiveLimiter {
        serve(&session, &limiter, seen_for(&limiter, &session));
        let name = limiter.name.clone();
        let (is_shadow, is_partitioned) =
            (AtomicBool::new(limiter.is_shadow()), limiter.partitioned.is_some());
        let (limiter, metrics) = (ArcSwap::new(limiter), ArcSwap::from_pointee(metrics));
        let (partitions, partition_use) = (Mutex::default(), Mutex::default());
        let pauses = LimiterPauses::new(session.clone());
        ActiveLimiter {
            name,
            limiter,
            metrics,
            is_shadow,
            is_partitioned,
            session,
            counts,
            partitions,
            told: Mutex::default(),
            pauses,
            partition_use,
            upstream_counts: UpstreamCounts::default(),
        }
    }

    /// Returns the limiter as configured now.
    pub(in crate::limiter) fn limiter(&self) -> Guard<Arc<Limiter>> {
        self.limiter.load()
    }

    pub(in crate::limiter) fn metrics(&self) -> Guard<Arc<LimiterMetrics>> {
        self.metrics.load()
    }

    /// Puts a changed configuration in force, with what [`seen_for`] returns of it. Its queues must be notified.
    pub(in crate::limiter) fn change(
        &self,
        limiter: Arc<Limiter>,
        metrics: LimiterMetrics,
        seen_for: Micros,
    ) {
        serve(&self.session, &limiter, seen_for);
        self.is_shadow.store(limiter.is_shadow(), Ordering::Relaxed);
        if self.limiter.load().share() != limiter.share() {
            self.told().shared_since = self.session.moment();
        }
        self.limiter.store(limiter);
        self.metrics.store(Arc::new(metrics));
        // The series of a new limit have no value yet.
        self.told().tightest.clear();
    }

    /// Returns whether the limiter only counts.
    pub(in crate::limiter) fn is_shadow(&self) -> bool {
        self.is_shadow.load(Ordering::Relaxed)
    }

    /// Returns whether the limiter has a state for each value of a key.
    pub(in crate::limiter) fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    /// Counts something of the class of a flow.
    pub(in crate::limiter) fn of_class(&self, flow: Flow, count: impl FnOnce(&ClassMetrics)) {
        let metrics = self.metrics();
        let class = || self.limiter.load().share().map_or(0, |share| share.member(flow).class);
        // The configuration is looked at only where it tells classes apart.
        count(metrics.class(if metrics.classes() > 1 { class() } else { 0 }));
    }

    pub(in crate::limiter) fn add_waiting(&self, more: i64) {
        self.counts.waiting.fetch_add(more, Ordering::Relaxed);
    }

    fn count_waited(&self, flow: Flow, waited: Duration) {
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        // Only a new longest wait is written: most are shorter.
        if micros > self.counts.longest_wait_us.load(Ordering::Relaxed) {
            self.counts.longest_wait_us.fetch_max(micros, Ordering::Relaxed);
        }
        self.of_class(flow, |class| class.waited(waited));
    }

    pub(in crate::limiter) fn count_refused(&self, flow: Flow, cost: u64) {
        self.counts.refused.fetch_add(cost, Ordering::Relaxed);
        self.of_class(flow, |class| class.refused(cost));
    }

    /// Sets the metrics of whether the limiter is paused, whether it can serve, and how many requests of each class wait.
    pub(in crate::limiter) fn refresh_metrics(&self, waiting: &[u64]) {
        let metrics = self.metrics();
        metrics.set_paused(self.pauses.is_paused());
        metrics.set_ready(self.can_serve());
        waiting.iter().enumerate().for_each(|(class, waiting)| metrics.class(class).set_waiting(*waiting));
    }

    /// Returns whether requests get anything but a refusal: false while the store is away and the limiter rejects without it.
    pub(in crate::limiter) fn can_serve(&self) -> bool {
        let limiter = self.limiter();
        let needs_store = limiter.on_store_failure == OnStoreFailure::Reject && !limiter.is_shadow();
        !needs_store || self.session.store.is_up()
    }

    /// Shows the available permits of the tightest partition seen recently, for each limit. The partition shown gives way to one with
    /// as few permits left, or when it had no answer for [`TIGHTEST_FOR`].
    pub(in crate::limiter) fn show_available(&self, partition: Option<Partition>, available: &[u64]) {
        let (limiter, metrics, at) = (self.limiter.load(), self.metrics(), self.session.moment());
        let held = limiter.of_partition(partition);
        let by_label = |label: &str| {
            let own = limiter.limits.iter().position(|own| *own.label == *label);
            own.or_else(|| metrics.limit(label))
        };
        if let Some(partition) = partition {
            let limits = held.limits.iter().zip(available);
            let limits = limits.map(|(limit, left)| (&limit.label, limit.rate.get(), *left));
            self.of_partitions(|used| used.left(partition, at.0, limits));
        }
        let mut told = self.told();
        let tightest = &mut told.tightest;
        for (place, (limit, left)) in held.limits.iter().zip(available).enumerate() {
            let is_override = held.value().is_some();
            let place = if is_override { by_label(&limit.label) } else { Some(place) };
            let Some(place) = place else { continue };
            if tightest.len() <= place {
                tightest.resize_with(place + 1, || None);
            }
            let gives_way = |shown: &Tightest| {
                shown.partition == partition || *left <= shown.left || at - shown.at >= TIGHTEST_FOR
            };
            if tightest[place].as_ref().is_none_or(gives_way) {
                tightest[place] = Some(Tightest { partition, left: *left, at });
                metrics.set_available(place, *left);
            }
        }
    }

    /// Takes in the fleet's usage of the limiter. That of a partition is known to the queues of the partition alone.
    pub(in crate::limiter) fn hear(&self, usage: Usage) {
        if !self.is_partitioned {
            let mut told = self.told();
            if told.usage.is_none_or(|before| before.at <= usage.at) {
                told.usage = Some(usage);
            }
        }
    }

    /// Returns the fleet's usage of the limiter as any of its queues has last heard of it; `None` for one with partitions.
    pub(in crate::limiter) fn heard(&self) -> Option<Usage> {
        self.told().usage
    }

    /// Returns since when callers share the quota as they do now.
    pub(in crate::limiter) fn shared_since(&self) -> Moment {
        self.told().shared_since
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the partitions that are counted.
    fn of_partitions<T>(&self, act: impl FnOnce(&mut PartitionUse<Partition>) -> T) -> T {
        act(&mut self.partition_use.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the partitions that matter now; `None` without a key.
    pub(in crate::limiter) fn top_partitions(&self) -> Option<TopPartitions> {
        self.is_partitioned.then(|| self.of_partitions(|used| used.top(self.session.moment().0)))
    }

    /// Returns the value of a partition that matters, by its hash, where it may be shown.
    pub(in crate::limiter) fn partition_value(&self, hash: &str) -> Option<Arc<str>> {
        let partition = Partition::parse(hash).filter(|_| self.shows_values())?;
        self.of_partitions(|used| used.value(&partition))
    }

    /// Returns whether the values of the key may be shown.
    fn shows_values(&self) -> bool {
        self.limiter.load().partitioned.as_ref().is_some_and(|partitioned| partitioned.shows_values)
    }

    /// Notes the value of a partition, where it may be shown.
    pub(in crate::limiter) fn name_partition(&self, partition: Partition, value: impl FnOnce() -> String) {
        if self.is_partitioned && self.shows_values() {
            self.of_partitions(|used| used.named(partition, value));
        }
    }

    /// Returns the permits left of each limit as of the last answer, and its age in microseconds. Of a limiter without partitions.
    pub(in crate::limiter) fn last_available(&self) -> Vec<Option<(u64, u64)>> {
        let now = self.session.moment();
        let told = self.told();
        told.tightest
            .iter()
            .map(|shown| shown.as_ref().map(|shown| (shown.left, (now - shown.at).0)))
            .collect()
    }

    /// Counts one more queue of a partition.
    ///
    /// # Errors
    /// A refusal if the limiter has as many partitions as it may have.
    fn admit(&self, partition: Partition, retry_after: Duration) -> Result<(), Refusal> {
        let limiter = self.limiter.load();
        let partitions_max =
            limiter.partitioned.as_ref().map_or(u32::MAX, |partitioned| partitioned.max_partitions);
        let mut partitions = self.queues_of_partitions();
        let is_full = partitions.len() >= usize::try_from(partitions_max).unwrap_or(usize::MAX)
            || !self.session.store.has_room(&self.name, partition, partitions_max);
        if is_full && !partitions.contains_key(&partition) {
            let (limiter, retry_after) = (self.name.clone(), retry_after.into());
            return Err(Refusal::QueueFull { limiter, limit: 0, available: 0, retry_after });
        }
        *partitions.entry(partition).or_default() += 1;
        Ok(())
    }

    fn queues_of_partitions(&self) -> MutexGuard<'_, HashMap<Partition, u32>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dismiss(&self, partition: Partition) {
        let mut partitions = self.queues_of_partitions();
        if let Some(queues) = partitions.get_mut(&partition) {
            *queues -= 1;
            if *queues == 0 {
                partitions.remove(&partition);
                shrink(&mut partitions);
            }
        }
    }
}

/// Shrinks a map that has become sparse to twice its length, so that the cost stays small on average.
pub(in crate::limiter) fn shrink<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.capacity() > 64 && map.len() < map.capacity() / SPARSE / 2 {
        map.shrink_to(map.len() * 2);
    }
}

/// A limiter, or one of its partitions, that a queue takes permits from.
#[derive(Clone)]
pub(in crate::limiter) struct LimiterInstance {
    pub(in crate::limiter) active: Arc<ActiveLimiter>,
    pub(in crate::limiter) partition: Option<Partition>,
}

impl LimiterInstance {
    /// Returns the limiter as configured now, with the limits that hold for this partition.
    pub(in crate::limiter) fn limiter(&self) -> Arc<Limiter> {
        self.active.limiter().of_partition(self.partition).clone()
    }

    /// Counts a used permit.
    pub(in crate::limiter) fn count_granted(&self, cost: u64) {
        self.active.counts.granted.fetch_add(cost, Ordering::Relaxed);
        if let Some(partition) = self.partition {
            self.active.of_partitions(|used| used.used(partition, cost));
        }
    }

    /// Records how long a request waited for its permit.
    pub(in crate::limiter) fn count_waited(&self, flow: Flow, waited: Duration) {
        self.active.count_waited(flow, waited);
        if !waited.is_zero() {
            self.note_wait(waited.into());
        }
    }

    /// Notes how long a request of the partition has waited, or waits.
    pub(in crate::limiter) fn note_wait(&self, waited: Micros) {
        if let Some(partition) = self.partition {
            self.active.of_partitions(|used| used.waited(partition, waited.0));
        }
    }

    /// Returns the largest cost that every limit of this limiter or partition can hold.
    pub(in crate::limiter) fn cost_max(&self) -> Permits {
        self.active.limiter().of_partition(self.partition).cost_max()
    }

    /// Returns the store's reference to this limiter or partition, as configured now.
    pub(in crate::limiter) fn limiter_ref(&self) -> LimiterRef {
        LimiterRef::new(&self.limiter(), self.partition, self.active.session.now())
    }

    /// Returns the store's references to the ceilings of the classes that share it, as configured now, in the order of
    /// [`QuotaShare::bounds`](crate::limiter::model::QuotaShare::bounds).
    pub(in crate::limiter) fn ceilings(&self) -> Vec<LimiterRef> {
        let limiter = self.limiter();
        let Some(share) = limiter.share() else { return Vec::new() };
        let now = self.active.session.now();
        share.bounds().iter().map(|bound| LimiterRef::ceiling(&limiter, self.partition, bound, now)).collect()
    }

    /// Counts one more queue of this limiter or partition.
    ///
    /// # Errors
    /// A refusal with this `retry_after`, if the limiter has as many partitions as it may have.
    pub(in crate::limiter) fn admit(&self, retry_after: Duration) -> Result<(), Refusal> {
        self.partition.map_or(Ok(()), |partition| self.active.admit(partition, retry_after))
    }

    /// Counts one more queue of this limiter or partition, however many there are.
    pub(in crate::limiter) fn enlist(&self) {
        if let Some(partition) = self.partition {
            *self.active.queues_of_partitions().entry(partition).or_default() += 1;
        }
    }

    /// Counts one queue less of this limiter or partition.
    pub(in crate::limiter) fn dismiss(&self) {
        if let Some(partition) = self.partition {
            self.active.dismiss(partition);
        }
    }
}

impl PartialEq for LimiterInstance {
    /// Compares limiters by identity: another one may have taken its place under the same name.
    fn eq(&self, other: &LimiterInstance) -> bool {
        Arc::ptr_eq(&self.active, &other.active) && self.partition == other.partition
    }
}

impl Eq for LimiterInstance {}

impl Hash for LimiterInstance {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Not its address, which differs from run to run.
        self.active.name.hash(state);
        self.partition.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_which_nothing_was_heard_is_stale_even_if_the_process_is_new() {
        let lately = Micros::from_millis(900);
        let away_since = Some(Moment::default() + Micros::from_millis(100));
        assert!(Usage::default().is_stale(away_since, lately));
        assert!(Usage::default().is_stale(None, lately));
        let heard = Usage { at: Some(Moment::default()), ..Usage::default() };
        assert!(!heard.is_stale(away_since, lately));
        assert!(heard.is_stale(Some(Moment::default() + Micros::from_millis(901)), lately));
    }
}
