//! The limiters in force, and what limiters are created with.

use std::sync::{Arc, Mutex, PoisonError};

use crate::limiter::queue::active_limiter::ActiveLimiter;
use crate::limiter::registry::queues::Queues;
use crate::limiter::registry::store_sessions::StoreSessions;
use crate::telemetry::Metrics;

/// The limiters in force.
pub(super) struct InForce {
    pub(super) sessions: StoreSessions,
    pub(super) queues: Arc<Queues>,
    pub(super) metrics: Metrics,
    /// The limiters, in the order of the configuration.
    limiters: Mutex<Vec<Arc<ActiveLimiter>>>,
}

impl InForce {
    /// Creates the registry's state, without limiters.
    pub(super) fn new(sessions: StoreSessions, queues: Arc<Queues>, metrics: Metrics) -> InForce {
        InForce { sessions, queues, metrics, limiters: Mutex::default() }
    }

    /// Returns the limiters in force, in the order of the configuration.
    pub(super) fn limiters(&self) -> Vec<Arc<ActiveLimiter>> {
        self.limiters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts these limiters in the place of those in force, which are returned.
    pub(super) fn replace(&self, next: Vec<Arc<ActiveLimiter>>) -> Vec<Arc<ActiveLimiter>> {
        std::mem::replace(&mut *self.limiters.lock().unwrap_or_else(PoisonError::into_inner), next)
    }
}
