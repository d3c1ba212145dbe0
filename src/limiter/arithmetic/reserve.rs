//! Carries out one call to a store: gives permits back, reschedules void ones and books new ones.
//!
//! Pure. The memory store runs [`reserve`] under a lock, the Redis store runs its twin `lua/scripts/reserve.lua`, and a model
//! test holds the two equal. Permits are counted in cost.

use std::iter::Peekable;
use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::moving::{join, place_void};
use crate::limiter::arithmetic::queue_order::{QueueOrder, Refused};
use crate::limiter::arithmetic::reschedule::Cursor;
use crate::limiter::arithmetic::room::{States, searches_from, seen};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::search::{Earliest, Search, earliest_of};
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{
    Answer, Call, Epoch, Holding, Outcome, ReportResult, RetryDelay, Run, UpstreamReport, Violated,
};

/// Carries out `call` at `now` over a queue's limiters.
pub fn reserve(
    now: Micros,
    lease: Micros,
    states: States<'_, '_>,
    order: &mut QueueOrder,
    call: &Call,
) -> Answer {
    for (index, (state, rules)) in states.iter_mut().enumerate() {
        state.open(now, rules, lease, call.replica);
        state.keep_places(call.generations.get(index).copied().unwrap_or_default(), now + lease);
    }
    join(now, lease, states);
    place_void(now, states);
    order.open(now, states.iter().map(|(state, _)| state.generation().number).sum());
    order.review_spread(now, || states.iter().flat_map(|(state, _)| state.rules()));
    for holding in &call.give_back {
        let permits = holding.cost * holding.count;
        let mut cursors = cursors(states, &call.generations, holding.slot);
        let moved_to = give_back(states, &mut cursors, permits);
        // Where a limiter still has them booked there is no room.
        if !cursors.contains(&Cursor::Lost) {
            order.given_back(now, moved_to.unwrap_or(holding.slot), permits);
        }
    }
    let rescheduled = reschedule(now, states, order, call);
    let mut outcomes = book_runs(now, states, order, call);
    outcomes.iter_mut().for_each(|(_, outcome)| describe_refusal(now, states, outcome));
    Answer { freed: order.freed(), rescheduled, outcomes, ..seen(now, states) }
}

/// Applies at `now` an upstream's report on a limiter, whose state is open.
pub fn report_upstream(
    state: &mut LimiterState,
    now: Micros,
    lease: Micros,
    limiter_ref: &LimiterRef,
    report: &UpstreamReport,
) -> ReportResult {
    if report.cost > 0 {
        state.charge_excess(now, report.cost);
    }
    if !report.refused.is_empty() {
        state.observe_refused(now, &report.refused);
    }
    let remaining = report.remaining.iter();
    let remaining = remaining.filter_map(|(index, left)| Some((limiter_ref.rules.get(*index)?, left)));
    let external_usage = remaining.map(|(rule, left)| state.observe_remaining(now, rule, left)).sum();
    // Bookings that the pause moves must leave external usage free, too.
    if let Some(request) = &report.pause {
        state.ask_pause(now, lease, request, report.replica);
    }
    state.follow_external_usage(now, lease);
    let epoch = Epoch { now, ..Epoch::default() };
    ReportResult { epoch, paused_until: state.paused_until(now), external_usage }
}

/// Replaces the place of the violated rule among those in force by its place among the caller's rules, and says what it has left.
fn describe_refusal(now: Micros, states: States<'_, '_>, outcome: &mut Outcome) {
    if let Outcome::TooFar(away) | Outcome::Full(away) = outcome {
        let (state, rules) = &states[away.violated.limiter];
        away.violated.limit = state.own_limit(away.violated.limit, rules);
        let available = state.available(now, rules);
        away.available = available.get(away.violated.limit).copied().unwrap_or_default();
    }
}

/// Returns cursors over the permits of one slot in every limiter.
fn cursors(states: States<'_, '_>, generations: &[u64], slot: Micros) -> Vec<Cursor> {
    let cursor = |(index, (state, _)): (usize, &(&mut LimiterState, Arc<[Rule]>))| {
        state.cursor(slot, generations.get(index).copied().unwrap_or_default())
    };
    states.iter().enumerate().map(cursor).collect()
}

/// Takes permits back from every limiter. Returns the latest of the places to which changes had moved them, if any.
fn give_back(states: States<'_, '_>, cursors: &mut [Cursor], permits: u64) -> Option<Micros> {
    let places = states.iter_mut().zip(cursors);
    places.filter_map(|((state, _), cursor)| state.give_back(cursor, permits)).max()
}

/// Claims the place of a void permit that lies behind `offset` others of its slot; `None` unless every limiter that has the permit
/// booked has moved it to the same one.
fn claim(
    now: Micros,
    states: States<'_, '_>,
    cursors: &mut [Cursor],
    call: &Call,
    (cost, offset): (u64, u64),
) -> Option<Micros> {
    let is_within = |to: &Micros| *to >= now && *to - now <= call.reschedule_wait;
    let places: Vec<_> = states
        .iter()
        .zip(cursors.iter_mut())
        .filter(|(_, cursor)| **cursor != Cursor::Lost)
        .map(|((state, _), cursor)| state.seek(cursor, offset, cost).filter(is_within))
        .collect();
    let place = *places.first()?;
    if place.is_none() || places.iter().any(|other| *other != place) {
        return None;
    }
    states.iter_mut().zip(cursors).for_each(|((state, _), cursor)| state.claim(cursor, cost));
    place
}

/// The new places of void permits: so many of a cost
enum Moved {
    /// claim a place that the change has kept for them,
    Claimed(u64, u64, Micros),
    /// or are taken back, to be booked from an instant on; `None`: behind the last slot.
    TakenBack(u64, u64, Option<Micros>),
}

/// Adds permits to the step before, where that is an equal one.
fn note(steps: &mut Vec<Moved>, step: Moved) {
    match (steps.last_mut(), &step) {
        (Some(Moved::Claimed(more, same, at)), Moved::Claimed(count, cost, place))
            if (*same, *at) == (*cost, *place) =>
        {
            *more += count;
        }
        (Some(Moved::TakenBack(more, same, at)), Moved::TakenBack(count, cost, place))
            if (*same, *at) == (*cost, *place) =>
        {
            *more += count;
        }
        _ => steps.push(step),
    }
}

/// Books claimed permits in the bare limiters, too: those that do not have them booked any more, because nothing has moved there and they
/// were given back. Where these have no room at the same instant, the permits are taken back.
fn book_in_bare(states: States<'_, '_>, generations: &[u64], claimed: Vec<Moved>) -> Vec<Moved> {
    let is_bare = |index: usize, state: &LimiterState| {
        !state.knows(generations.get(index).copied().unwrap_or_default())
    };
    if !states.iter().enumerate().any(|(index, (state, _))| is_bare(index, state)) {
        return claimed;
    }
    let (mut steps, mut claimed) = (Vec::new(), claimed.into_iter().peekable());
    while claimed.peek().is_some() {
        let (mut searches, mut others) = (Vec::new(), Vec::new());
        for (index, (state, _)) in states.iter_mut().enumerate() {
            if is_bare(index, state) {
                searches.push(state.search(Micros::ZERO).unpaced());
            } else {
                others.push(state);
            }
        }
        book_claimed(&mut searches, &mut others, &mut claimed, &mut steps);
    }
    steps
}

/// Books claimed permits by `searches`, or takes them back from all `others`, until a place lies before one that the searches have passed.
fn book_claimed(
    searches: &mut [Search<'_>],
    others: &mut [&mut &mut LimiterState],
    claimed: &mut Peekable<impl Iterator<Item = Moved>>,
    steps: &mut Vec<Moved>,
) {
    let mut reached = Micros::ZERO;
    let is_ahead = |step: &Moved, reached| !matches!(step, Moved::Claimed(_, _, place) if *place < reached);
    while let Some(step) = claimed.next_if(|step| is_ahead(step, reached)) {
        let Moved::Claimed(mut left, cost, place) = step else {
            note(steps, step);
            continue;
        };
        while left > 0 {
            searches.iter_mut().for_each(|search| search.advance(place));
            reached = place;
            let Some(room) = room_of(searches, cost) else {
                others.iter_mut().for_each(|state| state.uncharge(place, left * cost));
                note(steps, Moved::TakenBack(left, cost, Some(place)));
                break;
            };
            let count = left.min(room / cost).max(1);
            searches.iter_mut().for_each(|search| search.charge(count * cost));
            note(steps, Moved::Claimed(count, cost, place));
            left -= count;
        }
    }
}

/// The permits of one limiter that are rescheduled together; of several limiters each takes its part of fewer, and some go together in any case.
const TOGETHER: u64 = 32;
const TOGETHER_OF_SEVERAL: u64 = 20;
const TOGETHER_LEAST: u64 = 2;

/// Returns the room for `cost` at the instant where searches stand; `None` if there is none.
fn room_of(searches: &[Search<'_>], cost: u64) -> Option<u64> {
    searches.iter().try_fold(u64::MAX, |least, search| Some(least.min(search.room_here(cost)?)))
}

/// Moves searches to the place of permits that were taken back. Where several limiters are asked, other permits that are still to be claimed,
/// and may be moved again then, stand in the way in each of them: those that have no room at once go behind all others, and from there to
/// room that others leave.
fn place_of(searches: &mut [Search<'_>], cost: u64) -> Earliest {
    if let [first, _, ..] = searches {
        let at = first.at();
        if let Some(room) = room_of(searches, cost) {
            return Earliest { at, room, violated: Violated::default() };
        }
        let last = searches.iter().filter_map(Search::last_booked).max().unwrap_or_default();
        searches.iter_mut().for_each(|search| search.advance(last));
    }
    earliest_of(searches, cost)
}

/// Returns holdings in groups of so many requests, in their order; the last group may have fewer, and so have those with a cost that is smaller
/// than one before, for which the twin searches anew.
fn groups(holdings: &[Holding], size: u64) -> Vec<Vec<Holding>> {
    let mut groups: Vec<Vec<Holding>> = Vec::new();
    let (mut space, mut largest) = (0, 0);
    for holding in holdings {
        let mut left = holding.count;
        if holding.cost < largest {
            space /= 2;
        }
        while left > 0 {
            if space == 0 {
                groups.push(Vec::new());
                (space, largest) = (size, 0);
            }
            largest = largest.max(holding.cost);
            let count = left.min(space);
            groups.last_mut().into_iter().for_each(|group| group.push(Holding { count, ..*holding }));
            (left, space) = (left - count, space - count);
        }
    }
    groups
}

/// Books void permits again, at the places that the change kept for them, or at later ones. They go in groups, for which the twin may take
/// several calls.
fn reschedule(
    now: Micros,
    states: States<'_, '_>,
    order: &mut QueueOrder,
    call: &Call,
) -> Vec<(u64, Option<Micros>)> {
    let mut rescheduled = Vec::new();
    let together = match states.len() as u64 {
        0 | 1 => TOGETHER,
        several => (TOGETHER_OF_SEVERAL / several).max(TOGETHER_LEAST),
    };
    for group in groups(&call.reschedule, together) {
        reschedule_group(now, states, order, call, &group, &mut rescheduled);
    }
    rescheduled
}

/// Books the permits of a group again, and adds their places.
///
/// First every permit claims its place or is taken back. Only then are the latter booked, in one search, so that none of them
/// stands in the way of another.
fn reschedule_group(
    now: Micros,
    states: States<'_, '_>,
    order: &mut QueueOrder,
    call: &Call,
    group: &[Holding],
    rescheduled: &mut Vec<(u64, Option<Micros>)>,
) {
    let mut moved = Vec::new();
    for holding in group {
        take_over(now, states, order, call, *holding, &mut moved);
    }
    let moved = book_in_bare(states, &call.generations, moved);
    let mut answer = |order: &mut QueueOrder, more, place| {
        order.rescheduled(place);
        match rescheduled.last_mut() {
            Some((count, at)) if *at == place => *count += more,
            _ => rescheduled.push((more, place)),
        }
    };
    let mut searches = Vec::new();
    // The largest cost for which the searches have passed by room: for a smaller one they begin anew, as they do at first.
    let mut passed = u64::MAX;
    for step in moved {
        let (mut left, cost, from) = match step {
            Moved::Claimed(count, _, place) => {
                answer(order, count, Some(place));
                continue;
            }
            Moved::TakenBack(count, cost, place) => (count, cost, now.max(place.unwrap_or(order.last()))),
        };
        if cost < passed {
            searches = searches_from(states, from).into_iter().map(Search::unpaced).collect();
            passed = 0;
        }
        while left > 0 {
            searches.iter_mut().for_each(|search| search.advance(from));
            let found = place_of(&mut searches, cost);
            if found.at > from {
                passed = passed.max(cost);
            }
            if found.at - now > call.reschedule_wait {
                answer(order, left, None);
                break;
            }
            let count = left.min(found.room / cost).max(1);
            searches.iter_mut().for_each(|search| search.charge(count * cost));
            answer(order, count, Some(found.at));
            left -= count;
        }
    }
}

/// Claims the places of the permits of a slot, or takes them back, into `moved`.
///
/// Several replicas may hold permits of one slot. Where the new places lie apart, each replica takes some from the whole
/// stretch.
fn take_over(
    now: Micros,
    states: States<'_, '_>,
    order: &mut QueueOrder,
    call: &Call,
    Holding { slot, cost, count }: Holding,
    moved: &mut Vec<Moved>,
) {
    let mut cursors = cursors(states, &call.generations, slot);
    let unclaimed = cursors.iter().filter_map(Cursor::unclaimed).min().unwrap_or_default();
    for index in 0..count {
        let offset = ((2 * index + 1) * unclaimed / (2 * count)).max(index * cost);
        if let Some(place) = claim(now, states, &mut cursors, call, (cost, offset)) {
            order.rescheduled(Some(place));
            note(moved, Moved::Claimed(1, cost, place));
        } else {
            let place = give_back(states, &mut cursors, cost);
            note(moved, Moved::TakenBack(1, cost, place));
        }
    }
}

/// Books new requests in their order. Returns their outcomes in order, with a count for each run of equal ones.
fn book_runs(
    now: Micros,
    states: States<'_, '_>,
    order: &mut QueueOrder,
    call: &Call,
) -> Vec<(u64, Outcome)> {
    let mut outcomes = Vec::new();
    let (mut queue_slots_left, mut refusal_budget) = (call.queue_slots_left, call.refusal_budget);
    let mut refused = 0;
    let (mut searches, mut started) = (searches_from(states, now), now);
    // The search has moved on for a cost that found no room where it stood: a smaller one may have room before.
    let mut passed = 0;
    for (index, run) in call.runs.iter().enumerate() {
        let start = now + call.lead.min(run.wait_max);
        let has_passed = start < std::mem::replace(&mut started, start);
        if run.cost < passed || has_passed {
            searches = searches_from(states, start);
            passed = 0;
        }
        let mut left = run.count;
        let first = outcomes.len();
        while left > 0 {
            let floor = order.floor(run.cost).max(start);
            searches.iter_mut().for_each(|search| search.advance(floor));
            let found = earliest_of(&mut searches, run.cost);
            let (delay, waits) = (found.at - now, found.at > now);
            if waits && let Some(refuse) = refusal(delay, run, queue_slots_left) {
                let is_new = call.is_new(index);
                refused += if is_new { left } else { 0 };
                let count = if is_new { left + refusal_budget } else { 0 };
                let callers = Refused { cost: run.cost, count, is_crowd: refused > 1 };
                let violated = violated(&searches, &found, run.cost);
                let rule = violated_rule(&searches, violated);
                let (advised, is_spread) = order.advise(now, found.at, callers, rule);
                refusal_budget = if is_spread { 0 } else { refusal_budget };
                let advised = advised - now;
                outcomes
                    .push((left, refuse(RetryDelay { delay, advised, is_spread, violated, available: 0 })));
                passed = passed.max(run.cost);
                break;
            }
            let mut count = left.min(found.room / run.cost).min(order.count_at(found.at, run.cost)).max(1);
            if waits {
                count = count.min(queue_slots_left);
                queue_slots_left -= count;
            }
            searches.iter_mut().for_each(|search| search.charge(count * run.cost));
            // One that is only booked as far ahead as its answer takes is in nobody's way where there is room before.
            if order.booked(found.at, count, run.cost, found.at > start) {
                passed = passed.max(run.cost);
            }
            match outcomes[first..].last_mut() {
                Some((more, Outcome::Booked(at))) if *at == found.at => *more += count,
                _ => outcomes.push((count, Outcome::Booked(found.at))),
            }
            left -= count;
        }
    }
    outcomes
}

/// Returns the kind of refusal for a request that has to wait for its slot, `delay` away; `None` if it may be booked.
fn refusal(delay: Micros, run: &Run, queue_slots_left: u64) -> Option<fn(RetryDelay) -> Outcome> {
    if delay > run.wait_max {
        Some(Outcome::TooFar)
    } else if queue_slots_left == 0 {
        Some(Outcome::Full)
    } else {
        None
    }
}

/// Returns the place of the rule with the shortest window, the first of these.
fn shortest(rules: &[Rule]) -> usize {
    (0..rules.len()).min_by_key(|place| rules[*place].window).unwrap_or_default()
}

/// Returns the limit for which a request has to wait until `found`: the rule that has no room right before. Which one moved the search last
/// depends on where that began. Where all have room, the state is closed until its shortest rule is whole.
fn violated(searches: &[Search<'_>], found: &Earliest, cost: u64) -> Violated {
    let Violated { limiter, limit } = found.violated;
    match searches.get(limiter).filter(|search| search.rules().len() > 1) {
        Some(search) => {
            let limiting = search.limiting(found.at - Micros::ONE, cost);
            Violated { limiter, limit: limiting.unwrap_or_else(|| shortest(search.rules())) }
        }
        None => Violated { limiter, limit },
    }
}

fn violated_rule<'a>(searches: &'a [Search<'_>], violated: Violated) -> Option<&'a Rule> {
    searches.get(violated.limiter).and_then(|search| search.rules().get(violated.limit))
}
