//! Takes in an answer of the store, or of this replica's own memory.

use std::collections::VecDeque;
use std::iter::repeat_n;

use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{Answer, Generations, Outcome, Permits};
use crate::limiter::queue::cost_queue::{CostQueue, Stage, Waiter};
use crate::limiter::queue::pause::in_pause;
use crate::limiter::queue::prefetch;
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::queue::request::{Arrival, Asker, Holder};
use crate::limiter::queue::slot::{Slot, Source};

use super::asking::holdings;
use super::{BookedCore, LocalCall, Sent};
use crate::limiter::queue::worker::common::void_from;
use crate::limiter::queue::worker::events::{Action, Context, LocalAnswer};

/// How much later than the store's clock allows a slot may be due.
const STRAY_MAX: Micros = Micros::from_millis(1);

/// An answer's outcomes, in the order of the call's runs.
struct Outcomes<'a, I> {
    answer: &'a Answer,
    source: Source,
    each: I,
    /// How many further requests may be refused like the first refused one that is spread.
    budget: u64,
    /// The longest delay that is surely true: [`LocalAnswer::known_within`].
    known_within: Micros,
}

impl BookedCore {
    /// Takes in the store's answer to the call under way.
    pub(super) fn answered(
        &mut self,
        answer: &Answer,
        (budget, sent_at): (u64, Moment),
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let Some(sent) = self.calls.under_way.take() else { return };
        let Sent { reschedule, replace, arrivals, traded, prefetch, .. } = sent;
        // It may have waited for long before it was sent.
        self.calls.contact = Some(sent_at);
        self.owed.refunds.heard = answer.epoch.id;
        let known = self.owed.generations.clone();
        let has_void = self.observe_generations(answer, context.now, out);
        let has_moved_again = known != self.owed.generations;
        let source = Source::Store(self.owed.epoch);
        self.refresh_slots(context);
        let is_replaced = !replace.is_empty() || !reschedule.is_empty();
        self.take_rescheduled(reschedule, answer, has_moved_again, context, out);
        let mut outcomes =
            Outcomes { answer, source, each: each(answer), budget, known_within: Micros(u64::MAX) };
        let first = self.take_outcomes(replace, arrivals, &mut outcomes, context, out);
        if let Some(cost) = prefetch {
            self.add_prefetched(cost, outcomes.each, context, out);
        }
        self.trade.freed = answer.freed;
        if traded.is_some_and(|traded| first.is_none_or(|first| first >= traded)) {
            self.trade.fruitless = answer.freed;
        }
        if has_void || is_replaced {
            // A request whose slot came too late has taken the next one, perhaps that of a later request. So that one has the slot that was
            // booked instead. It may keep that beyond its wait, if it comes as soon after its arrival as any answer of the store may.
            let arrival_grace = if has_void { Micros::ZERO } else { self.limits.terms.answer_max };
            self.refuse_overdue(context.now, arrival_grace, out);
        }
        self.observe_available(answer);
    }

    /// Puts rescheduled slots into their cost queues, and refuses the requests without one. The store may leave some, or all while it is
    /// still moving bookings: the next call asks for those again; if they have moved once more meanwhile, it asks for others.
    fn take_rescheduled(
        &mut self,
        mut reschedule: Vec<(Slot, Permits)>,
        answer: &Answer,
        has_moved_again: bool,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let source = Source::Store(self.owed.epoch);
        let rescheduled = answer.rescheduled.iter().flat_map(|(count, at)| repeat_n(*at, to_usize(*count)));
        let places: Vec<_> = rescheduled.take(reschedule.len()).collect();
        let left = reschedule.split_off(places.len());
        for ((_, cost), at) in reschedule.into_iter().zip(places) {
            match at {
                Some(at) => self.hold_wanted(cost, slot(at, source, context)),
                // It would lie behind the last one that is booked, and behind the pause.
                None => {
                    let paused = self.pause.now.as_ref().map(|paused| paused.until - context.now);
                    let booked = (answer.last - answer.now).max(self.limits.terms.lease);
                    let refusal = self.limits.too_far(booked.max(paused.unwrap_or_default()));
                    self.refuse_without_slot(cost, &refusal, out);
                }
            }
        }
        for (slot, cost) in left.into_iter().rev() {
            if has_moved_again {
                self.owe(cost, 1);
            } else {
                self.owed.reschedule.slots.push_front((slot, cost));
            }
        }
    }

    /// Takes in the answer of this replica's own memory.
    pub(super) fn answered_locally(&mut self, local: &LocalAnswer, context: &Context, out: &mut Vec<Action>) {
        let Some(LocalCall { replace, arrivals }) = self.calls.local.take() else { return };
        let LocalAnswer { answer, costs_max, known_within } = local;
        let cost_max = costs_max.iter().copied().min().unwrap_or(u64::MAX);
        // No replica can know whether the others leave enough for a cost above its share.
        let refusal = self.limits.store_unavailable();
        let (replace, costly): (Vec<_>, Vec<_>) =
            replace.into_iter().partition(|(cost, _)| cost.get() <= cost_max);
        for (cost, count) in costly {
            (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal, out));
        }
        let (arrivals, costly): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| arrival.cost().get() <= cost_max);
        let refused = |arrival: Arrival| Action::Refuse(arrival.asker, arrival.costs, refusal.clone());
        out.extend(costly.into_iter().map(refused));
        let source = Source::Local(self.outage());
        let is_replaced = !replace.is_empty();
        let mut outcomes =
            Outcomes { answer, source, each: each(answer), budget: 0, known_within: *known_within };
        self.take_outcomes(replace, arrivals, &mut outcomes, context, out);
        // Where the share has no room for a late slot's request now, others have moved back.
        if is_replaced {
            self.refuse_overdue(context.now, Micros::ZERO, out);
        }
    }

    /// Corrects when slots are due where heartbeats have narrowed the bounds of the store's clock: by its answer alone, a slot far ahead
    /// is due later by as much as the clocks may drift apart until then.
    pub(super) fn follow_clock(&mut self, context: &Context) {
        let strays = |slot: &Slot| {
            matches!(slot.source, Source::Store(_)) && slot.due > context.clock.due(slot.at) + STRAY_MAX
        };
        if self.calls.unmoved_at.is_some()
            && self.cost_queues.values().filter_map(CostQueue::next_slot).any(strays)
        {
            self.refresh_slots(context);
        }
    }

    /// Corrects when the slots of the store are due.
    fn refresh_slots(&mut self, context: &Context) {
        self.cost_queues.values_mut().for_each(|cost_queue| cost_queue.refresh(&context.clock));
    }

    /// Takes in the available permits.
    fn observe_available(&mut self, answer: &Answer) {
        let limits = answer.available.iter().zip(&self.limits.refs);
        let limits = limits.flat_map(|(left, limiter_ref)| limiter_ref.rules.iter().zip(left));
        self.prefetch.budget = limits
            .map(|(rule, left)| prefetch::prefetch_budget(rule.capacity(), *left))
            .min()
            .unwrap_or_default();
    }

    /// Takes the slots that a change of generations has voided out of the cost queues, for the next call to reschedule. Returns
    /// whether there are any. The store changes them when it moves bookings: after a change of the limits, a pause, a reset or external
    /// usage.
    fn observe_generations(&mut self, answer: &Answer, moment: Moment, out: &mut Vec<Action>) -> bool {
        let numbers: Generations = answer.generations.iter().map(|generation| generation.number).collect();
        if numbers == self.owed.generations {
            return false;
        }
        self.withdraw(out);
        let void_from = void_from(&answer.generations, &self.owed.generations);
        let mut void: Vec<(Slot, Permits)> = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let gone = cost_queue.take_stored(|slot| slot.at >= void_from);
            cost_queue.wanted += gone.len();
            void.extend(gone.into_iter().map(|slot| (slot, *cost)));
        }
        void.sort_by_key(|(slot, _)| slot.at);
        if !void.is_empty() {
            out.push(Action::LogMoved(void.len()));
        }
        // Slots that an earlier change has voided, and that were not rescheduled yet, have lost their places.
        self.lose_rescheduled();
        let known = std::mem::replace(&mut self.owed.generations, numbers);
        self.owed.reschedule.from = moment;
        self.release_unmoved(&known, answer, &void);
        self.owed.reschedule.slots = VecDeque::from(void);
        !self.owed.reschedule.slots.is_empty()
    }

    /// Gives void slots back in the limiters where this replica does not claim them. Left there, they would stand in the way of every
    /// claimed place, this replica's and others'. So this comes before any is rescheduled.
    fn release_unmoved(&mut self, known: &Generations, answer: &Answer, void: &[(Slot, Permits)]) {
        let (claimed, released) = if self.moved_together(known) {
            known.split(&self.owed.generations)
        } else {
            known.alone(self.slowest_moved(known, answer))
        };
        self.owed.reschedule.generations = claimed;
        if released.is_partial() {
            let holdings = holdings(void).into_iter().map(|holding| (holding, released.clone()));
            self.owed.give_back.extend(holdings);
            self.owed.reschedule.from = self.owed.reschedule.from + self.limits.terms.heartbeat;
        }
    }

    /// Returns whether the limiters whose bookings have moved have those of the same requests, as far as can be known here: the store moves
    /// them together then, to the same places.
    fn moved_together(&self, known: &Generations) -> bool {
        let limiters = self.limits.refs.iter().zip(known.iter().zip(self.owed.generations.iter()));
        let mut partitions =
            limiters.filter(|(_, (known, now))| known != now).map(|(limiter, _)| limiter.partition);
        let first = partitions.next();
        partitions.all(|partition| Some(partition) == first)
    }

    /// Returns the place of the limiter that grants permits most slowly, of those whose bookings have moved, or the one of these that is
    /// paused for longest: the same one at each replica.
    fn slowest_moved(&self, known: &Generations, answer: &Answer) -> usize {
        let moved = known.iter().zip(self.owed.generations.iter()).map(|(known, now)| known != now);
        let pace = |limiter: &LimiterRef| {
            let of = |rule: &Rule| (u128::from(rule.window.0) << 32) / u128::from(rule.rate.max(1));
            limiter.rules.iter().map(of).max()
        };
        let moved = self.limits.refs.iter().zip(moved).enumerate().filter(|(_, (_, moved))| *moved);
        let paused = |place: usize| answer.paused.get(place).copied().unwrap_or_default();
        moved
            .max_by_key(|(place, (limiter, _))| (pace(limiter), paused(*place)))
            .map_or(0, |(place, _)| place)
    }

    /// Puts booked requests into their cost queues and refuses the others. Returns the earliest slot that was booked in place of
    /// another.
    fn take_outcomes<I: Iterator<Item = Outcome>>(
        &mut self,
        replace: Vec<(Permits, usize)>,
        arrivals: Vec<Arrival>,
        outcomes: &mut Outcomes<'_, I>,
        context: &Context,
        out: &mut Vec<Action>,
    ) -> Option<Micros> {
        let mut first: Option<Micros> = None;
        let known_within = outcomes.known_within;
        for (cost, count) in replace {
            let mut left = count;
            for outcome in outcomes.each.by_ref().take(count) {
                left -= 1;
                match outcome {
                    Outcome::Booked(at) => {
                        first = Some(first.map_or(at, |first| first.min(at)));
                        self.hold_wanted(cost, slot(at, outcomes.source, context));
                    }
                    Outcome::TooFar(away) if away.delay > known_within => {
                        left += 1;
                        self.calls.shut_until = context.now + self.limits.terms.heartbeat;
                    }
                    Outcome::TooFar(away) | Outcome::Full(away) => {
                        let refusal = self.limits.refusal(outcome, away.advised);
                        self.refuse_without_slot(cost, &refusal, out);
                    }
                }
            }
            self.owe(cost, left);
        }
        self.take_arrivals(arrivals, outcomes, context, out);
        first
    }

    /// Puts booked requests into their cost queues, refuses the others, and keeps the first refusal for later requests.
    fn take_arrivals<I: Iterator<Item = Outcome>>(
        &mut self,
        arrivals: Vec<Arrival>,
        outcomes: &mut Outcomes<'_, I>,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let (store_now, known_within) = (outcomes.answer.now, outcomes.known_within);
        // The budget belongs to the first refusal that is spread. Each other one is only used for the requests of this call.
        let (mut first, mut latest): (Option<Box<RefusalCache>>, Option<Box<RefusalCache>>) = (None, None);
        let mut refused = 0;
        let mut arrivals = arrivals.into_iter();
        while arrivals.len() > 0
            && let Some(outcome) = outcomes.each.next()
            && let Some(arrival) = arrivals.next()
        {
            match outcome {
                Outcome::Booked(at) => self.join(arrival, slot(at, outcomes.source, context), out),
                Outcome::TooFar(away) if away.delay > known_within => {
                    self.calls.shut_until = context.now + self.limits.terms.heartbeat;
                    self.await_store(arrival, context.now, out);
                }
                Outcome::TooFar(away) | Outcome::Full(away) => {
                    let cost = arrival.cost();
                    if !latest.as_ref().is_some_and(|latest| latest.is_of(cost, &away, store_now)) {
                        first = preferred(first, latest);
                        let clock = context.clock_of(outcomes.source);
                        latest = self.refusal_cache(cost, away, store_now, (clock, context.now));
                    }
                    refused += 1;
                    let advised =
                        latest.as_mut().map_or(away.advised, |latest| latest.advise(cost, context.now));
                    let refusal = self.limits.refusal(outcome, advised);
                    let refusal = in_pause(refusal, self.pause.now.as_ref(), arrival.deadline);
                    out.push(Action::Refuse(arrival.asker, cost.into(), refusal));
                }
            }
        }
        self.put_back(arrivals.collect());
        if matches!(outcomes.source, Source::Store(_)) && refused > 0 {
            out.push(Action::CountRefused(refused));
            let cache = preferred(first, latest).filter(|_| !self.gives_back());
            let cache = cache.map(|cache| Action::Cache(cache.with_budget(outcomes.budget)));
            out.extend(cache);
        }
    }

    /// Puts a booked request into its cost queue.
    pub(super) fn join(&mut self, arrival: Arrival, slot: Slot, out: &mut Vec<Action>) {
        let (cost, Arrival { asker, arrived, deadline, flow, .. }) = (arrival.cost(), arrival);
        match asker {
            Asker::Request(request) => {
                let holder = Holder { arrived, deadline, late: 0, flow };
                let ends = self.ends(arrived, deadline);
                let cost_queue = self.cost_queues.entry(cost).or_default();
                cost_queue.join(Waiter { request, holder, ends, stage: Stage::Asking });
                cost_queue.hold(slot);
            }
            // A limiter that only counts is charged when its request is on its way already.
            Asker::Shadow => out.push(Action::Charge(slot.source, cost)),
            Asker::Refused => self.give_back(slot, cost, out),
        }
    }
}

/// Returns the first of two refusals that is spread, or the first one.
fn preferred(
    first: Option<Box<RefusalCache>>,
    later: Option<Box<RefusalCache>>,
) -> Option<Box<RefusalCache>> {
    let is_spread = |cache: &Option<Box<RefusalCache>>| cache.as_ref().is_some_and(|cache| cache.is_spread());
    if is_spread(&later) && !is_spread(&first) { later } else { first.or(later) }
}

/// Returns the slot that was booked at an instant.
fn slot(at: Micros, source: Source, context: &Context) -> Slot {
    Slot { at, due: context.clock_of(source).due(at), source }
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
