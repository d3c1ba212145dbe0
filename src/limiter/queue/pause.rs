//! A pause, as a queue keeps to it.

use crate::clock::Moment;
use crate::limiter::model::{LimiterName, Refusal};

/// A pause of one limiter, by this process's clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Paused {
    pub(in crate::limiter) limiter: LimiterName,
    /// When the pause began.
    pub(in crate::limiter) from: Moment,
    /// When the pause ends. No slot between the two may be used.
    pub(in crate::limiter) until: Moment,
}

impl Paused {
    /// Returns whether a slot lies in the pause.
    pub(in crate::limiter) fn holds(&self, due: Moment) -> bool {
        self.from < due && due < self.until
    }
}

/// Replaces the reason of a refusal by the pause, if that outlasts the request's deadline.
pub(in crate::limiter) fn in_pause(refusal: Refusal, paused: Option<&Paused>, deadline: Moment) -> Refusal {
    match (refusal, paused) {
        (Refusal::RateLimited { retry_after, .. }, Some(paused)) if paused.until > deadline => {
            Refusal::Paused { limiter: paused.limiter.clone(), retry_after }
        }
        (refusal, _) => refusal,
    }
}
