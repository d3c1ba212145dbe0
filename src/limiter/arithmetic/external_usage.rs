//! What others use of an upstream's quota, as its answers tell: the limit is that much smaller for the fleet.
//!
//! An answer tells what was left when its request came. What this fleet had in use then is what it had booked in the window
//! that ends at the slot of that request, but for what was refused; what is missing beside that, others have in use. Requests
//! of nearly the same slot come in any order, so those count as in use, too. The most of the last two to three windows is what
//! others are expected to use in the next one. Pure. `lua/calendar.lua` is the twin.

use crate::clock::Micros;
use crate::limiter::model::upstream_report::Remaining;

/// The part of it that others may use beyond what they are expected to.
const MARGIN_PART: u64 = 16;

/// The part of a window for which requests are taken to overtake each other on their way at most.
const OVERTAKEN_PART: u64 = 100;

/// What is booked ahead moves up when that gives this fleet more than before by this part.
const MOVED_UP_PART: u64 = 8;

/// Within which time of an answer's slot others may have overtaken its request.
pub(in crate::limiter) fn overtaken(remaining: &Remaining, window: Micros) -> Micros {
    remaining.took.min(Micros(window.0 / OVERTAKEN_PART))
}

/// What others use of one limit in a window.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ExternalUsage {
    /// What is expected.
    permits: u64,
    /// The most that was heard since an instant, that, and the most of the window before: one whose answers come at a bad moment
    /// must not let all go at once.
    seen: u64,
    since: Micros,
    before: u64,
    /// What was left to them when the bookings ahead were placed.
    heeded: u64,
    /// What this fleet was refused and has booked all the same: its slots, and how much.
    refused: Vec<(Micros, u64)>,
}

impl ExternalUsage {
    /// What is left to them in a window: what they are expected to use, and a little more, for they do not come evenly.
    pub fn permits(&self) -> u64 {
        if self.permits > 0 { self.permits + self.permits / MARGIN_PART + 1 } else { 0 }
    }

    /// For how long bookings are kept: an answer is compared with the window before its slot, and comes late.
    pub(in crate::limiter) fn compared_for(&self, window: Micros) -> Micros {
        if self.since > Micros::ZERO { window + window } else { window }
    }

    /// Hears how much they had in use. Returns by how much more than was expected.
    pub(in crate::limiter) fn observe(&mut self, now: Micros, window: Micros, permits: u64) -> u64 {
        if now >= self.since + window {
            self.permits = self.seen.max(self.before);
            (self.before, self.seen, self.since) = (self.seen, 0, now);
        }
        let more = permits.saturating_sub(self.permits);
        self.seen = self.seen.max(permits);
        self.permits = self.permits.max(permits);
        more
    }

    /// Whether what is booked ahead of a rule stands where it should no longer.
    pub(in crate::limiter) fn are_unheeded(&self, rate: u64) -> bool {
        let (left, before) = (rate.saturating_sub(self.permits()), rate.saturating_sub(self.heeded));
        left < before || left > before + before / MOVED_UP_PART
    }

    /// Bookings heed from here on what is left to them now.
    pub(in crate::limiter) fn heed(&mut self) {
        self.heeded = self.permits();
    }

    /// Hears that the upstream refused permits of these slots, and does not count them. What was refused matters as long as its
    /// booking, so there is no more of it than of bookings.
    pub(in crate::limiter) fn refuse(&mut self, now: Micros, window: Micros, slots: &[(Micros, u64)]) {
        self.since = if self.since == Micros::ZERO { now } else { self.since };
        self.refused.retain(|(at, _)| *at + window + window > now);
        for (slot, permits) in slots {
            match self.refused.iter_mut().find(|(at, _)| at == slot) {
                Some((_, refused)) => *refused += permits,
                None => self.refused.push((*slot, *permits)),
            }
        }
    }

    /// What was refused of slots between two instants.
    pub(in crate::limiter) fn refused(&self, from: Micros, until: Micros) -> u64 {
        let inside = self.refused.iter().filter(|(slot, _)| from <= *slot && *slot <= until);
        inside.map(|(_, permits)| permits).sum()
    }

    /// Expects nothing any more of whom nothing was heard for two windows. While a pause lasts nothing can be heard.
    pub(in crate::limiter) fn forget(&mut self, now: Micros, window: Micros, paused_until: Micros) {
        if now >= self.since.max(paused_until) + window + window {
            *self = ExternalUsage { heeded: self.heeded, ..ExternalUsage::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Micros = Micros::from_millis(1000);

    #[test]
    fn the_most_of_the_last_windows_is_expected() {
        let mut others = ExternalUsage::default();
        let mut hear = |millis: u64, permits| {
            let now = Micros::from_millis(10_000 + millis);
            others.forget(now, WINDOW, Micros::ZERO);
            (others.observe(now, WINDOW, permits), others.permits)
        };
        assert_eq!(hear(0, 5), (5, 5));
        assert_eq!(hear(100, 3), (0, 5));
        assert_eq!(hear(200, 30), (25, 30));
        // The next window begins with the most of the last one.
        assert_eq!(hear(1000, 4), (0, 30));
        assert_eq!(hear(2000, 2), (0, 30));
        assert_eq!(hear(3000, 2), (0, 4));
        assert_eq!(hear(3500, 6), (2, 6));
        // Nothing heard for two windows.
        assert_eq!(hear(5000, 1), (1, 1));
        assert_eq!(hear(5100, 32), (31, 32));
        others.forget(Micros::from_millis(19_000), WINDOW, Micros::from_millis(17_001));
        assert_eq!((others.permits(), ExternalUsage::default().permits()), (35, 0));
        others.forget(Micros::from_millis(19_000), WINDOW, Micros::from_millis(17_000));
        assert_eq!(others.permits(), 0);
    }

    #[test]
    fn what_was_refused_is_known_for_two_windows() {
        let mut others = ExternalUsage::default();
        let at = |millis: u64| Micros::from_millis(10_000 + millis);
        assert_eq!(others.compared_for(WINDOW), WINDOW);
        for (now, slot, permits) in [(20, 0, 3), (21, 0, 1), (500, 480, 2), (1100, 1000, 1)] {
            others.refuse(at(now), WINDOW, &[(at(slot), permits)]);
        }
        assert_eq!(others.compared_for(WINDOW), WINDOW + WINDOW);
        let between = |others: &ExternalUsage, from: u64, until: u64| others.refused(at(from), at(until));
        assert_eq!(
            [between(&others, 0, 1000), between(&others, 0, 480), between(&others, 1, 479)],
            [7, 6, 0]
        );
        others.refuse(at(2300), WINDOW, &[(at(2300), 1)]);
        assert_eq!((between(&others, 0, 3000), others.refused.len()), (4, 3));
    }

    #[test]
    fn bookings_move_down_at_once_and_up_for_a_good_reason() {
        let mut others = ExternalUsage::default();
        assert!(!others.are_unheeded(60));
        others.observe(Micros::from_millis(10_000), WINDOW, 30);
        assert!(others.are_unheeded(60));
        others.heed();
        assert!(!others.are_unheeded(60));
        for (expected, is_unheeded) in [(31, true), (30, false), (28, false), (27, false), (26, true)] {
            assert_eq!(
                ExternalUsage { permits: expected, ..others.clone() }.are_unheeded(60),
                is_unheeded,
                "{expected}"
            );
        }
    }
}
