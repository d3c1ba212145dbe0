//! All queues of this process. One is made when its first request comes, and leaves when its worker ends.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Duration, Instant};
use tokio_util::task::TaskTracker;

use crate::limiter::inbox::Kept;
use crate::limiter::limit::LimiterName;
use crate::limiter::live::{Member, shrink};
use crate::limiter::order::Room;
use crate::limiter::queue::Shared;
use crate::limiter::refusal::Refusal;
use crate::limiter::said::Paused;
use crate::limiter::store::PauseStretch;
use crate::limiter::worker::{Fallback, Worker};

/// Maps, each under its own lock: many more than processors, so that two requests seldom want the same.
const SHARDS: usize = 64;

/// How long a worker stays when it has nothing to do and no gate holds its queue: a client that calls once a second
/// keeps it.
pub(super) const LINGER: Duration = Duration::from_millis(1200);

type Shard = HashMap<Arc<[Member]>, Arc<Shared>>;

pub(super) struct Queues {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    workers: TaskTracker,
    /// Whether weir is shutting down.
    closed: AtomicBool,
    pub(super) fallback: Fallback,
    pub(super) linger: Duration,
}

impl Queues {
    pub(super) fn new(fallback: Fallback, linger: Duration) -> Queues {
        Queues {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            workers: TaskTracker::new(),
            closed: AtomicBool::new(false),
            fallback,
            linger,
        }
    }

    fn shard(&self, members: &[Member]) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(members);
        // The upper bits: the map itself uses the others.
        let place = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        self.shards[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of these, which are in the order of their names. It may end at any time: then this finds another.
    ///
    /// # Errors
    /// A refusal where there may not be another partition, or any queue, any more.
    pub(super) fn find(self: &Arc<Queues>, members: &[Member]) -> Result<Arc<Shared>, Refusal> {
        let mut shard = self.shard(members);
        if let Some(queue) = shard.get(members).filter(|queue| !queue.has_ended()) {
            return Ok(queue.clone());
        }
        let members: Arc<[Member]> = members.into();
        let queue = Arc::new(Shared::new(members.clone()));
        if self.closed.load(Ordering::Acquire) {
            return Err(queue.closed());
        }
        for (place, member) in members.iter().enumerate() {
            if let Err(refusal) = member.admit(self.linger) {
                members[..place].iter().for_each(Member::dismiss);
                return Err(refusal);
            }
        }
        // One that has ended and has not left yet goes with its own key.
        shard.remove(&members);
        shard.insert(members, queue.clone());
        self.workers.spawn(Worker::new(queue.clone(), self.clone()).run());
        Ok(queue)
    }

    /// The same, to be held.
    pub(super) fn keep(self: &Arc<Queues>, members: &[Member]) -> Result<Kept, Refusal> {
        loop {
            if let Some(kept) = self.find(members)?.keep() {
                return Ok(kept);
            }
        }
    }

    /// A queue has ended.
    pub(super) fn forget(&self, queue: &Arc<Shared>) {
        let mut shard = self.shard(&queue.members);
        if shard.get(&queue.members).is_some_and(|found| Arc::ptr_eq(found, queue)) {
            shard.remove(&queue.members);
            shrink(&mut shard);
        }
        drop(shard);
        queue.members.iter().for_each(Member::dismiss);
    }

    fn each(&self, act: impl Fn(&Shared)) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().for_each(|queue| act(queue));
        }
    }

    /// For how long the one has waited that has waited longest, for each limiter for which anybody does.
    pub(super) fn longest_waits(&self) -> HashMap<LimiterName, Duration> {
        let (now, mut longest) = (Instant::now(), HashMap::new());
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for queue in shard.values() {
                let Some(since) = queue.waits_since() else { continue };
                for member in queue.members.iter() {
                    let known: &mut Duration = longest.entry(member.live.name.clone()).or_default();
                    *known = now.saturating_duration_since(since).max(*known);
                }
            }
        }
        longest
    }

    /// Tells the queues of which a member has changed.
    pub(super) fn tell_changed(&self, has_changed: impl Fn(&Member) -> bool) {
        self.each(|queue| {
            if queue.members.iter().any(&has_changed) {
                queue.tell_changed();
            }
        });
    }

    /// Lets every worker look around.
    pub(super) fn wake_all(&self) {
        self.each(Shared::wake);
    }

    /// Keeps the queues of a limiter to a pause, by its store's clock; or to none any more.
    pub(super) fn pause(&self, is_meant: impl Fn(&Member) -> bool, stretch: PauseStretch) {
        self.tell_pause(is_meant, |member| {
            let clock = member.live.home.clock.heard()?;
            Some((clock.due(stretch.from), clock.due(stretch.until)))
        });
    }

    /// The same, by this process's clock.
    pub(super) fn pause_between(&self, is_meant: impl Fn(&Member) -> bool, from: Instant, until: Instant) {
        self.tell_pause(is_meant, |_| Some((from, until)));
    }

    fn tell_pause(
        &self,
        is_meant: impl Fn(&Member) -> bool,
        stretch: impl Fn(&Member) -> Option<(Instant, Instant)>,
    ) {
        self.each(|queue| {
            for member in queue.members.iter().filter(|member| is_meant(member)) {
                let Some((from, until)) = stretch(member) else { continue };
                member.live.pause_until(until);
                queue.tell_pause(Paused { limiter: member.live.name.clone(), from, until }, true);
            }
        });
    }

    /// Tells the queue of these, if there is one, of room that was given back before its last slot.
    pub(super) fn tell_room(&self, members: &[Member], room: Room) {
        let queue = self.shard(members).get(members).cloned();
        if let Some(queue) = queue {
            queue.tell_room(room);
        }
    }

    /// Refuses all who wait and all who come, gives their slots back, and ends when every worker has ended.
    pub(super) async fn close(&self) {
        // First nobody makes another queue, then those that there are hear of it.
        self.closed.store(true, Ordering::Release);
        self.each(Shared::tell_closing);
        self.workers.close();
        self.workers.wait().await;
    }

    /// How many queues there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}
