//! Keeps the bookings of one queue in order, and its refusals apart.
//!
//! Pure. A store keeps it for each queue. The twin is `lua/queue_order.lua`.

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::Freed;

/// The time between two reviews of the advised instants: callers who wait for whole seconds come back unevenly. It is at least the
/// time in which [`REVIEW_PERMITS`] permits could be used.
const REVIEW_MIN: Micros = Micros::from_millis(5000);
const REVIEW_PERMITS: u64 = 8;

/// The order of one queue.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct QueueOrder {
    /// The last booked slot. A new one lies no earlier, unless it takes permits that were given back.
    last: Micros,
    /// The earliest slot before `last` of which permits were given back, and how many have not been taken again.
    freed_at: Micros,
    freed_permits: u64,
    /// The sum of the generations of the queue's limiters when `last` was booked.
    generation: u64,
    /// The instant that the next refused caller is advised, unless its slot is later.
    advised: Micros,
    /// The last review of the advised instants, the permits that could have been booked since, and those that were, less
    /// those given back.
    reviewed: Micros,
    expected: u64,
    booked: u64,
    /// The permits by which callers that were refused alone have moved `advised` since.
    followed: u64,
}

/// Some requests of one cost that a call refuses.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Refused {
    /// The cost of each.
    pub(in crate::limiter) cost: u64,
    /// The number of new callers, and of those that the caller of the store may refuse without asking.
    pub(in crate::limiter) count: u64,
    /// True if the call refuses several new callers.
    pub(in crate::limiter) is_crowd: bool,
}

impl QueueOrder {
    /// Brings the order to `now`. A change of the limits ends it: the bookings have new places, and those keep the order.
    pub(in crate::limiter) fn open(&mut self, now: Micros, generation: u64) {
        if generation != self.generation {
            *self = QueueOrder { generation, ..QueueOrder::default() };
        }
        if self.last <= now {
            self.freed_permits = 0;
        }
    }

    /// Returns the last booked slot.
    pub(in crate::limiter) fn last(&self) -> Micros {
        self.last
    }

    /// Returns the instant from which nothing in the order matters.
    pub fn expires(&self) -> Micros {
        self.last.max(self.advised)
    }

    /// Returns the permits that were given back before the last slot.
    pub(in crate::limiter) fn freed(&self) -> Option<Freed> {
        let is_before = self.freed_permits > 0 && self.freed_at < self.last;
        is_before.then_some(Freed { at: self.freed_at, permits: self.freed_permits })
    }

    /// Returns the earliest instant that the order allows for a new request of `cost`.
    pub(in crate::limiter) fn floor(&self, cost: u64) -> Micros {
        if self.freed_permits >= cost { self.freed_at } else { self.last }
    }

    /// Returns how many requests of `cost` the order allows at a slot.
    pub(in crate::limiter) fn count_at(&self, slot: Micros, cost: u64) -> u64 {
        if slot < self.last { self.freed_permits / cost } else { u64::MAX }
    }

    /// Notes permits that were given back. Where nothing is booked ahead of `now`, every new request finds them without this.
    ///
    /// They do not count as booked: a late slot that is exchanged for another is one permit.
    pub(in crate::limiter) fn given_back(&mut self, now: Micros, slot: Micros, permits: u64) {
        self.booked = self.booked.saturating_sub(permits);
        if slot < self.last && self.last > now {
            self.freed_at = if self.freed_permits == 0 { slot } else { self.freed_at.min(slot) };
            self.freed_permits += permits;
        }
    }

    /// Notes the new place of a void permit.
    pub(in crate::limiter) fn rescheduled(&mut self, place: Option<Micros>) {
        self.last = self.last.max(place.unwrap_or_default());
    }

    /// Notes booked requests. Nobody stands behind those that did not wait for room. Returns whether they passed by freed permits that
    /// are too few for this cost, but may serve a smaller one.
    pub(in crate::limiter) fn booked(&mut self, slot: Micros, count: u64, cost: u64, waited: bool) -> bool {
        self.booked += count * cost;
        let (searched, has_freed) = (self.freed_permits >= cost, self.freed_permits > 0);
        if searched && slot < self.last {
            self.freed_permits -= count * cost;
        }
        if searched && cost == 1 {
            // A request of the smallest cost has searched all earlier instants, so no freed permit is left there.
            self.freed_at = slot;
            self.freed_permits = if slot < self.last { self.freed_permits } else { 0 };
        }
        if waited {
            self.last = self.last.max(slot);
        }
        has_freed && cost > 1 && slot > self.freed_at
    }

    /// Counts permits that were booked, where another keeps the order.
    pub(in crate::limiter) fn used(&mut self, permits: u64) {
        self.booked += permits;
    }

    /// Counts such permits that were given back.
    pub(in crate::limiter) fn not_used(&mut self, permits: u64) {
        self.booked = self.booked.saturating_sub(permits);
    }

    /// Returns the instant to advise to the first of some refused requests, and whether each further one is advised a later one.
    ///
    /// The callers of a crowd are advised successive instants, at the pace at which permits come, so that those who obey do not
    /// come back together. No instant lies further than [`Rule::spread_max`] behind the true one.
    ///
    /// Only requests that one call refuses are surely of several callers. One that is refused alone may be of a caller that asks
    /// again and again, whom that must not send further away; so it is advised what the one before was. If it was another's after all,
    /// both come back together, are refused in one call, and are spread. Where callers that were spread do come back, each booked permit
    /// vouches for one that comes alone.
    pub(in crate::limiter) fn advise(
        &mut self,
        now: Micros,
        slot: Micros,
        refused: Refused,
        rule: Option<&Rule>,
    ) -> (Micros, bool) {
        let Some(rule) = rule else { return (slot, false) };
        let Refused { cost, count, is_crowd } = refused;
        let first = self.advised.max(slot).min(slot + rule.spread_max());
        let is_vouched_for = self.advised > slot && self.booked >= self.followed + cost;
        let is_spread = count > 0 && (is_crowd || is_vouched_for);
        if is_spread {
            self.advised = rule.advised_next(slot, first, count * cost);
            self.followed += if is_crowd { 0 } else { count * cost };
            // Nobody can come back before the slot.
            if slot > now + reviewed_every(std::iter::once(rule)) {
                (self.reviewed, self.expected) = (self.reviewed.max(slot), 0);
            }
        }
        (first, is_spread)
    }

    /// Brings the advised instants closer where fewer callers came back than were expected.
    ///
    /// An advised instant is a promise of permits. If fewer were booked since the last review than were promised, the
    /// instants move closer in the same proportion.
    pub(in crate::limiter) fn review_spread<'a, Rules>(&mut self, now: Micros, rules: impl Fn() -> Rules)
    where
        Rules: Iterator<Item = &'a Rule>,
    {
        if self.advised <= now {
            (self.reviewed, self.expected, self.booked, self.followed) = (now, 0, 0, 0);
            return;
        }
        let every = reviewed_every(rules());
        if now < self.reviewed + every {
            return;
        }
        let ahead = self.advised - now;
        // Up to a quarter of the permits may miss their callers by chance.
        if self.booked + self.booked / 3 < self.expected {
            self.advised = now + Micros(ahead.0 / 1024 * (self.booked * 1024 / self.expected));
        }
        let soon = (self.advised - now).min(every);
        self.expected = rules().map(|rule| rule.quota().permits_within(soon)).min().unwrap_or_default();
        (self.reviewed, self.booked, self.followed) = (now, 0, 0);
    }
}

/// Returns the time between two reviews under these rules.
fn reviewed_every<'a>(rules: impl Iterator<Item = &'a Rule>) -> Micros {
    let some = rules.map(|rule| rule.quota().span(REVIEW_PERMITS)).max().unwrap_or_default();
    REVIEW_MIN.max(some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_request_leaves_freed_permits_to_smaller_ones() {
        let mut order = QueueOrder::default();
        assert!(!order.booked(Micros(10), 1, 1, true), "nothing was freed");
        order.given_back(Micros(1), Micros(2), 3);
        assert!(order.booked(Micros(10), 1, 5, true), "three lie before it");
        assert_eq!((order.floor(5), order.floor(1)), (Micros(10), Micros(2)));
    }
}
