//! The state of a queue's worker, and the helpers that several parts of its work share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Duration, Instant};

use super::siblings::Siblings;
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Answer, Call, Freed, Holding, Permits, ReportResult, UpstreamReport};
use crate::limiter::queue::active_limiter::LimiterInstance;
use crate::limiter::queue::cost_queue::CostQueue;
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::inbox::Arrival;
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::prefetch::Pace;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::upstream_report::PendingReport;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::outage_fence::OutageFence;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::store::clock::StoreClock;
use crate::limiter::store::{Failure, StoreError};

/// The most requests in one call. The server does nothing else meanwhile: some milliseconds, if each has a slot of its own
/// (`benches/lua.rs`).
pub(super) const BATCH_MAX: usize = 1000;

/// A call to the store that is under way.
pub(super) type CallInFlight = BoxFuture<'static, (SentCall, Result<Answer, Failure>)>;

/// A call that failed and may still complete, which then has booked slots that nobody wants.
pub(super) type LateCall = BoxFuture<'static, (Arc<[LimiterRef]>, Arc<Call>, Option<Answer>)>;

/// The results of the reports to the store, with the place of the limiter that each is about.
pub(super) type Reports = Vec<(usize, LimiterRef, UpstreamReport, Result<ReportResult, StoreError>)>;

/// A call, with the requests and slots that it was made for.
pub(super) struct SentCall {
    pub(super) call: Arc<Call>,
    /// The limiters as they were at the call.
    pub(super) limiter_refs: Arc<[LimiterRef]>,
    pub(super) at: Instant,
    /// The slots to reschedule and their costs, in the call's order.
    pub(super) reschedule: Vec<(Slot, Permits)>,
    /// The number of slots of each cost that are asked for in place of others. They come first in the call's runs.
    pub(super) replace: Vec<(Permits, usize)>,
    /// The new requests, in the order of the call's runs.
    pub(super) arrivals: Vec<Arrival>,
    /// The earliest slot that is given back to be traded for an earlier one.
    pub(super) traded: Option<Micros>,
    /// The cost of each permit to prefetch. They come last in the call's runs.
    pub(super) prefetch: Option<Permits>,
}

/// The worker of a queue.
pub(in crate::limiter) struct Worker {
    pub(super) queue: Arc<Queue>,
    pub(super) siblings: Arc<dyn Siblings>,
    pub(super) fallback: Arc<Fallback>,
    /// How long the worker stays when it has nothing to do and nobody holds its queue.
    pub(super) linger: Duration,
    pub(super) session: Arc<StoreSession>,
    /// The limiters as of the next call.
    pub(super) limiter_refs: Arc<[LimiterRef]>,
    /// The generation of each limiter's limits, as last answered.
    pub(super) generations: Arc<[u64]>,
    pub(super) clock: StoreClock,
    /// When the latest answered call was sent.
    pub(super) last_contact: Instant,
    pub(super) cost_queues: BTreeMap<Permits, CostQueue>,
    /// The requests for the next call.
    pub(super) pending: VecDeque<Arrival>,
    /// The slots for the next call to give back, with the generations under which they were booked.
    pub(super) give_back: VecDeque<(Holding, Arc<[u64]>)>,
    /// The slots that a change of the limits has voided, ascending. The next call reschedules them.
    pub(super) reschedule: VecDeque<(Slot, Permits)>,
    /// The generations under which the slots to reschedule were booked.
    pub(super) reschedule_generations: Arc<[u64]>,
    /// The number of slots of each cost to ask for in place of others.
    pub(super) replace: BTreeMap<Permits, usize>,
    /// The cost queues in which a slot came too late. Its replacement fits only behind all other slots, so that a permit would
    /// be lost with each late slot. So the whole cost queue is booked anew, at the pace at which this replica really sends.
    pub(super) rebook: BTreeSet<Permits>,
    /// Permits that were freed before the queue's last slot, as last announced or answered.
    pub(super) freed: Option<Freed>,
    /// Freed permits for which no slot could be traded.
    pub(super) fruitless_freed: Option<Freed>,
    /// The permits of each limiter in use by the fleet, as last answered.
    pub(super) used: Box<[u64]>,
    /// The rate of arrivals, by which permits are prefetched.
    pub(super) pace: Pace,
    /// The number of prefetched permits, as last seen.
    pub(super) prefetched: u64,
    /// When the oldest prefetched permits become too old.
    pub(super) prefetched_until: Option<Instant>,
    /// The permits that the limits allow to prefetch, as last answered.
    pub(super) prefetch_budget: u64,
    pub(super) outage_fence: OutageFence,
    /// Signals of the upstream that were not reported to the store yet.
    pub(super) pending_report: Option<PendingReport>,
    /// The report of earlier signals, under way.
    pub(super) reporting: Option<BoxFuture<'static, Reports>>,
    /// The instant before which a report that can wait is not sent.
    pub(super) report_not_before: Instant,
    /// True while a pause is being reported. Nothing is booked meanwhile.
    pub(super) is_pausing: bool,
    /// The pause in which no slot may be used.
    pub(super) paused: Option<Paused>,
    /// The store's epoch in which the slots were booked; zero before the first answer.
    pub(super) epoch: u64,
    /// The instant until which the store grants nothing.
    pub(super) settles_until: Option<Instant>,
    /// True if the latest call failed.
    pub(super) is_local: bool,
    /// The latest logged error of the store, and when it was logged.
    pub(super) last_warning: Option<(Instant, String)>,
    /// True if slots may be held that were booked locally.
    pub(super) has_served_locally: bool,
    /// True if the store does not know of changed limits yet.
    pub(super) limits_changed: bool,
    /// True while a guard keeps the queue from ending.
    pub(super) is_held: bool,
    /// Since when there is nothing to do.
    pub(super) idle_since: Option<Instant>,
    pub(super) call: Option<CallInFlight>,
    /// Failed calls that may still complete.
    pub(super) late_calls: FuturesUnordered<LateCall>,
}

impl Worker {
    /// Creates the worker of a queue. It stays for `linger` when it has nothing to do.
    pub(in crate::limiter) fn new(
        queue: Arc<Queue>,
        siblings: Arc<dyn Siblings>,
        fallback: Arc<Fallback>,
        linger: Duration,
    ) -> Worker {
        let session = queue.instances[0].active.session.clone();
        let limiter_refs: Arc<[LimiterRef]> =
            queue.instances.iter().map(LimiterInstance::limiter_ref).collect();
        let generations: Arc<[u64]> = vec![0; limiter_refs.len()].into();
        let outage_fence = OutageFence::new(session.heartbeat());
        Worker {
            queue,
            siblings,
            fallback,
            linger,
            limiter_refs,
            generations: generations.clone(),
            clock: session.clock.known(),
            session,
            last_contact: Instant::now(),
            cost_queues: BTreeMap::new(),
            pending: VecDeque::new(),
            give_back: VecDeque::new(),
            reschedule: VecDeque::new(),
            reschedule_generations: generations,
            replace: BTreeMap::new(),
            rebook: BTreeSet::new(),
            freed: None,
            fruitless_freed: None,
            used: Box::default(),
            pace: Pace::new(),
            prefetched: 0,
            prefetched_until: None,
            prefetch_budget: 0,
            outage_fence,
            pending_report: None,
            reporting: None,
            report_not_before: Instant::now(),
            is_pausing: false,
            paused: None,
            epoch: 0,
            settles_until: None,
            is_local: false,
            last_warning: None,
            has_served_locally: false,
            limits_changed: false,
            is_held: false,
            idle_since: None,
            call: None,
            late_calls: FuturesUnordered::new(),
        }
    }

    /// Takes on the limits as configured now.
    pub(super) fn make_limiter_refs(&mut self) {
        self.limiter_refs = self.queue.instances.iter().map(LimiterInstance::limiter_ref).collect();
    }

    /// Returns how many requests wait.
    pub(super) fn waiting(&self) -> usize {
        self.cost_queues.values().map(CostQueue::waiting).sum()
    }

    /// Returns whether a request waits for the limits, and not only for the processor.
    pub(super) fn is_short(&self, now: Instant) -> bool {
        self.cost_queues.values().any(|cost_queue| cost_queue.is_short(now))
    }

    /// Asks for one more slot with the next call.
    pub(super) fn want(&mut self, cost: Permits) {
        self.cost_queues.entry(cost).or_default().wanted += 1;
        *self.replace.entry(cost).or_default() += 1;
    }

    /// Puts a slot that was asked for into its cost queue.
    pub(super) fn hold_wanted(&mut self, cost: Permits, slot: Slot) {
        let cost_queue = self.cost_queues.entry(cost).or_default();
        cost_queue.wanted = cost_queue.wanted.saturating_sub(1);
        cost_queue.hold(slot);
    }

    /// Returns the clock by which the slots of a source are due.
    pub(super) fn clock_of(&self, source: Source, now: Instant) -> StoreClock {
        match source {
            Source::Store => self.clock,
            Source::Local | Source::Unlimited => StoreClock::new(now, now, self.fallback.clock.at(now)),
        }
    }

    /// Returns whether a slot lies in a pause that has not ended.
    pub(super) fn is_in_pause(&self, due: Instant) -> bool {
        self.paused.as_ref().is_some_and(|paused| paused.holds(due))
    }
}
