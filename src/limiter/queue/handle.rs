//! A queue, as its requests, permits and worker share it: the way in, and the counters.
//!
//! The [worker](crate::limiter::queue::worker) owns the waiting requests. All others reach it through the
//! [inbox](crate::limiter::queue::inbox).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Costs, Flow, Freed, LimiterName, OnStoreFailure, Refusal};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::queue::expected_costs::ExpectedCosts;
use crate::limiter::queue::inbox::{Caller, Inbox, InboxSnapshot, LastEvents, Unsent};
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::permit::{OriginQueue, Permit, PermitReport, Returned};
use crate::limiter::queue::prefetch::Batch;
use crate::limiter::queue::quota_left::LastLeft;
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::queue::request::{Arrival, Holder, RequestId};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::ticket::{Answered, Demand};
use crate::limiter::queue::waiting::WaitingNow;

/// The most permits in flight: handed out to requests that have still to be woken and sent. More of them would only wait for
/// the processor and come later than their guard; in the queue they keep their order, and late ones are booked anew in one
/// call. Requests that were sent or wait for a connection do not count, nor those with a prefetched permit, which run already.
const IN_FLIGHT_MAX: u32 = 128;

/// Further permits are handed out when so few are left in flight: many at a time, not one by one.
const IN_FLIGHT_LOW: u32 = IN_FLIGHT_MAX / 2;

/// The `retry_after` of a full intake: by then the store has answered, or counts as unreachable.
pub(in crate::limiter) const INTAKE_RETRY: Micros = Micros::from_millis(100);

/// A queue, as its requests, permits and worker share it.
pub(in crate::limiter) struct Queue {
    /// The limiters and partitions whose permits are taken together, in the order of their names. At least one, each once.
    pub(in crate::limiter) instances: Arc<[LimiterInstance]>,
    inbox: Mutex<Inbox>,
    wake: Notify,
    /// The waiting requests, as the worker last said.
    pub(in crate::limiter) waiting: WaitingNow,
    /// The moment until which slots of the store may be used.
    lease: AtomicU64,
    /// The number of the outage whose local slots may be used; zero if none may be.
    outage: AtomicU64,
    /// Permits handed out and neither used nor given back.
    permits_out: AtomicU32,
    /// The permits among them whose request has still to be woken and sent.
    in_flight: AtomicU32,
    /// True if a limiter may be paused. Read for each request, so it stands outside the inbox.
    is_paused: AtomicBool,
    /// The permits that are left, as the store last said.
    pub(in crate::limiter) left: LastLeft,
    /// The part of their costs that requests turn out to use.
    pub(in crate::limiter) expected_costs: ExpectedCosts,
}

impl Queue {
    pub(in crate::limiter) fn new(instances: Arc<[LimiterInstance]>) -> Queue {
        Queue {
            instances,
            inbox: Mutex::default(),
            wake: Notify::new(),
            waiting: WaitingNow::default(),
            lease: AtomicU64::new(0),
            outage: AtomicU64::new(0),
            permits_out: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            is_paused: AtomicBool::new(false),
            left: LastLeft::default(),
            expected_costs: ExpectedCosts::default(),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn active_limiters(&self) -> impl Iterator<Item = &ActiveLimiter> {
        self.instances.iter().map(|instance| &*instance.active)
    }

    /// Returns the name of its first limiter, for refusals and logs that name one.
    pub(in crate::limiter) fn name(&self) -> LimiterName {
        self.instances[0].active.name.clone()
    }

    /// Returns how long a request may wait: as long as every limiter, or its class there, allows.
    fn wait_of(&self, demand: &Demand) -> Micros {
        let waits = self.active_limiters().map(|active| active.limiter().wait_max(demand.flow));
        let wait_max = waits.min().unwrap_or_default();
        Micros::from(wait_max.min(demand.wait_max.unwrap_or(Duration::MAX)))
    }

    /// Returns how many requests may wait.
    pub(in crate::limiter) fn max_waiting(&self) -> u32 {
        let max =
            |active: &ActiveLimiter| active.limiter().queue.as_ref().map_or(0, |queue| queue.max_waiting);
        self.active_limiters().map(max).min().unwrap_or_default()
    }

    /// Returns the places of the limiters that have this policy for an unreachable store.
    pub(in crate::limiter) fn with_policy(&self, policy: OnStoreFailure) -> impl Iterator<Item = usize> {
        let places = self.active_limiters().enumerate();
        places.filter(move |(_, active)| active.limiter().on_store_failure == policy).map(|(place, _)| place)
    }

    /// Takes a prefetched permit for a request, if there is one of its cost.
    pub(in crate::limiter) fn take_prefetched(self: &Arc<Queue>, demand: &Demand) -> Option<Permit> {
        let (cost, now) = (demand.costs.same()?, self.now());
        let (slot, clock, wakes) = {
            let mut inbox = self.inbox();
            let (slot, clock, is_low) = inbox.prefetch.take(cost, now)?;
            (slot, clock, is_low && !inbox.is_calling)
        };
        if wakes {
            self.wake.notify_one();
        }
        self.count_waited(demand.flow, Duration::ZERO);
        let holder =
            Holder { arrived: now, deadline: now + self.wait_of(demand), late: 0, flow: demand.flow };
        Some(Permit::new(self.clone(), slot, clock, cost.into(), (holder, Duration::ZERO)))
    }

    /// Records that the worker waits for an answer of the store, after which it looks for arrivals.
    pub(in crate::limiter) fn set_calling(&self) {
        self.inbox().is_calling = true;
    }

    /// Adds prefetched permits; the worker is woken when fewer than `low` are left.
    pub(in crate::limiter) fn add_prefetched(&self, batch: Batch, low: u64) {
        self.inbox().prefetch.add(batch, low);
    }

    /// Takes out all prefetched permits.
    pub(in crate::limiter) fn clear_prefetched(&self) -> VecDeque<Batch> {
        self.inbox().prefetch.clear()
    }

    /// Puts a request into the queue, and returns the channel of its answer. `None` if the queue has ended: a new one is needed.
    ///
    /// # Errors
    /// The refusal, if it is known without asking the store.
    pub(in crate::limiter) fn submit(&self, demand: Demand) -> Result<Option<Answered>, Refusal> {
        let (sender, entered) = oneshot::channel();
        let is_in = self.push(demand, Caller::Request(sender))?;
        Ok(is_in.then_some(entered))
    }

    /// Puts a request, or the charge of a limiter that only counts, into the queue. Returns false if the queue has ended.
    ///
    /// # Errors
    /// The refusal, if it is known without asking the store.
    pub(in crate::limiter) fn push(&self, demand: Demand, asker: Caller) -> Result<bool, Refusal> {
        let is_shadow = matches!(asker, Caller::Shadow);
        let refused = |refusal, flow, costs: &Costs| {
            self.count_refused(&refusal, (flow, costs), is_shadow);
            Err(refusal)
        };
        if let Some(refusal) = self.too_costly_for(&demand.costs) {
            return refused(refusal, demand.flow, &demand.costs);
        }
        let arrived = self.now();
        let (deadline, Demand { costs, flow, .. }) = (arrived + self.wait_of(&demand), demand);
        let arrival = Arrival { costs, arrived, deadline, asker, flow };
        let (sent, wakes) = {
            let mut inbox = self.inbox();
            if let Some(refusal) = inbox.refuse(&arrival) {
                drop(inbox);
                return refused(refusal, flow, &arrival.costs);
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
            Err(Unsent::Full(costs)) => {
                let limiter = self.name();
                let refusal =
                    Refusal::QueueFull { limiter, limit: 0, available: 0, retry_after: INTAKE_RETRY };
                refused(refusal, flow, &costs)
            }
        }
    }

    /// Tells the worker that the limits of a limiter have changed.
    pub(in crate::limiter) fn notify_changed(&self) {
        let mut inbox = self.inbox();
        inbox.events.reconfigures = true;
        inbox.set_refusal_cache(None);
        drop(inbox);
        self.wake.notify_one();
    }

    /// Tells the worker that bookings of the queue were moved, or are to be, as of an instant of the store's clock.
    pub(in crate::limiter) fn notify_moved(&self, at: Micros) {
        let mut inbox = self.inbox();
        inbox.events.moved = inbox.events.moved.max(Some(at));
        inbox.set_refusal_cache(None);
        drop(inbox);
        self.wake.notify_one();
    }

    /// Tells the worker of permits that were freed before the queue's last slot.
    pub(in crate::limiter) fn notify_freed(&self, freed: Freed) {
        let mut inbox = self.inbox();
        inbox.events.freed = Some(freed);
        inbox.set_refusal_cache(None);
        drop(inbox);
        self.wake.notify_one();
    }

    /// Keeps the queue to a pause, or ends its pause if `paused` has ended. A longer pause of another limiter stays.
    ///
    /// If `reschedules`, the worker is woken to ask for slots in place of those in the pause. Returns the pause that the queue
    /// keeps to now.
    pub(in crate::limiter) fn apply_pause(&self, mut paused: Paused, reschedules: bool) -> Option<Paused> {
        let now = self.now();
        let mut inbox = self.inbox();
        let is_last = inbox
            .paused
            .as_ref()
            .is_none_or(|known| known.limiter == paused.limiter || known.until < paused.until);
        if is_last {
            // A pause that is announced again keeps its beginning.
            let known = inbox.paused.as_ref().filter(|known| known.until > now && paused.until > now);
            paused.from = known.map_or(paused.from, |known| known.from.min(paused.from));
            inbox.paused = Some(paused).filter(|paused| paused.until > now);
            self.is_paused.store(inbox.paused.is_some(), Ordering::Release);
        }
        inbox.set_refusal_cache(None);
        inbox.events.reconfigures |= reschedules;
        let kept = inbox.paused.clone();
        drop(inbox);
        if reschedules {
            self.wake.notify_one();
        }
        kept
    }

    /// Returns whether the queue keeps to a pause.
    pub(in crate::limiter) fn has_pause(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    /// Sets the refusal by which requests are refused from now on without asking the store.
    pub(in crate::limiter) fn set_refusal_cache(&self, cache: Option<Box<RefusalCache>>) {
        self.inbox().set_refusal_cache(cache);
    }

    /// Counts requests that the store has refused.
    pub(in crate::limiter) fn count_refused_by_store(&self, count: u64, now: Moment) {
        self.inbox().count_refused(count, now);
    }

    /// Returns how many requests the next refusal of the store is to cover.
    pub(in crate::limiter) fn refusal_budget(&self, now: Moment) -> u64 {
        self.inbox().refusal_budget(now)
    }

    /// Tells the worker to refuse all requests and to end.
    pub(in crate::limiter) fn close(&self) {
        self.inbox().close();
        self.wake.notify_one();
    }

    /// Keeps the queue from ending while it is idle, until it is released. Returns false if it has ended.
    pub(in crate::limiter) fn hold(&self) -> bool {
        self.inbox().hold()
    }

    /// Releases the queue.
    pub(in crate::limiter) fn release(&self) {
        self.inbox().release();
        self.wake.notify_one();
    }

    /// Takes the events since the last look, and puts the arrivals into the empty `arrivals`. The worker has `pending` others.
    pub(in crate::limiter) fn take_events(
        &self,
        arrivals: &mut VecDeque<Arrival<Caller>>,
        pending: usize,
        now: Moment,
    ) -> InboxSnapshot {
        self.inbox().take_events(arrivals, pending, now)
    }

    /// Sets until when slots of the store may be used, and the outage whose local slots may be; zero for none.
    pub(in crate::limiter) fn set_usable(&self, lease: Moment, outage: u64) {
        self.lease.store(lease.0, Ordering::Release);
        self.outage.store(outage, Ordering::Release);
    }

    pub(in crate::limiter) fn has_ended(&self) -> bool {
        self.inbox().has_ended()
    }

    /// Ends the queue, if nothing has come meanwhile and nobody holds it. Returns whether it has ended.
    pub(in crate::limiter) fn end_if_idle(&self) -> bool {
        !self.has_permits_out() && self.inbox().end_if_idle()
    }

    /// Ends the queue, and takes out what has come.
    pub(in crate::limiter) fn end(&self) -> LastEvents {
        self.inbox().end()
    }

    /// Wakes the worker.
    pub(in crate::limiter) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until the worker is woken.
    pub(in crate::limiter) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Sets how many requests wait, and when the first of them arrived.
    pub(in crate::limiter) fn set_waiting(&self, waiting: u32, first_arrived: Option<Moment>) {
        let before = self.waiting.set(waiting, first_arrived);
        if before != waiting {
            self.active_limiters()
                .for_each(|active| active.add_waiting(i64::from(waiting) - i64::from(before)));
        }
    }

    /// Returns how long the first waiting request has waited; `None` if none waits.
    pub(in crate::limiter) fn longest_wait(&self) -> Option<Micros> {
        self.waiting.since().map(|since| self.now() - since)
    }

    /// Returns how many more permits may be in flight. While it is zero, the worker is woken when enough have been sent.
    pub(in crate::limiter) fn in_flight_left(&self) -> u32 {
        let in_flight = self.in_flight.load(Ordering::Acquire);
        if in_flight > IN_FLIGHT_LOW { 0 } else { IN_FLIGHT_MAX - in_flight }
    }

    /// Returns whether a permit is neither used nor given back.
    pub(in crate::limiter) fn has_permits_out(&self) -> bool {
        self.permits_out.load(Ordering::Acquire) > 0
    }

    /// Records how long a request waited for its permit.
    pub(in crate::limiter) fn count_waited(&self, flow: Flow, waited: Duration) {
        self.instances.iter().for_each(|instance| instance.count_waited(flow, waited));
    }

    /// Counts a refusal for the limiter that it names.
    pub(in crate::limiter) fn count_refused(
        &self,
        refusal: &Refusal,
        (flow, costs): (Flow, &Costs),
        is_shadow: bool,
    ) {
        let mut named = self.active_limiters().enumerate();
        match named.find(|(_, active)| active.name == *refusal.limiter()) {
            Some((place, active)) if is_shadow => {
                active.of_class(flow, |class| class.shadow_refused(costs.at(place)));
            }
            Some((place, active)) => active.count_refused(flow, costs.at(place)),
            None => {}
        }
    }
}

impl OriginQueue for Queue {
    fn left(&self) -> (&LastLeft, &[LimiterInstance]) {
        (&self.left, &self.instances)
    }

    /// Returns the shortest guard: a slot must be good for every limiter.
    fn guard(&self) -> Micros {
        self.active_limiters().map(|active| Micros::from(active.limiter().guard)).min().unwrap_or_default()
    }

    fn now(&self) -> Moment {
        self.instances[0].active.session.moment()
    }

    fn is_usable(&self, slot: &Slot, now: Moment) -> bool {
        match slot.source {
            Source::Store(epoch) => {
                now < Moment(self.lease.load(Ordering::Acquire))
                    && self.instances[0].active.session.is_usable(epoch)
            }
            Source::Local(outage) => self.outage.load(Ordering::Acquire) == outage,
            Source::Unlimited => self.outage.load(Ordering::Acquire) != 0,
        }
    }

    fn is_paused(&self, due: Moment, now: Moment) -> bool {
        if !self.is_paused.load(Ordering::Acquire) {
            return false;
        }
        self.inbox().paused.as_ref().is_some_and(|paused| paused.until > now && paused.holds(due))
    }

    fn limiters(&self) -> usize {
        self.instances.len()
    }

    fn settle(&self, taken: &[u64], charged: &[u64]) {
        self.expected_costs.settle(taken, charged);
    }

    fn follows_upstream(&self) -> bool {
        self.active_limiters().any(|active| active.limiter().follows_upstream)
    }

    fn permit_out(&self) {
        self.permits_out.fetch_add(1, Ordering::AcqRel);
    }

    fn has_waiting(&self) -> bool {
        self.waiting.count() > 0
    }

    fn permit_in(&self) {
        self.permits_out.fetch_sub(1, Ordering::AcqRel);
    }

    fn enter_flight(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    fn leave_flight(&self) {
        if self.in_flight.fetch_sub(1, Ordering::AcqRel) == IN_FLIGHT_LOW + 1 {
            self.wake.notify_one();
        }
    }

    fn count_used(&self, source: Source, flow: Flow, costs: &Costs) {
        for (place, instance) in self.instances.iter().enumerate() {
            let (active, cost) = (&instance.active, costs.at(place));
            let is_allowed = || active.limiter().on_store_failure == OnStoreFailure::Allow;
            active.of_class(flow, |class| match source {
                Source::Store(_) => class.granted(cost),
                Source::Local(_) if !is_allowed() => class.local(cost),
                Source::Local(_) | Source::Unlimited => class.allowed(cost),
            });
            instance.count_granted(cost);
        }
    }

    fn count_late(&self, late: Micros) {
        self.active_limiters().for_each(|active| active.metrics().lateness(late.to_duration()));
    }

    fn count_cancelled(&self, flow: Flow, costs: &Costs) {
        for (place, active) in self.active_limiters().enumerate() {
            active.of_class(flow, |class| class.cancelled(costs.at(place)));
        }
    }

    fn hand_back(&self, returned: Returned) {
        self.inbox().hand_back(returned);
        self.wake.notify_one();
    }

    fn report(&self, report: PermitReport) -> Result<(), PermitReport> {
        let mut inbox = self.inbox();
        if inbox.has_ended() {
            return Err(report);
        }
        match (report, &mut inbox.events.report) {
            (PermitReport::Signal(later), Some(before)) => before.add(later),
            (PermitReport::Signal(report), none) => *none = Some(report),
            (PermitReport::Refund(returned), _) => inbox.hand_back(returned),
        }
        drop(inbox);
        self.wake.notify_one();
        Ok(())
    }

    fn leave(&self, request: RequestId) {
        self.inbox().events.left.push(request);
        self.wake.notify_one();
    }

    fn exchange_left(&self) {
        self.inbox().events.left_exchanges += 1;
        self.wake.notify_one();
    }

    fn closed(&self) -> Refusal {
        Refusal::Closed { limiter: self.name() }
    }
}
