//! A request as the worker's core knows it: a number, a cost and some moments. The worker's shell knows who waits for its answer.

use crate::clock::Moment;
use crate::limiter::model::{Costs, Flow, Permits};

/// How many of a request's slots may come too late and be replaced. A busy processor is late now and then; one that can never
/// be on time is late this often in a row.
pub(in crate::limiter) const LATE_MAX: u8 = 8;

/// The number of a request in its queue. It is free again when the request has its permit or refusal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::limiter) struct RequestId(pub(in crate::limiter) u32);

/// The one that waits for the answer to an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Asker {
    /// A request.
    Request(RequestId),
    /// Nobody: a limiter that only counts is charged.
    Shadow,
    /// Nobody any more: the request was refused while it was asked for. What is booked for it is given back.
    Refused,
}

/// A request, or the charge of a limiter that only counts, that has arrived. The core knows its asker by number; on its way to the worker
/// it still has the channel to its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Arrival<A = Asker> {
    pub(in crate::limiter) asker: A,
    pub(in crate::limiter) costs: Costs,
    pub(in crate::limiter) arrived: Moment,
    /// The end of its wait.
    pub(in crate::limiter) deadline: Moment,
    /// The caller, where callers share the quota.
    pub(in crate::limiter) flow: Flow,
}

/// The request that holds a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Holder {
    pub(in crate::limiter) arrived: Moment,
    pub(in crate::limiter) deadline: Moment,
    /// The number of the request's slots that came too late.
    pub(in crate::limiter) late: u8,
    /// The caller, where callers share the quota.
    pub(in crate::limiter) flow: Flow,
}

impl Arrival {
    /// Returns the largest cost.
    pub(in crate::limiter) fn cost(&self) -> Permits {
        self.costs.largest()
    }

    /// Returns whether its answer is waited for, or counted.
    pub(in crate::limiter) fn is_waited_for(&self) -> bool {
        self.asker != Asker::Refused
    }
}

/// The reason why a permit was not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Unusable {
    /// The slot is more than a guard ago.
    Late,
    /// A limiter has been paused since the slot was booked.
    Paused,
    /// The lease is over, or the slot is of an earlier epoch or outage.
    Unheard,
    /// The slot was handed back while the request waited for a connection.
    SetAside,
}
