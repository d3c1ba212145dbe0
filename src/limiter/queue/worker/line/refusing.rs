//! Takes requests in, and refuses them, with the reason and the time after which to come back.

use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Class, OnStoreFailure, Permits, Refusal};
use crate::limiter::queue::cost_queue::{Stage, Waiter};
use crate::limiter::queue::pause::in_pause;
use crate::limiter::queue::request::{Arrival, Asker, Holder, RequestId};
use crate::limiter::queue::worker::events::Action;
use crate::limiter::queue::worker::limits::{FULL_RETRY, Limits};
use crate::limiter::recovery::link::Link;

use super::{FlowQueue, FlowQueueKey, LineCore};

impl LineCore {
    /// Takes a request in.
    pub(super) fn arrive(&mut self, arrival: Arrival, now: Moment, out: &mut Vec<Action>) {
        let Arrival { asker, costs, flow, .. } = &arrival;
        if self.stay.is_closing() {
            return out.push(Action::Refuse(*asker, costs.clone(), self.limits.closed()));
        }
        if let Some(refusal) = self.too_costly(&FlowQueueKey { flow: *flow, costs: costs.clone() }) {
            return out.push(Action::Refuse(*asker, costs.clone(), refusal));
        }
        self.wait(arrival, now);
    }

    /// Puts a request into its flow queue. It is told of at once, or a little later where others of its flow queue wait already.
    pub(super) fn wait(&mut self, arrival: Arrival, now: Moment) {
        let Arrival { asker, costs, arrived, deadline, flow } = arrival;
        // A limiter that only counts shares nothing out.
        let Asker::Request(request) = asker else { return };
        let (ends, later) = (self.ends(arrived, deadline), self.later(now));
        let flow_queue = self.flow_queues.entry(FlowQueueKey { flow, costs }).or_insert_with(FlowQueue::new);
        let is_first = flow_queue.queue.without_slot().next().is_none();
        let holder = Holder { arrived, deadline, late: 0, flow };
        flow_queue.queue.join_in_order(Waiter { request, holder, ends, stage: Stage::Asking });
        flow_queue.tell_by(if is_first { now } else { later });
    }

    /// Takes in that requests have left.
    pub(super) fn remove(&mut self, left: &[RequestId], now: Moment, out: &mut Vec<Action>) {
        let later = self.later(now);
        for (key, flow_queue) in &mut self.flow_queues {
            let gone = flow_queue.queue.remove(left);
            if gone.is_empty() {
                continue;
            }
            out.push(Action::CountCancelled(key.costs.clone(), key.flow, gone.len()));
            let told_until = flow_queue.told_until;
            flow_queue
                .left
                .extend(gone.iter().map(|waiter| waiter.holder.arrived).filter(|came| *came <= told_until));
            flow_queue.tell_by(later);
        }
    }

    /// Returns the refusal of requests that cost more than their class can ever have dealt, if they do.
    fn too_costly(&self, key: &FlowQueueKey) -> Option<Refusal> {
        let Limits { refs, costs_max, too_costly, .. } = &self.limits;
        // The ceilings stand behind the limiters, and are windows.
        let rate = |ceiling: &LimiterRef| ceiling.rules.iter().map(|rule| rule.rate).min();
        let of_ceiling = |place: usize| rate(&refs[place]).and_then(Permits::new).unwrap_or(Permits::ONE);
        let most = |place: usize| costs_max.get(place).copied().unwrap_or_else(|| of_ceiling(place));
        let mut costs = self.costs(key).into_iter().enumerate();
        let (place, _) = costs.find(|(place, cost)| *cost > most(*place).get())?;
        if place < costs_max.len() && key.costs.same().is_some() {
            return Some(too_costly.clone());
        }
        Some(Refusal::CostExceedsLimit { limiter: refs[place].name.clone(), cost_max: most(place) })
    }

    /// Refuses the requests that cost more than the limits, after a change, can ever hold.
    pub(super) fn refuse_too_costly(&mut self, out: &mut Vec<Action>) {
        let costly = |key: &FlowQueueKey| Some((key.clone(), self.too_costly(key)?));
        let keys: Vec<(FlowQueueKey, Refusal)> = self.flow_queues.keys().filter_map(costly).collect();
        for (key, refusal) in keys {
            let Some(flow_queue) = self.flow_queues.get_mut(&key) else { continue };
            for waiter in flow_queue.queue.take_waiters() {
                let asker = Asker::Request(waiter.request);
                out.push(Action::Refuse(asker, key.costs.clone(), refusal.clone()));
            }
        }
    }

    /// Refuses the requests whose wait has ended, or ends before anything is granted again.
    pub(super) fn refuse_ended(&mut self, now: Moment, out: &mut Vec<Action>) {
        let until = match self.link {
            Link::Settling { opens, .. } => now.max(opens),
            // Nothing that is granted without the store may be used in a pause.
            Link::Away { .. } => self.pause.opens(now),
            Link::Up { .. } | Link::Held { .. } => now,
        };
        let mut flow_queues = std::mem::take(&mut self.flow_queues);
        for (key, flow_queue) in &mut flow_queues {
            let ended = flow_queue.queue.take_ended(until, |slot| self.is_due(slot, now));
            if ended.is_empty() {
                continue;
            }
            flow_queue.tell_by(now);
            for waiter in ended {
                flow_queue
                    .left
                    .extend(Some(waiter.holder.arrived).filter(|came| *came <= flow_queue.told_until));
                let refusal = self.ended(&waiter, flow_queue.wait, now);
                out.push(Action::Refuse(Asker::Request(waiter.request), key.costs.clone(), refusal));
            }
        }
        self.flow_queues = flow_queues;
    }

    /// Returns the refusal of a request whose wait has ended without a slot.
    fn ended(&self, waiter: &Waiter, wait: Micros, now: Moment) -> Refusal {
        let deadline = waiter.holder.deadline;
        match (self.link, &self.pause.now) {
            (_, Some(paused)) if paused.until > deadline => {
                in_pause(self.limits.too_far(paused.until - now), Some(paused), deadline)
            }
            (Link::Settling { opens, .. }, _) => self.limits.too_far((opens - now).max(Micros::ONE)),
            // The store knows it: others went first.
            (Link::Up { .. }, _) if waiter.stage != Stage::Asking => {
                self.limits.too_far(wait.max(self.limits.terms.lease))
            }
            _ if self.outage() != 0 && !self.limits.policies.contains(&OnStoreFailure::Reject) => {
                self.limits.too_far(self.limits.terms.lease)
            }
            _ => self.limits.store_unavailable(),
        }
    }

    /// Refuses the latest requests of a class where more wait than may, while the store cannot be asked: of those that no call has told of.
    pub(super) fn refuse_overfull(&mut self, out: &mut Vec<Action>) {
        let is_stopped = self.pause.is_reported || !matches!(self.link, Link::Up { .. });
        let Some(share) = self.share().filter(|_| is_stopped).cloned() else { return };
        let refusal = self.limits.full(FULL_RETRY);
        // Where nobody may wait for a permit, requests wait for an answer alone.
        let may_wait = |class: &&Class| class.queue.max_waiting > 0;
        for (place, class) in share.classes.iter().enumerate().filter(|(_, class)| may_wait(class)) {
            let of_class = |key: &FlowQueueKey| share.member(key.flow).class == place;
            let flow_queues = || self.flow_queues.iter().filter(|(key, _)| of_class(key));
            let waiting: usize =
                flow_queues().map(|(_, flow_queue)| flow_queue.queue.without_slot().count()).sum();
            let most = usize::try_from(class.queue.max_waiting).unwrap_or(usize::MAX);
            for _ in most..waiting {
                let of_class = self.flow_queues.iter_mut().filter(|(key, _)| of_class(key));
                let untold = of_class
                    .filter_map(|(key, flow_queue)| Some((flow_queue.last_untold()?, key, flow_queue)));
                let last = untold.max_by_key(|(arrived, ..)| *arrived);
                let Some((_, key, flow_queue)) = last else { break };
                let Some((waiter, _)) = flow_queue.queue.take_last_waiter() else { break };
                out.push(Action::Refuse(Asker::Request(waiter.request), key.costs.clone(), refusal.clone()));
            }
        }
    }
}
