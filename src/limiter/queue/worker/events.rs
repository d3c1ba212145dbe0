//! The events and actions of a worker: plain values, which can be recorded and compared.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{
    Answer, Call, Costs, Flow, Freed, Generations, Holding, Permits, Refusal, Unused,
};
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::prefetch::{Batch, PrefetchSnapshot};
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::queue::request::{Arrival, Asker, Holder, RequestId, Unusable};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::worker::limits::Limits;
use crate::limiter::recovery::link::Link;
use crate::limiter::store::clock::StoreClock;

/// The estate of a core, for another one that takes its place.
#[derive(Default)]
pub(in crate::limiter) struct Carryover {
    /// The requests that wait, in order.
    pub(in crate::limiter) arrivals: Vec<Arrival>,
    /// The slots that were held, with their costs, the number of them, and the generations of the limiters under which they were booked.
    pub(in crate::limiter) unused: Vec<(Micros, Costs, u64, Generations)>,
    /// The epoch in which they were booked.
    pub(in crate::limiter) epoch: u64,
}

/// The surroundings of a worker at an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Context {
    pub(in crate::limiter) now: Moment,
    /// The store's clock. One that was not heard yet makes no slot due.
    pub(in crate::limiter) clock: StoreClock,
    /// The time of this replica's own memory.
    pub(in crate::limiter) wall: Micros,
    /// How long the store lately took to answer at most.
    pub(in crate::limiter) latency: Micros,
    /// The first epoch of the store's present memory: it knows nothing that was booked before.
    pub(in crate::limiter) memory: u64,
    /// How many more permits may be in flight. While it is zero, a permit that was sent is an event.
    pub(in crate::limiter) in_flight_left: u32,
}

impl Context {
    /// Returns the clock by which the slots of a source are due.
    pub(in crate::limiter) fn clock_of(&self, source: Source) -> StoreClock {
        match source {
            Source::Store(_) => self.clock,
            Source::Local(_) | Source::Unlimited => StoreClock::new(self.now, self.now, self.wall),
        }
    }
}

/// The reason for which a permit comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum ReturnReason {
    /// A permit that was not used, of a request of this flow.
    Unused(Flow),
    /// A part of a used permit: its request has cost less.
    Refund(Flow),
    /// A permit that must not be used now, and its request.
    Exchanged(RequestId, Holder, Unusable),
}

/// The answer of this replica's own memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct LocalAnswer {
    pub(in crate::limiter) answer: Answer,
    /// The largest cost that this replica's share of each limiter ever holds, of those that are enforced. Nothing larger was asked for.
    pub(in crate::limiter) costs_max: Vec<u64>,
    /// The longest delay that is true whether or not the store comes back. While a limit counts as used up because this replica has not heard of
    /// its use, the store may have room at once when it is back.
    pub(in crate::limiter) known_within: Micros,
}

/// An event of a worker.
///
/// A turn tells them in this order: of a call's result the link that it leads to, the pauses that it names, and the answer
/// ([`CallEnd`](super::store_calls::CallEnd) has all its ends); changed limits; the link and the pause as they are now; moves, reports and freed
/// permits; who has left; the prefetched permits; arrivals; permits that come back; who of these has left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Event {
    /// A request has come.
    Arrived(Arrival),
    /// Requests that have a place in the queue ([`Action::Wait`]) have left. One without a place is not told of: its permit comes back as
    /// [`ReturnReason::Unused`], or it leaves when it gets its place.
    Left(Vec<RequestId>),
    /// A permit of this slot and these costs comes back.
    Returned(Slot, Costs, ReturnReason),
    /// The store has carried out the call under way. Told after the link that the answer leads to.
    Answered {
        answer: Box<Answer>,
        /// How many requests may be refused without a call from now on.
        refusal_budget: u64,
        /// When the call was sent: it may have waited for that.
        sent: Moment,
    },
    /// The store grants nothing yet, or answered in an epoch that is over: the call booked nothing that may be used. What it was made for
    /// goes with the next call, at once where the link allows one.
    PutBack {
        /// True if the call was not sent, so that it has given back nothing.
        is_unsent: bool,
    },
    /// The call has failed, and the next one waits for a heartbeat.
    Failed {
        /// True if the call was not sent, so that it has given back nothing.
        is_unsent: bool,
    },
    /// A call that was given up has booked these, which nobody wants; or it was not made, and was to give them back.
    Unneeded(Vec<Holding>, Generations),
    /// A call for a line that was given up was not made. It was to give these back.
    UnneededOfLine(Vec<Unused>),
    /// This replica's own memory has carried out the call.
    AnsweredLocally(Box<LocalAnswer>),
    /// The state of the store from now on.
    Linked(Link),
    /// The limits have changed in this replica's configuration, or its calendar windows have gone on; or they are the same, and a pause has
    /// begun or ended, by which the store moves bookings. The slots of the store stay until an answer voids them.
    Reconfigured(Box<Limits>),
    /// Bookings of the queue were moved, or are to be moved by the next call: by a pause, a reset, a change of the limits or external usage.
    /// Which ones, the generations in the next answer tell.
    Moved,
    /// When the latest heartbeat was sent that tells of every move of the queue's bookings, and told of none since the queue's last answer;
    /// `None` if heartbeats do not tell.
    Unmoved(Option<Moment>),
    /// The pause in which no slot may be used; `None` for none. Told with each turn.
    Paused(Option<Paused>),
    /// A pause is being reported from now on, or no longer: nothing is booked meanwhile.
    Reporting(bool),
    /// Permits were freed before the queue's last slot, for which its later slots may be traded.
    Freed(Freed),
    /// The prefetched permits, as they are now.
    Prefetched(PrefetchSnapshot),
    /// A guard keeps the queue from ending from now on, or no longer.
    Kept(bool),
    /// weir is shutting down.
    Close,
}

/// An action of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Action {
    /// Make a call to the store.
    Book(Box<Call>),
    /// Make a call to this replica's own memory, and tell the answer at once.
    BookLocally(Box<Call>),
    /// Charge this replica's own memory with its part of the fleet's usage: it serves from now on.
    BeginOutage,
    /// Nobody waits for the call under way any more. What it books is given back.
    Abandon,
    /// Give the permits of slots back to this replica's own memory.
    ReturnLocally(Vec<(Micros, Costs)>),
    /// Record the permits of each limiter that are let through without a limit.
    AllowUnlimited(Vec<u64>),
    /// Give a request its permit.
    Grant(RequestId, Slot, Costs, Holder),
    /// Count the permits of a limiter that only counts.
    Charge(Source, Permits),
    /// Give a request a place in the queue: how many permits go by its turn, if that is known.
    Wait(RequestId, Option<u64>),
    /// Notify a request that its slot is near.
    Approach(RequestId),
    /// Refuse an arrival, or a waiting request.
    Refuse(Asker, Costs, Refusal),
    /// Make prefetched permits available, and wake the worker when fewer than this are left.
    Offer(Box<Batch>, u64),
    /// Take all prefetched permits out, and tell them at once.
    Withdraw,
    /// Refuse further requests by this refusal of the store.
    Cache(Option<Box<RefusalCache>>),
    /// Count requests that the store has refused.
    CountRefused(u64),
    /// Count requests of these costs and this flow that left while they waited.
    CountCancelled(Costs, Flow, usize),
    /// Record how late a slot was found.
    CountLate(Micros),
    /// Log that so many slots were moved: by a change of the limits, or one of the other causes of [`Event::Moved`].
    LogMoved(usize),
    /// There is nothing more to do, if nothing has come meanwhile.
    End,
}
