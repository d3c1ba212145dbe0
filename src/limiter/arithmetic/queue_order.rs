//! Where a queue stands: what keeps its bookings in order, and its refusals apart.
//!
//! Pure. A part of the state that a store keeps for each queue; `lua/reserve.lua` holds the twin.

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::Freed;

/// How often it is looked whether callers that were told to come back did: after three windows, or this long, but not
/// before some permits could have been used.
const REVIEW_MAX: Micros = Micros::from_millis(5000);
const REVIEW_PERMITS: u64 = 8;

/// Where a queue stands.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct QueueOrder {
    /// The last slot booked. A new one lies no earlier, unless it fills room that was given back.
    last: Micros,
    /// Where room before it begins, and how many permits were given back there and have not been taken again.
    room_at: Micros,
    room_permits: u64,
    /// The sum of its limiters' generation numbers when `last` was booked.
    generation: u64,
    /// The instant that the next refused caller is told, unless its slot is later.
    told: Micros,
    /// When it was last looked how many of those came back, how many permits they could have had since, and how many were booked.
    reviewed: Micros,
    expected: u64,
    booked: u64,
}

impl QueueOrder {
    /// Brings it to `now`. Forgets the order when the limits have changed: the bookings have new places, and those keep it.
    pub(in crate::limiter) fn open(&mut self, now: Micros, generation: u64) {
        if generation != self.generation {
            *self = QueueOrder { generation, ..QueueOrder::default() };
        }
        if self.last <= now {
            self.room_permits = 0;
        }
    }

    /// The last slot booked.
    pub(in crate::limiter) fn last(&self) -> Micros {
        self.last
    }

    /// When nothing in it can matter any more.
    pub fn expires(&self) -> Micros {
        self.last.max(self.told)
    }

    /// Freed before the last slot.
    pub(in crate::limiter) fn room(&self) -> Option<Freed> {
        (self.room_permits > 0 && self.room_at < self.last)
            .then_some(Freed { at: self.room_at, permits: self.room_permits })
    }

    /// The earliest place for a new request of that cost, as far as the order goes.
    pub(in crate::limiter) fn floor(&self, cost: u64) -> Micros {
        if self.room_permits >= cost { self.room_at } else { self.last }
    }

    /// How many requests of that cost may go to a slot.
    pub(in crate::limiter) fn count_at(&self, slot: Micros, cost: u64) -> u64 {
        if slot < self.last { self.room_permits / cost } else { u64::MAX }
    }

    /// Notes room. Where nothing is booked ahead of `now`, whoever comes finds it without being told.
    pub(in crate::limiter) fn given_back(&mut self, now: Micros, slot: Micros, permits: u64) {
        if slot < self.last && self.last > now {
            self.room_at = if self.room_permits == 0 { slot } else { self.room_at.min(slot) };
            self.room_permits += permits;
        }
    }

    pub(in crate::limiter) fn exchanged(&mut self, place: Option<Micros>) {
        self.last = self.last.max(place.unwrap_or_default());
    }

    /// Keeps the order after requests were booked. Returns whether they passed by room that a smaller cost may take.
    pub(in crate::limiter) fn booked(&mut self, slot: Micros, count: u64, cost: u64) -> bool {
        self.booked += count * cost;
        let searched = self.room_permits >= cost;
        if searched && slot < self.last {
            self.room_permits -= count * cost;
        }
        if searched && cost == 1 {
            // Where the smallest cost finds none there is none.
            self.room_at = slot;
            self.room_permits = if slot < self.last { self.room_permits } else { 0 };
        }
        self.last = self.last.max(slot);
        searched && cost > 1 && slot > self.room_at
    }

    /// The instant that the first of some refused callers is told, who need that many permits together.
    ///
    /// Successive refusals name successive instants, at the pace at which permits come, so that callers who obey do not come
    /// back together. Further than [`Rule::spread_max`] beyond the true instant nobody is sent: it begins there anew.
    pub(in crate::limiter) fn tell(&mut self, slot: Micros, permits: u64, rule: Option<&Rule>) -> Micros {
        let Some(rule) = rule else { return slot };
        let first = if self.told > slot + rule.spread_max() { slot } else { self.told.max(slot) };
        self.told = rule.told_next(slot, first, permits);
        first
    }

    /// Pulls the spread in where the callers it was for did not come.
    ///
    /// What was told is a promise of permits. If in a while fewer were booked than had been told, so many fewer of those
    /// who are still to come are expected.
    pub(in crate::limiter) fn review_spread<'a, Rules>(&mut self, now: Micros, rules: impl Fn() -> Rules)
    where
        Rules: Iterator<Item = &'a Rule>,
    {
        if self.told <= now {
            (self.reviewed, self.expected, self.booked) = (now, 0, 0);
            return;
        }
        let shortest = rules().map(|rule| rule.window).min().unwrap_or_default();
        let some = rules().map(|rule| rule.span(REVIEW_PERMITS)).max().unwrap_or_default();
        let every = Micros(shortest.0.saturating_mul(3)).min(REVIEW_MAX.max(some));
        if now < self.reviewed + every {
            return;
        }
        let ahead = self.told - now;
        // An eighth is what slots and callers miss each other by.
        if self.booked + self.booked / 8 < self.expected {
            self.told = now + Micros(ahead.0 / 1024 * (self.booked * 1024 / self.expected));
        }
        let soon = (self.told - now).min(every);
        self.expected = rules().map(|rule| rule.permits_within(soon)).min().unwrap_or_default();
        (self.reviewed, self.booked) = (now, 0);
    }
}
