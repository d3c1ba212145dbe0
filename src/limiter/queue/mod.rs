//! The requests that wait for the same limiters and partitions, and the worker that books slots for them in the store.
//!
//! - [`ticket`], [`permit`]: what a request gets: a place in the queue, the right to send.
//! - [`handle`]: the queue as its requests, permits and worker share it; [`inbox`] is its mailbox.
//! - [`worker`]: the task that owns the waiting requests ([`cost_queue`], [`request`]) and talks to the store.
//! - [`prefetch`]: permits booked before anybody asks; [`refusal_cache`]: refusals without a call to the store.
//! - [`upstream_report`]: what an upstream's answer says of its quota; [`shadow`]: limiters that only count.
//! - [`costly`]: what a request may cost at most; [`expected_costs`]: what requests turn out to cost.
//! - [`quota_left`]: what the store last said of the permits that are left.
//! - [`upstream_counts`]: the upstream's own count beside weir's.
//! - [`outside`]: requests that wait before they can ask; [`waiting`]: those that wait, for people who look on.
//! - [`shared`]: how the callers of a queue share its quota.
//! - [`active_limiter`]: a limiter in use, as all its queues share it.
//!
//! Knows neither routes nor the configuration: the registry above decides which limiters and queues there are.

pub(in crate::limiter) mod active_limiter;
pub(in crate::limiter) mod cost_queue;
pub(in crate::limiter) mod costly;
pub(in crate::limiter) mod expected_costs;
pub(in crate::limiter) mod guard;
pub(in crate::limiter) mod handle;
pub(in crate::limiter) mod inbox;
pub(in crate::limiter) mod known_pauses;
pub(in crate::limiter) mod limiter_pauses;
pub mod outside;
pub(in crate::limiter) mod pause;
pub mod permit;
pub(in crate::limiter) mod prefetch;
pub mod quota_left;
pub(in crate::limiter) mod refusal_cache;
pub(in crate::limiter) mod request;
pub(in crate::limiter) mod shadow;
pub(in crate::limiter) mod shared_quota;
pub(in crate::limiter) mod slot;
pub mod ticket;
pub(in crate::limiter) mod upstream_counts;
pub mod upstream_report;
pub(in crate::limiter) mod waiting;
pub(in crate::limiter) mod worker;
