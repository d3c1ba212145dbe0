//! The limiters in force, and what limiters are created with.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limiter::model::{ActionByHand, Moved};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::recovery::heartbeat::HeartbeatNotice;
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

    /// Passes on what a heartbeat has heard.
    pub(super) fn notify(&self, notice: HeartbeatNotice<'_>) {
        match notice {
            HeartbeatNotice::LinkChanged => self.queues.wake_all(),
            HeartbeatNotice::AllMoved(at) => self.queues.notify_moved(at, |_| true),
            HeartbeatNotice::Moved(moved, at) => {
                let moved: HashSet<&Moved> = moved.iter().collect();
                self.queues.notify_moved(at, |LimiterInstance { active, partition }| {
                    moved.contains(&(active.name.clone(), *partition))
                        || moved.contains(&(active.name.clone(), None))
                });
            }
            HeartbeatNotice::ByHand(actions) => actions.iter().for_each(|action| self.follow_by_hand(action)),
        }
    }

    /// Keeps to an action by hand that the store has. It does not concern a limiter of this name that each replica has for itself.
    fn follow_by_hand(&self, action: &ActionByHand) {
        let is_meant =
            |active: &Arc<ActiveLimiter>| active.name == action.name && active.session.store.may_fail();
        for active in self.limiters().into_iter().filter(is_meant) {
            let instance = LimiterInstance { active, partition: action.partition };
            self.queues.follow_by_hand(&instance, action);
        }
    }
}
