//! A pause as a queue keeps to it.

use tokio::time::Instant;

use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::refusal::Refusal;

/// A pause as a queue keeps to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Paused {
    pub(in crate::limiter) limiter: LimiterName,
    /// No slot between these may be used.
    pub(in crate::limiter) from: Instant,
    pub(in crate::limiter) until: Instant,
}

impl Paused {
    /// Whether a slot lies in it.
    pub(in crate::limiter) fn holds(&self, due: Instant) -> bool {
        self.from < due && due < self.until
    }
}

/// The same refusal, for a request with this deadline, where a pause is the reason.
pub(in crate::limiter) fn in_pause(refusal: Refusal, paused: Option<&Paused>, deadline: Instant) -> Refusal {
    match (refusal, paused) {
        (Refusal::RateLimited { retry_after, .. }, Some(paused)) if paused.until > deadline => {
            Refusal::Paused { limiter: paused.limiter.clone(), retry_after }
        }
        (refusal, _) => refusal,
    }
}
