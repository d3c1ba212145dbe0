//! What a refusal has taught: how far away the next slot is. While that holds, requests that cannot possibly fit are
//! refused without asking the store.
//!
//! It is forgotten after [`LEARNT_FOR`], when room is announced or given back, and when the limits change.
//!
//! Each refusal names an instant of its own, and two replicas must not name the same ones. So the store leaves some to a
//! caller that refuses many, as many as it lately refused in that time; one that refuses few asks for each.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::RetryDelay;
use crate::limiter::model::limit::{LimiterName, Permits};
use crate::limiter::model::refusal::Refusal;
use crate::limiter::store::clock::StoreClock;

/// How long it holds at most: room that other queues leave is not announced to this one.
pub(in crate::limiter) const LEARNT_FOR: Duration = Duration::from_millis(100);

/// What a refusal has taught.
pub(in crate::limiter) struct RefusalCache {
    limiter: LimiterName,
    limit: usize,
    rule: Rule,
    /// What was asked for. Whatever costs less may find a slot before.
    cost: Permits,
    /// The earliest slot for that.
    slot: Micros,
    /// Until then the store's clock has surely not reached it.
    not_before: Instant,
    until: Instant,
    clock: StoreClock,
    /// What the next one is told, and how many may be told without asking.
    next: Micros,
    spare: u64,
}

impl RefusalCache {
    /// What a store has taught that answered `away` at `now` of its clock, about a violated rule of a limiter.
    pub(in crate::limiter) fn new(
        limiter: LimiterName,
        rule: Rule,
        cost: Permits,
        away: RetryDelay,
        now: Micros,
        clock: StoreClock,
    ) -> RefusalCache {
        let slot = now + away.delay;
        RefusalCache {
            limiter,
            limit: away.violated.limit,
            rule,
            cost,
            slot,
            not_before: clock.not_before(slot),
            until: Instant::now() + LEARNT_FOR,
            clock,
            next: now + away.advised,
            spare: 0,
        }
    }

    /// Whether it was learnt from that answer.
    pub(in crate::limiter) fn is_of(&self, cost: Permits, away: &RetryDelay, now: Micros) -> bool {
        self.cost == cost && self.slot == now + away.delay && self.limit == away.violated.limit
    }

    /// How far away the next one is told to come back. Each is told another instant, as the store does it.
    pub(in crate::limiter) fn tell(&mut self, cost: Permits) -> Micros {
        let told = self.next - self.clock.earliest(Instant::now());
        self.next = self.rule.advised_next(self.slot, self.next, cost.get());
        told.max(Micros::ONE)
    }

    /// Lets so many more be refused without asking, to whom the store has left the instants that follow.
    pub(in crate::limiter) fn spare(mut self: Box<RefusalCache>, count: u64) -> Option<Box<RefusalCache>> {
        self.spare = count;
        (count > 0).then_some(self)
    }

    /// Refuses what cannot fit into its wait; `None` where the store must be asked.
    pub(in crate::limiter) fn refuse(&mut self, cost: Permits, deadline: Instant) -> Option<Refusal> {
        if cost < self.cost || deadline >= self.not_before || Instant::now() >= self.until || self.spare == 0
        {
            return None;
        }
        self.spare -= 1;
        let retry_after = self.tell(cost);
        Some(Refusal::RateLimited { limiter: self.limiter.clone(), limit: self.limit, retry_after })
    }
}
