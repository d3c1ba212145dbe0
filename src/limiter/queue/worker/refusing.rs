//! Refuses requests, with the reason and the time after which to come back.

use std::collections::VecDeque;
use std::ops::Bound;

use tokio::time::Instant;

use super::state::Worker;
use crate::clock::Micros;
use crate::limiter::model::{OnStoreFailure, Outcome, Permits, Refusal, RetryDelay, Violated};
use crate::limiter::queue::inbox::{Arrival, Asker};
use crate::limiter::queue::pause::in_pause;
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::queue::slot::Source;

impl Worker {
    /// Refuses the requests that cost more than the limits, after a change, can ever hold.
    pub(super) fn refuse_too_costly(&mut self) {
        let cost_max = self.queue.cost_max();
        for (cost, cost_queue) in self.cost_queues.range_mut((Bound::Excluded(cost_max), Bound::Unbounded)) {
            let refusal = self.queue.too_costly();
            for waiter in cost_queue.take_waiters() {
                self.queue.count_refused(&refusal, *cost, false);
                waiter.refuse(refusal.clone());
            }
        }
        if self.limits_changed {
            let pending = std::mem::take(&mut self.pending).into_iter();
            let (costly, kept) = pending.partition::<VecDeque<_>, _>(|arrival| arrival.cost > cost_max);
            self.pending = kept;
            costly.into_iter().for_each(|arrival| self.refuse(arrival, self.queue.too_costly()));
        }
    }

    /// Refuses a request that has no place in a cost queue yet.
    pub(super) fn refuse(&self, arrival: Arrival, refusal: Refusal) {
        let is_shadow = matches!(arrival.asker, Asker::Shadow);
        self.queue.count_refused(&refusal, arrival.cost, is_shadow);
        if let Asker::Request(entry) = arrival.asker {
            // An error means that the request has left.
            let _ = entry.send(Err(refusal));
        }
    }

    /// Refuses the last request of a cost queue, because a slot that was asked for does not come.
    pub(super) fn refuse_without_slot(&mut self, cost: Permits, refusal: &Refusal) {
        let Some(cost_queue) = self.cost_queues.get_mut(&cost) else { return };
        cost_queue.wanted = cost_queue.wanted.saturating_sub(1);
        for waiter in cost_queue.take_without_slot() {
            self.queue.count_refused(refusal, cost, false);
            waiter.refuse(refusal.clone());
        }
    }

    /// Refuses the requests whose slot has moved beyond their deadline.
    pub(super) fn refuse_overdue(&mut self, now: Instant) {
        let mut overdue = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            overdue
                .extend(cost_queue.take_overdue(now).into_iter().map(|(waiter, due)| (*cost, waiter, due)));
        }
        for (cost, waiter, due) in overdue {
            let delay = Micros::from(due.saturating_duration_since(now)).max(Micros::ONE);
            let refusal = in_pause(self.too_far(Some(delay)), self.paused.as_ref(), waiter.deadline);
            self.queue.count_refused(&refusal, cost, false);
            waiter.refuse(refusal);
        }
    }

    /// Returns the refusal of a request whose slot is too far away; `delay` is how far, if known.
    pub(super) fn too_far(&self, delay: Option<Micros>) -> Refusal {
        let delay = delay.unwrap_or(Micros::from(self.session.store.lease().to_duration()));
        self.refusal(
            Outcome::TooFar(RetryDelay { delay, advised: delay, violated: Violated::default() }),
            delay,
        )
    }

    /// Returns the refusal of a request that a store did not book.
    pub(super) fn refusal(&self, outcome: Outcome, retry_after: Micros) -> Refusal {
        let limiter = |violated: Violated| {
            self.limiter_refs[violated.limiter.min(self.limiter_refs.len() - 1)].name.clone()
        };
        match outcome {
            Outcome::Full(RetryDelay { violated, .. }) => {
                Refusal::QueueFull { limiter: limiter(violated), limit: violated.limit, retry_after }
            }
            Outcome::TooFar(RetryDelay { violated, .. }) => {
                Refusal::RateLimited { limiter: limiter(violated), limit: violated.limit, retry_after }
            }
            Outcome::Booked(_) => self.store_unavailable(),
        }
    }

    /// Returns the refusal while the store is unreachable, which names the limiter whose policy is to reject.
    pub(super) fn store_unavailable(&self) -> Refusal {
        let place = self.queue.with_policy(OnStoreFailure::Reject).next().unwrap_or_default();
        Refusal::StoreUnavailable { limiter: self.limiter_refs[place].name.clone() }
    }

    /// Returns the cache of a store's refusal, by which further requests can be refused.
    pub(super) fn refusal_cache(
        &self,
        cost: Permits,
        away: RetryDelay,
        now: Micros,
    ) -> Option<Box<RefusalCache>> {
        let limiter_ref = self.limiter_refs.get(away.violated.limiter)?;
        let rule = limiter_ref.rules.get(away.violated.limit)?.clone();
        let source = if self.is_local { Source::Local } else { Source::Store };
        let clock = self.clock_of(source, Instant::now());
        Some(Box::new(RefusalCache::new(limiter_ref.name.clone(), rule, cost, away, now, clock)))
    }
}
