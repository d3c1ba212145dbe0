//! Builds the worker's next call to the store.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::state::{BATCH_MAX, SentCall, Worker};
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Call, Freed, Holding, Permits, Run};
use crate::limiter::queue::cost_queue::{CostQueue, DEADLINE_SLACK};
use crate::limiter::queue::inbox::Arrival;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::recovery::write_back::report_offline_grants;

/// Requests whose waits differ by less go into one run, with the shortest of their waits.
const RUN_SPREAD: Duration = Duration::from_millis(1);

/// Slots that are due sooner are about to be used, and are neither booked anew nor traded.
const REBOOK_MARGIN: Duration = Duration::from_millis(20);

/// The most instants at which slots are given back in one call. A cost queue is booked anew up to there. The later slots of a
/// longer one stay, and up to a window is lost between the two parts.
const GIVE_BACK_MAX: usize = 4000;

/// The most slots traded in one call.
const TRADE_MAX: usize = 16;

impl Worker {
    /// Sends the next call, if there is a reason for one and none is under way.
    pub(super) fn start_call(&mut self, now: Instant) {
        let heartbeat_is_due = self.must_call() && now >= self.last_contact + self.session.heartbeat();
        // An idle queue that nobody holds waits for its next request: there may be very many such queues.
        let tells_change = self.limits_changed && (self.is_held || self.must_call());
        let has_reason = tells_change
            || heartbeat_is_due
            || !self.pending.is_empty()
            || (!self.give_back.is_empty() && !self.is_local)
            || !self.reschedule.is_empty()
            || !self.replace.is_empty()
            || self.prefetch_wanted(now).is_some()
            || self.can_trade(now);
        let settles = self.settles_until.is_some_and(|until| now < until);
        if self.call.is_some() || self.is_pausing || settles || !has_reason {
            return;
        }
        self.limits_changed = false;
        let store_now = self.session.now();
        let has_expired = |limiter: &LimiterRef| limiter.valid_until.is_some_and(|until| store_now >= until);
        if self.limiter_refs.iter().any(has_expired) {
            self.make_limiter_refs();
        }
        let sent = self.next_call(now);
        let (session, fallback) = (self.session.clone(), self.fallback.clone());
        self.call = Some(Box::pin(async move {
            let result = match report_offline_grants(&session, &sent.limiter_refs, &fallback).await {
                Ok(()) => session.store.reserve(&sent.limiter_refs, &sent.call).await,
                Err(error) => Err(error.into()),
            };
            (sent, result)
        }));
    }

    /// Gives back the slots of the cost queues to be booked anew, and asks for as many.
    ///
    /// No more than fits into this call, and the first ones: others would be booked behind slots that are given back later.
    fn rebook(&mut self, now: Instant) {
        if self.give_back.iter().any(|(_, generations)| *generations != self.generations) {
            return;
        }
        for cost in std::mem::take(&mut self.rebook) {
            let Some(cost_queue) = self.cost_queues.get_mut(&cost) else { continue };
            let mut space = GIVE_BACK_MAX.saturating_sub(self.give_back.len());
            let mut last = None;
            let slots = cost_queue.take_stored(|slot| {
                // Slots of one instant are given back as one.
                let is_another = last != Some(slot.at);
                if slot.due <= now + REBOOK_MARGIN || (is_another && space == 0) {
                    return false;
                }
                space -= usize::from(is_another);
                last = Some(slot.at);
                true
            });
            for slot in slots {
                self.give_back(slot, cost);
                self.want(cost);
            }
        }
    }

    /// Returns the test of whether a slot lies behind freed permits, so that it can be traded for them.
    fn is_later(freed: Freed, now: Instant) -> impl Fn(&Slot) -> bool {
        move |slot| slot.at > freed.at && slot.due > now + REBOOK_MARGIN
    }

    /// Returns whether a slot can be traded for freed permits.
    fn can_trade(&self, now: Instant) -> bool {
        let Some(freed) = self.freed.filter(|freed| Some(*freed) != self.fruitless_freed) else {
            return false;
        };
        self.cost_queues.iter().any(|(cost, cost_queue)| {
            freed.permits >= cost.get() && cost_queue.last_stored().is_some_and(Self::is_later(freed, now))
        })
    }

    /// Trades the last slots of one cost queue for freed permits: gives them back and asks for as many, so that all requests
    /// behind the freed permits move up. Returns the earliest slot given back.
    ///
    /// A few at a time, so that replicas share the freed permits. Only slots of one cost, and with nothing else to replace, so
    /// that no other request takes the slots given back. The store does both in one call, so a trade loses nothing.
    fn trade(&mut self, now: Instant) -> Option<Micros> {
        let fits = self.give_back.len() < BATCH_MAX - TRADE_MAX
            && self.give_back.iter().all(|(_, generations)| *generations == self.generations);
        if !self.replace.is_empty() || !fits || !self.can_trade(now) {
            return None;
        }
        let freed = self.freed?;
        let is_later = Self::is_later(freed, now);
        let (cost, slots) = self.cost_queues.iter_mut().find_map(|(cost, cost_queue)| {
            let count = usize::try_from(freed.permits / cost.get()).unwrap_or(usize::MAX).min(TRADE_MAX);
            let slots = cost_queue.take_last(count, &is_later);
            (!slots.is_empty()).then_some((*cost, slots))
        })?;
        let first = slots.front().map(|slot| slot.at);
        for slot in slots {
            self.give_back(slot, cost);
            self.want(cost);
        }
        first
    }

    /// Builds the next call, and takes everything that goes with it.
    fn next_call(&mut self, now: Instant) -> SentCall {
        let mut traded = None;
        if self.reschedule.is_empty() {
            self.rebook(now);
            traded = self.trade(now);
        }
        let generations = match self.give_back.front() {
            _ if !self.reschedule.is_empty() => self.reschedule_generations.clone(),
            Some((_, generations)) => generations.clone(),
            None => self.generations.clone(),
        };
        let give_back = self.take_give_back(&generations);
        let reschedule: Vec<_> = self.reschedule.drain(..self.reschedule.len().min(BATCH_MAX)).collect();
        let replace: Vec<_> = std::mem::take(&mut self.replace).into_iter().collect();
        let arrivals: Vec<_> = self.pending.drain(..self.pending.len().min(BATCH_MAX)).collect();
        let replaced: usize = replace.iter().map(|(_, count)| count).sum();
        let mut runs = self.runs(now, &replace, &arrivals);
        // Permits are prefetched only where they can be used at once.
        let wanted = self.prefetch_wanted(now).filter(|_| replace.is_empty());
        runs.extend(wanted.map(|(cost, count)| Run { cost: cost.get(), wait_max: Micros::ZERO, count }));
        let prefetch = wanted.map(|(cost, _)| cost);
        let call = Call {
            replica: self.fallback.replica,
            epoch: self.session.epoch_least(),
            generations: generations.to_vec(),
            give_back,
            reschedule: holdings(&reschedule),
            reschedule_wait: self.longest_wait(now),
            refusal_budget: self.queue.refusal_budget(now),
            runs,
            queue_slots_left: self.queue_slots_left() + replaced as u64,
        };
        let (call, limiter_refs) = (Arc::new(call), self.limiter_refs.clone());
        SentCall { call, limiter_refs, at: now, reschedule, replace, arrivals, traded, prefetch }
    }

    /// Takes the slots to give back that were booked under these generations; others go with the next call.
    fn take_give_back(&mut self, generations: &Arc<[u64]>) -> Vec<Holding> {
        let mut taken = Vec::new();
        while taken.len() < GIVE_BACK_MAX
            && let Some((holding, _)) = self.give_back.pop_front_if(|(_, of)| of == generations)
        {
            taken.push(holding);
        }
        taken
    }

    /// Returns the longest remaining wait of the waiting requests.
    fn longest_wait(&self, now: Instant) -> Micros {
        let deadline = self.cost_queues.values().filter_map(CostQueue::last_deadline).max().unwrap_or(now);
        Micros::from(deadline.saturating_duration_since(now) + DEADLINE_SLACK)
    }

    /// Returns how many more requests may wait.
    pub(super) fn queue_slots_left(&self) -> u64 {
        u64::from(self.queue.max_waiting()).saturating_sub(self.waiting() as u64)
    }

    /// Groups slots to replace, then requests, into runs of one cost and one wait.
    pub(super) fn runs(&self, now: Instant, replace: &[(Permits, usize)], arrivals: &[Arrival]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (cost, count) in replace {
            let deadline = self.cost_queues.get(cost).and_then(CostQueue::last_deadline).unwrap_or(now);
            let wait_max = Micros::from(deadline.saturating_duration_since(now) + DEADLINE_SLACK);
            runs.push(Run { cost: cost.get(), wait_max, count: *count as u64 });
        }
        let replaced = runs.len();
        let mut first_wait = Duration::ZERO;
        for arrival in arrivals {
            let (cost, wait) = (arrival.cost.get(), arrival.deadline.saturating_duration_since(now));
            match runs[replaced..].last_mut() {
                Some(run) if run.cost == cost && wait.abs_diff(first_wait) < RUN_SPREAD => {
                    run.count += 1;
                    run.wait_max = run.wait_max.min(Micros::from(wait));
                }
                _ => {
                    first_wait = wait;
                    runs.push(Run { cost, wait_max: Micros::from(wait), count: 1 });
                }
            }
        }
        runs
    }

    /// Gives a slot back to the place where it was booked: the store or this replica's memory.
    pub(super) fn give_back(&mut self, slot: Slot, cost: Permits) {
        let holding = Holding { slot: slot.at, cost: cost.get(), count: 1 };
        match slot.source {
            Source::Unlimited => {}
            Source::Local => {
                self.session.ledger.remove_offline(&self.limiter_refs, slot.at, cost.get());
                self.ask_fallback(Call { give_back: vec![holding], ..Call::default() });
            }
            Source::Store => {
                // The freed permits may serve requests that the cache would refuse.
                self.queue.set_refusal_cache(None);
                let is_same = |(last, generations): &&mut (Holding, Arc<[u64]>)| {
                    (last.slot, last.cost) == (holding.slot, holding.cost) && *generations == self.generations
                };
                match self.give_back.back_mut().filter(is_same) {
                    Some((last, _)) => last.count += 1,
                    None => self.give_back.push_back((holding, self.generations.clone())),
                }
            }
        }
    }
}

/// Returns slots as holdings, with equal ones merged.
fn holdings(slots: &[(Slot, Permits)]) -> Vec<Holding> {
    let mut holdings: Vec<Holding> = Vec::new();
    for (slot, cost) in slots {
        match holdings.last_mut() {
            Some(last) if (last.slot, last.cost) == (slot.at, cost.get()) => last.count += 1,
            _ => holdings.push(Holding { slot: slot.at, cost: cost.get(), count: 1 }),
        }
    }
    holdings
}
