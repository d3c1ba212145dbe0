//! Follows the state of the store: what becomes of slots and requests when the store has failed, lost its state, or is back.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Costs, OnStoreFailure, Refusal, UNKNOWN_GENERATION, Unused};
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::request::Asker;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::worker::common::return_locally;
use crate::limiter::queue::worker::events::{Action, Context};
use crate::limiter::queue::worker::limits::Limits;
use crate::limiter::recovery::link::Link;

use super::{FlowQueueKey, LineCore, Sent, Told};

impl LineCore {
    /// Takes in what the store is from now on. The requests whose slots the new link voids have none again.
    pub(super) fn relink(&mut self, link: Link, context: &Context, out: &mut Vec<Action>) {
        let now = context.now;
        let before = std::mem::replace(&mut self.link, link);
        if before == link {
            return;
        }
        match link {
            Link::Up { epoch } | Link::Held { epoch, .. } | Link::Settling { epoch, .. } => {
                let of_outage = self.lose(|slot| !matches!(slot.source, Source::Store(_)), now);
                for (key, slot) in of_outage {
                    self.give_back(slot, &key, out);
                }
                if epoch != self.owed.epoch || matches!(before, Link::Away { .. }) {
                    self.begin_anew(epoch, context.memory, now);
                }
            }
            Link::Away { outage } => {
                self.calls.told_locally = Told::default();
                // Those of the store are used by nobody: they may be given back when it is there again.
                for (key, slot) in self.lose(|slot| slot.source != Source::Local(outage), now) {
                    self.give_back(slot, &key, out);
                }
                self.tell_all_by(now);
                if let Some(sent) = &mut self.calls.under_way {
                    self.calls.abandoned = std::mem::take(&mut sent.unused);
                    self.put_back_call(false, now);
                    out.push(Action::Abandon);
                }
                out.push(Action::BeginOutage);
            }
        }
    }

    /// Drops everything that was dealt in an earlier epoch, and lets the store be told of every request, as of new ones: in the order in
    /// which they came. Used permits stay booked where the store keeps its memory.
    fn begin_anew(&mut self, epoch: u64, memory: u64, now: Moment) {
        if epoch != self.owed.epoch {
            self.owed.epoch = epoch;
            self.owed.unused.clear();
            self.owed.refunds.retain(|(of, _)| *of >= memory);
            self.calls.abandoned.clear();
            if let Some(sent) = &mut self.calls.under_way {
                sent.unused.clear();
            }
            self.lose(|slot| matches!(slot.source, Source::Store(_)), now);
        }
        self.calls.told = Told::default();
        self.tell_all_by(now);
    }

    /// Takes in a pause, or its end. This replica's own memory moves no bookings for it: their slots go back.
    pub(super) fn follow_pause(&mut self, paused: Option<Paused>, now: Moment, out: &mut Vec<Action>) {
        let before = std::mem::replace(&mut self.pause.now, paused);
        if before == self.pause.now {
            return;
        }
        for (key, slot) in self.lose(|slot| matches!(slot.source, Source::Local(_)) && slot.due > now, now) {
            self.give_back(slot, &key, out);
        }
    }

    /// Lets the flow queues of the call under way be told of again. Its slots are given back again only if it was not sent: a permit that
    /// is given back twice is another's. Those that the store may have taken back count as used.
    pub(super) fn put_back_call(&mut self, is_unsent: bool, now: Moment) {
        let Some(Sent { wants, unused, .. }) = self.calls.under_way.take() else { return };
        if is_unsent {
            unused.into_iter().rev().for_each(|unneeded| self.owed.unused.push_front(unneeded));
        }
        for want in wants {
            if let Some(flow_queue) = self.flow_queues.get_mut(&want.key) {
                flow_queue.tell_by(now);
                flow_queue.told_until = want.told_until;
                flow_queue.left.extend(want.left);
            }
        }
    }

    /// Takes in that a call which was given up was not made: what it was to give back goes with the next call. An earlier one than the last
    /// such call is not known any more, and its permits count as used.
    pub(super) fn give_back_abandoned(&mut self, unused: &[Unused]) {
        if self.calls.abandoned.iter().map(|unneeded| &unneeded.unused).eq(unused) {
            self.owed.unused.extend(std::mem::take(&mut self.calls.abandoned));
        }
    }

    /// Takes in that the call under way has failed.
    pub(super) fn failed(&mut self, is_unsent: bool, now: Moment) {
        let Some(sent) = &self.calls.under_way else { return };
        self.calls.not_before = sent.at + self.limits.terms.heartbeat;
        self.put_back_call(is_unsent, now);
    }

    /// Serves requests by the policies of their limiters, where the store is away.
    ///
    /// If one limiter rejects, all requests are refused. Otherwise the limiters that allow everything are left out, and the others serve
    /// from this replica's share, by the same classes and weights.
    pub(super) fn serve_without_store(&mut self, context: &Context, out: &mut Vec<Action>) {
        if self.outage() == 0 || self.calls.asked_locally.is_some() {
            return;
        }
        let policies = &self.limits.policies;
        if !policies.contains(&OnStoreFailure::Reject) && policies.contains(&OnStoreFailure::Local) {
            let now = context.now;
            let is_due = |at: Moment| at <= now;
            let is_told = self.flow_queues.values().filter_map(|flow_queue| flow_queue.tell_at).any(is_due);
            if is_told || self.calls.told_locally.again.is_some_and(is_due) {
                self.ask_locally(now, out);
            }
            return;
        }
        // The policy may have changed in this outage: nothing is due any more in this replica's memory.
        self.calls.told_locally.again = None;
        if policies.contains(&OnStoreFailure::Reject) {
            self.refuse_all(&self.limits.store_unavailable(), out);
        } else {
            self.allow(context, out);
        }
    }

    fn refuse_all(&mut self, refusal: &Refusal, out: &mut Vec<Action>) {
        for (key, flow_queue) in &mut self.flow_queues {
            flow_queue.tell_at = None;
            for waiter in flow_queue.queue.take_waiters() {
                out.push(Action::Refuse(Asker::Request(waiter.request), key.costs.clone(), refusal.clone()));
            }
        }
    }

    /// Lets all requests pass at once.
    fn allow(&mut self, context: &Context, out: &mut Vec<Action>) {
        let slot = Slot { at: Micros::ZERO, due: context.now, source: Source::Unlimited };
        let mut permits = vec![0; self.limits.policies.len()];
        for (key, flow_queue) in &mut self.flow_queues {
            flow_queue.tell_at = None;
            let count = flow_queue.queue.without_slot().count();
            permits
                .iter_mut()
                .enumerate()
                .for_each(|(place, sum)| *sum += key.costs.at(place) * count as u64);
            (0..count).for_each(|_| flow_queue.queue.hold(slot));
        }
        if permits.iter().any(|permits| *permits > 0) {
            out.push(Action::AllowUnlimited(permits));
            self.hand_out(context, out);
        }
    }

    /// Takes on the limits as configured now, and refuses the requests that cost more than they can ever hold.
    pub(super) fn reconfigure(&mut self, limits: Limits, now: Moment, out: &mut Vec<Action>) {
        let states = |limits: &Limits| -> Vec<_> {
            limits.refs.iter().map(|one| (one.name.clone(), one.partition)).collect()
        };
        let (has_others, before) = (states(&self.limits) != states(&limits), self.limits.refs.clone());
        let costs = |core: &LineCore| -> Vec<Vec<u64>> {
            core.flow_queues.keys().map(|key| core.costs(key)).collect()
        };
        let costs_before = costs(self);
        if self.limits.shared != limits.shared {
            self.owed.shared_since = now;
        }
        self.limits = limits;
        // A class may have got another ceiling, or a caller another class. The line finds requests by their costs: those that it has stay
        // in the way of their own callers, unless it begins anew.
        if has_others || costs_before != costs(self) {
            // Nobody can take back slots that were dealt for other costs, or in another line. They count as used.
            self.lose(|slot| matches!(slot.source, Source::Store(_)), now);
            self.owed.unused.clear();
            self.owed.refunds.clear();
            self.owed.heard = 0;
            self.calls.abandoned.clear();
            if let Some(sent) = &mut self.calls.under_way {
                sent.unused.clear();
            }
            self.owed.generations = self.limits.refs.iter().map(|_| UNKNOWN_GENERATION).collect();
            self.calls.told = Told::default();
            self.calls.line += 1;
        }
        if before.iter().map(|one| &one.rules).ne(self.limits.refs.iter().map(|one| &one.rules)) {
            // This replica's own memory moves bookings with the change, and does not tell. So their slots go back.
            for (key, slot) in self.lose(|slot| matches!(slot.source, Source::Local(_)), now) {
                self.give_back(slot, &key, out);
            }
        }
        self.calls.is_outdated = true;
        self.tell_all_by(now);
        self.refuse_too_costly(out);
    }

    /// Gives a slot of a flow queue back.
    pub(super) fn give_back(&mut self, slot: Slot, key: &FlowQueueKey, out: &mut Vec<Action>) {
        let unused = self.returned(slot, key);
        self.give_back_unused(unused, slot.source, out);
    }

    /// Gives back a part of a used permit. The store knows it as long as it has kept its memory since.
    pub(super) fn refund(&mut self, slot: Slot, key: &FlowQueueKey, memory: u64, out: &mut Vec<Action>) {
        match slot.source {
            Source::Store(epoch) if epoch >= memory => {
                let unused = self.returned(slot, key);
                self.owed.refunds.push_back((epoch, unused));
            }
            Source::Store(_) => {}
            Source::Local(_) | Source::Unlimited => self.give_back(slot, key, out),
        }
    }

    /// Leaves the parts of used permits that may be given back by now to the next call.
    pub(super) fn release_refunds(&mut self) {
        let (epoch, heard) = (self.owed.epoch, self.owed.heard);
        while let Some((_, unused)) = self.owed.refunds.pop_front_if(|(of, _)| *of == epoch || heard == epoch)
        {
            self.give_back_later(unused, self.owed.generations.clone());
        }
    }

    /// Returns a slot that comes back as it is given back.
    fn returned(&self, slot: Slot, key: &FlowQueueKey) -> Unused {
        let mut unused = self.unused(key, slot.at);
        if slot.due <= self.owed.shared_since {
            // Its caller may have changed its class. The ceiling of this one has not been charged with it, and others have used that.
            unused.costs.iter_mut().skip(self.limits.policies.len()).for_each(|cost| *cost = 0);
        }
        unused
    }

    /// Returns a slot of a flow queue as it is given back.
    pub(super) fn unused(&self, key: &FlowQueueKey, slot: Micros) -> Unused {
        let (flow, class) = (key.flow.id, self.class(key.flow));
        Unused { flow, class, slot, count: 1, costs: self.costs(key) }
    }

    /// Gives a slot back to the place where it was dealt: the store or this replica's memory. One of an earlier epoch is lost.
    pub(super) fn give_back_unused(&mut self, unused: Unused, source: Source, out: &mut Vec<Action>) {
        match source {
            Source::Local(_) => {
                let limiters = self.limits.policies.len();
                if let Some(costs) = Costs::each_or_same(unused.costs.into_iter().take(limiters)) {
                    return_locally(unused.slot, costs, out);
                }
            }
            Source::Store(epoch) if epoch == self.owed.epoch => {
                self.give_back_later(unused, self.owed.generations.clone());
            }
            Source::Store(_) | Source::Unlimited => {}
        }
    }
}
