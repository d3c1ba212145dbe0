//! The limits of a queue, as a worker's core knows it, and the refusals that name them. Pure.

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{OnStoreFailure, Outcome, Permits, Refusal, RetryDelay, Violated};
use crate::limiter::queue::shared_quota::SharedQuota;
use crate::limiter::recovery::link::Terms;

/// The `retry_after` of a queue that is full while the store cannot be asked.
pub(super) const FULL_RETRY: Micros = Micros::from_millis(100);

/// The limits of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Limits {
    /// The limiters, in the order of their names. At least one.
    pub(in crate::limiter) refs: Vec<LimiterRef>,
    /// For each limiter, what is done while the store is away.
    pub(in crate::limiter) policies: Vec<OnStoreFailure>,
    /// How long after its slot a permit stays good.
    pub(in crate::limiter) guard: Micros,
    /// For each limiter, the largest cost that it can ever hold. That is more than it grants at one instant where it spaces permits.
    pub(in crate::limiter) costs_max: Vec<Permits>,
    /// The refusal of a cost above the smallest of them.
    pub(in crate::limiter) too_costly: Refusal,
    /// How many requests may wait.
    pub(in crate::limiter) max_waiting: u32,
    pub(in crate::limiter) terms: Terms,
    /// How callers share the quota; `None`: first come, first served.
    pub(in crate::limiter) shared: Option<SharedQuota>,
}

impl Limits {
    /// Returns the largest cost that every limiter can ever hold.
    pub(super) fn cost_max(&self) -> Permits {
        self.costs_max.iter().copied().min().unwrap_or(Permits::ONE)
    }

    /// Returns the refusal of a request whose slot is too far away; `delay` is how far, if known.
    pub(super) fn too_far(&self, delay: Micros) -> Refusal {
        self.refusal(Outcome::TooFar(RetryDelay { delay, advised: delay, ..RetryDelay::default() }), delay)
    }

    /// Returns the refusal of a request that a store did not book. One that a ceiling stood in the way of names its limiter.
    pub(super) fn refusal(&self, outcome: Outcome, retry_after: Micros) -> Refusal {
        let limiter = |violated: Violated| self.refs[violated.limiter.min(self.refs.len() - 1)].name.clone();
        match outcome {
            Outcome::Full(RetryDelay { violated, available, .. }) => {
                let (limiter, limit) = (limiter(violated), violated.limit);
                Refusal::QueueFull { limiter, limit, available, retry_after }
            }
            Outcome::TooFar(RetryDelay { violated, available, .. }) => {
                let (limiter, limit) = (limiter(violated), violated.limit);
                Refusal::RateLimited { limiter, limit, available, retry_after }
            }
            Outcome::Booked(_) => self.store_unavailable(),
        }
    }

    /// Returns the refusal of a queue that is full while the store cannot be asked.
    pub(super) fn full(&self, retry_after: Micros) -> Refusal {
        Refusal::QueueFull { limiter: self.refs[0].name.clone(), limit: 0, available: 0, retry_after }
    }

    /// Returns the refusal while the store is unreachable, which names the limiter whose policy is to reject.
    pub(super) fn store_unavailable(&self) -> Refusal {
        let rejects = self.policies.iter().position(|policy| *policy == OnStoreFailure::Reject);
        Refusal::StoreUnavailable { limiter: self.refs[rejects.unwrap_or_default()].name.clone() }
    }

    /// Returns the refusal of a worker that ends.
    pub(super) fn closed(&self) -> Refusal {
        Refusal::Closed { limiter: self.refs[0].name.clone() }
    }
}
