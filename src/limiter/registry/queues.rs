//! All queues of this process. One is made when its first request comes, and leaves when its worker ends.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Duration, Instant};
use tokio_util::task::TaskTracker;

use crate::limiter::model::call::Freed;
use crate::limiter::model::limit::{LimiterName, Permits};
use crate::limiter::model::pause::PauseStretch;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::active_limiter::{LimiterInstance, shrink};
use crate::limiter::queue::handle::{Queue, QueueGuard};
use crate::limiter::queue::inbox::Asker;
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::queue::shadow::ShadowQueues;
use crate::limiter::queue::ticket::Demand;
use crate::limiter::queue::worker::{Siblings, Worker};
use crate::limiter::recovery::fallback::Fallback;

/// Maps, each under its own lock: many more than processors, so that two requests seldom want the same.
const SHARDS: usize = 64;

/// How long a worker stays when it has nothing to do and no gate holds its queue: a client that calls once a second
/// keeps it.
pub(in crate::limiter) const LINGER: Duration = Duration::from_millis(1200);

type Shard = HashMap<Arc<[LimiterInstance]>, Arc<Queue>>;

pub(in crate::limiter) struct Queues {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    workers: TaskTracker,
    /// Whether weir is shutting down.
    closed: AtomicBool,
    pub(in crate::limiter) fallback: Arc<Fallback>,
    linger: Duration,
}

impl Queues {
    pub(in crate::limiter) fn new(fallback: Arc<Fallback>, linger: Duration) -> Queues {
        Queues {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            workers: TaskTracker::new(),
            closed: AtomicBool::new(false),
            fallback,
            linger,
        }
    }

    fn shard(&self, instances: &[LimiterInstance]) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(instances);
        // The upper bits: the map itself uses the others.
        let place = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        self.shards[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of these, which are in the order of their names. It may end at any time: then this finds another.
    ///
    /// # Errors
    /// A refusal where there may not be another partition, or any queue, any more.
    pub(in crate::limiter) fn find(
        self: &Arc<Queues>,
        instances: &[LimiterInstance],
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
            if let Err(refusal) = instance.admit(self.linger) {
                instances[..place].iter().for_each(LimiterInstance::dismiss);
                return Err(refusal);
            }
        }
        // One that has ended and has not left yet goes with its own key.
        shard.remove(&instances);
        shard.insert(instances, queue.clone());
        let worker = Worker::new(queue.clone(), self.clone(), self.fallback.clone(), self.linger);
        self.workers.spawn(worker.run());
        Ok(queue)
    }

    /// The same, to be held.
    pub(in crate::limiter) fn keep(
        self: &Arc<Queues>,
        instances: &[LimiterInstance],
    ) -> Result<QueueGuard, Refusal> {
        loop {
            if let Some(kept) = self.find(instances)?.keep() {
                return Ok(kept);
            }
        }
    }

    fn each(&self, act: impl Fn(&Queue)) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().for_each(|queue| act(queue));
        }
    }

    /// For how long the one has waited that has waited longest, for each limiter for which anybody does.
    pub(in crate::limiter) fn longest_waits(&self) -> HashMap<LimiterName, Duration> {
        let (now, mut longest) = (Instant::now(), HashMap::new());
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for queue in shard.values() {
                let Some(since) = queue.waits_since() else { continue };
                for instance in queue.instances.iter() {
                    let known: &mut Duration = longest.entry(instance.active.name.clone()).or_default();
                    *known = now.saturating_duration_since(since).max(*known);
                }
            }
        }
        longest
    }

    /// Tells the queues of which a instance has changed.
    pub(in crate::limiter) fn tell_changed(&self, has_changed: impl Fn(&LimiterInstance) -> bool) {
        self.each(|queue| {
            if queue.instances.iter().any(&has_changed) {
                queue.tell_changed();
            }
        });
    }

    /// Keeps the queues of a limiter to a pause, by its store's clock; or to none any more.
    pub(in crate::limiter) fn pause(
        &self,
        is_meant: impl Fn(&LimiterInstance) -> bool,
        stretch: PauseStretch,
    ) {
        self.tell_pause(is_meant, |instance| {
            let clock = instance.active.session.clock.heard()?;
            Some((clock.due(stretch.from), clock.due(stretch.until)))
        });
    }

    /// Lets every worker look around.
    pub(in crate::limiter) fn wake_all(&self) {
        self.each(Queue::wake);
    }

    fn tell_pause(
        &self,
        is_meant: impl Fn(&LimiterInstance) -> bool,
        stretch: impl Fn(&LimiterInstance) -> Option<(Instant, Instant)>,
    ) {
        self.each(|queue| {
            for instance in queue.instances.iter().filter(|instance| is_meant(instance)) {
                let Some((from, until)) = stretch(instance) else { continue };
                instance.active.pause_until(until);
                queue.tell_pause(Paused { limiter: instance.active.name.clone(), from, until }, true);
            }
        });
    }

    /// Tells the queue of these, if there is one, of room that was given back before its last slot.
    pub(in crate::limiter) fn tell_room(&self, instances: &[LimiterInstance], room: Freed) {
        let queue = self.shard(instances).get(instances).cloned();
        if let Some(queue) = queue {
            queue.tell_room(room);
        }
    }

    /// Refuses all who wait and all who come, gives their slots back, and ends when every worker has ended.
    pub(in crate::limiter) async fn close(&self) {
        // First nobody makes another queue, then those that there are hear of it.
        self.closed.store(true, Ordering::Release);
        self.each(Queue::tell_closing);
        self.workers.close();
        self.workers.wait().await;
    }

    /// How many queues there are.
    #[cfg(test)]
    pub(in crate::limiter) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

impl ShadowQueues for Queues {
    fn charge_shadow(self: Arc<Queues>, instance: &LimiterInstance, cost: Permits) {
        let demand = Demand { cost, wait_max: None };
        loop {
            match self.find(slice::from_ref(instance)) {
                // A queue that has ended is looked for again; a refusal has been counted.
                Ok(queue) if matches!(queue.push(demand, Asker::Shadow), Ok(false)) => {}
                // weir is shutting down: it would not have been refused.
                Ok(_) | Err(Refusal::Closed { .. }) => return,
                Err(_) => return instance.active.metrics().shadow_refused(cost.get()),
            }
        }
    }
}

impl Siblings for Queues {
    fn wake_all(&self) {
        Queues::wake_all(self);
    }

    fn pause(&self, instance: &LimiterInstance, stretch: PauseStretch) {
        Queues::pause(self, |other| other == instance, stretch);
    }

    fn pause_between(&self, instance: &LimiterInstance, from: Instant, until: Instant) {
        self.tell_pause(|other| other == instance, |_| Some((from, until)));
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
