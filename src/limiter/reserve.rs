//! One call to a store: give back, exchange what a change of the limits voided, book.
//!
//! [`reserve`] is the whole of it as a pure function; the memory store runs it under a lock, the Redis store
//! runs its twin `lua/reserve.lua`, and a model test holds the two equal. Permits are counted in cost.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::algorithm::Search;
use crate::limiter::book::{Book, Generation, Returned};
use crate::limiter::order::{QueueOrder, Room};
use crate::limiter::rule::Rule;
use crate::limiter::store::{Epoch, Heard, Said, Subject};

/// Permits held at one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The slot.
    pub slot: Micros,
    /// The cost of each.
    pub cost: u64,
    /// How many of that cost.
    pub count: u64,
}

/// Requests of one cost and one wait, in the order of their arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The cost of each.
    pub cost: u64,
    /// The longest wait of each, from the instant of the call.
    pub wait_max: Micros,
    /// How many.
    pub count: u64,
}

/// What is asked, in the order in which it is done.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Call {
    /// The calling replica: a number below 2^53, chosen at its start.
    pub replica: u64,
    /// The latest epoch of the store that the caller has heard of.
    pub epoch: u64,
    /// For each limiter: the generation under which the holdings below were booked.
    pub known: Vec<u64>,
    /// For each limiter: when the caller last saw its state that should still be there; zero if it need not.
    pub seen: Vec<Micros>,
    /// Permits that are not needed.
    pub give_back: Vec<Holding>,
    /// Void permits that are wanted at their new place, ascending.
    pub exchange: Vec<Holding>,
    /// The longest wait for such a place, from the instant of the call.
    pub exchange_wait: Micros,
    /// New requests.
    pub runs: Vec<Run>,
    /// How many of them may be given a slot in the future.
    pub room: u64,
    /// How many requests like the first that is refused the caller may refuse without asking: they are told what follows.
    pub spare: u64,
}

/// Which limit refused: the limiter's place in the call, the limit's place in the limiter.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Violated {
    /// The limiter.
    pub limiter: usize,
    /// The limit.
    pub limit: usize,
}

/// What became of some requests or holdings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Booked at this instant of the store's clock.
    Booked(Micros),
    /// Nothing booked: the earliest slot is further away than the wait.
    TooFar(Away),
    /// Nothing booked: as many wait as may.
    Full(Away),
}

/// How far away a slot is that was not booked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Away {
    /// How far.
    pub delay: Micros,
    /// How far the first of the refused is told to stay away, so that not all come back at one instant. Each further one
    /// is told [`Rule::spacing`] more, and where that exceeds [`Rule::spread_max`] beyond the delay, it begins anew.
    pub told: Micros,
    /// What stood in the way.
    pub violated: Violated,
}

/// The answer to a [`Call`].
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The store's clock when the call was carried out.
    pub now: Micros,
    /// The store's memory: which, and whether nothing is granted in it yet. Then nothing was exchanged or booked.
    pub epoch: Epoch,
    /// For each limiter: the last change of its limits.
    pub generations: Vec<Generation>,
    /// For each limiter and each of its limits: the permits that could be used at once.
    pub available: Vec<Vec<u64>>,
    /// For each limiter: until when its upstream asked to be left alone; zero if it did not.
    pub paused: Vec<Micros>,
    /// For each limiter: until when its state is sure to be there, in a store that may lose it.
    pub lives_until: Vec<Micros>,
    /// The last instant at which one of the limiters is booked; zero if none is.
    pub last: Micros,
    /// Room that was given back before the queue's last slot, and that its later slots may be traded for.
    pub room: Option<Room>,
    /// The slots of the holdings to exchange, in order, as counts; `None`: none within the wait.
    pub exchanged: Vec<(u64, Option<Micros>)>,
    /// What became of the requests, in order, as counts.
    pub outcomes: Vec<(u64, Outcome)>,
}

/// Carries out `call` at `now` over a queue's limiters, each with its caller's rules.
pub fn reserve(
    now: Micros,
    lease: Micros,
    books: &mut [(&mut Book, Arc<[Rule]>)],
    order: &mut QueueOrder,
    call: &Call,
) -> Answer {
    for (book, rules) in books.iter_mut() {
        book.open(now, rules, lease, call.replica);
    }
    order.open(now, books.iter().map(|(book, _)| book.generation().number).sum());
    order.review_spread(now, || books.iter().flat_map(|(book, _)| book.rules()));
    for holding in &call.give_back {
        let permits = holding.cost * holding.count;
        let moved = give_back(books, &call.known, holding.slot, permits);
        order.given_back(now, moved.unwrap_or(holding.slot), permits);
    }
    let exchanged = exchange(now, books, order, call);
    let mut outcomes = book_runs(now, books, order, call);
    for (_, outcome) in &mut outcomes {
        if let Outcome::TooFar(Away { violated, .. }) | Outcome::Full(Away { violated, .. }) = outcome {
            let (book, rules) = &books[violated.limiter];
            violated.limit = book.own_limit(violated.limit, rules);
        }
    }
    Answer {
        now,
        epoch: Epoch { now, ..Epoch::default() },
        generations: books.iter().map(|(book, _)| book.generation()).collect(),
        available: books.iter().map(|(book, rules)| book.available(now, rules)).collect(),
        paused: books.iter().map(|(book, _)| book.paused_until(now)).collect(),
        lives_until: Vec::new(),
        last: books.iter().filter_map(|(book, _)| book.calendar().last()).max().unwrap_or_default(),
        room: order.room(),
        exchanged,
        outcomes,
    }
}

/// Hears at `now` what an upstream said of a limiter, whose book is open.
pub fn hear(book: &mut Book, now: Micros, lease: Micros, subject: &Subject, said: &Said) -> Heard {
    if said.cost > 0 {
        book.charge(now, said.cost);
    }
    if !said.refused.is_empty() {
        book.hear_refused(now, &said.refused);
    }
    let rules = said.remaining.iter().filter_map(|(index, left)| Some((subject.rules.get(*index)?, left)));
    let drift = rules.map(|(rule, left)| book.hear_remaining(now, rule, left)).sum();
    // What is moved by the pause heeds the others, too.
    if let Some(request) = &said.pause {
        book.ask_pause(now, lease, request, said.replica);
    }
    book.follow_others(now, lease);
    Heard { epoch: Epoch { now, ..Epoch::default() }, paused_until: book.paused_until(now), drift }
}

/// Takes permits back from every limiter; returns the latest place to which a change had moved them, if any.
fn give_back(
    books: &mut [(&mut Book, Arc<[Rule]>)],
    known: &[u64],
    slot: Micros,
    permits: u64,
) -> Option<Micros> {
    let mut place = None;
    for (index, (book, _)) in books.iter_mut().enumerate() {
        let known = known.get(index).copied().unwrap_or_default();
        if let Returned::Moved(to) = book.give_back(slot, permits, known) {
            place = place.max(Some(to));
        }
    }
    place
}

/// Hands a void permit's place to its holder, where every limiter has put it at the same one. `skipped` permits of the same slot
/// stay for others.
fn fetch(
    now: Micros,
    books: &mut [(&mut Book, Arc<[Rule]>)],
    call: &Call,
    holding: Holding,
    skipped: u64,
) -> Option<Micros> {
    let mut place = None;
    for (index, (book, _)) in books.iter().enumerate() {
        let known = call.known.get(index).copied().unwrap_or_default();
        let to = book.place(holding.slot, holding.cost, known, skipped)?;
        if to < now || to - now > call.exchange_wait || *place.get_or_insert(to) != to {
            return None;
        }
    }
    books.iter_mut().for_each(|(book, _)| book.fetch(holding.slot, holding.cost, skipped));
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
    books: &mut [(&mut Book, Arc<[Rule]>)],
    order: &mut QueueOrder,
    call: &Call,
) -> Vec<(u64, Option<Micros>)> {
    let mut exchanged: Vec<(u64, Option<Micros>)> = Vec::new();
    for holding in &call.exchange {
        let unfetched = books.iter().map(|(book, _)| book.unfetched(holding.slot)).min().unwrap_or_default();
        for index in 0..holding.count {
            let skipped = skipped(unfetched, holding.count, index, holding.cost);
            let place = fetch(now, books, call, *holding, skipped).or_else(|| {
                let place = give_back(books, &call.known, holding.slot, holding.cost);
                let mut searches = searches_from(books, now.max(place.unwrap_or(order.last())));
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
    books: &mut [(&mut Book, Arc<[Rule]>)],
    order: &mut QueueOrder,
    call: &Call,
) -> Vec<(u64, Outcome)> {
    let mut outcomes = Vec::new();
    let (mut room, mut spare) = (call.room, call.spare);
    let mut searches = searches_from(books, now);
    // The search has moved on for a cost that found nothing where it stood: a smaller one may have room before.
    let mut passed = 0;
    for run in &call.runs {
        if run.cost < passed {
            searches = searches_from(books, now);
            passed = 0;
        }
        let mut left = run.count;
        while left > 0 {
            let floor = order.floor(run.cost);
            searches.iter_mut().for_each(|search| search.advance(floor));
            let found = earliest(&mut searches, run.cost);
            let delay = found.at - now;
            let refuses = if delay > run.wait_max {
                Some(Outcome::TooFar as fn(Away) -> Outcome)
            } else if delay > Micros::ZERO && room == 0 {
                Some(Outcome::Full as fn(Away) -> Outcome)
            } else {
                None
            };
            if let Some(refuses) = refuses {
                let Violated { limiter, limit } = found.violated;
                let count = left + std::mem::take(&mut spare);
                let told = order.tell(found.at, count * run.cost, violated_rule(&searches, limiter, limit));
                outcomes.push((left, refuses(Away { delay, told: told - now, violated: found.violated })));
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

fn searches_from<'a>(books: &'a mut [(&mut Book, Arc<[Rule]>)], from: Micros) -> Vec<Search<'a>> {
    books.iter_mut().map(|(book, _)| book.search(from)).collect()
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
