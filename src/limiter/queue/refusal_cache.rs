//! A refusal of the store, by which further requests that cannot fit into their wait are refused without asking it.
//!
//! It is dropped after [`KEPT_FOR`], when permits are freed, and when the limits change.
//!
//! A request that is refused alone is told the instant of the one before, without asking. The callers of a crowd are each advised
//! another instant to come back at, and no two replicas may advise the same one. So the store reserves some instants for a caller
//! that refuses many requests: its `refusal_budget`, as many as it refused lately in that time. A caller that refuses few requests
//! has none, and asks the store each time.

use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{LimiterName, Permits, Refusal, RetryDelay};
use crate::limiter::store::clock::StoreClock;

/// How long a refusal holds at most: this queue does not learn of permits that other queues of a limiter free.
pub(in crate::limiter) const KEPT_FOR: Micros = Micros::from_millis(100);

/// The store's latest refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct RefusalCache {
    limiter: LimiterName,
    limit: usize,
    available: u64,
    rule: Rule,
    /// The cost that was refused. A lower cost may fit earlier.
    cost: Permits,
    /// The earliest slot for the refused cost.
    slot: Micros,
    /// The instant until which the store's clock has surely not reached the slot.
    not_before: Moment,
    until: Moment,
    clock: StoreClock,
    /// The instant that the next refused request is advised.
    next: Micros,
    /// True if each refused request is advised a later instant.
    is_spread: bool,
    /// How many more requests may be refused without asking the store, if they are spread.
    budget: u64,
}

impl RefusalCache {
    /// Creates the cache of a refusal that a store answered at `store_now` of its clock, for the limiter and rule that it names.
    pub(in crate::limiter) fn new(
        limiter: LimiterName,
        rule: Rule,
        cost: Permits,
        away: RetryDelay,
        store_now: Micros,
        (clock, now): (StoreClock, Moment),
    ) -> RefusalCache {
        let slot = store_now + away.delay;
        RefusalCache {
            limiter,
            limit: away.violated.limit,
            available: away.available,
            rule,
            cost,
            slot,
            not_before: clock.not_before(slot),
            until: now + KEPT_FOR,
            clock,
            next: store_now + away.advised,
            is_spread: away.is_spread,
            budget: 0,
        }
    }

    /// Returns whether the cache was made from this refusal.
    pub(in crate::limiter) fn is_of(&self, cost: Permits, away: &RetryDelay, now: Micros) -> bool {
        self.cost == cost
            && self.slot == now + away.delay
            && self.limit == away.violated.limit
            && self.is_spread == away.is_spread
    }

    /// Returns whether each refused request is advised a later instant.
    pub(in crate::limiter) fn is_spread(&self) -> bool {
        self.is_spread
    }

    /// Returns the delay after which the next refused request is advised to come back, and moves the advice on if it is spread.
    pub(in crate::limiter) fn advise(&mut self, cost: Permits, now: Moment) -> Micros {
        let advised = self.next - self.clock.earliest(now);
        if self.is_spread {
            self.next = self.rule.advised_next(self.slot, self.next, cost.get());
        }
        advised.max(Micros::ONE)
    }

    /// Sets how many requests may be refused without asking the store, if they are spread; `None` if there are none.
    pub(in crate::limiter) fn with_budget(
        mut self: Box<RefusalCache>,
        budget: u64,
    ) -> Option<Box<RefusalCache>> {
        self.budget = budget;
        (budget > 0 || !self.is_spread).then_some(self)
    }

    /// Refuses a request that cannot fit into its wait; `None` where the store must be asked.
    pub(in crate::limiter) fn refuse(
        &mut self,
        cost: Permits,
        deadline: Moment,
        now: Moment,
    ) -> Option<Refusal> {
        if cost < self.cost || deadline >= self.not_before || now >= self.until {
            return None;
        }
        if self.is_spread {
            self.budget = self.budget.checked_sub(1)?;
        }
        let retry_after = self.advise(cost, now);
        let (limiter, limit, available) = (self.limiter.clone(), self.limit, self.available);
        Some(Refusal::RateLimited { limiter, limit, available, retry_after })
    }
}
