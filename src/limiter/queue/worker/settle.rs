//! What a worker does with an answer of the store.

use std::collections::VecDeque;
use std::iter::repeat_n;
use std::sync::Arc;

use futures_util::future::FutureExt;
use tokio::time::Instant;
use tracing::info;

use super::state::{Seen, Sent, Worker};
use crate::clock::Micros;
use crate::limiter::model::call::Answer;
use crate::limiter::model::call::Outcome;
use crate::limiter::model::limit::Permits;
use crate::limiter::queue::cost_queue::{Stage, Waiter};
use crate::limiter::queue::inbox::{Arrival, Asker};
use crate::limiter::queue::pause::in_pause;
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::queue::prefetch;
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::recovery::ledger::SAID_AHEAD;
use crate::limiter::store::Failure;

/// The most calls of a queue that were given up and may be answered yet: a store that has failed three times is not asked.
const LATE_CALLS_MAX: usize = 16;

impl Worker {
    pub(super) fn settle(&mut self, sent: Sent, result: Result<Answer, Failure>) {
        match result {
            Ok(answer) => self.settle_answer(sent, &answer),
            Err(Failure { error, late }) => {
                if let Some(late) = late.filter(|_| self.late.len() < LATE_CALLS_MAX) {
                    let (limiter_refs, call) = (sent.limiter_refs.clone(), sent.call.clone());
                    self.late.push(late.map(|answer| (limiter_refs, call, answer)).boxed());
                }
                self.settle_failure(sent, &error);
            }
        }
        self.hand_out(Instant::now());
        self.tell_waiting();
    }

    pub(super) fn settle_answer(&mut self, sent: Sent, answer: &Answer) {
        let now = Instant::now();
        self.clock = self.session.hear_clock(sent.at, now, answer.now);
        self.heard = sent.at;
        self.is_local = false;
        if self.session.meet_epoch(answer.epoch) {
            self.siblings.wake_all();
        }
        self.notice_loss();
        if answer.epoch.id < self.session.epoch_least() {
            return self.ask_again(sent, None);
        }
        self.epoch = answer.epoch.id;
        self.seen = Seen { at: answer.now, until: answer.lives_until.clone() };
        self.learn_pauses(answer.now, &answer.paused);
        let moved = self.learn_generations(answer);
        if answer.epoch.settles_until.is_some() {
            return self.ask_again(sent, answer.epoch.settles_until);
        }
        if self.session.store.may_fail() {
            self.session.ledger.remember(&sent.limiter_refs, &sent.call, answer);
        }
        self.outage_fence.learn(sent.at, answer.now, answer.last);
        if std::mem::take(&mut self.has_served_locally) {
            self.return_to_store(sent.at);
        }
        let clock = self.clock;
        let slot = |at: Micros| Slot { at, due: clock.due(at), source: Source::Store };
        for cost_queue in self.cost_queues.values_mut() {
            cost_queue
                .refresh(|held| if held.source == Source::Store { clock.due(held.at) } else { held.due });
        }
        let exchanged = answer.rescheduled.iter().flat_map(|(count, at)| repeat_n(*at, to_usize(*count)));
        for ((_, cost), at) in sent.exchange.iter().zip(exchanged) {
            match at {
                Some(at) => self.arrived_slot(*cost, slot(at)),
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
        if let Some(cost) = sent.stock {
            self.put_in_stock(cost, outcomes);
        }
        self.room = answer.freed;
        let is_fruitless = sent.traded.is_some_and(|traded| first.is_none_or(|first| first >= traded));
        self.fruitless = if is_fruitless { answer.freed } else { self.fruitless };
        if moved || replaced || !sent.exchange.is_empty() {
            self.refuse_overdue(now);
        }
        self.learn_use(answer);
    }

    /// Asks the store for what was booked while it was away, but for what it has surely heard of with a call that was sent at
    /// that instant: so that whoever waits stands in the order of the fleet again. A slot that it has not heard of may be
    /// another's by then.
    pub(super) fn return_to_store(&mut self, sent: Instant) {
        let told = sent + SAID_AHEAD.to_duration();
        let mut returned = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let slots = cost_queue.take_slots(|slot| slot.source == Source::Local && slot.due > told);
            returned.extend(slots.into_iter().map(|slot| (slot, *cost)));
        }
        for (slot, cost) in returned {
            self.give_back(slot, cost);
            self.want(cost);
        }
    }

    /// What the fleet has left, and so has used.
    pub(super) fn learn_use(&mut self, answer: &Answer) {
        let limits = answer.available.iter().zip(self.limiter_refs.iter());
        let limits = limits.flat_map(|(left, limiter_ref)| limiter_ref.rules.iter().zip(left));
        self.spare =
            limits.map(|(rule, left)| prefetch::spare(rule.capacity(), *left)).min().unwrap_or_default();
        let instances = self.shared.instances.iter().zip(&answer.available).zip(self.limiter_refs.iter());
        let used = instances.map(|((instance, available), limiter_ref)| {
            instance.active.answered(instance.partition, available);
            let rules = limiter_ref.rules.iter().zip(available);
            rules.map(|(rule, left)| rule.capacity().saturating_sub(*left)).max().unwrap_or_default()
        });
        self.used = used.collect();
    }

    /// Takes void slots out of the cost_queues, to be exchanged by the next call. Returns whether there are any.
    pub(super) fn learn_generations(&mut self, answer: &Answer) -> bool {
        let numbers: Arc<[u64]> = answer.generations.iter().map(|generation| generation.number).collect();
        if numbers == self.known {
            return false;
        }
        self.clear_stock();
        let void_from = answer
            .generations
            .iter()
            .zip(self.known.iter())
            .filter(|(generation, known)| generation.number != **known)
            .map(
                |(generation, known)| {
                    if generation.before == *known { generation.void_from } else { Micros::ZERO }
                },
            )
            .min()
            .unwrap_or_default();
        let mut void: Vec<(Slot, Permits)> = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let gone = cost_queue.take_void(|slot| slot.at >= void_from);
            cost_queue.wanted += gone.len();
            void.extend(gone.into_iter().map(|slot| (slot, *cost)));
        }
        void.sort_by_key(|(slot, _)| slot.at);
        if !void.is_empty() {
            info!(limiter = %self.limiter_refs[0].name, slots = void.len(), "limits changed: moving what waits");
        }
        // What was still to be exchanged for a change before this one has lost its place: it is asked for anew.
        for (_, cost) in self.void.drain(..) {
            *self.replace.entry(cost).or_default() += 1;
        }
        self.void_known = std::mem::replace(&mut self.known, numbers);
        self.void = VecDeque::from(void);
        !self.void.is_empty()
    }

    /// Puts booked requests into their cost_queues and refuses the others. Returns the earliest slot in place of another.
    pub(super) fn settle_outcomes(
        &mut self,
        replace: Vec<(Permits, usize)>,
        arrivals: Vec<Arrival>,
        (answer, outcomes): (&Answer, &mut impl Iterator<Item = Outcome>),
        mut spare: u64,
        slot: impl Fn(Micros) -> Slot,
    ) -> Option<Micros> {
        let mut first: Option<Micros> = None;
        for (cost, count) in replace {
            for outcome in outcomes.by_ref().take(count) {
                match outcome {
                    Outcome::Booked(at) => {
                        first = Some(first.map_or(at, |first| first.min(at)));
                        self.arrived_slot(cost, slot(at));
                    }
                    Outcome::TooFar(away) | Outcome::Full(away) => {
                        spare = 0;
                        let refusal = self.refusal(outcome, away.advised);
                        self.refuse_without_slot(cost, &refusal);
                    }
                }
            }
        }
        // The first refusal comes with what the store left to be told without asking; the others with what they are told.
        let (mut first_learnt, mut learnt): (Option<Box<RefusalCache>>, Option<Box<RefusalCache>>) =
            (None, None);
        let mut refused = 0;
        for arrival in arrivals {
            match outcomes.next() {
                Some(Outcome::Booked(at)) => self.join(arrival, slot(at)),
                Some(outcome @ (Outcome::TooFar(away) | Outcome::Full(away))) => {
                    let cost = arrival.cost;
                    if !learnt.as_ref().is_some_and(|learnt| learnt.is_of(cost, &away, answer.now)) {
                        first_learnt = first_learnt.or(learnt);
                        learnt = self.learnt(cost, away, answer.now);
                    }
                    refused += 1;
                    let told = learnt.as_mut().map_or(away.advised, |learnt| learnt.tell(cost));
                    let refusal = self.refusal(outcome, told);
                    let refusal = in_pause(refusal, self.paused.as_ref(), arrival.deadline);
                    self.refuse(arrival, refusal);
                }
                None => self.refuse(arrival, self.store_unavailable()),
            }
        }
        if refused > 0 && !self.is_local {
            self.shared.count_refused_by_store(refused);
        }
        if let Some(learnt) = first_learnt.or(learnt)
            && !self.is_local
            && self.give_back.is_empty()
        {
            self.shared.learn(learnt.spare(spare));
        }
        first
    }

    pub(super) fn join(&mut self, arrival: Arrival, slot: Slot) {
        let Arrival { cost, arrived, deadline, asker } = arrival;
        let Asker::Request(entry) = asker else {
            // Its request is on its way already.
            return self.shared.count_used(slot.source, cost);
        };
        let cost_queue = self.cost_queues.entry(cost).or_default();
        cost_queue.join(Waiter { arrived, deadline, late: 0, stage: Stage::Asking(entry) });
        cost_queue.hold(slot);
    }
}

/// What became of each request, in order.
pub(super) fn each(answer: &Answer) -> impl Iterator<Item = Outcome> {
    let outcomes = answer.outcomes.iter();
    outcomes.flat_map(|(count, outcome)| repeat_n(*outcome, to_usize(*count)))
}

/// A count that is zipped with requests at hand, so a cut changes nothing.
fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
