//! Takes in an answer of the store.

use std::collections::VecDeque;
use std::iter::repeat_n;
use std::sync::Arc;

use futures_util::future::FutureExt;
use tokio::time::Instant;
use tracing::info;

use super::state::{SentCall, Worker};
use crate::clock::Micros;
use crate::limiter::model::{Answer, Generation, Outcome, Permits};
use crate::limiter::queue::cost_queue::{Stage, Waiter};
use crate::limiter::queue::inbox::{Arrival, Asker};
use crate::limiter::queue::pause::in_pause;
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::queue::prefetch;
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::recovery::offline_grants::REPORT_AHEAD;
use crate::limiter::store::Failure;

/// The most failed calls of a queue that may still complete. A store that has failed three times is not asked.
const LATE_CALLS_MAX: usize = 16;

impl Worker {
    /// Takes in the result of a call, then hands out what can be used at once.
    pub(super) fn settle(&mut self, sent: SentCall, result: Result<Answer, Failure>) {
        match result {
            Ok(answer) => self.settle_answer(sent, &answer),
            Err(Failure { error, late }) => {
                if let Some(late) = late.filter(|_| self.late_calls.len() < LATE_CALLS_MAX) {
                    let (limiter_refs, call) = (sent.limiter_refs.clone(), sent.call.clone());
                    self.late_calls.push(late.map(|answer| (limiter_refs, call, answer)).boxed());
                }
                self.settle_failure(sent, &error);
            }
        }
        self.hand_out(Instant::now());
        self.announce_waiting();
    }

    fn settle_answer(&mut self, sent: SentCall, answer: &Answer) {
        let now = Instant::now();
        self.observe_contact(sent.at, now, answer);
        if answer.epoch.id < self.session.epoch_least() {
            return self.ask_again(sent, None);
        }
        self.epoch = answer.epoch.id;
        self.observe_pauses(answer.now, &answer.paused);
        let moved = self.observe_generations(answer);
        if answer.epoch.settles_until.is_some() {
            return self.ask_again(sent, answer.epoch.settles_until);
        }
        if self.session.store.may_fail() {
            self.session.ledger.record(&sent.limiter_refs, &sent.call, answer);
        }
        self.outage_fence.observe(sent.at, answer.now, answer.last);
        if std::mem::take(&mut self.has_served_locally) {
            self.return_to_store(sent.at);
        }
        let clock = self.clock;
        let slot = |at: Micros| Slot { at, due: clock.due(at), source: Source::Store };
        self.refresh_slots();
        let rescheduled = answer.rescheduled.iter().flat_map(|(count, at)| repeat_n(*at, to_usize(*count)));
        for ((_, cost), at) in sent.reschedule.iter().zip(rescheduled) {
            match at {
                Some(at) => self.hold_wanted(*cost, slot(at)),
                None => self.refuse_without_slot(*cost, &self.too_far(None)),
            }
        }
        let replaced = !sent.replace.is_empty();
        let mut outcomes = each(answer);
        let first = self.settle_outcomes(
            sent.replace,
            sent.arrivals,
            (answer, &mut outcomes),
            sent.call.refusal_budget,
            slot,
        );
        if let Some(cost) = sent.prefetch {
            self.add_prefetched(cost, outcomes);
        }
        self.freed = answer.freed;
        let is_fruitless = sent.traded.is_some_and(|traded| first.is_none_or(|first| first >= traded));
        self.fruitless_freed = if is_fruitless { answer.freed } else { self.fruitless_freed };
        if moved || replaced || !sent.reschedule.is_empty() {
            self.refuse_overdue(now);
        }
        self.observe_usage(answer);
    }

    /// Takes in the clock and the epoch of an answer.
    fn observe_contact(&mut self, sent: Instant, now: Instant, answer: &Answer) {
        self.clock = self.session.observe_clock(sent, now, answer.now);
        self.last_contact = sent;
        self.is_local = false;
        if self.session.observe_epoch(answer.epoch) {
            self.siblings.wake_all();
        }
        self.notice_loss();
    }

    /// Corrects when the slots of the store are due.
    fn refresh_slots(&mut self) {
        let clock = self.clock;
        let due = |held: &Slot| if held.source == Source::Store { clock.due(held.at) } else { held.due };
        self.cost_queues.values_mut().for_each(|cost_queue| cost_queue.refresh(due));
    }

    /// Gives up the slots that were booked locally, and asks the store for others, so that the waiting requests get their places in
    /// the order of the fleet. Slots near enough to be reported before the call that was `sent` stay; a later one may have been
    /// booked by another replica.
    fn return_to_store(&mut self, sent: Instant) {
        let reported = sent + REPORT_AHEAD.to_duration();
        let mut returned = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let slots = cost_queue.take_slots(|slot| slot.source == Source::Local && slot.due > reported);
            returned.extend(slots.into_iter().map(|slot| (slot, *cost)));
        }
        for (slot, cost) in returned {
            self.give_back(slot, cost);
            self.want(cost);
        }
    }

    /// Takes in the available permits, and with them the usage by the fleet.
    fn observe_usage(&mut self, answer: &Answer) {
        let limits = answer.available.iter().zip(self.limiter_refs.iter());
        let limits = limits.flat_map(|(left, limiter_ref)| limiter_ref.rules.iter().zip(left));
        self.prefetch_budget = limits
            .map(|(rule, left)| prefetch::prefetch_budget(rule.capacity(), *left))
            .min()
            .unwrap_or_default();
        let instances = self.queue.instances.iter().zip(&answer.available).zip(self.limiter_refs.iter());
        let used = instances.map(|((instance, available), limiter_ref)| {
            instance.active.show_available(instance.partition, available);
            let rules = limiter_ref.rules.iter().zip(available);
            rules.map(|(rule, left)| rule.capacity().saturating_sub(*left)).max().unwrap_or_default()
        });
        self.used = used.collect();
    }

    /// Takes the slots that a change of the limits has voided out of the cost queues, for the next call to reschedule. Returns
    /// whether there are any.
    fn observe_generations(&mut self, answer: &Answer) -> bool {
        let numbers: Arc<[u64]> = answer.generations.iter().map(|generation| generation.number).collect();
        if numbers == self.generations {
            return false;
        }
        self.clear_prefetched();
        let void_from = void_from(&answer.generations, &self.generations);
        let mut void: Vec<(Slot, Permits)> = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let gone = cost_queue.take_stored(|slot| slot.at >= void_from);
            cost_queue.wanted += gone.len();
            void.extend(gone.into_iter().map(|slot| (slot, *cost)));
        }
        void.sort_by_key(|(slot, _)| slot.at);
        if !void.is_empty() {
            info!(limiter = %self.limiter_refs[0].name, slots = void.len(), "limits changed: rescheduling waiting requests");
        }
        // Slots that an earlier change has voided, and that were not rescheduled yet, are lost: others are asked for.
        for (_, cost) in self.reschedule.drain(..) {
            *self.replace.entry(cost).or_default() += 1;
        }
        self.reschedule_generations = std::mem::replace(&mut self.generations, numbers);
        self.reschedule = VecDeque::from(void);
        !self.reschedule.is_empty()
    }

    /// Puts booked requests into their cost queues and refuses the others. Returns the earliest slot that was booked in place of
    /// another.
    pub(super) fn settle_outcomes(
        &mut self,
        replace: Vec<(Permits, usize)>,
        arrivals: Vec<Arrival>,
        (answer, outcomes): (&Answer, &mut impl Iterator<Item = Outcome>),
        mut budget: u64,
        slot: impl Fn(Micros) -> Slot,
    ) -> Option<Micros> {
        let mut first: Option<Micros> = None;
        for (cost, count) in replace {
            for outcome in outcomes.by_ref().take(count) {
                match outcome {
                    Outcome::Booked(at) => {
                        first = Some(first.map_or(at, |first| first.min(at)));
                        self.hold_wanted(cost, slot(at));
                    }
                    Outcome::TooFar(away) | Outcome::Full(away) => {
                        // The store's budget belongs to its first refusal, which is this one.
                        budget = 0;
                        let refusal = self.refusal(outcome, away.advised);
                        self.refuse_without_slot(cost, &refusal);
                    }
                }
            }
        }
        self.settle_arrivals(arrivals, answer.now, outcomes, budget, slot);
        first
    }

    /// Puts booked requests into their cost queues, refuses the others, and keeps the first refusal for later requests.
    fn settle_arrivals(
        &mut self,
        arrivals: Vec<Arrival>,
        now: Micros,
        outcomes: &mut impl Iterator<Item = Outcome>,
        budget: u64,
        slot: impl Fn(Micros) -> Slot,
    ) {
        // The store's budget belongs to the first refusal. Each other one is only used for the requests of this call.
        let (mut first, mut latest): (Option<Box<RefusalCache>>, Option<Box<RefusalCache>>) = (None, None);
        let mut refused = 0;
        for arrival in arrivals {
            match outcomes.next() {
                Some(Outcome::Booked(at)) => self.join(arrival, slot(at)),
                Some(outcome @ (Outcome::TooFar(away) | Outcome::Full(away))) => {
                    let cost = arrival.cost;
                    if !latest.as_ref().is_some_and(|latest| latest.is_of(cost, &away, now)) {
                        first = first.or(latest);
                        latest = self.refusal_cache(cost, away, now);
                    }
                    refused += 1;
                    let advised = latest.as_mut().map_or(away.advised, |latest| latest.advise(cost));
                    let refusal = self.refusal(outcome, advised);
                    let refusal = in_pause(refusal, self.paused.as_ref(), arrival.deadline);
                    self.refuse(arrival, refusal);
                }
                None => self.refuse(arrival, self.store_unavailable()),
            }
        }
        if refused > 0 && !self.is_local {
            self.queue.count_refused_by_store(refused);
        }
        if let Some(cache) = first.or(latest)
            && !self.is_local
            && self.give_back.is_empty()
        {
            self.queue.set_refusal_cache(cache.with_budget(budget));
        }
    }

    /// Puts a booked request into its cost queue.
    pub(super) fn join(&mut self, arrival: Arrival, slot: Slot) {
        let Arrival { cost, arrived, deadline, asker } = arrival;
        let Asker::Request(entry) = asker else {
            // A limiter that only counts is charged when its request is on its way already.
            return self.queue.count_used(slot.source, cost);
        };
        let cost_queue = self.cost_queues.entry(cost).or_default();
        cost_queue.join(Waiter { arrived, deadline, late: 0, stage: Stage::Asking(entry) });
        cost_queue.hold(slot);
    }
}

/// Returns the instant from which a change of generations voids slots.
fn void_from(generations: &[Generation], known: &[u64]) -> Micros {
    let changed = generations.iter().zip(known).filter(|(generation, known)| generation.number != **known);
    // A replica that has missed a change loses all its slots.
    let void_from =
        changed.map(
            |(generation, known)| {
                if generation.before == *known { generation.void_from } else { Micros::ZERO }
            },
        );
    void_from.min().unwrap_or_default()
}

/// Returns the outcome of each request, in order.
pub(super) fn each(answer: &Answer) -> impl Iterator<Item = Outcome> {
    let outcomes = answer.outcomes.iter();
    outcomes.flat_map(|(count, outcome)| repeat_n(*outcome, to_usize(*count)))
}

/// Converts a count of requests. It is joined with requests at hand, so that a cut changes nothing.
fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
