//! Hands slots out, and takes them back.

use std::collections::BTreeSet;

use crate::clock::Moment;
use crate::limiter::model::Costs;
use crate::limiter::queue::cost_queue::{CostQueue, REFUSAL_MARGIN, Waiter};
use crate::limiter::queue::request::{Asker, Holder, LATE_MAX, RequestId, Unusable};
use crate::limiter::queue::slot::Slot;
use crate::limiter::queue::worker::common::{is_current, waiter_again};
use crate::limiter::queue::worker::events::{Action, Context, ReturnReason};

use super::{FlowQueue, FlowQueueKey, LineCore};

impl LineCore {
    /// Takes a permit back.
    pub(super) fn take_back(
        &mut self,
        slot: Slot,
        costs: Costs,
        reason: ReturnReason,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let now = context.now;
        match reason {
            ReturnReason::Unused(flow) => {
                let key = FlowQueueKey { flow, costs };
                let is_late = slot.is_late(&context.clock_of(slot.source), now, self.limits.guard);
                let is_good = !is_late && self.is_usable(&slot, now) && !self.pause.holds(slot.due);
                match self.flow_queues.get_mut(&key) {
                    Some(flow_queue) if is_good && flow_queue.queue.waiting() > 0 => {
                        flow_queue.queue.hold(slot);
                        flow_queue.tell_by(now);
                    }
                    _ => self.give_back(slot, &key, out),
                }
            }
            ReturnReason::Refund(flow) => {
                self.refund(slot, &FlowQueueKey { flow, costs }, context.memory, out);
            }
            ReturnReason::Exchanged(request, holder, why) => {
                self.rejoin(slot, costs, (request, holder, why), now, out);
            }
        }
    }

    /// Puts the request of a permit that could not be used back into its flow queue, in its old place. One that has only to be confirmed by
    /// an answer keeps its slot; that of a request that was set aside has come back before; any other is given back.
    fn rejoin(
        &mut self,
        slot: Slot,
        costs: Costs,
        (request, holder, why): (RequestId, Holder, Unusable),
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        let key = FlowQueueKey { flow: holder.flow, costs };
        if self.stay.is_closing() {
            if why != Unusable::SetAside {
                self.give_back(slot, &key, out);
            }
            return out.push(Action::Refuse(Asker::Request(request), key.costs, self.limits.closed()));
        }
        let told_until = holder.arrived;
        let waiter =
            waiter_again(&slot, (request, holder, why), |asked, deadline| self.ends(asked, deadline), now);
        let is_kept = why == Unusable::Unheard && is_current(slot.source, self.link, self.owed.epoch);
        if !is_kept && why != Unusable::SetAside {
            self.give_back(slot, &key, out);
        }
        let flow_queue = self.flow_queues.entry(key).or_insert_with(FlowQueue::new);
        flow_queue.told_until = flow_queue.told_until.max(told_until);
        flow_queue.queue.join_in_order(waiter);
        if is_kept {
            flow_queue.queue.hold(slot);
        } else {
            flow_queue.tell_by(now);
        }
    }

    /// Returns whether a slot may be handed out now.
    pub(super) fn is_due(&self, slot: &Slot, now: Moment) -> bool {
        slot.due <= now && self.is_usable(slot, now) && !self.pause.holds(slot.due)
    }

    /// Hands out the slots that have come, the earliest first. However many slots of a flow queue are found late at once, they are one for
    /// its first request: nobody had the time to ask again between them.
    pub(super) fn hand_out(&mut self, context: &Context, out: &mut Vec<Action>) {
        let mut in_flight_left = context.in_flight_left;
        let mut late = BTreeSet::new();
        while in_flight_left > 0
            && let Some(key) = self.next_due(context.now)
        {
            in_flight_left -= u32::from(self.hand_out_one(&key, &mut late, context, out));
        }
    }

    /// Returns the flow queue whose first slot is the earliest of those that are due.
    fn next_due(&self, now: Moment) -> Option<FlowQueueKey> {
        let slots = self
            .flow_queues
            .iter()
            .filter_map(|(key, flow_queue)| Some((flow_queue.queue.next_slot()?, key)));
        slots
            .filter(|(slot, _)| self.is_due(slot, now))
            .min_by_key(|(slot, _)| slot.due)
            .map(|(_, key)| key.clone())
    }

    /// Hands out the first slot of a flow queue, or gives it back if it is late. Returns whether a request has it.
    fn hand_out_one(
        &mut self,
        key: &FlowQueueKey,
        late: &mut BTreeSet<FlowQueueKey>,
        context: &Context,
        out: &mut Vec<Action>,
    ) -> bool {
        let (now, guard) = (context.now, self.limits.guard);
        let Some(flow_queue) = self.flow_queues.get_mut(key) else { return false };
        let Some((slot, first)) = flow_queue.queue.take_slot() else { return false };
        let clock = context.clock_of(slot.source);
        if slot.is_late(&clock, now, guard) && (first.holder.late < LATE_MAX || late.contains(key)) {
            first.put_off(now + context.latency);
            first.holder.late += u8::from(late.insert(key.clone()));
            flow_queue.tell_by(now);
            out.push(Action::CountLate(slot.lateness(&clock, now)));
            self.give_back(slot, key, out);
            return false;
        }
        let Some(Waiter { request, holder, .. }) = flow_queue.queue.take_first() else { return false };
        out.push(Action::Grant(request, slot, key.costs.clone(), holder));
        true
    }

    /// Gives the slots back that no request needs.
    pub(super) fn give_back_surplus(&mut self, now: Moment, out: &mut Vec<Action>) {
        let mut surplus = Vec::new();
        for (key, flow_queue) in &mut self.flow_queues {
            surplus.extend(flow_queue.queue.take_surplus().into_iter().map(|slot| (slot, key.clone())));
        }
        for (slot, key) in surplus {
            if let Some(flow_queue) = self.flow_queues.get_mut(&key) {
                flow_queue.tell_by(now);
            }
            self.give_back(slot, &key, out);
        }
    }

    /// Gives a place to the requests that the line has taken, and notifies those whose slot is near.
    pub(super) fn announce_waiting(&mut self, now: Moment, out: &mut Vec<Action>) {
        for (key, flow_queue) in &mut self.flow_queues {
            // The line has told the place of the last one, which comes first; the others stand right before, or have their slots.
            let mut place = flow_queue.before;
            flow_queue.queue.announce_until(flow_queue.answered_until, REFUSAL_MARGIN, |request| {
                let cost = key.costs.largest().get();
                out.push(Action::Wait(request, Some(place.max(cost))));
                place = place.saturating_sub(cost);
            });
            flow_queue.queue.approach(now, |request| out.push(Action::Approach(request)));
        }
    }

    /// Returns when the next request must be notified, or gets its slot.
    pub(super) fn next_slot(&self, context: &Context) -> Option<Moment> {
        let queues = self.flow_queues.values().map(|flow_queue| &flow_queue.queue);
        let next = queues.flat_map(|queue: &CostQueue| {
            let slot = queue
                .next_slot()
                .filter(|slot| context.in_flight_left > 0 && self.is_usable(slot, slot.due.max(context.now)));
            let due = slot.map(|slot| self.pause.opens(slot.due));
            [due, queue.next_approach()]
        });
        next.flatten().min()
    }
}
