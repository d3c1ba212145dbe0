//! Ends a worker that has nothing to do, or when weir shuts down.

use std::collections::BTreeMap;

use crate::clock::Moment;
use crate::limiter::model::Holding;
use crate::limiter::queue::cost_queue::CostQueue;
use crate::limiter::queue::prefetch::Pace;
use crate::limiter::queue::request::Asker;

use super::events::Action;
use super::{Arrivals, Phase, Worker};

impl Worker {
    /// Refuses all requests, and gives every slot back.
    pub(super) fn close(&mut self, out: &mut Vec<Action>) {
        self.stay.phase = Phase::Closing;
        // No request comes any more. At the pace of before, each remaining call would prefetch permits, without end.
        self.prefetch.pace = Pace::new(Moment(0));
        self.withdraw(true, out);
        let mut list = std::mem::take(&mut self.arrivals.list);
        let refusal = self.closed();
        let of_call = self.calls.under_way.iter_mut().flat_map(|sent| &mut sent.arrivals);
        // The charge of a limiter that only counts is booked: its request is on its way.
        let of_call = of_call.filter(|arrival| matches!(arrival.asker, Asker::Request(_)));
        for arrival in list.iter_mut().chain(of_call) {
            let asker = std::mem::replace(&mut arrival.asker, Asker::Refused);
            out.push(Action::Refuse(asker, arrival.cost, refusal.clone()));
        }
        for (cost, mut cost_queue) in std::mem::take(&mut self.cost_queues) {
            let refused = cost_queue.take_waiters().into_iter();
            out.extend(
                refused.map(|waiter| Action::Refuse(Asker::Request(waiter.request), cost, refusal.clone())),
            );
            cost_queue.take_surplus().into_iter().for_each(|slot| self.give_back(slot, cost, out));
        }
        // No request needs the new places of void slots, or a slot in place of another.
        for (slot, cost) in self.owed.reschedule.drain(..) {
            let holding = Holding { slot: slot.at, cost: cost.get(), count: 1 };
            self.owed.give_back.push_back((holding, self.owed.reschedule_generations.clone()));
        }
        self.owed.replace.clear();
    }

    fn is_busy(&self) -> bool {
        self.stay.is_kept
            || self.calls.under_way.is_some()
            || self.calls.local.is_some()
            || !self.arrivals.list.is_empty()
            || self.cost_queues.values().any(|cost_queue| !CostQueue::is_empty(cost_queue))
            || !self.owed.give_back.is_empty()
            || self.prefetch.left > 0
            || !self.owed.reschedule.is_empty()
            || !self.owed.replace.is_empty()
            || self.pause.is_reported
    }

    /// Ends the worker that has had nothing to do for long enough, or that closes and has given back what it can.
    pub(super) fn end_if_idle(&mut self, now: Moment, out: &mut Vec<Action>) {
        if self.stay.phase == Phase::Closing {
            // Slots that cannot be given back now expire.
            let waits = self.calls.under_way.is_some() || self.prefetch.is_withdrawn;
            if !waits {
                out.push(Action::End);
            }
            return;
        }
        if self.is_busy() {
            self.stay.phase = Phase::Busy;
            return;
        }
        match self.stay.phase {
            Phase::Idle(since) if now < since + self.stay.linger => {}
            Phase::Idle(_) => {
                // A permit that is out may come back.
                self.stay.phase = Phase::Idle(now);
                out.push(Action::End);
            }
            Phase::Busy | Phase::Closing => {
                self.stay.phase = Phase::Idle(now);
                // An empty collection would keep its memory.
                self.cost_queues = BTreeMap::new();
                self.arrivals = Arrivals::default();
            }
        }
    }
}
