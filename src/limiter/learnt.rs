//! What a refusal has taught: how far away the next slot is. While that holds, requests that cannot possibly fit are
//! refused without asking the store.
//!
//! It is forgotten after [`LEARNT_FOR`], when room is announced or given back, and when the limits change.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::limit::{LimiterName, Permits};
use crate::limiter::refusal::Refusal;
use crate::limiter::reserve::Away;
use crate::limiter::rule::Rule;
use crate::limiter::store_clock::StoreClock;

/// How long it holds at most: room that other queues leave is not announced to this one.
const LEARNT_FOR: Duration = Duration::from_millis(100);

/// What a refusal has taught.
pub(super) struct Learnt {
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
    /// What the next one is told.
    next: Micros,
}

impl Learnt {
    /// What a store has taught that answered `away` at `now` of its clock, about a violated rule of a limiter.
    pub(super) fn new(
        limiter: LimiterName,
        rule: Rule,
        cost: Permits,
        away: Away,
        now: Micros,
        clock: StoreClock,
    ) -> Learnt {
        let slot = now + away.delay;
        Learnt {
            limiter,
            limit: away.violated.limit,
            rule,
            cost,
            slot,
            not_before: clock.not_before(slot),
            until: Instant::now() + LEARNT_FOR,
            clock,
            next: now + away.told,
        }
    }

    /// Whether it was learnt from that answer.
    pub(super) fn is_of(&self, cost: Permits, away: &Away, now: Micros) -> bool {
        self.cost == cost && self.slot == now + away.delay && self.limit == away.violated.limit
    }

    /// How far away the next one is told to come back. Each is told another instant, as the store does it.
    pub(super) fn tell(&mut self, cost: Permits) -> Micros {
        let told = self.next - self.clock.earliest(Instant::now());
        self.skip(self.rule.spacing(cost.get()));
        told.max(Micros::ONE)
    }

    /// Leaves out instants that have been told already.
    pub(super) fn skip(&mut self, moved: Micros) {
        let ahead = (self.next - self.slot + moved).0 % self.rule.spread_max().0;
        self.next = self.slot + Micros(ahead);
    }

    /// Refuses what cannot fit into its wait, and says by how far that has moved what is told next; `None` where the store must
    /// be asked.
    pub(super) fn refuse(&mut self, cost: Permits, deadline: Instant) -> Option<(Refusal, Micros)> {
        if cost < self.cost || deadline >= self.not_before || Instant::now() >= self.until {
            return None;
        }
        let retry_after = self.tell(cost);
        let refusal = Refusal::RateLimited { limiter: self.limiter.clone(), limit: self.limit, retry_after };
        Some((refusal, self.rule.spacing(cost.get())))
    }
}
