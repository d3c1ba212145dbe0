//! The call and the answer of a line: the requests that wait, and the slots that they get. See `arithmetic/line.rs`.

use crate::clock::Micros;
use crate::limiter::model::outcome::Outcome;

/// The most classes of a line.
pub const CLASSES_MAX: usize = 4;
/// The most flows of a line that have shares of their own. A further one shares as its class does.
pub const FLOWS_MAX: usize = 64;
/// The numbers below this one are no flows of callers: each class has one for the flows that find no place.
pub const FLOW_MIN: u64 = 16;
/// The greatest weight of a flow.
pub const WEIGHT_MAX: u64 = 1000;

/// Requests of one flow and cost without a slot, that came one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// How long ago the first of them came.
    pub oldest: Micros,
    /// How long ago the last of them came.
    pub newest: Micros,
    /// The longest wait of each, from the instant of the call.
    pub wait_max: Micros,
    /// The number of requests.
    pub count: u64,
}

/// All requests of one flow and cost that wait in a replica without a slot.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Want {
    /// The flow, from [`FLOW_MIN`] on, below 2^53.
    pub flow: u64,
    /// Its class, below [`CLASSES_MAX`]: the lowest goes first.
    pub class: usize,
    /// Its weight among the flows of its class, 1 to [`WEIGHT_MAX`].
    pub weight: u64,
    /// The permits that each request takes of each limiter of the call; at least one of them is not zero.
    pub costs: Vec<u64>,
    /// The requests, ascending by their arrival.
    pub waiting: Vec<Waiting>,
    /// True if the first of [`Self::waiting`] were told of before, and taken: they are refused no more, also where the line has lost them.
    pub begins_with_known: bool,
    /// How long ago those came that have left, and how many.
    pub left: Vec<(Micros, u64)>,
}

/// Permits that were dealt and are not needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unused {
    /// The flow.
    pub flow: u64,
    /// Its class.
    pub class: usize,
    /// The slot.
    pub slot: Micros,
    /// The number of requests' permits.
    pub count: u64,
    /// The permits that each takes of each limiter of the call.
    pub costs: Vec<u64>,
}

/// The part of a call for a line.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct LineCall {
    /// How far ahead of now slots are dealt at most.
    pub ahead: Micros,
    /// How many of the last limiters of the call are ceilings: a flow that finds no room there lets those pass that do not need it.
    pub ceilings: usize,
    /// The number of the last deal that the caller has taken in.
    pub known: u64,
    /// True if the line has nothing for the caller: what it was dealt, and its tickets, are dropped.
    pub begins: bool,
    /// How many more requests of each class may wait than those that were told of before.
    pub places: [u64; CLASSES_MAX],
    /// Slots that are not needed.
    pub unused: Vec<Unused>,
    /// The part of its cost that a request turns out to use of each limiter, in millionths; empty: all of it. Newcomers are refused by that.
    pub expected: Vec<u64>,
    /// The requests without a slot. A flow and cost that is not named has as many as before.
    pub wants: Vec<Want>,
}

/// Slots that a line has dealt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dealt {
    /// The flow.
    pub flow: u64,
    /// The class under which it was dealt.
    pub class: usize,
    /// The slot.
    pub slot: Micros,
    /// For how many requests.
    pub count: u64,
    /// The permits that each takes of each limiter of the call.
    pub costs: Vec<u64>,
}

/// Requests that a line does not take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotTaken {
    /// The place of their [`Want`] in the call.
    pub want: usize,
    /// The place of their [`Waiting`] in that. They are its last ones.
    pub group: usize,
    /// The number of requests.
    pub count: u64,
    /// The reason: [`Outcome::TooFar`] or [`Outcome::Full`].
    pub outcome: Outcome,
}

/// The wait of the last request of a want, as things stand; zeros if none of it waits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Last {
    /// How many permits go until it has its own.
    pub before: u64,
    /// How long it waits at most.
    pub wait: Micros,
}

/// The answer of a line.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct LineAnswer {
    /// The number of the last deal in it.
    pub deal: u64,
    /// The instant at which the caller shall call again; zero if none of its requests is without a slot.
    pub again: Micros,
    /// The slots that were dealt to the caller since the deal that it knew.
    pub dealt: Vec<Dealt>,
    /// The requests that may not wait.
    pub not_taken: Vec<NotTaken>,
    /// For each want what its last request waits for; `None` where the call has looked at enough flows, and what was told before holds.
    pub lasts: Vec<Option<Last>>,
    /// True if the line has forgotten the caller since the deal that it knows: it may have none of the requests that the call does not tell of.
    pub has_forgotten: bool,
}
