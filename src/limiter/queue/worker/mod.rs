//! The worker of a queue: one task per queue and replica, which owns the waiting requests and talks to the store.
//!
//! While a call is under way arrivals collect, and the next call books for all of them; an idle limiter
//! sends at once, so batching adds no delay. The slots that the store answers go into
//! [cost queues](crate::limiter::queue::cost_queue), which hand them out when they are due. A worker that has had nothing to
//! do for a while ends, and its queue with it, unless a guard holds the queue. Prefetched permits are handed out by the
//! [queue](crate::limiter::queue::handle::Queue) itself: the worker hears of that.
//!
//! All decisions are made in a core, which is pure: [`core`], or [`line`] where callers share the quota; `cores` chooses, `common` and
//! `limits` are what both are made of. The rest is the shell, whose parts are in `state`: `run` turns what happens into
//! events, `acting` carries the actions out, `requests` knows who waits for an answer, `calling` makes calls to the store and takes in
//! what they tell beside the slots (`store_calls` has those under way), `fallback` serves from this replica's own memory, and `reporting`
//! reports the upstream's signals (`reporter` has the report under way).

mod acting;
mod calling;
mod common;
mod core;
mod cores;
pub(in crate::limiter) mod events;
mod fallback;
mod limits;
mod line;
mod move_watch;
mod own_fault;
mod report_pauses;
mod reporter;
mod reporting;
mod requests;
mod run;
mod siblings;
mod state;
mod store_calls;
mod unsure_costs;

pub(in crate::limiter) use report_pauses::report_pauses;
pub(in crate::limiter) use siblings::Siblings;
pub(in crate::limiter) use state::Worker;
