//! Ends a worker that has nothing to do, or when weir shuts down.

use std::collections::BTreeMap;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Holding, Permits};
use crate::limiter::queue::cost_queue::CostQueue;
use crate::limiter::queue::prefetch::Pace;
use crate::limiter::queue::request::{Arrival, Asker};
use crate::limiter::queue::slot::Source;

use super::{Arrivals, BookedCore};
use crate::limiter::queue::worker::common::IdleStep;
use crate::limiter::queue::worker::events::{Action, Carryover};

impl BookedCore {
    /// Returns how long the worker stays when it has nothing to do.
    pub(in crate::limiter::queue::worker) fn linger(&self) -> Micros {
        self.stay.linger
    }

    /// Returns everything that waits or is held. Permits that were prefetched count as used.
    pub(in crate::limiter::queue::worker) fn into_carryover(self) -> Carryover {
        let BookedCore { cost_queues, arrivals, owed, calls, .. } = self;
        let mut carryover = Carryover { epoch: owed.epoch, ..Carryover::default() };
        for (Holding { slot, cost, count }, generations) in owed.give_back {
            carryover.unused.extend(Permits::new(cost).map(|cost| (slot, cost.into(), count, generations)));
        }
        for (slot, cost) in owed.refunds.slots {
            if slot.source == Source::Store(owed.epoch) {
                carryover.unused.push((slot.at, cost.into(), 1, owed.generations.clone()));
            }
        }
        for (cost, mut cost_queue) in cost_queues {
            for slot in cost_queue.take_stored(|_| true) {
                carryover.unused.push((slot.at, cost.into(), 1, owed.generations.clone()));
            }
            let waiters = cost_queue.take_waiters().into_iter();
            carryover.arrivals.extend(waiters.map(|waiter| waiter.into_arrival(cost.into())));
        }
        for (slot, cost) in owed.reschedule.slots {
            carryover.unused.push((slot.at, cost.into(), 1, owed.reschedule.generations.clone()));
        }
        carryover.arrivals.extend(calls.under_way.into_iter().flat_map(|sent| sent.arrivals));
        carryover.arrivals.extend(calls.local.into_iter().flat_map(|call| call.arrivals));
        carryover.arrivals.extend(arrivals.list);
        carryover.arrivals.retain(Arrival::is_waited_for);
        carryover.arrivals.sort_by_key(|arrival| arrival.arrived);
        carryover
    }

    /// Takes over what another core leaves.
    pub(in crate::limiter::queue::worker) fn take_over(&mut self, carryover: Carryover) {
        // Else the link would seem to have begun a new one, in which none of the slots is known.
        self.owed.epoch = carryover.epoch;
        for mut arrival in carryover.arrivals {
            arrival.costs = self.scalar(&arrival.costs).into();
            self.expect_end(&arrival);
            self.arrivals.list.push_back(arrival);
        }
        for (slot, costs, count, generations) in carryover.unused {
            // A slot of which each limiter has another number of permits cannot be given back here: it counts as used.
            let holding = costs.same().map(|cost| Holding { slot, cost: cost.get(), count });
            self.owed.give_back.extend(holding.map(|holding| (holding, generations)));
        }
    }

    /// Refuses all requests, and gives every slot back.
    pub(super) fn close(&mut self, out: &mut Vec<Action>) {
        self.stay.close();
        // No request comes any more. At the pace of before, each remaining call would prefetch permits, without end.
        self.prefetch.pace = Pace::new(Moment(0));
        self.withdraw(out);
        let mut list = std::mem::take(&mut self.arrivals.list);
        let refusal = self.limits.closed();
        let of_call = self.calls.under_way.iter_mut().flat_map(|sent| &mut sent.arrivals);
        // The charge of a limiter that only counts is booked: its request is on its way.
        let of_call = of_call.filter(|arrival| matches!(arrival.asker, Asker::Request(_)));
        for arrival in list.iter_mut().chain(of_call) {
            let asker = std::mem::replace(&mut arrival.asker, Asker::Refused);
            out.push(Action::Refuse(asker, arrival.costs.clone(), refusal.clone()));
        }
        for (cost, mut cost_queue) in std::mem::take(&mut self.cost_queues) {
            let refused = cost_queue.take_waiters().into_iter();
            out.extend(
                refused.map(|waiter| {
                    Action::Refuse(Asker::Request(waiter.request), cost.into(), refusal.clone())
                }),
            );
            cost_queue.take_surplus().into_iter().for_each(|slot| self.give_back(slot, cost, out));
        }
        // No request needs the new places of void slots, or a slot in place of another.
        for (slot, cost) in self.owed.reschedule.slots.drain(..) {
            let holding = Holding { slot: slot.at, cost: cost.get(), count: 1 };
            self.owed.give_back.push_back((holding, self.owed.reschedule.generations.clone()));
        }
        self.owed.replace.clear();
    }

    fn is_busy(&self) -> bool {
        self.calls.under_way.is_some()
            || self.calls.local.is_some()
            || !self.arrivals.list.is_empty()
            || self.cost_queues.values().any(|cost_queue| !CostQueue::is_empty(cost_queue))
            || self.gives_back()
            || self.prefetch.left > 0
            || !self.owed.reschedule.slots.is_empty()
            || !self.owed.replace.is_empty()
            || self.pause.is_reported
    }

    /// Ends the worker that has had nothing to do for long enough, or that closes and has given back what it can.
    pub(super) fn end_if_idle(&mut self, now: Moment, out: &mut Vec<Action>) {
        if self.stay.is_closing() {
            // Slots that cannot be given back now expire.
            let waits = self.calls.under_way.is_some() || self.prefetch.is_withdrawn;
            if !waits {
                out.push(Action::End);
            }
            return;
        }
        match self.stay.update(self.is_busy(), now) {
            IdleStep::None => {}
            IdleStep::Over => out.push(Action::End),
            IdleStep::Began => {
                // An empty collection would keep its memory.
                self.cost_queues = BTreeMap::new();
                self.arrivals = Arrivals::default();
            }
        }
    }
}
