//! The mailbox of a queue's worker, under one short lock.
//!
//! A worker that has nothing to do ends. It closes the inbox in the same moment in which it finds it empty. So a request is
//! either seen by the worker, or finds the inbox closed and makes a new queue.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Costs, Freed, Refusal};
use crate::limiter::queue::pause::{Paused, in_pause};
use crate::limiter::queue::permit::Returned;
use crate::limiter::queue::prefetch::{Prefetch, PrefetchSnapshot};
use crate::limiter::queue::refusal_cache::{KEPT_FOR, RefusalCache};
use crate::limiter::queue::request::{Arrival, RequestId};
use crate::limiter::queue::ticket::Entered;
use crate::limiter::queue::upstream_report::PendingReport;

/// The most arrivals in the inbox and at the worker that no call has taken yet: those of a replica during a store's whole
/// deadline, at 100 000 requests a second.
const INTAKE_MAX: usize = 16_384;

/// The capacity that an empty intake keeps: a batch is about as large under load.
const INTAKE_KEPT: usize = 1024;

/// The most refusals within [`KEPT_FOR`], a thousand a second, for which the store is asked each time.
const ASKED_MAX: u64 = 100;

/// The most requests that are refused from the cache before the store is asked again.
const BUDGET_MAX: u64 = 10_000;

/// The receiver of the answer to an arrival.
pub(in crate::limiter) enum Caller {
    /// A request.
    Request(oneshot::Sender<Result<Entered, Refusal>>),
    /// Nobody: a limiter that only counts is charged.
    Shadow,
}

/// The phase of a queue, which decides whether it takes requests.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::limiter) enum Phase {
    /// The queue takes requests.
    #[default]
    Open,
    /// weir is shutting down: the worker is to refuse all requests and to end.
    Closing,
    /// The worker has ended: nothing is taken any more.
    Ended,
}

/// The mailbox of a queue's worker.
#[derive(Default)]
pub(in crate::limiter) struct Inbox {
    phase: Phase,
    /// The number of guards that keep the queue from ending.
    holders: u32,
    arrivals: VecDeque<Arrival<Caller>>,
    /// The number of arrivals at the worker that no call has taken yet.
    pending: usize,
    pub(in crate::limiter) events: InboxEvents,
    /// The pause that a limiter of the queue is in.
    pub(in crate::limiter) paused: Option<Paused>,
    refusal_cache: Option<Box<RefusalCache>>,
    refusals: RefusalRate,
    pub(in crate::limiter) prefetch: Prefetch,
    /// True while the worker waits for an answer of the store. The worker looks into the inbox afterwards, so an arrival
    /// need not wake it. Set when a call is under way, and cleared with each look.
    pub(in crate::limiter) is_calling: bool,
}

/// The events since the worker's last look, but for arrivals.
#[derive(Default)]
pub(in crate::limiter) struct InboxEvents {
    /// Bounded by the permits and tickets that are out.
    pub(in crate::limiter) returned: Vec<Returned>,
    /// The waiting requests that may have left. Bounded by the tickets that were out.
    pub(in crate::limiter) left: Vec<RequestId>,
    /// How many requests have left whose permits were exchanged: nobody outside knows their numbers.
    pub(in crate::limiter) left_exchanges: usize,
    /// True if the limits have changed, or a pause has begun or ended, by which the store moves bookings.
    pub(in crate::limiter) reconfigures: bool,
    /// The instant of the store's clock as of which bookings of the queue were moved, or are to be moved by the next call.
    pub(in crate::limiter) moved: Option<Micros>,
    /// Freed permits that another replica announced.
    pub(in crate::limiter) freed: Option<Freed>,
    /// The merged signals of the upstream.
    pub(in crate::limiter) report: Option<PendingReport>,
}

/// A queue as its worker sees it after an event.
pub(in crate::limiter) struct InboxSnapshot {
    pub(in crate::limiter) events: InboxEvents,
    pub(in crate::limiter) phase: Phase,
    pub(in crate::limiter) holders: u32,
    pub(in crate::limiter) paused: Option<Paused>,
    pub(in crate::limiter) prefetch: PrefetchSnapshot,
}

/// The events that have come when a queue ends.
pub(in crate::limiter) struct LastEvents {
    pub(in crate::limiter) arrivals: VecDeque<Arrival<Caller>>,
    pub(in crate::limiter) returned: Vec<Returned>,
    /// The merged signals of the upstream.
    pub(in crate::limiter) report: Option<PendingReport>,
}

/// The number of requests that were refused by the store or spread, counted in steps of [`KEPT_FOR`].
#[derive(Default)]
struct RefusalRate {
    since: Option<Moment>,
    count: u64,
    /// The count of the step before.
    before: u64,
}

impl RefusalRate {
    fn add(&mut self, count: u64, now: Moment) {
        match self.since {
            Some(since) if now < since + KEPT_FOR => self.count += count,
            Some(since) => {
                self.before = if now < since + KEPT_FOR + KEPT_FOR { self.count } else { 0 };
                (self.since, self.count) = (Some(now), count);
            }
            None => (self.since, self.count) = (Some(now), count),
        }
    }
}

/// The reason why an arrival was not taken.
pub(in crate::limiter) enum Unsent {
    /// The worker has ended.
    Ended,
    /// The intake is full for a request of these costs.
    Full(Costs),
}

impl Inbox {
    /// Refuses a request from the cache; `None` where the store must be asked.
    pub(in crate::limiter) fn refuse(&mut self, arrival: &Arrival<Caller>) -> Option<Refusal> {
        let Arrival { ref costs, deadline, arrived: now, .. } = *arrival;
        let cache = self.refusal_cache.as_mut()?;
        let refusal = cache.refuse(costs.largest(), deadline, now)?;
        // Those that are told the same may all be of one caller, for whom nothing is to be reserved.
        self.refusals.add(u64::from(cache.is_spread()), now);
        Some(in_pause(refusal, self.paused.as_ref(), deadline))
    }

    pub(in crate::limiter) fn set_refusal_cache(&mut self, cache: Option<Box<RefusalCache>>) {
        self.refusal_cache = cache;
    }

    /// Counts requests that the store has refused.
    pub(in crate::limiter) fn count_refused(&mut self, count: u64, now: Moment) {
        self.refusals.add(count, now);
    }

    /// Returns how many requests are likely to be refused and spread within [`KEPT_FOR`]; zero if they are few enough to ask the
    /// store each time.
    pub(in crate::limiter) fn refusal_budget(&mut self, now: Moment) -> u64 {
        self.refusals.add(0, now);
        // One burst is not enough: a budget that is not used up leaves instants at which no request comes back.
        let lately = self.refusals.before;
        if lately > ASKED_MAX { lately.min(BUDGET_MAX) } else { 0 }
    }

    pub(in crate::limiter) fn push(&mut self, arrival: Arrival<Caller>) -> Result<(), Unsent> {
        if self.has_ended() {
            return Err(Unsent::Ended);
        }
        if self.arrivals.len() + self.pending >= INTAKE_MAX {
            return Err(Unsent::Full(arrival.costs));
        }
        self.arrivals.push_back(arrival);
        Ok(())
    }

    pub(in crate::limiter) fn hand_back(&mut self, returned: Returned) {
        if !self.has_ended() {
            self.events.returned.push(returned);
        }
    }

    /// Counts one more holder. Returns false if the queue has ended.
    pub(in crate::limiter) fn hold(&mut self) -> bool {
        self.holders += u32::from(!self.has_ended());
        !self.has_ended()
    }

    pub(in crate::limiter) fn release(&mut self) {
        self.holders -= 1;
    }

    pub(in crate::limiter) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Asks the worker to refuse all requests and to end.
    pub(in crate::limiter) fn close(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closing;
        }
    }

    /// Takes all events, and puts the arrivals into the empty `arrivals`. The worker has `pending` others.
    pub(in crate::limiter) fn take_events(
        &mut self,
        arrivals: &mut VecDeque<Arrival<Caller>>,
        pending: usize,
        now: Moment,
    ) -> InboxSnapshot {
        self.is_calling = false;
        self.paused.take_if(|paused| paused.until <= now);
        // The two queues take turns, so that nothing is allocated under load.
        std::mem::swap(arrivals, &mut self.arrivals);
        self.arrivals.shrink_to(INTAKE_KEPT);
        self.pending = pending + arrivals.len();
        InboxSnapshot {
            events: std::mem::take(&mut self.events),
            phase: self.phase,
            holders: self.holders,
            paused: self.paused.clone(),
            prefetch: self.prefetch.snapshot(now),
        }
    }

    /// Ends the queue if nothing has come and nobody holds it. Returns whether it has ended.
    pub(in crate::limiter) fn end_if_idle(&mut self) -> bool {
        let is_idle = self.holders == 0
            && self.arrivals.is_empty()
            && self.events.returned.is_empty()
            && self.events.report.is_none();
        if is_idle {
            self.phase = Phase::Ended;
        }
        is_idle
    }

    /// Ends the queue, and takes out what has come.
    pub(in crate::limiter) fn end(&mut self) -> LastEvents {
        self.phase = Phase::Ended;
        let events = std::mem::take(&mut self.events);
        LastEvents {
            arrivals: std::mem::take(&mut self.arrivals),
            returned: events.returned,
            report: events.report,
        }
    }
}
