//! Hands slots out to the waiting requests, takes permits back, and gives surplus slots back to the store.

use crate::clock::Moment;
use crate::limiter::model::Permits;
use crate::limiter::queue::cost_queue::{CostQueue, Waiter};
use crate::limiter::queue::request::{Asker, Holder, LATE_MAX, RequestId, Unusable};
use crate::limiter::queue::slot::Slot;
use crate::limiter::queue::worker::common::{is_current, waiter_again};

use super::BookedCore;
use crate::limiter::queue::worker::events::{Action, Context, ReturnReason};

impl BookedCore {
    /// Takes a permit back. A good one goes to the next request of its cost, another one to the store.
    pub(super) fn take_back(
        &mut self,
        slot: Slot,
        cost: Permits,
        reason: ReturnReason,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let now = context.now;
        match reason {
            ReturnReason::Exchanged(request, _, why) if self.stay.is_closing() => {
                if why != Unusable::SetAside {
                    self.give_back(slot, cost, out);
                }
                out.push(Action::Refuse(Asker::Request(request), cost.into(), self.limits.closed()));
            }
            ReturnReason::Exchanged(request, holder, why) => {
                self.rejoin(slot, cost, (request, holder, why), now, out);
            }
            ReturnReason::Unused(_) => {
                let is_late = slot.is_late(&context.clock_of(slot.source), now, self.limits.guard);
                let is_good = !is_late && self.is_usable(&slot, now) && !self.pause.holds(slot.due);
                match self.cost_queues.get_mut(&cost) {
                    Some(cost_queue) if is_good && cost_queue.waiting() > 0 => cost_queue.hold(slot),
                    _ => self.give_back(slot, cost, out),
                }
            }
            ReturnReason::Refund(_) => self.refund(slot, cost, context.memory, out),
        }
    }

    /// Puts the request of a permit that could not be used back into its cost queue. What becomes of the slot depends on the reason:
    /// - one that has only to be confirmed by an answer is held again, and goes to whoever is first then. That is this request, unless
    ///   one that arrived before it has come back, too;
    /// - that of a request that was set aside has come back before, as an unused one, and another one is asked for;
    /// - any other one is replaced.
    fn rejoin(
        &mut self,
        slot: Slot,
        cost: Permits,
        (request, holder, why): (RequestId, Holder, Unusable),
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        let ends = |asked, deadline| self.ends(asked, deadline);
        let waiter = waiter_again(&slot, (request, holder, why), ends, now);
        self.cost_queues.entry(cost).or_default().join_in_order(waiter);
        if why == Unusable::Unheard && is_current(slot.source, self.link, self.owed.epoch) {
            return self.cost_queues.entry(cost).or_default().hold(slot);
        }
        match why {
            Unusable::SetAside => self.want(cost),
            _ => self.replace_slot(slot, cost, out),
        }
        // A pause moves all bookings in order, so none of them needs to be booked anew.
        if why == Unusable::Late {
            self.observe_late(cost);
        }
    }

    /// Takes in that a slot came too late: its cost queue is booked anew with the next call.
    fn observe_late(&mut self, cost: Permits) {
        self.owed.rebook.insert(cost);
        self.calls.bursts.observe_late();
    }

    /// Returns whether a slot may be handed out now.
    pub(super) fn is_due(&self, slot: &Slot, now: Moment) -> bool {
        slot.due <= now && !self.pause.holds(slot.due) && self.is_usable(slot, now)
    }

    /// Hands every due slot to the first request of its cost queue. A slot that lies in a pause is kept until the store has
    /// rescheduled it, or until the pause ends; one whose lease is over, until the store has answered.
    pub(super) fn hand_out(&mut self, context: &Context, out: &mut Vec<Action>) {
        let mut in_flight_left = context.in_flight_left;
        let mut next = self.cost_queues.keys().next().copied();
        while let Some(cost) = next {
            self.hand_out_cost(cost, &mut in_flight_left, context, out);
            next = self
                .cost_queues
                .range((std::ops::Bound::Excluded(cost), std::ops::Bound::Unbounded))
                .next()
                .map(|(cost, _)| *cost);
        }
        let handed_out = usize::try_from(context.in_flight_left - in_flight_left).unwrap_or(usize::MAX);
        self.calls.bursts.handed_out(handed_out, context.now);
        self.calls.passed = self.calls.passed.saturating_add(handed_out);
    }

    fn hand_out_cost(
        &mut self,
        cost: Permits,
        in_flight_left: &mut u32,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let now = context.now;
        // Of the late slots of one turn only the first counts for its request, and only the first is used, where it is one late slot too
        // many.
        let mut has_been_late = false;
        while *in_flight_left > 0
            && self.is_next_due(cost, now)
            && let Some(cost_queue) = self.cost_queues.get_mut(&cost)
            && let Some((slot, first)) = cost_queue.take_slot()
        {
            let clock = context.clock_of(slot.source);
            let is_late = slot.is_late(&clock, now, self.limits.guard);
            if is_late && (first.holder.late < LATE_MAX || has_been_late) {
                first.put_off(now + context.latency);
                first.holder.late += u8::from(!has_been_late);
                has_been_late = true;
                out.push(Action::CountLate(slot.lateness(&clock, now)));
                self.replace_slot(slot, cost, out);
                self.observe_late(cost);
            } else if let Some(Waiter { request, holder, .. }) = cost_queue.take_first() {
                out.push(Action::Grant(request, slot, cost.into(), holder));
                *in_flight_left -= 1;
            }
        }
    }

    /// Returns whether a request of a cost waits, and the first slot may be handed out.
    fn is_next_due(&self, cost: Permits, now: Moment) -> bool {
        let first = self.cost_queues.get(&cost).and_then(CostQueue::next_slot);
        first.is_some_and(|slot| self.is_due(slot, now))
    }

    /// Gives the slots back that no request needs, and asks for no more than are needed.
    pub(super) fn give_back_surplus(&mut self, out: &mut Vec<Action>) {
        let mut surplus: Vec<(Slot, Permits)> = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            surplus.extend(cost_queue.take_surplus().into_iter().map(|slot| (slot, *cost)));
            let excess = cost_queue.excess();
            if excess > 0
                && let Some(replace) = self.owed.replace.get_mut(cost)
            {
                let fewer = excess.min(*replace);
                cost_queue.wanted = cost_queue.wanted.saturating_sub(fewer);
                *replace -= fewer;
            }
        }
        self.owed.replace.retain(|_, count| *count > 0);
        for (slot, cost) in surplus {
            self.give_back(slot, cost, out);
        }
    }

    /// Gives a place to each request that has been booked a later slot, and notifies those whose slot is near.
    pub(super) fn announce_waiting(&mut self, now: Moment, out: &mut Vec<Action>) {
        for cost_queue in self.cost_queues.values_mut() {
            cost_queue.announce(|request| out.push(Action::Wait(request, None)));
            cost_queue.approach(now, |request| out.push(Action::Approach(request)));
        }
    }

    /// Returns when the next request must be notified, or gets its slot.
    pub(super) fn next_slot(&self, context: &Context) -> Option<Moment> {
        let queues = self.cost_queues.values();
        let next = queues.flat_map(|cost_queue| {
            // While as many permits are in flight as may be, a sent request is an event; where the lease is over, an answer is. But the
            // heartbeats extend it, whatever becomes of a call under way.
            let is_spared = |slot: &Slot| self.calls.unmoved_at.is_some() && slot.due > context.now;
            let slot = cost_queue.next_slot().filter(|slot| {
                context.in_flight_left > 0
                    && (is_spared(slot) || self.is_usable(slot, slot.due.max(context.now)))
            });
            let due = slot.map(|slot| self.pause.opens(slot.due));
            [due, cost_queue.next_approach()]
        });
        next.flatten().min()
    }
}
