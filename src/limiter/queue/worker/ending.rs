//! How a worker ends: because it has nothing to do, or because weir shuts down.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::siblings::Siblings;
use super::state::Worker;
use crate::limiter::model::call::Holding;
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::permit::{LatePermit, OriginQueue, Returned};
use crate::limiter::queue::prefetch::Pace;

/// Ends a queue with its worker, however that ends: nobody is left to wait for an answer.
pub(super) struct Ending {
    pub(super) shared: Arc<Queue>,
    pub(super) siblings: Arc<dyn Siblings>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.shared.end();
        self.shared.set_waiting(0, None);
        self.siblings.ended(&self.shared);
    }
}

impl Worker {
    fn is_busy(&self) -> bool {
        self.is_kept
            || self.call.is_some()
            || !self.late.is_empty()
            || !self.pending.is_empty()
            || !self.cost_queues.is_empty()
            || !self.give_back.is_empty()
            || self.stocked > 0
            || !self.void.is_empty()
            || !self.replace.is_empty()
            || self.hearing.is_some()
            || self.said.is_some()
    }

    /// Whether there has been nothing to do for long enough.
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
                // Emptied, they would keep what they had.
                self.cost_queues = BTreeMap::new();
                self.pending = VecDeque::new();
            }
            // One that is out may come back.
            Some(_) if is_over && self.shared.has_out() => self.idle_since = Some(now),
            Some(_) => {}
        }
        is_over
    }

    /// Refuses everybody and gives every slot back.
    pub(super) async fn close(mut self) {
        if let Some(call) = self.call.take() {
            let (sent, result) = call.await;
            self.settle(sent, result);
        }
        let (arrivals, returned) = self.shared.end();
        self.clear_stock();
        // Nobody comes any more: at the pace of before, each of the calls that are left would ask for stock, without end.
        self.pace = Pace::new();
        self.pending.extend(arrivals);
        for arrival in std::mem::take(&mut self.pending) {
            self.refuse(arrival, self.shared.closed());
        }
        for returned in returned {
            match returned {
                Returned::Unused { slot, cost } | Returned::Refund { slot, cost } => {
                    self.give_back(slot, cost);
                }
                Returned::Late(LatePermit { slot, cost, turn, .. }) => {
                    self.give_back(slot, cost);
                    // An error means that the request has left.
                    let _ = turn.send(Err(self.shared.closed()));
                }
            }
        }
        for (cost, mut cost_queue) in std::mem::take(&mut self.cost_queues) {
            let (waiters, slots) = cost_queue.close();
            for waiter in waiters {
                self.shared.count_refused(&self.shared.closed(), cost, false);
                waiter.refuse(self.shared.closed());
            }
            slots.into_iter().for_each(|slot| self.give_back(slot, cost));
        }
        // Nobody wants the new places of slots that were void, or any slot in place of another.
        for (slot, cost) in self.void.drain(..) {
            let holding = Holding { slot: slot.at, cost: cost.get(), count: 1 };
            self.give_back.push_back((holding, self.void_known.clone()));
        }
        self.replace.clear();
        loop {
            self.start_call(Instant::now());
            let Some(call) = self.call.take() else { return };
            if call.await.1.is_err() {
                // What could not be given back expires.
                return;
            }
        }
    }
}
