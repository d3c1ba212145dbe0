//! All queues of this process. A queue is made when its first request comes, and removed when its worker ends.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Duration;
use tokio_util::task::TaskTracker;

use crate::clock::{Micros, Moment};
use crate::entropy::SeededHash;
use crate::limiter::model::{
    ActionByHand, Cause, Freed, LimiterName, PauseByHand, PauseStretch, Permits, Reason, Refusal,
};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance, shrink};
use crate::limiter::queue::guard::QueueGuard;
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::inbox::Caller;
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::queue::shadow::ShadowQueues;
use crate::limiter::queue::ticket::Demand;
use crate::limiter::queue::waiting::FlowWaiting;
use crate::limiter::queue::worker::{Siblings, Worker};
use crate::limiter::recovery::fallback::Fallback;

/// The number of maps, each under its own lock: many more than processors, so that two requests seldom want the same.
const SHARDS: usize = 64;

/// How long a worker stays when it has nothing to do and no guard holds its queue: a client that calls once a second keeps
/// it.
pub(in crate::limiter) const LINGER: Duration = Duration::from_millis(1200);

type Shard = HashMap<Arc<[LimiterInstance]>, Arc<Queue>, SeededHash>;

/// All queues of this process, by their limiters and partitions.
pub(in crate::limiter) struct Queues {
    shards: [Mutex<Shard>; SHARDS],
    hasher: SeededHash,
    workers: TaskTracker,
    /// True once weir is shutting down.
    closed: AtomicBool,
    pub(in crate::limiter) fallback: Arc<Fallback>,
    linger: Duration,
    /// Notified when the store may have to be told of a pause.
    pauses_changed: Notify,
}

impl Queues {
    pub(in crate::limiter) fn new(fallback: Arc<Fallback>, linger: Duration) -> Queues {
        let hasher = fallback.entropy.hasher();
        Queues {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::with_hasher(hasher))),
            hasher,
            workers: TaskTracker::new(),
            closed: AtomicBool::new(false),
            fallback,
            linger,
            pauses_changed: Notify::new(),
        }
    }

    fn shard(&self, instances: &[LimiterInstance]) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(instances);
        // The upper bits: the map itself uses the others.
        let place = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        self.shards[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds or makes the queue of these limiters, which are in the order of their names. The queue may end at any time; the next
    /// call makes a new one.
    ///
    /// # Errors
    /// A refusal if a limiter may have no further partition, or weir is shutting down.
    pub(in crate::limiter) fn find(
        self: &Arc<Queues>,
        instances: &[LimiterInstance],
    ) -> Result<Arc<Queue>, Refusal> {
        self.find_or_make(instances, |instance| instance.admit(self.linger))
    }

    /// Finds or makes the queue of these limiters, as [`Queues::find`] does, for permits that have been used. They count without being
    /// admitted: else who fills the partitions would pay no more than it has estimated.
    ///
    /// # Errors
    /// A refusal if weir is shutting down.
    pub(in crate::limiter) fn find_for_used(
        self: &Arc<Queues>,
        instances: &[LimiterInstance],
    ) -> Result<Arc<Queue>, Refusal> {
        self.find_or_make(instances, |instance| {
            instance.enlist();
            Ok(())
        })
    }

    fn find_or_make(
        self: &Arc<Queues>,
        instances: &[LimiterInstance],
        admit: impl Fn(&LimiterInstance) -> Result<(), Refusal>,
    ) -> Result<Arc<Queue>, Refusal> {
        let mut shard = self.shard(instances);
        if let Some(queue) = shard.get(instances).filter(|queue| !queue.has_ended()) {
            return Ok(queue.clone());
        }
        let instances: Arc<[LimiterInstance]> = instances.into();
        let queue = Arc::new(Queue::new(instances.clone()));
        if self.closed.load(Ordering::Acquire) {
            return Err(queue.closed());
        }
        for (place, instance) in instances.iter().enumerate() {
            if let Err(refusal) = admit(instance) {
                instances[..place].iter().for_each(LimiterInstance::dismiss);
                return Err(refusal);
            }
        }
        Queues::begin_in_pause(&queue);
        // A queue that has ended and was not removed yet goes with its own key.
        shard.remove(&instances);
        shard.insert(instances, queue.clone());
        let worker = Worker::new(queue.clone(), self.clone(), self.fallback.clone(), self.linger);
        self.workers.spawn(worker.run());
        Ok(queue)
    }

    /// Finds or makes the queue of these limiters, and keeps it from ending.
    ///
    /// # Errors
    /// As [`Queues::find`].
    pub(in crate::limiter) fn keep(
        self: &Arc<Queues>,
        instances: &[LimiterInstance],
    ) -> Result<QueueGuard, Refusal> {
        loop {
            if let Some(guard) = QueueGuard::new(self.find(instances)?) {
                return Ok(guard);
            }
        }
    }

    fn each(&self, mut act: impl FnMut(&Queue)) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().for_each(|queue| act(queue));
        }
    }

    /// Returns the longest wait so far among the waiting requests of each limiter.
    pub(in crate::limiter) fn longest_waits(&self) -> HashMap<LimiterName, Duration> {
        let mut longest = HashMap::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for queue in shard.values() {
                let Some(waited) = queue.longest_wait() else { continue };
                for instance in queue.instances.iter() {
                    let wait: &mut Duration = longest.entry(instance.active.name.clone()).or_default();
                    *wait = waited.to_duration().max(*wait);
                }
            }
        }
        longest
    }

    /// Notes how long the requests of each partition have waited so far.
    pub(in crate::limiter) fn note_waits(&self) {
        self.each(|queue| {
            if let Some(waited) = queue.longest_wait() {
                queue.instances.iter().for_each(|instance| instance.note_wait(waited));
            }
        });
    }

    /// Looks at the flows that wait for each limiter whose callers share it. One may come several times.
    pub(in crate::limiter) fn each_flow(&self, mut look: impl FnMut(&ActiveLimiter, &FlowWaiting)) {
        self.each(|queue| {
            let sharer = queue.instances.iter().find(|it| it.active.limiter().share().is_some());
            if let Some(sharer) = sharer {
                queue.waiting.each_flow(|waiting| look(&sharer.active, waiting));
            }
        });
    }

    /// Tells the workers of queues with a changed limiter.
    pub(in crate::limiter) fn notify_changed(&self, has_changed: impl Fn(&LimiterInstance) -> bool) {
        self.each(|queue| {
            if queue.instances.iter().any(&has_changed) {
                queue.notify_changed();
            }
        });
    }

    /// Keeps to a pause of the store, or ends one, unless a later action outranks it. In an outage this replica keeps to a pause by
    /// hand, too.
    pub(in crate::limiter) fn note_pause(
        &self,
        instance: &LimiterInstance,
        stretch: PauseStretch,
        cause: Cause,
    ) {
        if !instance.active.pauses.note(instance.partition, stretch, cause) {
            return;
        }
        let Some((at, until)) = instance.active.session.moments(stretch) else { return };
        if cause.reason == Reason::ByHand {
            self.follow_in_fallback(instance, (at, until), cause.replica);
        }
        self.apply_pause(instance, at, until);
    }

    /// Keeps to an action by hand that the store has, whose announcement this replica may have missed.
    pub(in crate::limiter) fn follow_by_hand(&self, instance: &LimiterInstance, action: &ActionByHand) {
        if let Some((at, until)) = instance.active.pauses.follow_by_hand(action) {
            self.follow_in_fallback(instance, (at, until), action.replica);
            self.apply_pause(instance, at, until);
        }
    }

    /// Keeps this replica's own memory to an action by hand that the store has, as of when it was.
    fn follow_in_fallback(&self, instance: &LimiterInstance, (at, until): (Moment, Moment), replica: u64) {
        let now = instance.active.session.moment();
        self.pause_fallback(instance, &PauseByHand { lasting: until - now, ago: now - at, replica });
    }

    /// Pauses this replica's own memory by hand, or ends its pause.
    pub(in crate::limiter) fn pause_fallback(&self, instance: &LimiterInstance, by_hand: &PauseByHand) {
        let Fallback { store, clock, .. } = &*self.fallback;
        // Where too many pauses are kept, the queues keep to it all the same.
        store.pause_at(clock.now(), &instance.limiter_ref(), by_hand);
    }

    /// Waits until the store may have to be told of a pause.
    pub(in crate::limiter) async fn pauses_changed(&self) {
        self.pauses_changed.notified().await;
    }

    /// Wakes every worker. A store that has lost its state has lost its pauses, too.
    pub(in crate::limiter) fn wake_all(&self) {
        self.each(Queue::wake);
        self.pauses_changed.notify_one();
    }

    /// Keeps a queue that is made during a pause to it.
    fn begin_in_pause(queue: &Queue) {
        for instance in queue.instances.iter() {
            if let Some(pause) = instance.active.pauses.in_force(instance.partition) {
                let limiter = instance.active.name.clone();
                queue.apply_pause(Paused { limiter, from: pause.at, until: pause.until }, false);
            }
        }
    }

    /// Tells the workers of queues whose bookings were moved, as of an instant of the store's clock.
    pub(in crate::limiter) fn notify_moved(&self, at: Micros, is_moved: impl Fn(&LimiterInstance) -> bool) {
        self.each(|queue| {
            if queue.instances.iter().any(&is_moved) {
                queue.notify_moved(at);
            }
        });
    }

    /// Tells the worker of these limiters' queue, if there is one, of permits that were freed before its last slot.
    pub(in crate::limiter) fn notify_freed(&self, instances: &[LimiterInstance], freed: Freed) {
        let queue = self.shard(instances).get(instances).cloned();
        if let Some(queue) = queue {
            queue.notify_freed(freed);
        }
    }

    /// Refuses all waiting and new requests, gives their slots back, and waits until every worker has ended.
    pub(in crate::limiter) async fn close(&self) {
        // From here on no queue is made, so that closing the existing ones misses none.
        self.closed.store(true, Ordering::Release);
        self.each(Queue::close);
        self.workers.close();
        self.workers.wait().await;
    }

    /// Returns how many queues there are.
    #[cfg(test)]
    pub(in crate::limiter) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

impl ShadowQueues for Queues {
    fn charge_shadow(self: Arc<Queues>, instance: &LimiterInstance, cost: Permits) {
        let demand = Demand::of(cost);
        loop {
            match self.find(slice::from_ref(instance)) {
                // A queue that has ended is looked for again; a refusal has been counted.
                Ok(queue) if matches!(queue.push(demand.clone(), Caller::Shadow), Ok(false)) => {}
                // weir is shutting down: it would not have been refused.
                Ok(_) | Err(Refusal::Closed { .. }) => return,
                Err(_) => {
                    return instance.active.of_class(demand.flow, |class| class.shadow_refused(cost.get()));
                }
            }
        }
    }
}

impl Siblings for Queues {
    fn wake_all(&self) {
        Queues::wake_all(self);
    }

    fn pause(&self, instance: &LimiterInstance, stretch: PauseStretch, cause: Cause) {
        self.note_pause(instance, stretch, cause);
    }

    fn pause_locally(&self, instance: &LimiterInstance, until: Moment, cause: Cause) {
        let at = instance.active.pauses.pause_locally(instance.partition, until, cause);
        self.apply_pause(instance, at, until);
        self.pauses_changed.notify_one();
    }

    fn apply_pause(&self, instance: &LimiterInstance, from: Moment, until: Moment) {
        let is_meant = |other: &&LimiterInstance| {
            Arc::ptr_eq(&other.active, &instance.active)
                && (instance.partition.is_none() || other.partition == instance.partition)
        };
        self.each(|queue| {
            if queue.instances.iter().find(is_meant).is_some() {
                queue.apply_pause(Paused { limiter: instance.active.name.clone(), from, until }, true);
            }
        });
    }

    fn ended(&self, queue: &Arc<Queue>) {
        let mut shard = self.shard(&queue.instances);
        if shard.get(&queue.instances).is_some_and(|found| Arc::ptr_eq(found, queue)) {
            shard.remove(&queue.instances);
            shrink(&mut shard);
        }
        drop(shard);
        queue.instances.iter().for_each(LimiterInstance::dismiss);
    }
}
