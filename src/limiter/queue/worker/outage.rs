//! Serves requests by the limiters' policies while the store does not answer.

use std::sync::Arc;

use tokio::time::{Duration, Instant};
use tracing::warn;

use super::settle::each;
use super::state::{SentCall, Worker};
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{Answer, Call, OnStoreFailure, Outcome, Permits, RetryDelay};
use crate::limiter::queue::inbox::Arrival;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::grants::booked;
use crate::limiter::store::StoreError;

/// The most limiters and partitions whose usage is kept for an outage after their queues have ended: some 30 MB. Further ones
/// begin an outage as if they had not been used.
const USAGES_MAX: usize = 100_000;

/// How often a queue logs the same error of the store.
const WARN_INTERVAL: Duration = Duration::from_secs(1);

impl Worker {
    /// Serves the requests of a failed call by the policies of their limiters. If one limiter rejects, all requests are refused.
    /// Otherwise the limiters that allow everything are left out, and the others serve from this replica's share.
    ///
    /// Slots booked before the failure stay good if every replica knows of them. It is not known whether the call has given back
    /// or rescheduled its slots, so they count as used, unless the store was not asked at all.
    pub(super) fn settle_failure(&mut self, sent: SentCall, error: &StoreError) {
        let SentCall { call, reschedule, mut replace, arrivals, .. } = sent;
        if matches!(error, StoreError::Away) {
            let generations: Arc<[u64]> = call.generations.as_slice().into();
            for holding in call.give_back.iter().rev() {
                self.give_back.push_front((*holding, generations.clone()));
            }
        } else {
            self.warn_of(error);
        }
        for (_, cost) in reschedule.into_iter().chain(self.reschedule.drain(..)) {
            replace.push((cost, 1));
        }
        let was_local = std::mem::replace(&mut self.is_local, true);
        if !was_local {
            replace.extend(self.give_up_local_slots());
            self.begin_outage();
        }
        self.last_contact = Instant::now();
        self.freed = None;
        self.queue.set_refusal_cache(None);
        if self.queue.with_policy(OnStoreFailure::Reject).next().is_some() {
            let refusal = self.store_unavailable();
            for (cost, count) in replace {
                (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal));
            }
            arrivals.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
        } else if self.queue.with_policy(OnStoreFailure::Local).next().is_some() {
            replace.extend(self.give_up_unfenced_slots());
            self.settle_locally(replace, arrivals);
        } else {
            self.settle_unlimited(&replace, arrivals);
        }
    }

    /// Lets all requests pass at once.
    fn settle_unlimited(&mut self, replace: &[(Permits, usize)], arrivals: Vec<Arrival>) {
        let slot = Slot { at: Micros::ZERO, due: Instant::now(), source: Source::Unlimited };
        let costs = replace.iter().map(|(cost, count)| cost.get() * *count as u64);
        let permits = costs.chain(arrivals.iter().map(|arrival| arrival.cost.get())).sum::<u64>();
        let now = self.fallback.clock.now();
        let granted = Some((now, permits)).filter(|(_, permits)| *permits > 0);
        self.session.ledger.record_offline(now, &self.limiter_refs, granted.as_slice());
        for (cost, count) in replace {
            (0..*count).for_each(|_| self.hold_wanted(*cost, slot));
        }
        arrivals.into_iter().for_each(|arrival| self.join(arrival, slot));
    }

    /// Logs the error of a failed call, but not the same one with each call: some last until somebody acts.
    fn warn_of(&mut self, error: &StoreError) {
        let text = error.to_string();
        if self
            .last_warning
            .as_ref()
            .is_some_and(|(at, logged)| *logged == text && at.elapsed() < WARN_INTERVAL)
        {
            return;
        }
        warn!(limiter = %self.limiter_refs[0].name, error = text, "store call failed");
        self.last_warning = Some((Instant::now(), text));
    }

    /// Gives up the slots of the store beyond the outage fence, which other replicas may not know of. Returns the number of slots
    /// of each cost to ask for in their place.
    ///
    /// Each replica serves locally only when a window has passed since the last slot that it knows of. Slots of the store up to
    /// the fence are known to all replicas, so none of them is used in the same window as a local one.
    fn give_up_unfenced_slots(&mut self) -> Vec<(Permits, usize)> {
        let fence = self.outage_fence.known_to_all();
        self.give_up(|slot| slot.source == Source::Store && slot.at > fence)
    }

    /// Gives up the local slots of an earlier outage: they were booked without the store's grants since then. Returns the number
    /// of slots of each cost to ask for in their place.
    fn give_up_local_slots(&mut self) -> Vec<(Permits, usize)> {
        self.give_up(|slot| slot.source == Source::Local)
    }

    /// Gives back the slots for which `gone` holds. Returns the number of slots of each cost to ask for in their place.
    fn give_up(&mut self, mut gone: impl FnMut(&Slot) -> bool) -> Vec<(Permits, usize)> {
        let mut given_up = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let slots = cost_queue.take_slots(&mut gone);
            cost_queue.wanted += slots.len();
            given_up.push((*cost, slots));
        }
        let wanted = given_up.iter().map(|(cost, slots)| (*cost, slots.len())).collect();
        for (cost, slots) in given_up {
            slots.into_iter().for_each(|slot| self.give_back(slot, cost));
        }
        wanted
    }

    /// Charges this replica's memory with its part of the usage at the last contact with the store.
    ///
    /// A share is the limit divided by the number of replicas, and so is the part of the usage: all replicas together have left
    /// what the fleet had left. The tightest limit counts as full in two cases:
    /// - the store was booked ahead: at the last booked slot, so that nothing is granted before;
    /// - the store has granted nothing since an earlier outage: at the last contact, because other replicas may have been granted
    ///   everything.
    ///
    /// The charge is at least that usage: another queue of the limiter may have charged it already.
    fn begin_outage(&self) {
        let Fallback { store, clock, fleet, replica, .. } = &*self.fallback;
        let fleet_size = fleet.size();
        for place in self.queue.with_policy(OnStoreFailure::Local) {
            let limiter_ref = self.limiter_refs[place].share(fleet_size);
            let used = self.used.get(place).map_or(0, |used| used.div_ceil(fleet_size));
            let full = limiter_ref.rules.iter().map(Rule::capacity).min().unwrap_or_default();
            let used = match self.outage_fence.last() {
                Some(last) => (clock.at(self.clock.due(last)), used.max(full)),
                None if self.has_served_locally => (clock.at(self.last_contact), used.max(full)),
                None => (clock.at(self.last_contact), used),
            };
            store.charge_at(clock.now(), &limiter_ref, used, *replica);
        }
    }

    /// Keeps the known usage in this replica's memory, for the next worker of the limiter if the store is unreachable then.
    pub(super) fn keep_usage(&self) {
        let has_any = self.used.iter().any(|used| *used > 0);
        let has_room = || self.fallback.store.len() < USAGES_MAX;
        if has_any && !self.is_local && self.session.store.may_fail() && has_room() {
            self.begin_outage();
        }
    }

    /// Serves requests from this replica's share of the limits, in its own memory.
    ///
    /// A request that costs more than a share ever holds is refused: no replica can know whether the others leave enough for it.
    fn settle_locally(&mut self, replace: Vec<(Permits, usize)>, arrivals: Vec<Arrival>) {
        let now = Instant::now();
        let holds =
            |limiter_ref: LimiterRef| limiter_ref.rules.iter().map(Rule::capacity).min().unwrap_or(u64::MAX);
        let cost_max = self.local_refs().map(holds).min().unwrap_or(u64::MAX);
        let (replace, costly): (Vec<_>, Vec<_>) =
            replace.into_iter().partition(|(cost, _)| cost.get() <= cost_max);
        let (arrivals, refused): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| arrival.cost.get() <= cost_max);
        let refusal = self.store_unavailable();
        for (cost, count) in costly {
            (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal));
        }
        refused.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
        let replaced = replace.iter().map(|(_, count)| *count as u64).sum::<u64>();
        let call = Call {
            runs: self.runs(now, &replace, &arrivals),
            queue_slots_left: self.queue_slots_left() + replaced,
            ..Call::default()
        };
        let answer = self.ask_fallback(call.clone());
        let granted: Vec<_> = booked(&call, &answer).collect();
        self.session.ledger.record_offline(answer.now, &self.limiter_refs, &granted);
        self.has_served_locally = true;
        let clock = self.clock_of(Source::Local, Instant::now());
        let slot = |at: Micros| Slot { at, due: clock.due(at), source: Source::Local };
        self.settle_outcomes(replace, arrivals, (&answer, &mut each(&answer)), 0, slot);
    }

    /// Returns this replica's shares of the limiters that are enforced locally.
    fn local_refs(&self) -> impl Iterator<Item = LimiterRef> {
        let places = self.queue.with_policy(OnStoreFailure::Local);
        places.map(|place| self.limiter_refs[place].share(self.fallback.fleet.size()))
    }

    /// Makes a call to this replica's memory, for its shares of the limiters that are enforced locally.
    pub(super) fn ask_fallback(&self, mut call: Call) -> Answer {
        let Fallback { store, replica, .. } = &*self.fallback;
        let places: Vec<usize> = self.queue.with_policy(OnStoreFailure::Local).collect();
        let limiter_refs: Vec<_> = self.local_refs().collect();
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
