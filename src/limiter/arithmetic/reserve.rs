//! One call to a store: give back, exchange what a change of the limits voided, state.
//!
//! [`reserve`] is the whole of it as a pure function; the memory store runs it under a lock, the Redis store
//! runs its twin `lua/reserve.lua`, and a model test holds the two equal. Permits are counted in cost.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::Search;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::{LimiterState, Returned};
use crate::limiter::model::call::{Answer, Call, Holding, Outcome, RetryDelay, Violated};
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::upstream_report::{ReportResult, UpstreamReport};

/// Carries out `call` at `now` over a queue's limiters, each with its caller's rules.
pub fn reserve(
    now: Micros,
    lease: Micros,
    states: &mut [(&mut LimiterState, Arc<[Rule]>)],
    order: &mut QueueOrder,
    call: &Call,
) -> Answer {
    for (state, rules) in states.iter_mut() {
        state.open(now, rules, lease, call.replica);
    }
    order.open(now, states.iter().map(|(state, _)| state.generation().number).sum());
    order.review_spread(now, || states.iter().flat_map(|(state, _)| state.rules()));
    for holding in &call.give_back {
        let permits = holding.cost * holding.count;
        let moved = give_back(states, &call.known, holding.slot, permits);
        order.given_back(now, moved.unwrap_or(holding.slot), permits);
    }
    let exchanged = exchange(now, states, order, call);
    let mut outcomes = book_runs(now, states, order, call);
    for (_, outcome) in &mut outcomes {
        if let Outcome::TooFar(RetryDelay { violated, .. }) | Outcome::Full(RetryDelay { violated, .. }) =
            outcome
        {
            let (state, rules) = &states[violated.limiter];
            violated.limit = state.own_limit(violated.limit, rules);
        }
    }
    Answer {
        now,
        epoch: Epoch { now, ..Epoch::default() },
        generations: states.iter().map(|(state, _)| state.generation()).collect(),
        available: states.iter().map(|(state, rules)| state.available(now, rules)).collect(),
        paused: states.iter().map(|(state, _)| state.paused_until(now)).collect(),
        lives_until: Vec::new(),
        last: states.iter().filter_map(|(state, _)| state.calendar().last()).max().unwrap_or_default(),
        room: order.room(),
        exchanged,
        outcomes,
    }
}

/// Hears at `now` what an upstream said of a limiter, whose state is open.
pub fn report_upstream(
    state: &mut LimiterState,
    now: Micros,
    lease: Micros,
    limiter_ref: &LimiterRef,
    said: &UpstreamReport,
) -> ReportResult {
    if said.cost > 0 {
        state.charge(now, said.cost);
    }
    if !said.refused.is_empty() {
        state.hear_refused(now, &said.refused);
    }
    let rules =
        said.remaining.iter().filter_map(|(index, left)| Some((limiter_ref.rules.get(*index)?, left)));
    let drift = rules.map(|(rule, left)| state.hear_remaining(now, rule, left)).sum();
    // What is moved by the pause heeds the others, too.
    if let Some(request) = &said.pause {
        state.ask_pause(now, lease, request, said.replica);
    }
    state.follow_others(now, lease);
    ReportResult { epoch: Epoch { now, ..Epoch::default() }, paused_until: state.paused_until(now), drift }
}

/// Takes permits back from every limiter; returns the latest place to which a change had moved them, if any.
fn give_back(
    states: &mut [(&mut LimiterState, Arc<[Rule]>)],
    known: &[u64],
    slot: Micros,
    permits: u64,
) -> Option<Micros> {
    let mut place = None;
    for (index, (state, _)) in states.iter_mut().enumerate() {
        let known = known.get(index).copied().unwrap_or_default();
        if let Returned::Moved(to) = state.give_back(slot, permits, known) {
            place = place.max(Some(to));
        }
    }
    place
}

/// Hands a void permit's place to its holder, where every limiter has put it at the same one. `skipped` permits of the same slot
/// stay for others.
fn fetch(
    now: Micros,
    states: &mut [(&mut LimiterState, Arc<[Rule]>)],
    call: &Call,
    holding: Holding,
    skipped: u64,
) -> Option<Micros> {
    let mut place = None;
    for (index, (state, _)) in states.iter().enumerate() {
        let known = call.known.get(index).copied().unwrap_or_default();
        let to = state.place(holding.slot, holding.cost, known, skipped)?;
        if to < now || to - now > call.exchange_wait || *place.get_or_insert(to) != to {
            return None;
        }
    }
    states.iter_mut().for_each(|(state, _)| state.fetch(holding.slot, holding.cost, skipped));
    place
}

/// How many permits of a slot its `index`th holder of `count` leaves to others that come before: several replicas hold permits of
/// one slot, and where those lie apart now each takes some from the whole stretch.
fn skipped(left: u64, count: u64, index: u64, cost: u64) -> u64 {
    ((2 * index + 1) * left / (2 * count)).saturating_sub(index * cost)
}

/// Books void permits again, one by one: at the place that the change kept for each, or no earlier than that.
fn exchange(
    now: Micros,
    states: &mut [(&mut LimiterState, Arc<[Rule]>)],
    order: &mut QueueOrder,
    call: &Call,
) -> Vec<(u64, Option<Micros>)> {
    let mut exchanged: Vec<(u64, Option<Micros>)> = Vec::new();
    for holding in &call.exchange {
        let unfetched =
            states.iter().map(|(state, _)| state.unfetched(holding.slot)).min().unwrap_or_default();
        for index in 0..holding.count {
            let skipped = skipped(unfetched, holding.count, index, holding.cost);
            let place = fetch(now, states, call, *holding, skipped).or_else(|| {
                let place = give_back(states, &call.known, holding.slot, holding.cost);
                let mut searches = searches_from(states, now.max(place.unwrap_or(order.last())));
                let found = earliest(&mut searches, holding.cost);
                let is_near = found.at - now <= call.exchange_wait;
                is_near.then(|| {
                    searches.iter_mut().for_each(|search| search.charge(holding.cost));
                    found.at
                })
            });
            order.exchanged(place);
            match exchanged.last_mut() {
                Some((count, at)) if *at == place => *count += 1,
                _ => exchanged.push((1, place)),
            }
        }
    }
    exchanged
}

fn book_runs(
    now: Micros,
    states: &mut [(&mut LimiterState, Arc<[Rule]>)],
    order: &mut QueueOrder,
    call: &Call,
) -> Vec<(u64, Outcome)> {
    let mut outcomes = Vec::new();
    let (mut room, mut spare) = (call.room, call.spare);
    let mut searches = searches_from(states, now);
    // The search has moved on for a cost that found nothing where it stood: a smaller one may have room before.
    let mut passed = 0;
    for run in &call.runs {
        if run.cost < passed {
            searches = searches_from(states, now);
            passed = 0;
        }
        let mut left = run.count;
        while left > 0 {
            let floor = order.floor(run.cost);
            searches.iter_mut().for_each(|search| search.advance(floor));
            let found = earliest(&mut searches, run.cost);
            let delay = found.at - now;
            let refuses = if delay > run.wait_max {
                Some(Outcome::TooFar as fn(RetryDelay) -> Outcome)
            } else if delay > Micros::ZERO && room == 0 {
                Some(Outcome::Full as fn(RetryDelay) -> Outcome)
            } else {
                None
            };
            if let Some(refuses) = refuses {
                let Violated { limiter, limit } = found.violated;
                let count = left + std::mem::take(&mut spare);
                let told = order.tell(found.at, count * run.cost, violated_rule(&searches, limiter, limit));
                outcomes
                    .push((left, refuses(RetryDelay { delay, told: told - now, violated: found.violated })));
                passed = passed.max(run.cost);
                break;
            }
            let mut count = left.min(found.room / run.cost).min(order.count_at(found.at, run.cost)).max(1);
            if delay > Micros::ZERO {
                count = count.min(room);
                room -= count;
            }
            searches.iter_mut().for_each(|search| search.charge(count * run.cost));
            if order.booked(found.at, count, run.cost) {
                passed = passed.max(run.cost);
            }
            outcomes.push((count, Outcome::Booked(found.at)));
            left -= count;
        }
    }
    outcomes
}

fn violated_rule<'a>(searches: &'a [Search<'_>], limiter: usize, limit: usize) -> Option<&'a Rule> {
    searches.get(limiter).and_then(|search| search.rules().get(limit))
}

fn searches_from<'a>(states: &'a mut [(&mut LimiterState, Arc<[Rule]>)], from: Micros) -> Vec<Search<'a>> {
    states.iter_mut().map(|(state, _)| state.search(from)).collect()
}

struct Earliest {
    at: Micros,
    room: u64,
    violated: Violated,
}

/// The earliest instant at which every limiter has room: each moves the others forward until none moves.
fn earliest(searches: &mut [Search<'_>], cost: u64) -> Earliest {
    let mut violated = Violated::default();
    let mut at = searches.iter().map(|search| search.at()).max().unwrap_or_default();
    loop {
        let mut room = u64::MAX;
        let mut moved = false;
        for (limiter, search) in searches.iter_mut().enumerate() {
            search.advance(at);
            let found = search.earliest(cost);
            if let Some(limit) = found.limited_by {
                violated = Violated { limiter, limit };
            }
            moved |= found.at > at;
            at = found.at;
            room = room.min(found.room);
        }
        if !moved {
            return Earliest { at, room, violated };
        }
    }
}
