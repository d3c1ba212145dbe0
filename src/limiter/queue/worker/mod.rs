//! The worker of a queue: one task per queue and replica that owns its state and talks to the store.
//!
//! While a call is under way arrivals collect, and the next call books for all of them; an idle limiter
//! sends at once, so batching adds no delay. Slots that the store answers go into [cost_queues](super::cost_queue), and
//! the cost_queues hand them out when they are due. A worker that has had nothing to do for a while ends, and its queue
//! with it, unless a gate holds that.
//!
//! Invariants, kept by [`Worker::advance`] after every event:
//! - in each cost_queue, requests = slots held + slots asked for; what is over is given back, who is over is refused;
//! - no slot is handed out before the store's clock has surely reached it, or later than its guard
//!   (but see [`Waiter::late`]);
//! - while a slot of the store is held, the store is heard at least twice in a lease, so that a change of the
//!   limits is known before it voids anything.

mod calls;
mod ending;
mod hand_out;
mod hear;
mod loss;
mod outage;
mod prefetching;
mod refusing;
mod run;
mod settle;
mod siblings;
mod state;

pub(in crate::limiter) use siblings::Siblings;
pub(in crate::limiter) use state::Worker;
