//! The state of a queue's worker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Duration, Instant};

use super::siblings::Siblings;
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::call::Answer;
use crate::limiter::model::call::Call;
use crate::limiter::model::call::Freed;
use crate::limiter::model::call::Holding;
use crate::limiter::model::limit::Permits;
use crate::limiter::model::upstream_report::ReportResult;
use crate::limiter::model::upstream_report::UpstreamReport;
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

/// The most requests in one call: the server does nothing else meanwhile, some milliseconds where each has a slot of its own
/// (`benches/lua.rs`).
pub(super) const BATCH_MAX: usize = 1000;

pub(super) type CallInFlight = BoxFuture<'static, (Sent, Result<Answer, Failure>)>;

/// State in a store that may lose it: when it was there, and for each limiter until when it should be, by the store's clock.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) at: Micros,
    pub(super) until: Vec<Micros>,
}

/// A call for which nobody waits any more.
pub(super) type LateCall = BoxFuture<'static, (Arc<[LimiterRef]>, Arc<Call>, Option<Answer>)>;

/// A call, and for whom it was made.
pub(super) struct Sent {
    pub(super) call: Arc<Call>,
    /// For which limiters, as they were then.
    pub(super) limiter_refs: Arc<[LimiterRef]>,
    pub(super) at: Instant,
    /// The cost of each slot to exchange, in order.
    pub(super) exchange: Vec<(Slot, Permits)>,
    /// Slots asked for in place of others. They come first in the runs.
    pub(super) replace: Vec<(Permits, usize)>,
    /// The new requests, in the order of the runs.
    pub(super) arrivals: Vec<Arrival>,
    /// The earliest slot that is given back to be traded for an earlier one.
    pub(super) traded: Option<Micros>,
    /// The cost of each permit that is asked for beyond that, to lie in stock. They come last in the runs.
    pub(super) stock: Option<Permits>,
}

/// What became of what was said, for each limiter that it concerns.
pub(super) type Hearing = Vec<(usize, LimiterRef, UpstreamReport, Result<ReportResult, StoreError>)>;

pub(in crate::limiter) struct Worker {
    pub(super) shared: Arc<Queue>,
    pub(super) siblings: Arc<dyn Siblings>,
    pub(super) fallback: Arc<Fallback>,
    /// How long the worker stays when it has nothing to do and nobody holds its queue.
    pub(super) linger: Duration,
    pub(super) session: Arc<StoreSession>,
    /// The limiters as of the next call.
    pub(super) limiter_refs: Arc<[LimiterRef]>,
    /// The generation of each limiter's bookings, as last heard.
    pub(super) known: Arc<[u64]>,
    pub(super) clock: StoreClock,
    /// When the last call was sent that has been answered.
    pub(super) heard: Instant,
    pub(super) cost_queues: BTreeMap<Permits, CostQueue>,
    /// Requests for the next call.
    pub(super) pending: VecDeque<Arrival>,
    /// Slots for the next call to give back, with the generation under which they were booked.
    pub(super) give_back: VecDeque<(Holding, Arc<[u64]>)>,
    /// Slots that a change of the limits has voided, ascending, and their generation.
    pub(super) void: VecDeque<(Slot, Permits)>,
    pub(super) void_known: Arc<[u64]>,
    /// Slots to ask for in place of some that came too late.
    pub(super) replace: BTreeMap<Permits, usize>,
    /// Cost queues in which a slot came too late. Those behind it are booked so that it fits nowhere but behind them all,
    /// which would waste its room; so the whole cost_queue is booked anew, and takes on the pace at which this
    /// replica really sends.
    pub(super) rebook: BTreeSet<Permits>,
    /// Freed before the queue's last slot, as last heard.
    pub(super) room: Option<Freed>,
    /// Such room for which nothing could be traded.
    pub(super) fruitless: Option<Freed>,
    /// What the fleet had used of each limiter, as last heard.
    pub(super) used: Box<[u64]>,
    /// The limiters' state in the store, as last seen.
    pub(super) seen: Seen,
    /// How many requests come, for whom permits are put in stock.
    pub(super) pace: Pace,
    /// What is in stock, as last seen, and until when.
    pub(super) stocked: u64,
    pub(super) stocked_until: Option<Instant>,
    /// What the limits can spare for that, as last heard.
    pub(super) spare: u64,
    /// How far ahead the store is booked.
    pub(super) outage_fence: OutageFence,
    /// What an upstream said and the store has not been told, and the telling of what was said before.
    pub(super) said: Option<PendingReport>,
    pub(super) hearing: Option<BoxFuture<'static, Hearing>>,
    /// Before that the store is told nothing that can wait.
    pub(super) heard_next: Instant,
    /// Whether the store is being told of a pause: nothing is booked until it has heard.
    pub(super) is_pausing: bool,
    /// The pause that slots must not be used in.
    pub(super) paused: Option<Paused>,
    /// The store's epoch in which the slots were booked; zero before the first answer.
    pub(super) epoch: u64,
    /// Until then the store grants nothing.
    pub(super) settles_until: Option<Instant>,
    /// Whether the store has failed since it was last heard.
    pub(super) is_local: bool,
    /// The error of the store that was last told of, and when.
    pub(super) told: Option<(Instant, String)>,
    /// Whether slots may be held that were booked locally.
    pub(super) has_served_locally: bool,
    /// Whether the store must hear of changed limits.
    pub(super) limits_changed: bool,
    /// Whether a gate holds the queue.
    pub(super) is_kept: bool,
    /// Since when there is nothing to do.
    pub(super) idle_since: Option<Instant>,
    pub(super) call: Option<CallInFlight>,
    /// Calls that were not answered in time and may be yet.
    pub(super) late: FuturesUnordered<LateCall>,
}

impl Worker {
    pub(in crate::limiter) fn new(
        shared: Arc<Queue>,
        siblings: Arc<dyn Siblings>,
        fallback: Arc<Fallback>,
        linger: Duration,
    ) -> Worker {
        let session = shared.instances[0].active.session.clone();
        let limiter_refs: Arc<[LimiterRef]> =
            shared.instances.iter().map(LimiterInstance::limiter_ref).collect();
        let known: Arc<[u64]> = vec![0; limiter_refs.len()].into();
        let outage_fence = OutageFence::new(session.heartbeat());
        Worker {
            shared,
            siblings,
            fallback,
            linger,
            limiter_refs,
            known: known.clone(),
            clock: session.clock.known(),
            session,
            heard: Instant::now(),
            cost_queues: BTreeMap::new(),
            pending: VecDeque::new(),
            give_back: VecDeque::new(),
            void: VecDeque::new(),
            void_known: known,
            replace: BTreeMap::new(),
            rebook: BTreeSet::new(),
            room: None,
            fruitless: None,
            used: Box::default(),
            seen: Seen::default(),
            pace: Pace::new(),
            stocked: 0,
            stocked_until: None,
            spare: 0,
            outage_fence,
            said: None,
            hearing: None,
            heard_next: Instant::now(),
            is_pausing: false,
            paused: None,
            epoch: 0,
            settles_until: None,
            is_local: false,
            told: None,
            has_served_locally: false,
            limits_changed: false,
            is_kept: false,
            idle_since: None,
            call: None,
            late: FuturesUnordered::new(),
        }
    }

    pub(super) fn make_limiter_refs(&mut self) {
        self.limiter_refs = self.shared.instances.iter().map(LimiterInstance::limiter_ref).collect();
    }

    pub(super) fn waiting(&self) -> usize {
        self.cost_queues.values().map(CostQueue::waiting).sum()
    }

    /// Whether somebody waits for the limits, and not only for the processor.
    pub(super) fn is_short(&self, now: Instant) -> bool {
        self.cost_queues.values().any(|cost_queue| cost_queue.is_short(now))
    }

    /// Asks for one more slot with the next call.
    pub(super) fn want(&mut self, cost: Permits) {
        self.cost_queues.entry(cost).or_default().wanted += 1;
        *self.replace.entry(cost).or_default() += 1;
    }

    /// A slot that was wanted has come.
    pub(super) fn arrived_slot(&mut self, cost: Permits, slot: Slot) {
        let cost_queue = self.cost_queues.entry(cost).or_default();
        cost_queue.wanted = cost_queue.wanted.saturating_sub(1);
        cost_queue.hold(slot);
    }

    pub(super) fn clock_of(&self, source: Source, now: Instant) -> StoreClock {
        match source {
            Source::Store => self.clock,
            Source::Local | Source::Unlimited => StoreClock::new(now, now, self.fallback.clock.at(now)),
        }
    }

    /// Whether a slot lies in a pause that has not ended.
    pub(super) fn holds(&self, due: Instant) -> bool {
        self.paused.as_ref().is_some_and(|paused| paused.holds(due))
    }
}
