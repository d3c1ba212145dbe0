//! Which limiters there are, over reloads, and how a route takes permits from them.

pub mod inspection;
pub mod limiter_set;
pub mod limiters;
pub(in crate::limiter) mod queues;
