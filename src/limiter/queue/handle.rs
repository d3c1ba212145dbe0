//! The requests that wait for the same limiters and partitions: the way in, and a place among them.
//!
//! A queue is what is here, shared by those who enter, their permits and its [worker](crate::limiter::worker), which owns the
//! rest. Leaving is a drop, and the worker hears of it.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::model::call::Freed;
use crate::limiter::model::limit::{LimiterName, OnStoreFailure, Permits};
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::queue::inbox::{Arrival, Asker, Inbox, Unsent, WorkerEvents};
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::permit::{OriginQueue, Permit, PermitReport, Returned, Whose};
use crate::limiter::queue::prefetch::Batch;
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::queue::slot::Source;
use crate::limiter::queue::ticket::{Answered, Demand};

/// Permits that may be between the queue and the wire at once. More would only wait for the processor, and come later
/// than their guard; in the queue they keep their order, and what is late there is booked anew in one call. Those whose
/// request has been sent, or waits for a connection, do not count, nor those from stock, whose requests run already.
const SENDING_MAX: u32 = 128;

/// The next ones are handed out when so few are left of them: some at a time, not one by one.
const SENDING_LOW: u32 = SENDING_MAX / 2;

/// What a full intake tells a caller: by then the store has answered or counts as away.
const INTAKE_RETRY: Micros = Micros::from_millis(100);

/// What a queue's askers, its permits and its worker share.
pub(in crate::limiter) struct Queue {
    /// Whose permits are taken together, in the order of their names. At least one, and each once.
    pub(in crate::limiter) instances: Arc<[LimiterInstance]>,
    inbox: Mutex<Inbox>,
    wake: Notify,
    waiting: AtomicU32,
    made: Instant,
    /// How many microseconds after that the first of those came who wait.
    first_came_us: AtomicU64,
    /// Permits handed out and neither used nor given back.
    out: AtomicU32,
    /// Those of them that are on their way to the wire.
    sending: AtomicU32,
    /// Whether a limiter may be paused: looked at for each request.
    is_paused: AtomicBool,
}

impl Queue {
    pub(in crate::limiter) fn new(instances: Arc<[LimiterInstance]>) -> Queue {
        Queue {
            instances,
            inbox: Mutex::default(),
            wake: Notify::new(),
            waiting: AtomicU32::new(0),
            made: Instant::now(),
            first_came_us: AtomicU64::new(0),
            out: AtomicU32::new(0),
            sending: AtomicU32::new(0),
            is_paused: AtomicBool::new(false),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn active_limiters(&self) -> impl Iterator<Item = &ActiveLimiter> {
        self.instances.iter().map(|instance| &*instance.active)
    }

    /// The name by which it goes where one must do.
    pub(in crate::limiter) fn name(&self) -> LimiterName {
        self.instances[0].active.name.clone()
    }

    /// How long a request may wait: as long as every limiter lets it.
    fn wait_max(&self) -> Duration {
        let wait = |active: &ActiveLimiter| {
            active.limiter().queue.as_ref().map_or(Duration::ZERO, |queue| queue.timeout)
        };
        self.active_limiters().map(wait).min().unwrap_or_default()
    }

    /// How many may wait.
    pub(in crate::limiter) fn max_waiting(&self) -> u32 {
        let max =
            |active: &ActiveLimiter| active.limiter().queue.as_ref().map_or(0, |queue| queue.max_waiting);
        self.active_limiters().map(max).min().unwrap_or_default()
    }

    /// The largest cost that every limiter can ever hold.
    pub(in crate::limiter) fn cost_max(&self) -> Permits {
        self.active_limiters().map(|active| active.limiter().cost_max()).min().unwrap_or(Permits::ONE)
    }

    /// What is told to whoever costs more than that.
    pub(in crate::limiter) fn too_costly(&self) -> Refusal {
        let cost_max = self.cost_max();
        let limiter = self.active_limiters().find(|active| active.limiter().cost_max() == cost_max);
        let limiter = limiter.map_or_else(|| self.name(), |active| active.name.clone());
        Refusal::CostExceedsLimit { limiter, cost_max }
    }

    /// The instances of a policy for the time without a store, by their places.
    pub(in crate::limiter) fn with_policy(&self, policy: OnStoreFailure) -> impl Iterator<Item = usize> {
        let places = self.active_limiters().enumerate();
        places.filter(move |(_, active)| active.limiter().on_store_failure == policy).map(|(place, _)| place)
    }

    /// A permit that lies ready for a request of that cost.
    pub(in crate::limiter) fn take_from_stock(self: &Arc<Queue>, demand: Demand) -> Option<Permit> {
        let now = Instant::now();
        let (slot, clock, wakes) = {
            let mut inbox = self.inbox();
            let (slot, clock, is_low) = inbox.stock.take(demand.cost, now)?;
            (slot, clock, is_low && !inbox.is_calling)
        };
        if wakes {
            self.wake.notify_one();
        }
        self.count_waited(Duration::ZERO);
        let deadline = now + self.wait_max().min(demand.wait_max.unwrap_or(Duration::MAX));
        let whose = Whose { arrived: now, deadline, waited: Duration::ZERO, late: 0 };
        Some(Permit::new(self.clone(), slot, clock, demand.cost, whose))
    }

    /// The worker waits for an answer of the store, and looks for arrivals when that has come.
    pub(in crate::limiter) fn set_calling(&self) {
        self.inbox().is_calling = true;
    }

    /// Puts permits into stock; below `low` the worker is woken.
    pub(in crate::limiter) fn stock(&self, batch: Batch, low: u64) {
        self.inbox().stock.add(batch, low);
    }

    /// Takes all permits out of stock.
    pub(in crate::limiter) fn clear_stock(&self) -> VecDeque<Batch> {
        self.inbox().stock.clear()
    }

    /// Puts a request into the queue; what becomes of it is received. `None` if the queue has ended: there is a new one.
    pub(in crate::limiter) fn submit(&self, demand: Demand) -> Result<Option<Answered>, Refusal> {
        let (sender, entered) = oneshot::channel();
        let is_in = self.push(demand, Asker::Request(sender))?;
        Ok(is_in.then_some(entered))
    }

    /// Puts something in, to be answered or only counted. Returns false if the queue has ended.
    pub(in crate::limiter) fn push(&self, demand: Demand, asker: Asker) -> Result<bool, Refusal> {
        let Demand { cost, wait_max } = demand;
        let is_shadow = matches!(asker, Asker::Shadow);
        let refused = |refusal| {
            self.count_refused(&refusal, cost, is_shadow);
            Err(refusal)
        };
        if cost > self.cost_max() {
            return refused(self.too_costly());
        }
        let wait = self.wait_max().min(wait_max.unwrap_or(Duration::MAX));
        let arrived = Instant::now();
        let arrival = Arrival { cost, arrived, deadline: arrived + wait, asker };
        let (sent, wakes) = {
            let mut inbox = self.inbox();
            if let Some(refusal) = inbox.refuse(cost, arrival.deadline) {
                drop(inbox);
                return refused(refusal);
            }
            (inbox.push(arrival), !inbox.is_calling)
        };
        match sent {
            Ok(()) => {
                if wakes {
                    self.wake.notify_one();
                }
                Ok(true)
            }
            Err(Unsent::Ended) => Ok(false),
            Err(Unsent::Full) => {
                let limiter = self.name();
                refused(Refusal::QueueFull { limiter, limit: 0, retry_after: INTAKE_RETRY })
            }
        }
    }

    /// Tells the worker that a limiter has changed.
    pub(in crate::limiter) fn tell_changed(&self) {
        let mut inbox = self.inbox();
        inbox.changed = true;
        inbox.learn(None);
        drop(inbox);
        self.wake.notify_one();
    }

    /// Tells the worker of room that was given back before the queue's last slot.
    pub(in crate::limiter) fn tell_room(&self, room: Freed) {
        let mut inbox = self.inbox();
        inbox.room = Some(room);
        inbox.learn(None);
        drop(inbox);
        self.wake.notify_one();
    }

    /// Keeps to a pause from now on, or to none any more; a longer one of another limiter stays. The worker asks at once for
    /// slots in place of those that may not be used, if it `asks`. Returns the pause that is kept to.
    pub(in crate::limiter) fn tell_pause(&self, mut paused: Paused, asks: bool) -> Option<Paused> {
        let now = Instant::now();
        let mut inbox = self.inbox();
        let is_last = inbox
            .paused
            .as_ref()
            .is_none_or(|known| known.limiter == paused.limiter || known.until < paused.until);
        if is_last {
            // Heard of again, it began when it did.
            let known = inbox.paused.as_ref().filter(|known| known.until > now && paused.until > now);
            paused.from = known.map_or(paused.from, |known| known.from.min(paused.from));
            inbox.paused = Some(paused).filter(|paused| paused.until > now);
            self.is_paused.store(inbox.paused.is_some(), Ordering::Release);
        }
        inbox.learn(None);
        inbox.changed |= asks;
        let kept = inbox.paused.clone();
        drop(inbox);
        if asks {
            self.wake.notify_one();
        }
        kept
    }

    /// What requests are refused by from now on, without asking.
    pub(in crate::limiter) fn learn(&self, learnt: Option<Box<RefusalCache>>) {
        self.inbox().learn(learnt);
    }

    /// The store has refused so many.
    pub(in crate::limiter) fn count_refused_by_store(&self, count: u64) {
        self.inbox().count_refused(count);
    }

    /// How many requests will be refused without asking the store, if it says how.
    pub(in crate::limiter) fn spare(&self, now: Instant) -> u64 {
        self.inbox().spare(now)
    }

    /// Tells the worker to refuse everybody and to end.
    pub(in crate::limiter) fn tell_closing(&self) {
        self.inbox().closing = true;
        self.wake.notify_one();
    }

    /// Holds the queue, so that its worker stays while it has nothing to do. `None` if it has ended.
    pub(in crate::limiter) fn keep(self: &Arc<Queue>) -> Option<QueueGuard> {
        self.inbox().keep().then(|| QueueGuard::new(self.clone()))
    }

    pub(in crate::limiter) fn release(&self) {
        self.inbox().kept -= 1;
        self.wake.notify_one();
    }

    /// What has happened since the last look; arrivals are put into `pending`, up to so many.
    pub(in crate::limiter) fn news(
        &self,
        pending: &mut VecDeque<Arrival>,
        pending_max: usize,
        now: Instant,
    ) -> WorkerEvents {
        self.inbox().news(pending, pending_max, now)
    }

    pub(in crate::limiter) fn has_ended(&self) -> bool {
        self.inbox().has_ended
    }

    /// Ends the queue, if nothing has come meanwhile and nobody holds it.
    pub(in crate::limiter) fn end_if_idle(&self) -> bool {
        !self.has_out() && self.inbox().end_if_idle()
    }

    /// Ends the queue: takes everything, and nothing any more from now on.
    pub(in crate::limiter) fn end(&self) -> (VecDeque<Arrival>, Vec<Returned>) {
        self.inbox().end()
    }

    /// Lets the worker look around.
    pub(in crate::limiter) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Ends when something has happened.
    pub(in crate::limiter) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// So many wait, the first of them since an instant.
    pub(in crate::limiter) fn set_waiting(&self, waiting: u32, since: Option<Instant>) {
        if let Some(since) = since {
            let came = since.saturating_duration_since(self.made);
            self.first_came_us.store(Micros::from(came).0, Ordering::Relaxed);
        }
        // Whoever sees how many wait sees since when.
        let before = self.waiting.swap(waiting, Ordering::Release);
        if before != waiting {
            self.active_limiters()
                .for_each(|active| active.add_waiting(i64::from(waiting) - i64::from(before)));
        }
    }

    /// Since when the first of those has waited who wait.
    pub(in crate::limiter) fn waits_since(&self) -> Option<Instant> {
        let is_waited_for = self.waiting.load(Ordering::Acquire) > 0;
        let came = Duration::from_micros(self.first_came_us.load(Ordering::Relaxed));
        is_waited_for.then(|| self.made + came)
    }

    /// How many more permits may be on their way to the wire. While it is none, one that has got there wakes the worker.
    pub(in crate::limiter) fn sending_room(&self) -> u32 {
        let sending = self.sending.load(Ordering::Acquire);
        if sending > SENDING_LOW { 0 } else { SENDING_MAX - sending }
    }

    pub(in crate::limiter) fn has_out(&self) -> bool {
        self.out.load(Ordering::Acquire) > 0
    }

    /// A request waited so long for its permit.
    pub(in crate::limiter) fn count_waited(&self, waited: Duration) {
        self.active_limiters().for_each(|active| active.count_waited(waited));
    }

    /// Counts a refusal for the limiter that it names.
    pub(in crate::limiter) fn count_refused(&self, refusal: &Refusal, cost: Permits, is_shadow: bool) {
        let named = self.active_limiters().find(|active| active.name == *refusal.limiter());
        match named {
            Some(active) if is_shadow => active.metrics().shadow_refused(cost.get()),
            Some(active) => active.count_refused(cost.get()),
            None => {}
        }
    }
}

impl OriginQueue for Queue {
    fn guard(&self) -> Micros {
        self.active_limiters().map(|active| Micros::from(active.limiter().guard)).min().unwrap_or_default()
    }

    fn is_paused(&self, due: Instant, now: Instant) -> bool {
        if !self.is_paused.load(Ordering::Acquire) {
            return false;
        }
        self.inbox().paused.as_ref().is_some_and(|paused| paused.until > now && paused.holds(due))
    }

    fn permit_out(&self) {
        self.out.fetch_add(1, Ordering::AcqRel);
    }

    fn permit_in(&self) {
        self.out.fetch_sub(1, Ordering::AcqRel);
    }

    fn sending(&self) {
        self.sending.fetch_add(1, Ordering::AcqRel);
    }

    fn sent(&self) {
        if self.sending.fetch_sub(1, Ordering::AcqRel) == SENDING_LOW + 1 {
            self.wake.notify_one();
        }
    }

    fn count_used(&self, source: Source, cost: Permits) {
        let cost = cost.get();
        for active in self.active_limiters() {
            let (metrics, policy) = (active.metrics(), active.limiter().on_store_failure);
            match source {
                Source::Store => metrics.granted(cost),
                Source::Local if policy != OnStoreFailure::Allow => metrics.local(cost),
                Source::Local | Source::Unlimited => metrics.allowed(cost),
            }
            active.count_granted(cost);
        }
    }

    fn count_late(&self, late: Micros) {
        self.active_limiters().for_each(|active| active.metrics().lateness(late.to_duration()));
    }

    fn count_cancelled(&self, cost: Permits) {
        self.active_limiters().for_each(|active| active.metrics().cancelled(cost.get()));
    }

    fn hand_back(&self, returned: Returned) {
        self.inbox().hand_back(returned);
        self.wake.notify_one();
    }

    fn tell(&self, news: PermitReport) -> Result<(), PermitReport> {
        let mut inbox = self.inbox();
        if inbox.has_ended {
            return Err(news);
        }
        match (news, &mut inbox.said) {
            (PermitReport::Signal(saying), Some(before)) => before.add(saying),
            (PermitReport::Signal(saying), none) => *none = Some(saying),
            (PermitReport::Refund(returned), _) => inbox.hand_back(returned),
        }
        drop(inbox);
        self.wake.notify_one();
        Ok(())
    }

    fn closed(&self) -> Refusal {
        Refusal::Closed { limiter: self.name() }
    }

    fn follows_upstream(&self) -> bool {
        self.active_limiters().any(|active| active.limiter().follows_upstream)
    }

    fn leave(&self) {
        self.inbox().left = true;
        self.wake.notify_one();
    }
}

/// Holds a queue for as long as it lives.
pub(in crate::limiter) struct QueueGuard(Arc<Queue>);

impl QueueGuard {
    pub(in crate::limiter) fn new(shared: Arc<Queue>) -> QueueGuard {
        QueueGuard(shared)
    }

    pub(in crate::limiter) fn queue(&self) -> Arc<Queue> {
        self.0.clone()
    }
}

impl Deref for QueueGuard {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.0.release();
    }
}
