//! A call to a store for the permits of a queue, and its answer. Permits are counted in cost.

use crate::clock::Micros;
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::line::{LineAnswer, LineCall};
pub use crate::limiter::model::outcome::{Outcome, RetryDelay, Violated};

/// How long a store remembers the last call of each replica for a queue.
pub const CALL_KEPT: Micros = Micros::from_millis(1000);

/// Permits held at one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The slot.
    pub slot: Micros,
    /// The cost of each request's permits.
    pub cost: u64,
    /// The number of requests' permits of that cost.
    pub count: u64,
}

/// Requests of one cost and one wait, in the order of their arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The cost of each request.
    pub cost: u64,
    /// The longest wait of each, from the instant of the call.
    pub wait_max: Micros,
    /// The number of requests.
    pub count: u64,
}

/// A call for a queue. It is carried out in the order of the fields: give back, reschedule, book.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Call {
    /// The calling replica: a number below 2^53, chosen at its start.
    pub replica: u64,
    /// The latest epoch of the store that the caller knows.
    pub epoch: u64,
    /// For each limiter: the generation under which the holdings below were booked.
    pub generations: Vec<u64>,
    /// Permits that are not needed.
    pub give_back: Vec<Holding>,
    /// Void permits that are wanted at their new place, ascending.
    pub reschedule: Vec<Holding>,
    /// The longest wait for such a place, from the instant of the call.
    pub reschedule_wait: Micros,
    /// New requests.
    pub runs: Vec<Run>,
    /// How many of the first runs ask in place of slots that are lost. Their requests are no new callers.
    pub replacing_runs: usize,
    /// How many of the last runs are booked in advance. Nobody asks for them.
    pub prefetching_runs: usize,
    /// How far ahead of the call they are booked at least, but no further than they wait: as long as the answer may take to come,
    /// where a slot would be late by then.
    pub lead: Micros,
    /// How many of the new requests may be given a slot in the future.
    pub queue_slots_left: u64,
    /// How many further requests like the first refused one that is spread the caller may refuse without asking.
    pub refusal_budget: u64,
    /// Until when the permits that are not needed may be taken back, by the store's clock; zero: at any time. The store remembers its calls
    /// for [`CALL_KEPT`]. Later it cannot tell that it has taken them back before, and they are another's by then.
    pub taken_back_until: Micros,
    /// The requests of a line. Then there are no runs, and nothing is rescheduled.
    pub line: Option<Box<LineCall>>,
}

impl Call {
    /// Returns whether the requests of a run ask for the first time.
    pub fn is_new(&self, run: usize) -> bool {
        run >= self.replacing_runs && run + self.prefetching_runs < self.runs.len()
    }
}

/// The answer to a [`Call`].
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The store's clock when the call was carried out.
    pub now: Micros,
    /// The store's epoch. While it settles, nothing is rescheduled or booked.
    pub epoch: Epoch,
    /// For each limiter: the last change of its limits.
    pub generations: Vec<Generation>,
    /// For each limiter and each of its limits: the permits that could be used at once.
    pub available: Vec<Vec<u64>>,
    /// For each limiter: the most permits that a limit which spaces them lacks at once, or behind the last booking.
    pub lacking: Vec<u64>,
    /// For each limiter: the end of its pause; zero without one.
    pub paused: Vec<Micros>,
    /// True if replicas declare different limits for one of the limiters. All are in force only while each declares its own.
    pub is_disputed: bool,
    /// The last instant at which one of the limiters is booked; zero if none is.
    pub last: Micros,
    /// Permits that were given back before the queue's last slot; its later slots may be traded for them.
    pub freed: Option<Freed>,
    /// The new slots of the rescheduled holdings, in order, as counts; `None`: no slot within the wait. Empty while bookings are still
    /// being moved: then the holdings, and the new requests, come again with the next call.
    pub rescheduled: Vec<(u64, Option<Micros>)>,
    /// The results of the requests, in order, as counts. A store that would be kept from others for too long leaves the last ones
    /// without: they come again with the next call.
    pub outcomes: Vec<(u64, Outcome)>,
    /// The answer of the line, if the call was for one.
    pub line: Option<Box<LineAnswer>>,
}

/// A change of the limits, as a caller must know it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Generation {
    /// The instant of the change in microseconds, so that no number comes twice; zero before the first.
    pub number: u64,
    /// The instant from which slots that were booked under the generation before are void.
    pub void_from: Micros,
    /// The number of the generation before. Slots that were booked under a still older one are void altogether:
    /// their holder has missed a change, and other permits may stand in their places.
    pub before: u64,
}

/// Permits that were given back between booked slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freed {
    /// The earliest slot that was given back.
    pub at: Micros,
    /// How many permits.
    pub permits: u64,
}
