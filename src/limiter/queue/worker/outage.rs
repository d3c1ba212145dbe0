//! What a worker does while the store does not answer.

use std::sync::Arc;

use tokio::time::{Duration, Instant};
use tracing::warn;

use super::settle::each;
use super::state::{Sent, Worker};
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::Answer;
use crate::limiter::model::call::Call;
use crate::limiter::model::call::Outcome;
use crate::limiter::model::call::RetryDelay;
use crate::limiter::model::limit::{OnStoreFailure, Permits};
use crate::limiter::queue::inbox::Arrival;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::ledger::booked;
use crate::limiter::store::StoreError;

/// The most limiters and partitions whose use is remembered for a time without a store after their queues have ended: some
/// 30 MB. Beyond it, one begins such a time as if it had not been used.
const REMEMBERED_MAX: usize = 100_000;

/// How often a queue tells of the same error of the store.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl Worker {
    /// The store did not answer in time: whoever was in the call is served by the limiters' policies. One that rejects decides for
    /// all; those that allow everything are otherwise left out.
    ///
    /// Slots booked before stay good, where every replica knows of them. Those that were being given back or exchanged may or
    /// may not have been: they are left charged, unless the store was not asked at all.
    pub(super) fn settle_failure(&mut self, sent: Sent, error: &StoreError) {
        let Sent { call, exchange, mut replace, arrivals, .. } = sent;
        if matches!(error, StoreError::Away) {
            let known: Arc<[u64]> = call.generations.as_slice().into();
            let unsaid: Vec<_> = call.give_back.iter().map(|holding| (*holding, known.clone())).collect();
            unsaid.into_iter().rev().for_each(|unsaid| self.give_back.push_front(unsaid));
        } else {
            self.tell(error);
        }
        for (_, cost) in exchange.into_iter().chain(self.void.drain(..)) {
            replace.push((cost, 1));
        }
        let was_local = std::mem::replace(&mut self.is_local, true);
        if !was_local {
            replace.extend(self.leave_local_slots());
            self.begin_locally();
        }
        self.heard = Instant::now();
        self.room = None;
        self.shared.learn(None);
        if self.shared.with_policy(OnStoreFailure::Reject).next().is_some() {
            let refusal = self.store_unavailable();
            for (cost, count) in replace {
                (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal));
            }
            arrivals.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
        } else if self.shared.with_policy(OnStoreFailure::Local).next().is_some() {
            replace.extend(self.leave_what_others_do_not_know());
            self.settle_locally(replace, arrivals);
        } else {
            let slot = Slot { at: Micros::ZERO, due: Instant::now(), source: Source::Unlimited };
            let costs = replace.iter().map(|(cost, count)| cost.get() * *count as u64);
            let permits = costs.chain(arrivals.iter().map(|arrival| arrival.cost.get())).sum::<u64>();
            let now = self.fallback.clock.now();
            let granted = Some((now, permits)).filter(|(_, permits)| *permits > 0);
            self.session.ledger.remember_away(now, &self.limiter_refs, granted.as_slice());
            for (cost, count) in replace {
                (0..count).for_each(|_| self.arrived_slot(cost, slot));
            }
            arrivals.into_iter().for_each(|arrival| self.join(arrival, slot));
        }
    }

    /// Tells of a failed call. Some errors stay until somebody does something about them: the same one is not told of with each
    /// call.
    pub(super) fn tell(&mut self, error: &StoreError) {
        let text = error.to_string();
        if self.told.as_ref().is_some_and(|(at, told)| *told == text && at.elapsed() < TELL_EVERY) {
            return;
        }
        warn!(limiter = %self.limiter_refs[0].name, error = text, "store call failed");
        self.told = Some((Instant::now(), text));
    }

    /// Leaves the slots that were booked so lately that other replicas may not have heard how far ahead the store is booked by
    /// them: theirs may serve locally beside them. Returns what is to be asked for in their place.
    ///
    /// What is used of the store's slots from then on, by whomever, lies no later than the last slot that every replica
    /// has heard of, and each begins to serve locally when a window has passed since that.
    pub(super) fn leave_what_others_do_not_know(&mut self) -> Vec<(Permits, usize)> {
        let known = self.outage_fence.known_to_all();
        self.leave(|slot| slot.source == Source::Store && slot.at > known)
    }

    /// Leaves the local slots that are left from another time without the store: what it has granted since was not known when
    /// they were booked. Returns what is to be asked for in their place.
    pub(super) fn leave_local_slots(&mut self) -> Vec<(Permits, usize)> {
        self.leave(|slot| slot.source == Source::Local)
    }

    /// Gives back the slots for which `gone` holds; returns what is to be asked for in their place.
    pub(super) fn leave(&mut self, mut gone: impl FnMut(&Slot) -> bool) -> Vec<(Permits, usize)> {
        let mut left = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let slots = cost_queue.take_slots(&mut gone);
            cost_queue.wanted += slots.len();
            left.push((*cost, slots));
        }
        let wanted = left.iter().map(|(cost, slots)| (*cost, slots.len())).collect();
        for (cost, slots) in left {
            slots.into_iter().for_each(|slot| self.give_back(slot, cost));
        }
        wanted
    }

    /// Charges this replica's memory with what is known of the window that is running: its part of what the fleet had
    /// used when the store was last heard.
    ///
    /// A share is the limit divided by the fleet, so a part of the use is the use divided by the fleet: what all
    /// replicas together have left is what the fleet had left. Where it had booked ahead, nothing is granted before the last
    /// of that, and the tightest limit counts as full then. It counts as full when the store was last heard, too, if that granted
    /// nothing yet since it was away: others may have been granted all. Other queues of a limiter may have charged its use already.
    pub(super) fn begin_locally(&self) {
        let Fallback { store, clock, fleet, replica } = &*self.fallback;
        let fleet_size = fleet.size();
        for place in self.shared.with_policy(OnStoreFailure::Local) {
            let limiter_ref = self.limiter_refs[place].share(fleet_size);
            let used = self.used.get(place).map_or(0, |used| used.div_ceil(fleet_size));
            let full = limiter_ref.rules.iter().map(Rule::capacity).min().unwrap_or_default();
            let used = match self.outage_fence.last() {
                Some(last) => (clock.at(self.clock.due(last)), used.max(full)),
                None if self.has_served_locally => (clock.at(self.heard), used.max(full)),
                None => (clock.at(self.heard), used),
            };
            store.charge_at(clock.now(), &limiter_ref, used, *replica);
        }
    }

    /// Leaves what is known of the use where the next worker finds it, should the store be away then.
    pub(super) fn remember_use(&self) {
        let has_any = self.used.iter().any(|used| *used > 0);
        let has_room = || self.fallback.store.len() < REMEMBERED_MAX;
        if has_any && !self.is_local && self.session.store.may_fail() && has_room() {
            self.begin_locally();
        }
    }

    /// Enforces this replica's share of the limits in its own memory.
    ///
    /// What costs more than a share ever holds is refused: no replica by itself can know whether the others leave room for it.
    pub(super) fn settle_locally(&mut self, replace: Vec<(Permits, usize)>, arrivals: Vec<Arrival>) {
        let now = Instant::now();
        let holds =
            |limiter_ref: LimiterRef| limiter_ref.rules.iter().map(Rule::capacity).min().unwrap_or(u64::MAX);
        let cost_max = self.local_subjects().map(holds).min().unwrap_or(u64::MAX);
        let (replace, costly): (Vec<_>, Vec<_>) =
            replace.into_iter().partition(|(cost, _)| cost.get() <= cost_max);
        let (arrivals, refused): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| arrival.cost.get() <= cost_max);
        let refusal = self.store_unavailable();
        for (cost, count) in costly {
            (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal));
        }
        refused.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
        let call = Call {
            runs: self.runs(now, &replace, &arrivals),
            queue_slots_left: self.room() + replace.iter().map(|(_, count)| *count as u64).sum::<u64>(),
            ..Call::default()
        };
        let answer = self.ask_fallback(call.clone());
        let granted: Vec<_> = booked(&call, &answer).collect();
        self.session.ledger.remember_away(answer.now, &self.limiter_refs, &granted);
        self.has_served_locally = true;
        let clock = self.clock_of(Source::Local, Instant::now());
        let slot = |at: Micros| Slot { at, due: clock.due(at), source: Source::Local };
        self.settle_outcomes(replace, arrivals, (&answer, &mut each(&answer)), 0, slot);
    }

    /// This replica's shares of the limiters that are enforced without a store.
    pub(super) fn local_subjects(&self) -> impl Iterator<Item = LimiterRef> {
        let places = self.shared.with_policy(OnStoreFailure::Local);
        places.map(|place| self.limiter_refs[place].share(self.fallback.fleet.size()))
    }

    /// Asks this replica's memory for a share of the limiters that are enforced there.
    pub(super) fn ask_fallback(&self, mut call: Call) -> Answer {
        let Fallback { store, replica, .. } = &*self.fallback;
        let places: Vec<usize> = self.shared.with_policy(OnStoreFailure::Local).collect();
        let limiter_refs: Vec<_> = self.local_subjects().collect();
        call.replica = *replica;
        call.generations = vec![0; limiter_refs.len()];
        let mut answer = store.reserve_now(&limiter_refs, &call);
        for (_, outcome) in &mut answer.outcomes {
            if let Outcome::TooFar(RetryDelay { violated, .. }) | Outcome::Full(RetryDelay { violated, .. }) =
                outcome
            {
                violated.limiter = places.get(violated.limiter).copied().unwrap_or_default();
            }
        }
        answer
    }
}
