//! The worker of a queue: one task per queue and replica, which owns the waiting requests and talks to the store.
//!
//! While a call is under way arrivals collect, and the next call books for all of them; an idle limiter
//! sends at once, so batching adds no delay. The slots that the store answers go into
//! [cost queues](crate::limiter::queue::cost_queue), which hand them out when they are due. A worker that has had nothing to
//! do for a while ends, and its queue with it, unless a guard holds the queue.
//!
//! Invariants, restored after every event:
//! - in each cost queue, requests = slots held + slots asked for; surplus slots are given back, surplus requests refused;
//! - no slot is handed out before the store's clock has surely reached it, or later than its guard
//!   (but see [`Waiter::late`](crate::limiter::queue::cost_queue::Waiter::late));
//! - while a slot of the store is held, the store is asked at least twice in a lease, so that a change of the
//!   limits is known before it voids anything.
//!
//! `state` holds the worker's state, `run` its loop. The other modules each carry out one part of its work on that state:
//! `calls` builds the next call, `settle` takes in an answer, `outage` and `loss` do without one, `hand_out` serves the waiting
//! requests, `refusing` refuses them, `prefetching` and `reporting` do as their names say, and `ending` ends it.

mod calls;
mod ending;
mod hand_out;
mod loss;
mod outage;
mod prefetching;
mod refusing;
mod reporting;
mod run;
mod settle;
mod siblings;
mod state;

pub(in crate::limiter) use siblings::Siblings;
pub(in crate::limiter) use state::Worker;
