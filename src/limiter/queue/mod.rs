//! The requests that wait for the same limiters and partitions, and the worker that asks the store for them.
//! Knows nothing of which limiters there are.

pub(in crate::limiter) mod active_limiter;
pub(in crate::limiter) mod cost_queue;
pub(in crate::limiter) mod handle;
pub(in crate::limiter) mod inbox;
pub(in crate::limiter) mod pause;
pub mod permit;
pub(in crate::limiter) mod prefetch;
pub(in crate::limiter) mod refusal_cache;
pub(in crate::limiter) mod shadow;
pub(in crate::limiter) mod slot;
pub mod ticket;
pub mod upstream_report;
pub(in crate::limiter) mod worker;
