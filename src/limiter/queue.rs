//! The requests that wait for the same limiters: the way in, and a place in it.
//!
//! A [`Queue`] is a handle; its [worker](super::worker) owns the state. Leaving is a drop, and the worker hears of it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::limit::{Limiter, Permits};
use crate::limiter::permit::{Permit, Returned};
use crate::limiter::refusal::Refusal;
use crate::telemetry::LimiterMetrics;

/// Requests that may lie between [`Queue::enter`] and the worker while a call to the store is under way: what a
/// replica takes in during a store's whole deadline at 100 000 requests a second.
pub(super) const INTAKE_MAX: usize = 16_384;

/// Permits that may be out at once: those that are being sent. More would only wait for the processor, and come later
/// than their guard; in the queue they keep their order, and what is late there is booked anew in one call.
const OUT_MAX: u32 = 128;

/// What a full intake tells a caller: by then the store has answered or counts as away.
const INTAKE_RETRY: Micros = Micros::from_millis(100);

/// What a request needs.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// The permits that it takes.
    pub cost: Permits,
    /// A wait shorter than the limiter's, if the request asked for one.
    pub wait_max: Option<Duration>,
}

/// A request that was let in.
pub enum Entered {
    /// It may go now.
    Granted(Permit),
    /// It has a place in the queue.
    Waiting(Ticket),
}

/// A request on its way to the worker.
pub(super) struct Arrival {
    pub(super) cost: Permits,
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    pub(super) entry: oneshot::Sender<Result<Entered, Refusal>>,
}

/// What a queue's handles, its permits and its worker share.
pub(super) struct Shared {
    /// The limiter as configured now.
    pub(super) limiter: ArcSwap<Limiter>,
    metrics: ArcSwap<LimiterMetrics>,
    /// Bounded by the permits and tickets that are out; `None` when the worker has ended.
    returned: Mutex<Option<Vec<Returned>>>,
    /// Whether a waiting request has left since the worker last looked.
    left: AtomicBool,
    /// Whether the limiter has changed since the worker last looked.
    changed: AtomicBool,
    wake: Notify,
    waiting: AtomicU32,
    /// Permits handed out and neither used nor given back.
    out: AtomicU32,
    granted: AtomicU64,
    refused: AtomicU64,
}

impl Shared {
    pub(super) fn new(limiter: Arc<Limiter>, metrics: LimiterMetrics) -> Shared {
        Shared {
            limiter: ArcSwap::new(limiter),
            metrics: ArcSwap::from_pointee(metrics),
            returned: Mutex::new(Some(Vec::new())),
            left: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            wake: Notify::new(),
            waiting: AtomicU32::new(0),
            out: AtomicU32::new(0),
            granted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn metrics(&self) -> arc_swap::Guard<Arc<LimiterMetrics>> {
        self.metrics.load()
    }

    /// Puts a changed limiter in force from the worker's next call on.
    pub(super) fn change(&self, limiter: Arc<Limiter>, metrics: LimiterMetrics) {
        self.limiter.store(limiter);
        self.metrics.store(Arc::new(metrics));
        self.changed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Hands something to the worker. If that has ended, it is dropped, and whoever waits for an answer hears of it.
    pub(super) fn hand_back(&self, returned: Returned) {
        if let Some(waiting) = &mut *self.returned.lock().unwrap_or_else(PoisonError::into_inner) {
            waiting.push(returned);
        }
        self.wake.notify_one();
    }

    pub(super) fn take_returned(&self) -> Vec<Returned> {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes what was handed back, and nothing any more from now on: the worker ends.
    pub(super) fn end(&self) -> Vec<Returned> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    pub(super) fn take_left(&self) -> bool {
        self.left.swap(false, Ordering::AcqRel)
    }

    pub(super) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }

    /// Ends when something of the above has happened.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn closed(&self) -> Refusal {
        Refusal::Closed { limiter: self.limiter.load().name.clone() }
    }

    pub(super) fn set_waiting(&self, waiting: u32) {
        if self.waiting.swap(waiting, Ordering::Relaxed) != waiting {
            self.metrics().set_waiting(waiting);
        }
    }

    /// A permit is handed out.
    pub(super) fn permit_out(&self) {
        self.out.fetch_add(1, Ordering::AcqRel);
    }

    /// A permit was used or given back.
    pub(super) fn permit_in(&self) {
        if self.out.fetch_sub(1, Ordering::AcqRel) == OUT_MAX {
            self.wake.notify_one();
        }
    }

    /// Whether as many permits are out as may be.
    pub(super) fn is_all_out(&self) -> bool {
        self.out.load(Ordering::Acquire) >= OUT_MAX
    }

    pub(super) fn count_granted(&self, cost: u64) {
        self.granted.fetch_add(cost, Ordering::Relaxed);
    }

    pub(super) fn count_refused(&self, cost: u64) {
        self.refused.fetch_add(cost, Ordering::Relaxed);
        self.metrics().refused(cost);
    }
}

/// A handle to the queue of a limiter. Cheap to clone.
#[derive(Clone)]
pub struct Queue {
    pub(super) shared: Arc<Shared>,
    pub(super) intake: mpsc::Sender<Arrival>,
}

impl Queue {
    /// Asks for a permit. Ends when the store has answered: at once, or after one round trip.
    ///
    /// # Errors
    /// The refusal, if the request may not pass within its wait.
    pub async fn enter(&self, demand: Demand) -> Result<Entered, Refusal> {
        let limiter = self.shared.limiter.load_full();
        if demand.cost > limiter.cost_max() {
            self.shared.count_refused(demand.cost.get());
            return Err(Refusal::CostExceedsLimit {
                limiter: limiter.name.clone(),
                cost_max: limiter.cost_max(),
            });
        }
        let configured = limiter.queue.as_ref().map(|queue| queue.timeout).unwrap_or_default();
        let wait = demand.wait_max.map_or(configured, |asked| asked.min(configured));
        let arrived = Instant::now();
        let (entry, entered) = oneshot::channel();
        let arrival = Arrival { cost: demand.cost, arrived, deadline: arrived + wait, entry };
        match self.intake.try_send(arrival) {
            Ok(()) => entered.await.unwrap_or_else(|_| Err(self.shared.closed())),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(self.shared.closed()),
            Err(mpsc::error::TrySendError::Full(arrival)) => {
                self.shared.count_refused(arrival.cost.get());
                Err(Refusal::QueueFull { limiter: limiter.name.clone(), limit: 0, retry_after: INTAKE_RETRY })
            }
        }
    }

    /// The limiter as configured now.
    pub fn limiter(&self) -> Arc<Limiter> {
        self.shared.limiter.load_full()
    }

    pub(super) fn waiting(&self) -> u32 {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn granted(&self) -> u64 {
        self.shared.granted.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

/// A place in the queue. Dropping it leaves the queue: those behind move up.
pub struct Ticket {
    shared: Arc<Shared>,
    approach: Option<oneshot::Receiver<()>>,
    turn: Option<oneshot::Receiver<Result<Permit, Refusal>>>,
}

impl Ticket {
    pub(super) fn new(
        shared: Arc<Shared>,
        approach: oneshot::Receiver<()>,
        turn: oneshot::Receiver<Result<Permit, Refusal>>,
    ) -> Ticket {
        Ticket { shared, approach: Some(approach), turn: Some(turn) }
    }

    /// Ends when the slot is near, so that an upstream connection can be made ready for it.
    pub async fn approaching(&mut self) {
        if let Some(approach) = &mut self.approach {
            // An error means that the turn came, or the refusal, before anything else.
            let _ = approach.await;
            self.approach = None;
        }
    }

    /// Ends when the slot is due. Cancel safe: a dropped ticket leaves the queue.
    ///
    /// # Errors
    /// The refusal, if the limits changed and the wait has become too long, or weir is shutting down.
    pub async fn turn(mut self) -> Result<Permit, Refusal> {
        let outcome = match &mut self.turn {
            Some(turn) => turn.await.unwrap_or_else(|_| Err(self.shared.closed())),
            None => Err(self.shared.closed()),
        };
        self.turn = None;
        outcome
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.turn.take().is_some() {
            self.shared.left.store(true, Ordering::Release);
            self.shared.wake.notify_one();
        }
    }
}
