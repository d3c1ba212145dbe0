//! Refusals: the reasons why a request may not pass. Each is an answer to a caller, not an error of weir.

use crate::clock::Micros;
use crate::limiter::model::limit::{LimiterName, Permits};

/// The reason why a request may not pass.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No slot within the wait.
    #[error("limiter {limiter} has no permit within the wait; the next is {}ms away", retry_after.millis_up())]
    RateLimited {
        /// The limiter.
        limiter: LimiterName,
        /// The limit that was violated, by its place in the limiter.
        limit: usize,
        /// The permits of that limit that could be used at once: too few for the request.
        available: u64,
        /// The time until there would be a permit.
        retry_after: Micros,
    },
    /// The upstream asked for a pause longer than the wait.
    #[error("limiter {limiter} is paused, as the upstream asked; the next permit is {}ms away", retry_after.millis_up())]
    Paused {
        /// The limiter.
        limiter: LimiterName,
        /// The time until there would be a permit.
        retry_after: Micros,
    },
    /// The queue is full.
    #[error("the queue of limiter {limiter} is full")]
    QueueFull {
        /// The limiter.
        limiter: LimiterName,
        /// The limit that was violated, by its place in the limiter.
        limit: usize,
        /// The permits of that limit that could be used at once: too few for the request.
        available: u64,
        /// The time until there would be a permit.
        retry_after: Micros,
    },
    /// The store is away, and the limiter refuses requests meanwhile.
    #[error("limiter {limiter} cannot reach its store")]
    StoreUnavailable {
        /// The limiter.
        limiter: LimiterName,
    },
    /// A cost that no window can ever hold.
    #[error("limiter {limiter} never holds more than {cost_max} permits at once")]
    CostExceedsLimit {
        /// The limiter.
        limiter: LimiterName,
        /// The largest cost that the limiter can hold.
        cost_max: Permits,
    },
    /// weir is shutting down.
    #[error("limiter {limiter} is closed")]
    Closed {
        /// The limiter.
        limiter: LimiterName,
    },
}

impl Refusal {
    /// Returns the limiter that refused.
    pub fn limiter(&self) -> &LimiterName {
        match self {
            Refusal::RateLimited { limiter, .. }
            | Refusal::Paused { limiter, .. }
            | Refusal::QueueFull { limiter, .. }
            | Refusal::StoreUnavailable { limiter }
            | Refusal::CostExceedsLimit { limiter, .. }
            | Refusal::Closed { limiter } => limiter,
        }
    }
}
