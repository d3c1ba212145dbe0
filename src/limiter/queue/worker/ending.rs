//! Ends a worker that has nothing to do, or when weir shuts down.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::siblings::Siblings;
use super::state::Worker;
use crate::limiter::model::Holding;
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::permit::{LatePermit, OriginQueue, Returned};
use crate::limiter::queue::prefetch::Pace;

/// Ends the queue when its worker ends, for whatever reason, so that no request waits for an answer in vain.
pub(super) struct Ending {
    pub(super) queue: Arc<Queue>,
    pub(super) siblings: Arc<dyn Siblings>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.queue.end();
        self.queue.set_waiting(0, None);
        self.siblings.ended(&self.queue);
    }
}

impl Worker {
    fn is_busy(&self) -> bool {
        self.is_held
            || self.call.is_some()
            || !self.late_calls.is_empty()
            || !self.pending.is_empty()
            || !self.cost_queues.is_empty()
            || !self.give_back.is_empty()
            || self.prefetched > 0
            || !self.reschedule.is_empty()
            || !self.replace.is_empty()
            || self.reporting.is_some()
            || self.pending_report.is_some()
    }

    /// Returns whether there has been nothing to do for long enough to end.
    pub(super) fn is_over(&mut self) -> bool {
        if self.is_busy() {
            self.idle_since = None;
            return false;
        }
        let now = Instant::now();
        let is_over = self.idle_since.is_some_and(|since| now >= since + self.linger);
        match self.idle_since {
            None => {
                self.idle_since = Some(now);
                // An empty collection would keep its memory.
                self.cost_queues = BTreeMap::new();
                self.pending = VecDeque::new();
            }
            // A permit that is out may come back.
            Some(_) if is_over && self.queue.has_permits_out() => self.idle_since = Some(now),
            Some(_) => {}
        }
        is_over
    }

    /// Refuses all requests, and gives every slot back.
    pub(super) async fn close(mut self) {
        if let Some(call) = self.call.take() {
            let (sent, result) = call.await;
            self.settle(sent, result);
        }
        let (arrivals, returned) = self.queue.end();
        self.clear_prefetched();
        // No request comes any more. At the pace of before, each remaining call would prefetch permits, without end.
        self.pace = Pace::new();
        self.pending.extend(arrivals);
        for arrival in std::mem::take(&mut self.pending) {
            self.refuse(arrival, self.queue.closed());
        }
        returned.into_iter().for_each(|returned| self.close_returned(returned));
        for (cost, mut cost_queue) in std::mem::take(&mut self.cost_queues) {
            let (waiters, slots) = cost_queue.close();
            for waiter in waiters {
                self.queue.count_refused(&self.queue.closed(), cost, false);
                waiter.refuse(self.queue.closed());
            }
            slots.into_iter().for_each(|slot| self.give_back(slot, cost));
        }
        // No request needs the new places of void slots, or a slot in place of another.
        for (slot, cost) in self.reschedule.drain(..) {
            let holding = Holding { slot: slot.at, cost: cost.get(), count: 1 };
            self.give_back.push_back((holding, self.reschedule_generations.clone()));
        }
        self.replace.clear();
        loop {
            self.start_call(Instant::now());
            let Some(call) = self.call.take() else { return };
            if call.await.1.is_err() {
                // Slots that could not be given back expire.
                return;
            }
        }
    }

    /// Gives a returned permit's slot back, and refuses the request of a late one.
    fn close_returned(&mut self, returned: Returned) {
        match returned {
            Returned::Unused { slot, cost } | Returned::Refund { slot, cost } => self.give_back(slot, cost),
            Returned::Late(LatePermit { slot, cost, turn, .. }) => {
                self.give_back(slot, cost);
                // An error means that the request has left.
                let _ = turn.send(Err(self.queue.closed()));
            }
        }
    }
}
