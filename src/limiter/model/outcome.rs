//! The result of a request, as a store tells it.

use crate::clock::Micros;

/// The limit that refused: the limiter's place in the call, the limit's place in the limiter.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Violated {
    /// The limiter.
    pub limiter: usize,
    /// The limit.
    pub limit: usize,
}

/// The result for some requests of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Booked at this instant of the store's clock.
    Booked(Micros),
    /// Nothing booked: the earliest slot is further away than the wait.
    TooFar(RetryDelay),
    /// Nothing booked: the queue is full.
    Full(RetryDelay),
}

/// The delay of a slot that was not booked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RetryDelay {
    /// The true delay.
    pub delay: Micros,
    /// The delay that the first refused request is advised.
    pub advised: Micros,
    /// True if each further request is advised `Rule::spacing` more, up to `Rule::spread_max` behind the true delay, so that not all
    /// come back at one instant; false if all are advised the same.
    pub is_spread: bool,
    /// The limit that stood in the way.
    pub violated: Violated,
    /// The permits of that limit that could be used at once.
    pub available: u64,
}
