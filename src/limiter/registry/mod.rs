//! The limiters of this process over reloads, and the sets of them that routes take permits from.
//!
//! - `limiters`: all limiters, for the rooms above.
//! - `prepared_limiters`: a reload of them, in two stages.
//! - `in_force`: the limiters in force.
//! - `store_sessions`: which part of the store holds which limiter's state.
//! - `limiter_set`: the limiters of a route, taken together or not at all.
//! - `queues`: every queue of this process.
//! - `inspection`: one limiter, looked at or acted on by hand.
//! - `readings`: what this replica tells the fleet of a limiter, for people.
//! - `outages`: a line in the log for each minute without the store.
//! - `series`: a limiter as the metrics show it.
//! - `shares`: how the callers of limiters share them at this moment.
//!
//! Knows nothing of routes, of files, or of why a limiter is configured as it is.

mod in_force;
pub mod inspection;
pub mod limiter_set;
pub mod limiters;
mod outages;
pub mod prepared_limiters;
pub(in crate::limiter) mod queues;
mod readings;
mod series;
pub mod shares;
mod store_sessions;
