//! What waits to be looked at by a queue's worker, under one short lock.
//!
//! A worker that has nothing to do ends. It closes the inbox in the same moment in which it finds it empty, so whoever
//! comes is either seen by it or finds the inbox closed, and makes a new queue.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::limiter::model::call::Freed;
use crate::limiter::model::limit::Permits;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::pause::in_pause;
use crate::limiter::queue::permit::Returned;
use crate::limiter::queue::prefetch::{Prefetch, PrefetchSnapshot};
use crate::limiter::queue::refusal_cache::{LEARNT_FOR, RefusalCache};
use crate::limiter::queue::ticket::Entered;
use crate::limiter::queue::upstream_report::PendingReport;

/// Requests that may lie between those who enter and the worker while a call to the store is under way: what a
/// replica takes in during a store's whole deadline at 100 000 requests a second.
const INTAKE_MAX: usize = 16_384;

/// What an intake of more places gives back when it is empty: a batch is about as large under load.
const INTAKE_KEPT: usize = 1024;

/// Up to so many refusals within [`LEARNT_FOR`], a thousand a second, the store is asked for each.
const ASKED_MAX: u64 = 100;

/// The most requests that are refused without asking before the store is asked again.
const SPARE_MAX: u64 = 10_000;

/// A request on its way to the worker.
pub(in crate::limiter) struct Arrival {
    pub(in crate::limiter) cost: Permits,
    pub(in crate::limiter) arrived: Instant,
    pub(in crate::limiter) deadline: Instant,
    pub(in crate::limiter) asker: Asker,
}

/// Who hears what becomes of an arrival.
pub(in crate::limiter) enum Asker {
    /// A request.
    Request(oneshot::Sender<Result<Entered, Refusal>>),
    /// Nobody: it is booked and counted as if.
    Shadow,
}

#[derive(Default)]
pub(in crate::limiter) struct Inbox {
    pub(in crate::limiter) has_ended: bool,
    /// How many hold the queue, so that it does not end.
    pub(in crate::limiter) kept: u32,
    arrivals: VecDeque<Arrival>,
    /// Bounded by the permits and tickets that are out.
    returned: Vec<Returned>,
    /// Whether a waiting request has left.
    pub(in crate::limiter) left: bool,
    /// Whether a limiter has changed.
    pub(in crate::limiter) changed: bool,
    /// Whether weir is shutting down.
    pub(in crate::limiter) closing: bool,
    /// Freed that was announced.
    pub(in crate::limiter) room: Option<Freed>,
    /// What the upstream said, and the pause that a limiter of the queue is in.
    pub(in crate::limiter) said: Option<PendingReport>,
    pub(in crate::limiter) paused: Option<Paused>,
    /// What requests can be refused by without asking.
    learnt: Option<Box<RefusalCache>>,
    refusals: Refusals,
    /// Permits that can be had at once.
    pub(in crate::limiter) stock: Prefetch,
    /// Whether the worker waits for an answer of the store. It looks here when that has come, so whoever arrives before need
    /// not wake it. Set when a call is under way, and cleared with each look.
    pub(in crate::limiter) is_calling: bool,
}

/// How many requests were refused lately.
#[derive(Default)]
struct Refusals {
    since: Option<Instant>,
    count: u64,
    before: u64,
}

impl Refusals {
    /// Counts in steps of [`LEARNT_FOR`].
    fn add(&mut self, count: u64, now: Instant) {
        match self.since {
            Some(since) if now < since + LEARNT_FOR => self.count += count,
            Some(since) => {
                self.before = if now < since + 2 * LEARNT_FOR { self.count } else { 0 };
                (self.since, self.count) = (Some(now), count);
            }
            None => (self.since, self.count) = (Some(now), count),
        }
    }
}

/// Why an arrival was not taken.
pub(in crate::limiter) enum Unsent {
    /// Nobody looks any more.
    Ended,
    /// Too many are there.
    Full,
}

/// What the worker has not seen yet.
pub(in crate::limiter) struct WorkerEvents {
    pub(in crate::limiter) returned: Vec<Returned>,
    pub(in crate::limiter) left: bool,
    pub(in crate::limiter) changed: bool,
    pub(in crate::limiter) closing: bool,
    pub(in crate::limiter) is_kept: bool,
    pub(in crate::limiter) room: Option<Freed>,
    pub(in crate::limiter) said: Option<PendingReport>,
    pub(in crate::limiter) paused: Option<Paused>,
    /// How many have come.
    pub(in crate::limiter) arrived: u64,
    pub(in crate::limiter) stock: PrefetchSnapshot,
}

impl Inbox {
    /// Refuses what cannot fit into its wait, as far as is known.
    pub(in crate::limiter) fn refuse(&mut self, cost: Permits, deadline: Instant) -> Option<Refusal> {
        let refusal = self.learnt.as_mut()?.refuse(cost, deadline)?;
        self.refusals.add(1, Instant::now());
        Some(in_pause(refusal, self.paused.as_ref(), deadline))
    }

    /// What requests are refused by from now on.
    pub(in crate::limiter) fn learn(&mut self, learnt: Option<Box<RefusalCache>>) {
        self.learnt = learnt;
    }

    /// The store has refused so many.
    pub(in crate::limiter) fn count_refused(&mut self, count: u64) {
        self.refusals.add(count, Instant::now());
    }

    /// How many are likely to be refused in [`LEARNT_FOR`], if so many that the store should be spared.
    pub(in crate::limiter) fn spare(&mut self, now: Instant) -> u64 {
        self.refusals.add(0, now);
        // One burst is not enough: what is left over of such instants nobody comes back at.
        let lately = self.refusals.before;
        if lately > ASKED_MAX { lately.min(SPARE_MAX) } else { 0 }
    }

    pub(in crate::limiter) fn push(&mut self, arrival: Arrival) -> Result<(), Unsent> {
        if self.has_ended {
            return Err(Unsent::Ended);
        }
        if self.arrivals.len() >= INTAKE_MAX {
            return Err(Unsent::Full);
        }
        self.arrivals.push_back(arrival);
        Ok(())
    }

    pub(in crate::limiter) fn hand_back(&mut self, returned: Returned) {
        if !self.has_ended {
            self.returned.push(returned);
        }
    }

    pub(in crate::limiter) fn keep(&mut self) -> bool {
        self.kept += u32::from(!self.has_ended);
        !self.has_ended
    }

    /// Tells what has happened, and moves as many arrivals as fit behind those in `pending`.
    pub(in crate::limiter) fn news(
        &mut self,
        pending: &mut VecDeque<Arrival>,
        pending_max: usize,
        now: Instant,
    ) -> WorkerEvents {
        self.is_calling = false;
        self.paused.take_if(|paused| paused.until <= now);
        let before = pending.len();
        if pending.is_empty() && self.arrivals.len() <= pending_max {
            // The two take turns, so that under load nothing is allocated.
            std::mem::swap(pending, &mut self.arrivals);
            self.arrivals.shrink_to(INTAKE_KEPT);
        } else {
            let room = pending_max.saturating_sub(pending.len()).min(self.arrivals.len());
            pending.extend(self.arrivals.drain(..room));
        }
        WorkerEvents {
            returned: std::mem::take(&mut self.returned),
            left: std::mem::take(&mut self.left),
            changed: std::mem::take(&mut self.changed),
            closing: self.closing,
            is_kept: self.kept > 0,
            room: self.room.take(),
            said: self.said.take(),
            paused: self.paused.clone(),
            arrived: (pending.len() - before) as u64,
            stock: self.stock.look(now),
        }
    }

    pub(in crate::limiter) fn end_if_idle(&mut self) -> bool {
        let is_idle =
            self.kept == 0 && self.arrivals.is_empty() && self.returned.is_empty() && self.said.is_none();
        self.has_ended |= is_idle;
        is_idle
    }

    /// Takes everything, and nothing any more from now on.
    pub(in crate::limiter) fn end(&mut self) -> (VecDeque<Arrival>, Vec<Returned>) {
        self.has_ended = true;
        (std::mem::take(&mut self.arrivals), std::mem::take(&mut self.returned))
    }
}
