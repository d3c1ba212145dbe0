//! The worker of a queue: one task per queue and replica that owns its state and talks to the store.
//!
//! While a call is under way arrivals collect, and the next call books for all of them; an idle limiter
//! sends at once, so batching adds no delay. Slots that the store answers go into [cost_queues](super::cost_queue), and
//! the cost_queues hand them out when they are due. A worker that has had nothing to do for a while ends, and its queue
//! with it, unless a gate holds that.
//!
//! Invariants, kept by [`Worker::advance`] after every event:
//! - in each cost_queue, requests = slots held + slots asked for; what is over is given back, who is over is refused;
//! - no slot is handed out before the store's clock has surely reached it, or later than its guard
//!   (but see [`Waiter::late`]);
//! - while a slot of the store is held, the store is heard at least twice in a lease, so that a change of the
//!   limits is known before it voids anything.

mod calls;
mod ending;
mod hear;
mod settle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant, sleep_until};

use self::calls::Sent;
use self::ending::Ending;
use self::hear::Hearing;
use crate::clock::{Clock, Micros};
use crate::limiter::arithmetic::queue_order::Freed;
use crate::limiter::arithmetic::reserve::{Answer, Call, Holding};
use crate::limiter::model::limit::Permits;
use crate::limiter::queue::cost_queue::{CostQueue, LATE_MAX, Stage, Waiter};
use crate::limiter::queue::handle::{Arrival, Entered, Queue, Ticket};
use crate::limiter::queue::inbox::WorkerEvents;
use crate::limiter::queue::permit::{LatePermit, Permit, Returned, Slot, Source, Whose};
use crate::limiter::queue::prefetch::{Batch, Pace, PrefetchSnapshot};
use crate::limiter::queue::upstream_report::{Paused, PendingReport};
use crate::limiter::recovery::members::Fleet;
use crate::limiter::recovery::outage_fence::OutageFence;
use crate::limiter::registry::active_limiter::{LimiterInstance, StoreSession};
use crate::limiter::registry::queues::Queues;
use crate::limiter::store::clock::StoreClock;
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::store::{Failure, LimiterRef};

/// The most requests in one call: the server does nothing else meanwhile, some milliseconds where each has a slot of its own
/// (`benches/lua.rs`).
const BATCH_MAX: usize = 1000;

/// How long a worker sleeps when nothing is due. Any event wakes it before.
const IDLE: Duration = Duration::from_secs(3600);

/// What the workers of a replica share beside the store: who they are, and what they fall back on while it is away.
pub(in crate::limiter) struct Fallback {
    /// This replica, as the store tells it from others.
    pub(in crate::limiter) replica: u64,
    /// This replica's own memory.
    pub(in crate::limiter) store: MemoryStore,
    /// The clock of that.
    pub(in crate::limiter) clock: Clock,
    /// The replicas by which a limit is divided.
    pub(in crate::limiter) fleet: Fleet,
}

type CallInFlight = BoxFuture<'static, (Sent, Result<Answer, Failure>)>;

/// State in a store that may lose it: when it was there, and for each limiter until when it should be, by the store's clock.
#[derive(Default)]
struct Seen {
    at: Micros,
    until: Vec<Micros>,
}

/// A call for which nobody waits any more.
type LateCall = BoxFuture<'static, (Arc<[LimiterRef]>, Arc<Call>, Option<Answer>)>;

pub(in crate::limiter) struct Worker {
    shared: Arc<Queue>,
    queues: Arc<Queues>,
    session: Arc<StoreSession>,
    /// The limiters as of the next call.
    limiter_refs: Arc<[LimiterRef]>,
    /// The generation of each limiter's bookings, as last heard.
    known: Arc<[u64]>,
    clock: StoreClock,
    /// When the last call was sent that has been answered.
    heard: Instant,
    cost_queues: BTreeMap<Permits, CostQueue>,
    /// Requests for the next call.
    pending: VecDeque<Arrival>,
    /// Slots for the next call to give back, with the generation under which they were booked.
    give_back: VecDeque<(Holding, Arc<[u64]>)>,
    /// Slots that a change of the limits has voided, ascending, and their generation.
    void: VecDeque<(Slot, Permits)>,
    void_known: Arc<[u64]>,
    /// Slots to ask for in place of some that came too late.
    replace: BTreeMap<Permits, usize>,
    /// Cost queues in which a slot came too late. Those behind it are booked so that it fits nowhere but behind them all,
    /// which would waste its room; so the whole cost_queue is booked anew, and takes on the pace at which this
    /// replica really sends.
    rebook: BTreeSet<Permits>,
    /// Freed before the queue's last slot, as last heard.
    room: Option<Freed>,
    /// Such room for which nothing could be traded.
    fruitless: Option<Freed>,
    /// What the fleet had used of each limiter, as last heard.
    used: Box<[u64]>,
    /// The limiters' state in the store, as last seen.
    seen: Seen,
    /// How many requests come, for whom permits are put in stock.
    pace: Pace,
    /// What is in stock, as last seen, and until when.
    stocked: u64,
    stocked_until: Option<Instant>,
    /// What the limits can spare for that, as last heard.
    spare: u64,
    /// How far ahead the store is booked.
    outage_fence: OutageFence,
    /// What an upstream said and the store has not been told, and the telling of what was said before.
    said: Option<PendingReport>,
    hearing: Option<BoxFuture<'static, Hearing>>,
    /// Before that the store is told nothing that can wait.
    heard_next: Instant,
    /// Whether the store is being told of a pause: nothing is booked until it has heard.
    is_pausing: bool,
    /// The pause that slots must not be used in.
    paused: Option<Paused>,
    /// The store's epoch in which the slots were booked; zero before the first answer.
    epoch: u64,
    /// Until then the store grants nothing.
    settles_until: Option<Instant>,
    /// Whether the store has failed since it was last heard.
    is_local: bool,
    /// The error of the store that was last told of, and when.
    told: Option<(Instant, String)>,
    /// Whether slots may be held that were booked locally.
    has_served_locally: bool,
    /// Whether the store must hear of changed limits.
    limits_changed: bool,
    /// Whether a gate holds the queue.
    is_kept: bool,
    /// Since when there is nothing to do.
    idle_since: Option<Instant>,
    call: Option<CallInFlight>,
    /// Calls that were not answered in time and may be yet.
    late: FuturesUnordered<LateCall>,
}

impl Worker {
    pub(in crate::limiter) fn new(shared: Arc<Queue>, queues: Arc<Queues>) -> Worker {
        let session = shared.instances[0].active.session.clone();
        let limiter_refs: Arc<[LimiterRef]> =
            shared.instances.iter().map(LimiterInstance::limiter_ref).collect();
        let known: Arc<[u64]> = vec![0; limiter_refs.len()].into();
        let outage_fence = OutageFence::new(session.heartbeat());
        Worker {
            shared,
            queues,
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

    /// Works until nothing is left to do and nobody holds the queue, or until weir shuts down.
    pub(in crate::limiter) async fn run(mut self) {
        let _ending = Ending { shared: self.shared.clone(), queues: self.queues.clone() };
        // Moved only for an earlier instant, or when it has rung: each move takes a lock of the runtime.
        let mut alarm = Box::pin(sleep_until(Instant::now()));
        loop {
            let wake = self.next_wake();
            if wake < alarm.deadline() || alarm.is_elapsed() {
                alarm.as_mut().reset(wake);
            }
            if self.call.is_some() {
                self.shared.set_calling();
            }
            tokio::select! {
                biased;
                (sent, result) = answered(&mut self.call) => {
                    self.call = None;
                    self.settle(sent, result);
                }
                hearing = heard(&mut self.hearing) => {
                    self.hearing = None;
                    self.settle_hearing(hearing);
                }
                Some((limiter_refs, call, answer)) = self.late.next(), if !self.late.is_empty() => {
                    if let Some(answer) = answer {
                        self.settle_late(&limiter_refs, &call, &answer);
                    }
                }
                () = self.shared.woken() => {}
                () = alarm.as_mut() => {}
            }
            let news = self.shared.news(&mut self.pending, BATCH_MAX, Instant::now());
            if news.closing {
                // In a place of its own: there it is large, and every worker would have it.
                return Box::pin(self.close()).await;
            }
            self.advance(news);
            if self.is_over() && self.shared.end_if_idle() {
                return self.remember_use();
            }
        }
    }

    /// Restores the invariants after an event.
    fn advance(&mut self, news: WorkerEvents) {
        let now = Instant::now();
        self.is_kept = news.is_kept;
        if news.changed {
            self.make_limiter_refs();
            self.limits_changed = true;
        }
        if let Some(room) = news.room {
            self.room = Some(room);
        }
        self.paused = news.paused;
        self.take_said(news.said, now);
        if news.left {
            self.cost_queues.values_mut().for_each(CostQueue::forget_those_who_left);
        }
        self.notice_loss();
        self.refuse_who_cannot_wait(now);
        self.look_at_stock(news.arrived, news.stock, now);
        self.take_returned(news.returned, now);
        self.refuse_too_costly();
        self.hand_out(now);
        self.give_back_surplus();
        self.cost_queues.retain(|_, cost_queue| !cost_queue.is_empty());
        self.start_call(now);
        let first_came = self.cost_queues.values().filter_map(CostQueue::first_came).min();
        self.shared.set_waiting(u32::try_from(self.waiting()).unwrap_or(u32::MAX), first_came);
    }

    /// Counts who came, gives back what nobody took in time, and all of it where somebody waits or the limits change.
    fn look_at_stock(&mut self, arrived: u64, stock: PrefetchSnapshot, now: Instant) {
        let cost = self.pending.back().map(|arrival| arrival.cost);
        self.pace.count(arrived + stock.taken, cost, now, self.shared.guard());
        (self.stocked, self.stocked_until) = (stock.left, stock.until);
        stock.stale.into_iter().for_each(|batch| self.give_back_batch(batch));
        if self.stocked > 0 && (self.limits_changed || self.is_local || self.is_short(now)) {
            self.clear_stock();
        }
    }

    fn clear_stock(&mut self) {
        self.shared.clear_stock().into_iter().for_each(|batch| self.give_back_batch(batch));
        (self.stocked, self.stocked_until) = (0, None);
    }

    fn give_back_batch(&mut self, Batch { slot, cost, count, known, .. }: Batch) {
        if count > 0 {
            self.give_back.push_back((Holding { slot: slot.at, cost: cost.get(), count }, known));
        }
    }

    /// Whether somebody waits for the limits, and not only for the processor.
    fn is_short(&self, now: Instant) -> bool {
        self.cost_queues.values().any(|cost_queue| cost_queue.is_short(now))
    }

    /// What should be put in stock by the next call.
    fn stock_wanted(&self, now: Instant) -> Option<(Permits, u64)> {
        if self.is_local || self.limits_changed || self.is_short(now) || !self.void.is_empty() {
            return None;
        }
        self.pace.wanted(self.stocked, self.spare, now, self.shared.guard())
    }

    fn make_limiter_refs(&mut self) {
        self.limiter_refs = self.shared.instances.iter().map(LimiterInstance::limiter_ref).collect();
    }

    /// Refuses those who need more than the limits, as changed meanwhile, can ever hold.
    fn refuse_too_costly(&mut self) {
        let cost_max = self.shared.cost_max();
        for (cost, cost_queue) in self.cost_queues.range_mut((Bound::Excluded(cost_max), Bound::Unbounded)) {
            let refusal = self.shared.too_costly();
            for waiter in cost_queue.take_waiters() {
                self.shared.count_refused(&refusal, *cost, false);
                waiter.refuse(refusal.clone());
            }
        }
        if self.limits_changed {
            let pending = std::mem::take(&mut self.pending).into_iter();
            let (costly, kept) = pending.partition::<VecDeque<_>, _>(|arrival| arrival.cost > cost_max);
            self.pending = kept;
            costly.into_iter().for_each(|arrival| self.refuse(arrival, self.shared.too_costly()));
        }
    }

    fn waiting(&self) -> usize {
        self.cost_queues.values().map(CostQueue::waiting).sum()
    }

    fn take_returned(&mut self, returned: Vec<Returned>, now: Instant) {
        let guard = self.shared.guard();
        for returned in returned {
            match returned {
                Returned::Unused { slot, cost } => {
                    let good =
                        !slot.is_late(&self.clock_of(slot.source, now), now, guard) && !self.holds(slot.due);
                    match self.cost_queues.get_mut(&cost) {
                        Some(cost_queue) if good && cost_queue.waiting() > 0 => cost_queue.hold(slot),
                        _ => self.give_back(slot, cost),
                    }
                }
                Returned::Late(LatePermit { slot, cost, arrived, deadline, late, is_paused, turn }) => {
                    self.give_back(slot, cost);
                    let stage = Stage::Waiting { approach: None, turn };
                    let mut waiter = Waiter { arrived, deadline, late, stage };
                    waiter.has_missed(now);
                    self.cost_queues.entry(cost).or_default().join_again(waiter);
                    self.want(cost);
                    // In a pause all bookings move, and keep their order by that.
                    if !is_paused {
                        self.rebook.insert(cost);
                    }
                }
                Returned::Refund { slot, cost } => self.give_back(slot, cost),
            }
        }
    }

    /// Asks for one more slot with the next call.
    fn want(&mut self, cost: Permits) {
        self.cost_queues.entry(cost).or_default().wanted += 1;
        *self.replace.entry(cost).or_default() += 1;
    }

    fn clock_of(&self, source: Source, now: Instant) -> StoreClock {
        match source {
            Source::Store => self.clock,
            Source::Local | Source::Unlimited => {
                StoreClock::new(now, now, self.queues.fallback.clock.at(now))
            }
        }
    }

    /// The store may have lost its memory, as somebody else was told: then no slot is used that it held.
    fn notice_loss(&mut self) {
        let epoch = self.session.epoch.load(Ordering::Acquire);
        if self.epoch != 0 && epoch > self.epoch {
            self.lose_slots();
            self.epoch = epoch;
        }
    }

    /// Forgets every slot of the store, and asks for as many anew.
    fn lose_slots(&mut self) {
        // Those in stock have come and may be used: they are written back with all that has.
        self.give_back.clear();
        self.rebook.clear();
        (self.room, self.fruitless) = (None, None);
        self.shared.learn(None);
        let void: Vec<Permits> = self.void.drain(..).map(|(_, cost)| cost).collect();
        void.into_iter().for_each(|cost| *self.replace.entry(cost).or_default() += 1);
        for (cost, cost_queue) in &mut self.cost_queues {
            let lost = cost_queue.take_void(|_| true).len();
            cost_queue.wanted += lost;
            if lost > 0 {
                *self.replace.entry(*cost).or_default() += lost;
            }
        }
    }

    /// Refuses those for whom the store settles too long.
    fn refuse_who_cannot_wait(&mut self, now: Instant) {
        let Some(until) = self.settles_until.filter(|until| *until > now) else { return };
        let (waiting, hasty): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|arrival| arrival.deadline >= until);
        self.pending = waiting;
        let refusal = self.too_far(Some(Micros::from(until - now)));
        hasty.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
    }

    /// Whether a slot lies in a pause that has not ended.
    fn holds(&self, due: Instant) -> bool {
        self.paused.as_ref().is_some_and(|paused| paused.holds(due))
    }

    /// Hands every slot that is due to the first request of its cost_queue. One that lies in a pause waits for the store to say where
    /// it is to be used instead, or for the end of the pause.
    fn hand_out(&mut self, now: Instant) {
        self.notice_loss();
        self.paused.take_if(|paused| paused.until <= now);
        let guard = self.shared.guard();
        let costs: Vec<Permits> = self.cost_queues.keys().copied().collect();
        let mut room = self.shared.sending_room();
        for cost in costs {
            let mut is_first_late = true;
            while room > 0
                && !self
                    .cost_queues
                    .get(&cost)
                    .and_then(CostQueue::next_due)
                    .is_some_and(|due| self.holds(due))
                && let Some(slot) =
                    self.cost_queues.get_mut(&cost).and_then(|cost_queue| cost_queue.take_due(now))
            {
                let clock = self.clock_of(slot.source, now);
                let is_late = slot.is_late(&clock, now, guard);
                let Some(first) = self.cost_queues.get_mut(&cost).and_then(CostQueue::first_mut) else {
                    break;
                };
                if is_late && (first.late < LATE_MAX || !is_first_late) {
                    first.late += u8::from(is_first_late);
                    first.has_missed(now);
                    is_first_late = false;
                    self.shared.count_late(slot.lateness(&clock, now));
                    self.give_back(slot, cost);
                    self.want(cost);
                    self.rebook.insert(cost);
                } else if let Some(waiter) = self.cost_queues.get_mut(&cost).and_then(CostQueue::take_first) {
                    self.grant(waiter, slot, clock, cost, now);
                    room -= 1;
                }
            }
        }
    }

    fn grant(&self, waiter: Waiter, slot: Slot, clock: StoreClock, cost: Permits, now: Instant) {
        let waited = match waiter.stage {
            Stage::Asking(_) => Duration::ZERO,
            Stage::Waiting { .. } => now - waiter.arrived,
        };
        self.shared.count_waited(waited);
        let Waiter { arrived, deadline, late, .. } = waiter;
        let whose = Whose { arrived, deadline, waited, late };
        waiter.grant(Permit::new(self.shared.clone(), slot, clock, cost, whose).sending());
    }

    fn give_back_surplus(&mut self) {
        let mut surplus = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            surplus.extend(cost_queue.take_surplus().into_iter().map(|slot| (slot, *cost)));
        }
        for (slot, cost) in surplus {
            self.give_back(slot, cost);
        }
    }

    /// Tells those who have just been booked for that they wait.
    fn tell_waiting(&mut self) {
        for cost_queue in self.cost_queues.values_mut() {
            for waiter in cost_queue.asking() {
                let (approach, approaching) = oneshot::channel();
                let (turn, turned) = oneshot::channel();
                let waiting = Stage::Waiting { approach: Some(approach), turn };
                if let Stage::Asking(entry) = std::mem::replace(&mut waiter.stage, waiting) {
                    let ticket = Ticket::new(self.shared.clone(), approaching, turned);
                    // Whoever has left drops its ticket, and the worker hears of that.
                    let _ = entry.send(Ok(Entered::Waiting(ticket)));
                }
            }
        }
    }

    fn must_hear(&self) -> bool {
        // What a store that is away could not take back is offered again with each heartbeat, not at once.
        !self.void.is_empty()
            || !self.give_back.is_empty()
            || self.cost_queues.values().any(CostQueue::holds_booked)
    }

    fn next_wake(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake = now + IDLE;
        let has_room = self.shared.sending_room() > 0;
        let paused = self.paused.clone();
        for cost_queue in self.cost_queues.values_mut() {
            let near = cost_queue.approach(now);
            // While as many are being sent as may be, one that has been wakes the worker.
            let due = cost_queue.next_due().filter(|_| has_room);
            let due =
                due.map(|due| paused.as_ref().filter(|paused| paused.holds(due)).map_or(due, |it| it.until));
            wake = [due, near].into_iter().flatten().fold(wake, Instant::min);
        }
        if self.call.is_none() && !self.is_pausing && self.must_hear() {
            wake = wake.min(self.heard + self.session.heartbeat());
        }
        if self.said.is_some() && self.hearing.is_none() {
            wake = wake.min(self.heard_next);
        }
        if let Some(until) = self.settles_until.filter(|until| *until > now) {
            wake = wake.min(until);
        }
        // While there is a stock, it is looked at in each step of the pace.
        if let Some(until) = self.stocked_until {
            wake = wake.min(until).min(self.pace.next(self.shared.guard()));
        }
        if let Some(since) = self.idle_since {
            wake = wake.min(since + self.queues.linger);
        }
        wake
    }
}

async fn heard(hearing: &mut Option<BoxFuture<'static, Hearing>>) -> Hearing {
    match hearing {
        Some(hearing) => hearing.await,
        None => std::future::pending().await,
    }
}

async fn answered(call: &mut Option<CallInFlight>) -> (Sent, Result<Answer, Failure>) {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}
