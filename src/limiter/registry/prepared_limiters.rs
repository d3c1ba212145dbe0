//! The limiters' part of a reload, in two stages: everything is created and checked, then it comes into force at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::model::{Limiter, LimiterName};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance, seen_for};
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::registry::in_force::InForce;
use crate::limiter::registry::limiter_set::{LimiterSet, LimiterSetError};
use crate::limiter::registry::series::series;
use crate::limiter::registry::store_sessions::NewSessions;
use crate::telemetry::{LimiterMetrics, Metrics};

type Move = (Arc<Limiter>, Arc<StoreSession>, Arc<StoreSession>);

/// Returns the limiters whose state moves to another part of the store, each with the sessions that it leaves and joins.
fn moved(before: &[Arc<ActiveLimiter>], next: &[Arc<ActiveLimiter>]) -> Vec<Move> {
    let before: HashMap<_, _> = before.iter().map(|active| (&active.name, active)).collect();
    let moves = next.iter().filter_map(|active| {
        let from = before.get(&active.name)?.session.clone();
        let (limiter, to) = (active.limiter().clone(), active.session.clone());
        let is_moved = !Arc::ptr_eq(&from, &to) && from.store.may_fail() && to.store.may_fail();
        is_moved.then_some((limiter, from, to))
    });
    moves.collect()
}

/// A limiter in force that gets another configuration.
struct Changed {
    active: Arc<ActiveLimiter>,
    before: Arc<Limiter>,
    after: Arc<Limiter>,
    /// True if some limits alone have changed.
    is_of_limits: bool,
    /// The figures that take a while with many overrides, and so are prepared.
    seen_for: Micros,
    metrics: LimiterMetrics,
}

impl Changed {
    fn new(active: &Arc<ActiveLimiter>, after: &Arc<Limiter>, metrics: &Metrics) -> Changed {
        let (before, after) = (active.limiter().clone(), after.clone());
        let rest = |limiter: &Limiter| Limiter { limits: Vec::new(), partitioned: None, ..limiter.clone() };
        let is_of_limits = rest(&before) == rest(&after);
        let seen_for = seen_for(&after, &active.session);
        let metrics = metrics.limiter(series(&after));
        Changed { active: active.clone(), before, after, is_of_limits, seen_for, metrics }
    }

    /// Returns whether the change concerns the queues of this limiter or partition. The overrides of other partitions do not.
    fn concerns(&self, instance: &LimiterInstance) -> bool {
        let [before, after] = [&self.before, &self.after].map(|it| it.of_partition(instance.partition));
        Arc::ptr_eq(&self.active, &instance.active) && !(self.is_of_limits && before.limits == after.limits)
    }
}

/// Limiters that are ready to come into force.
///
/// Dropped without a commit, they leave no trace: no worker, metric, store key, partition or queue has changed. One
/// caller at a time prepares and commits: what was prepared before another commit must not be committed after it.
#[must_use = "prepared limiters change nothing before they are committed"]
pub struct PreparedLimiters {
    in_force: Arc<InForce>,
    /// All limiters that will be in force, in the order of the configuration.
    next: Vec<Arc<ActiveLimiter>>,
    /// The limiters among `next` that are in force already and get another configuration.
    changed: Vec<Changed>,
    /// The limiters among `next` that are not in force yet.
    created: Vec<Arc<ActiveLimiter>>,
    sessions: NewSessions,
}

impl PreparedLimiters {
    pub(super) fn new(in_force: &Arc<InForce>, limiters: &[Arc<Limiter>]) -> PreparedLimiters {
        let now = in_force.limiters();
        let now: HashMap<_, _> = now.iter().map(|active| (&active.name, active)).collect();
        let mut prepared = PreparedLimiters {
            in_force: in_force.clone(),
            next: Vec::with_capacity(limiters.len()),
            changed: Vec::new(),
            created: Vec::new(),
            sessions: NewSessions::default(),
        };
        for limiter in limiters {
            prepared.add(limiter, now.get(&limiter.name).copied());
        }
        prepared
    }

    /// Adds a limiter. `now` is the limiter in force under its name.
    fn add(&mut self, limiter: &Arc<Limiter>, now: Option<&Arc<ActiveLimiter>>) {
        let session = self.in_force.sessions.of(limiter, &mut self.sessions);
        let is_the_same = |active: &&Arc<ActiveLimiter>| {
            Arc::ptr_eq(&active.session, &session) && active.is_partitioned() == limiter.partitioned.is_some()
        };
        let active = match now.filter(is_the_same) {
            Some(active) => {
                if **active.limiter() != **limiter {
                    self.changed.push(Changed::new(active, limiter, &self.in_force.metrics));
                }
                active.clone()
            }
            None => {
                let created = self.create(limiter, session, now);
                self.created.push(created.clone());
                created
            }
        };
        self.next.push(active);
    }

    /// Creates a limiter. It continues the counts of the limiter that it replaces.
    fn create(
        &self,
        limiter: &Arc<Limiter>,
        session: Arc<StoreSession>,
        replaced: Option<&Arc<ActiveLimiter>>,
    ) -> Arc<ActiveLimiter> {
        let counts = replaced.map(|replaced| replaced.counts.clone()).unwrap_or_default();
        let metrics = self.in_force.metrics.limiter(series(limiter));
        Arc::new(ActiveLimiter::new(limiter.clone(), metrics, session, counts))
    }

    /// Returns the set of these limiters as they will be in force; `None` without any. A name that comes twice counts
    /// once.
    ///
    /// # Errors
    /// The first name that no limiter has, or two limiters that cannot be taken together.
    pub fn limiter_set(&self, names: &[LimiterName]) -> Result<Option<LimiterSet>, LimiterSetError> {
        LimiterSet::of(&self.in_force.queues, &self.next, names)
    }

    /// Puts the limiters in force.
    ///
    /// An unchanged limiter notices nothing. A changed one keeps its queues and what was used of it, and its workers
    /// move the requests that wait. The queues of a removed limiter end with their last request.
    pub fn commit(self) {
        let PreparedLimiters { in_force, next, changed, created, sessions } = self;
        in_force.sessions.add(&sessions);
        for Changed { active, after, seen_for, metrics, .. } in &changed {
            active.change(after.clone(), metrics.clone(), *seen_for);
        }
        next.iter().for_each(|active| active.metrics().publish());
        let kept: HashSet<Box<str>> = next.iter().map(|active| active.name.as_str().into()).collect();
        let moved = moved(&in_force.limiters(), &next);
        in_force.replace(next);
        created.iter().for_each(|active| active.session.hear_again_of(&active.name));
        for (limiter, from, to) in moved {
            // Another part of a store holds the state from now on, and knows nothing of what was granted.
            to.ledger().take_over(&limiter, &from.ledger());
            to.wake();
        }
        if !changed.is_empty() {
            let is_concerned =
                |instance: &LimiterInstance| changed.iter().any(|changed| changed.concerns(instance));
            in_force.queues.notify_changed(is_concerned);
        }
        in_force.metrics.retain_limiters(|name| kept.contains(name));
    }
}
