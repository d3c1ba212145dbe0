//! All limiters of this process: a queue and a worker for each, kept over a reload.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::limiter::gate::Gate;
use crate::limiter::limit::{Limiter, LimiterName, OnStoreFailure};
use crate::limiter::memory::MemoryStore;
use crate::limiter::queue::{INTAKE_MAX, Queue, Shared};
use crate::limiter::store::{Store, Subject};
use crate::limiter::worker::{Fallback, Worker};
use crate::telemetry::Metrics;

/// One limiter's live state.
#[derive(Debug)]
pub struct LimiterState {
    /// The limiter as configured now.
    pub limiter: Arc<Limiter>,
    /// Requests of this replica that wait.
    pub waiting: u32,
    /// Permits used by this replica since it started, counted in cost.
    pub granted: u64,
    /// Permits refused by this replica since it started, counted in cost.
    pub refused: u64,
    /// Permits that could be used at once, for each limit; `None` if the store could not be asked.
    pub available: Option<Vec<u64>>,
}

/// All limiters. Cheap to clone.
#[derive(Clone)]
pub struct Limiters {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    fallback: Arc<Fallback>,
    metrics: Metrics,
    /// In the order of the configuration.
    queues: Mutex<Vec<(LimiterName, Queue)>>,
    workers: TaskTracker,
    shutdown: CancellationToken,
}

/// A number for this replica, below 2^53 because Lua must hold it, and not zero.
fn replica() -> u64 {
    // The standard library seeds each of these at random.
    (RandomState::new().hash_one(std::process::id()) >> 12) | 1
}

impl Limiters {
    /// No limiters yet, over this store. `fleet_size` divides the limits while the store is away.
    pub fn new(store: Arc<dyn Store>, clock: Clock, fleet_size: u32, metrics: Metrics) -> Limiters {
        let fleet_size = u64::from(fleet_size);
        let fallback = Fallback { replica: replica(), store: MemoryStore::new(clock), clock, fleet_size };
        let fallback = Arc::new(fallback);
        let inner = Inner {
            store,
            fallback,
            metrics,
            queues: Mutex::default(),
            workers: TaskTracker::new(),
            shutdown: CancellationToken::new(),
        };
        Limiters { inner: Arc::new(inner) }
    }

    /// Puts these limiters in force. An unchanged one notices nothing; a changed one keeps its queue and
    /// what was used; the queue of a removed one ends with its last request. Must be called within a Tokio runtime.
    pub fn apply(&self, limiters: &[Arc<Limiter>]) {
        let mut queues = self.inner.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *queues);
        for limiter in limiters {
            let queue = match before.iter().position(|(name, _)| *name == limiter.name) {
                Some(index) => self.keep(before.swap_remove(index).1, limiter),
                None => self.open(limiter),
            };
            queues.push((limiter.name.clone(), queue));
        }
        let kept: HashSet<&LimiterName> = limiters.iter().map(|limiter| &limiter.name).collect();
        for (name, _) in before.iter().filter(|(name, _)| !kept.contains(name)) {
            self.inner.metrics.forget_limiter(name);
        }
    }

    fn keep(&self, queue: Queue, limiter: &Arc<Limiter>) -> Queue {
        if *queue.limiter() != **limiter {
            queue.shared.change(limiter.clone(), self.inner.metrics.limiter(limiter));
        }
        queue
    }

    fn open(&self, limiter: &Arc<Limiter>) -> Queue {
        let (sender, intake) = mpsc::channel(INTAKE_MAX);
        let shared = Arc::new(Shared::new(limiter.clone(), self.inner.metrics.limiter(limiter)));
        let worker =
            Worker::new(shared.clone(), intake, self.inner.store.clone(), self.inner.fallback.clone());
        self.inner.workers.spawn(worker.run(self.inner.shutdown.clone()));
        Queue { shared, intake: sender }
    }

    fn queues(&self) -> Vec<(LimiterName, Queue)> {
        self.inner.queues.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The queue of a limiter; `None` if there is no such limiter. To be resolved once per route, not per request.
    pub fn queue(&self, name: &LimiterName) -> Option<Queue> {
        self.queues().into_iter().find(|(queue, _)| queue == name).map(|(_, queue)| queue)
    }

    /// The gate that takes all of these limiters together.
    ///
    /// # Errors
    /// The first name that no limiter has.
    pub fn gate(&self, names: &[LimiterName]) -> Result<Option<Gate>, LimiterName> {
        let queues = names.iter().map(|name| self.queue(name).ok_or_else(|| name.clone()));
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        Ok(queues.into_iter().next().map(Gate::new))
    }

    /// The live state of every limiter, in the order of the configuration. Asks the store, and changes nothing.
    pub async fn inspect(&self) -> Vec<LimiterState> {
        let mut states = Vec::new();
        for (_, queue) in self.queues() {
            states.push(self.state(&queue).await);
        }
        states
    }

    /// The live state of one limiter; `None` if there is no such limiter.
    pub async fn inspect_one(&self, name: &LimiterName) -> Option<LimiterState> {
        let queue = self.queue(name)?;
        Some(self.state(&queue).await)
    }

    async fn state(&self, queue: &Queue) -> LimiterState {
        let limiter = queue.limiter();
        let inspection =
            self.inner.store.inspect(&Subject::new(&limiter, None, self.inner.fallback.clock.now())).await;
        LimiterState {
            waiting: queue.waiting(),
            granted: queue.granted(),
            refused: queue.refused(),
            available: inspection.ok().map(|inspection| inspection.available),
            limiter,
        }
    }

    /// Whether the store answers, as far as is known.
    pub fn store_up(&self) -> bool {
        self.inner.store.is_up()
    }

    /// Whether every limiter can serve by its policy: false while one that rejects has no store.
    pub fn ready(&self) -> bool {
        let rejects =
            |(_, queue): &(LimiterName, Queue)| queue.limiter().on_store_failure == OnStoreFailure::Reject;
        self.store_up() || !self.queues().iter().any(rejects)
    }

    /// Refuses all who wait, gives their slots back, and ends when every worker has ended.
    pub async fn close(&self) {
        self.inner.shutdown.cancel();
        self.inner.workers.close();
        self.inner.workers.wait().await;
    }
}
