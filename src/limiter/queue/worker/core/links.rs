//! Follows the state of the store: what becomes of slots and requests when the store has failed, lost its state, or is back.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Call, OnStoreFailure, Permits};
use crate::limiter::queue::cost_queue::{Stage, Waiter};
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::request::{Arrival, Asker, Holder};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::worker::limits::FULL_RETRY;
use crate::limiter::recovery::link::Link;

use super::{BookedCore, LocalCall};
use crate::limiter::queue::worker::events::{Action, Context};

impl BookedCore {
    /// Takes in what the store is from now on. Slots that may not be used any more are replaced, or lost.
    pub(super) fn relink(&mut self, link: Link, context: &Context, out: &mut Vec<Action>) {
        let now = context.now;
        let before = std::mem::replace(&mut self.link, link);
        if before == link {
            return;
        }
        if matches!(before, Link::Away { .. }) || matches!(link, Link::Away { .. }) {
            // All slots are replaced below. Those that are booked in the store go back to it when it is there again.
            self.owed.rebook.clear();
        }
        match link {
            Link::Up { epoch } | Link::Held { epoch, .. } | Link::Settling { epoch, .. } => {
                self.replace_slots(|slot| !matches!(slot.source, Source::Store(_)), out);
                if epoch != self.owed.epoch {
                    self.lose_slots(epoch, context.memory, out);
                }
            }
            Link::Away { outage } => {
                self.replace_slots(
                    |slot| ![Source::Local(outage), Source::Unlimited].contains(&slot.source),
                    out,
                );
                self.withdraw(out);
                if self.calls.under_way.is_some() {
                    // If it was not sent, it tells what it was to give back.
                    self.put_back_call(false);
                    out.push(Action::Abandon);
                }
                // The requests have waited long enough, so no call is made first.
                self.calls.not_before = self.calls.not_before.max(now + self.limits.terms.heartbeat);
                (self.trade.freed, self.calls.shut_until) = (None, now);
                out.extend([Action::Cache(None), Action::BeginOutage]);
            }
        }
    }

    /// Replaces the slots for which `goes` holds.
    pub(super) fn replace_slots(&mut self, goes: impl Fn(&Slot) -> bool, out: &mut Vec<Action>) {
        let mut gone: Vec<(Slot, Permits)> = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            gone.extend(cost_queue.take_slots(&goes).into_iter().map(|slot| (slot, *cost)));
        }
        gone.into_iter().for_each(|(slot, cost)| self.replace_slot(slot, cost, out));
    }

    /// Takes in a pause, or its end. This replica's own memory moves no bookings for it, so their slots are replaced.
    pub(super) fn follow_pause(&mut self, paused: Option<Paused>, now: Moment, out: &mut Vec<Action>) {
        let before = std::mem::replace(&mut self.pause.now, paused);
        if before != self.pause.now {
            self.replace_slots(|slot| matches!(slot.source, Source::Local(_)) && slot.due > now, out);
        }
    }

    /// Drops everything that was booked before an epoch, and asks for as many slots anew. Used permits stay booked where the store keeps its
    /// memory, which has begun with an epoch: what they have not cost is given back still.
    fn lose_slots(&mut self, epoch: u64, memory: u64, out: &mut Vec<Action>) {
        self.owed.epoch = epoch;
        self.owed.give_back.clear();
        let is_known = |(slot, _): &(Slot, Permits)| matches!(slot.source, Source::Store(of) if of >= memory);
        self.owed.refunds.slots.retain(is_known);
        if let Some(sent) = &mut self.calls.under_way {
            sent.give_back.clear();
            sent.refunds.retain(is_known);
        }
        self.owed.rebook.clear();
        (self.trade.freed, self.trade.fruitless) = (None, None);
        out.push(Action::Cache(None));
        self.withdraw(out);
        self.lose_rescheduled();
        self.replace_slots(|slot| matches!(slot.source, Source::Store(_)), out);
    }

    /// Asks for other slots in place of those that were to be rescheduled.
    pub(super) fn lose_rescheduled(&mut self) {
        for (_, cost) in std::mem::take(&mut self.owed.reschedule.slots) {
            self.owe(cost, 1);
        }
    }

    /// Puts back the requests of the call under way. They go with the next call. Its slots are given back again only if it was not sent: a
    /// permit that is given back twice is another's. Those that the store may have taken back count as used.
    pub(super) fn put_back_call(&mut self, is_unsent: bool) {
        let Some(sent) = self.calls.under_way.take() else { return };
        if is_unsent {
            for holding in sent.give_back.into_iter().rev() {
                self.owed.give_back.push_front((holding, sent.generations.clone()));
            }
            sent.refunds.into_iter().rev().for_each(|refund| self.owed.refunds.slots.push_front(refund));
        }
        let rescheduled = sent.reschedule.into_iter().map(|(_, cost)| (cost, 1));
        for (cost, count) in rescheduled.chain(sent.replace) {
            self.owe(cost, count);
        }
        self.put_back(sent.arrivals);
    }

    /// Puts back requests for which a call has booked nothing, in front of those that came later.
    pub(super) fn put_back(&mut self, arrivals: Vec<Arrival>) {
        for arrival in arrivals.into_iter().rev().filter(Arrival::is_waited_for) {
            self.arrivals.list.push_front(arrival);
        }
    }

    /// Takes in that the call under way has failed.
    pub(super) fn failed(&mut self, is_unsent: bool) {
        let Some(sent) = &self.calls.under_way else { return };
        // Where it failed late that is over, and the next call goes at once.
        self.calls.not_before = sent.built + self.limits.terms.heartbeat;
        // The slots to reschedule that were not sent yet are lost with those that were.
        self.lose_rescheduled();
        self.trade.freed = None;
        self.put_back_call(is_unsent);
    }

    /// Serves requests by the policies of their limiters, where the store is away and cannot be asked now.
    ///
    /// If one limiter rejects, all requests are refused, the last first where they have lost a slot. Otherwise the limiters that allow
    /// everything are left out, and the others serve from this replica's share.
    pub(super) fn serve_without_store(&mut self, context: &Context, out: &mut Vec<Action>) {
        let is_asked = !self.arrivals.list.is_empty() || !self.owed.replace.is_empty();
        // The next call takes them along, and shows whether the store is back.
        let can_ask = self.calls.under_way.is_none() && context.now >= self.calls.not_before;
        if self.outage() == 0 || !is_asked || can_ask || self.calls.local.is_some() {
            return;
        }
        let rejects = self.limits.policies.contains(&OnStoreFailure::Reject);
        if !rejects && self.pause.holds(context.now) {
            // A request that gets a slot waits for its end, also where the slot itself has come.
            self.refuse_ended_arrivals(context.now, self.pause.opens(context.now), out);
            self.refuse_overfull(out);
        }
        let is_local = !rejects && self.limits.policies.contains(&OnStoreFailure::Local);
        if is_local && context.now < self.calls.shut_until {
            let arrivals = std::mem::take(&mut self.arrivals.list);
            return arrivals.into_iter().for_each(|arrival| self.await_store(arrival, context.now, out));
        }
        self.rebook_share(context.now, out);
        let replace: Vec<_> = std::mem::take(&mut self.owed.replace).into_iter().collect();
        let arrivals: Vec<_> = self.arrivals.list.drain(..).collect();
        if rejects {
            let refusal = self.limits.store_unavailable();
            for (cost, count) in replace {
                (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal, out));
            }
            let refused = |arrival: Arrival| Action::Refuse(arrival.asker, arrival.costs, refusal.clone());
            out.extend(arrivals.into_iter().map(refused));
        } else if is_local {
            let replaced_requests = replace.iter().map(|(_, count)| *count as u64).sum::<u64>();
            let call = Call {
                runs: self.runs(context.now, &replace, &arrivals),
                replacing_runs: replace.len(),
                queue_slots_left: self.queue_slots_left() + replaced_requests,
                ..Call::default()
            };
            self.calls.local = Some(LocalCall { replace, arrivals });
            out.push(Action::BookLocally(Box::new(call)));
        } else {
            self.allow(&replace, arrivals, context, out);
        }
    }

    /// Lets a request wait for the store, of which nobody knows when it is back: each call asks for its slot until its wait is over. One that may not
    /// wait is refused at once, without a time at which to come back.
    pub(super) fn await_store(&mut self, arrival: Arrival, now: Moment, out: &mut Vec<Action>) {
        let refusal = match arrival.asker {
            Asker::Request(request) if arrival.deadline > now && self.queue_slots_left() > 0 => {
                let cost = arrival.cost();
                let Arrival { arrived, deadline, flow, .. } = arrival;
                let (holder, ends) =
                    (Holder { arrived, deadline, late: 0, flow }, self.ends(arrived, deadline));
                let waiter = Waiter { request, holder, ends, stage: Stage::Asking };
                self.cost_queues.entry(cost).or_default().join(waiter);
                return self.want(cost);
            }
            _ if arrival.deadline > now => self.limits.full(FULL_RETRY),
            _ => self.limits.store_unavailable(),
        };
        out.push(Action::Refuse(arrival.asker, arrival.costs, refusal));
    }

    /// Lets all requests pass at once.
    fn allow(
        &mut self,
        replace: &[(Permits, usize)],
        arrivals: Vec<Arrival>,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let slot = Slot { at: Micros::ZERO, due: context.now, source: Source::Unlimited };
        let costs = replace.iter().map(|(cost, count)| cost.get() * *count as u64);
        let permits = costs.chain(arrivals.iter().map(|arrival| arrival.cost().get())).sum::<u64>();
        out.push(Action::AllowUnlimited(vec![permits; self.limits.policies.len()]));
        for (cost, count) in replace {
            (0..*count).for_each(|_| self.hold_wanted(*cost, slot));
        }
        arrivals.into_iter().for_each(|arrival| self.join(arrival, slot, out));
    }
}
