//! One call to a store: give back, exchange what a change of the limits voided, book.
//!
//! [`reserve`] is the whole of it as a pure function; the memory store runs it under a lock, the Redis store
//! runs its twin `lua/reserve.lua`, and a model test holds the two equal. Permits are counted in cost.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::algorithm::Search;
use crate::limiter::book::{Book, Generation, Returned};
use crate::limiter::calendar::Rule;

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
    /// For each limiter: the generation under which the holdings below were booked.
    pub known: Vec<u64>,
    /// Permits that are not needed.
    pub give_back: Vec<Holding>,
    /// Void permits that are wanted at their new place, ascending.
    pub exchange: Vec<Holding>,
    /// New requests.
    pub runs: Vec<Run>,
    /// How many of them may be given a slot in the future.
    pub room: u64,
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
    /// Nothing booked: the earliest slot is this far away, further than the wait.
    TooFar(Micros, Violated),
    /// Nothing booked: as many wait as may; the earliest slot is this far away.
    Full(Micros, Violated),
}

/// The answer to a [`Call`].
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The store's clock when the call was carried out.
    pub now: Micros,
    /// For each limiter: the last change of its limits.
    pub generations: Vec<Generation>,
    /// For each limiter and each of its limits: the permits that could be used at once.
    pub available: Vec<Vec<u64>>,
    /// What became of the holdings to exchange, in order, as counts.
    pub exchanged: Vec<(u64, Micros)>,
    /// What became of the requests, in order, as counts.
    pub outcomes: Vec<(u64, Outcome)>,
}

/// Where a queue stands: what keeps its bookings in order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct QueueOrder {
    /// The last slot booked.
    pub last: Micros,
    /// Room before it that was given back and may be taken out of order; zero if there is none.
    pub hole: Micros,
    /// The sum of its limiters' generation numbers when `last` was booked.
    pub generation: u64,
}

impl QueueOrder {
    /// Forgets the order when the limits have changed: the bookings have new places, and those keep it.
    fn open(&mut self, books: &[(&mut Book, Arc<[Rule]>)]) {
        let generation = books.iter().map(|(book, _)| book.generation().number).sum();
        if generation != self.generation {
            *self = QueueOrder { generation, ..QueueOrder::default() };
        }
    }

    fn floor(&self) -> Micros {
        if self.hole > Micros::ZERO { self.hole } else { self.last }
    }

    fn given_back(&mut self, slot: Micros) {
        if self.hole == Micros::ZERO || slot < self.hole {
            self.hole = slot;
        }
    }

    fn booked(&mut self, slot: Micros) {
        if self.hole > Micros::ZERO {
            self.hole = if slot < self.last { slot } else { Micros::ZERO };
        }
        self.last = self.last.max(slot);
    }
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
    order.open(books);
    for holding in &call.give_back {
        let moved = give_back(books, &call.known, holding.slot, holding.cost * holding.count);
        order.given_back(moved.unwrap_or(holding.slot));
    }
    let exchanged = exchange(now, books, order, call);
    let mut outcomes = book_runs(now, books, order, call);
    for (_, outcome) in &mut outcomes {
        if let Outcome::TooFar(_, violated) | Outcome::Full(_, violated) = outcome {
            let (book, rules) = &books[violated.limiter];
            violated.limit = book.own_limit(violated.limit, rules);
        }
    }
    Answer {
        now,
        generations: books.iter().map(|(book, _)| book.generation()).collect(),
        available: books.iter().map(|(book, rules)| book.available(now, rules)).collect(),
        exchanged,
        outcomes,
    }
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

/// Hands a void permit's place to its holder, where every limiter has put it at the same one.
fn fetch(
    now: Micros,
    books: &mut [(&mut Book, Arc<[Rule]>)],
    call: &Call,
    holding: Holding,
) -> Option<Micros> {
    let mut place = None;
    for (index, (book, _)) in books.iter().enumerate() {
        let known = call.known.get(index).copied().unwrap_or_default();
        let to = book.place(holding.slot, holding.cost, known)?;
        if to < now || *place.get_or_insert(to) != to {
            return None;
        }
    }
    books.iter_mut().for_each(|(book, _)| book.fetch(holding.slot, holding.cost));
    place
}

/// Books void permits again, one by one: at the place that the change kept for each, or no earlier than that.
fn exchange(
    now: Micros,
    books: &mut [(&mut Book, Arc<[Rule]>)],
    order: &mut QueueOrder,
    call: &Call,
) -> Vec<(u64, Micros)> {
    let mut exchanged: Vec<(u64, Micros)> = Vec::new();
    for holding in &call.exchange {
        for _ in 0..holding.count {
            let place = fetch(now, books, call, *holding).unwrap_or_else(|| {
                let place = give_back(books, &call.known, holding.slot, holding.cost);
                let mut searches = searches_from(books, now.max(place.unwrap_or(order.last)));
                let found = earliest(&mut searches, holding.cost);
                searches.iter_mut().for_each(|search| search.charge(holding.cost));
                found.at
            });
            order.last = order.last.max(place);
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
    let mut room = call.room;
    let mut searches = searches_from(books, now.max(order.floor()));
    // The search has moved on for a cost that was refused: a smaller one may have room before.
    let mut refused = 0;
    for run in &call.runs {
        if run.cost < refused {
            searches = searches_from(books, now.max(order.floor()));
            refused = 0;
        }
        let mut left = run.count;
        while left > 0 {
            let found = earliest(&mut searches, run.cost);
            let delay = found.at - now;
            if delay > run.wait_max {
                outcomes.push((left, Outcome::TooFar(delay, found.violated)));
                refused = refused.max(run.cost);
                break;
            }
            let mut count = left.min(found.room / run.cost).max(1);
            if delay > Micros::ZERO {
                if room == 0 {
                    outcomes.push((left, Outcome::Full(delay, found.violated)));
                    refused = refused.max(run.cost);
                    break;
                }
                count = count.min(room);
                room -= count;
            }
            searches.iter_mut().for_each(|search| search.charge(count * run.cost));
            order.booked(found.at);
            outcomes.push((count, Outcome::Booked(found.at)));
            left -= count;
        }
    }
    outcomes
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
