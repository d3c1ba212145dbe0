//! The part of an upstream's quota that others use, as its answers show. The limit is that much smaller for the fleet.
//!
//! An answer tells the permits that were left when its request came. The fleet's own use is its bookings in the window that
//! ends at the slot of that request, without rejected permits; others use the rest. Requests of nearly the same slot arrive
//! in any order, so those count as the fleet's. The highest use in the last two to three windows is expected in the next
//! one. Pure. The twin is `lua/external_usage.lua`.

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::cell_start;
use crate::limiter::model::Remaining;

/// The margin left to others beyond their expected usage: 1/16 of it.
const MARGIN_PART: u64 = 16;

/// Requests may overtake each other on their way if their slots are at most 1/100 of a window apart.
const OVERTAKEN_PART: u64 = 100;

/// Bookings ahead move up when the fleet's part of a limit has grown by more than 1/8.
const MOVED_UP_PART: u64 = 8;

/// Returns how far from its slot an answer's request may have been overtaken by others.
pub(in crate::limiter) fn overtaken(remaining: &Remaining, window: Micros) -> Micros {
    remaining.took.min(Micros(window.0 / OVERTAKEN_PART))
}

/// The permits of one limit that others use in a window.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ExternalUsage {
    /// The permits that others are expected to use in a window.
    expected: u64,
    /// The most that was observed since an instant, that instant, and the most of the window before. Two windows, because
    /// the answers of a single one may come at bad moments.
    observed: u64,
    since: Micros,
    before: u64,
    /// The permits that were left to others when the bookings ahead were placed.
    heeded: u64,
    /// Permits that the upstream rejected and that stay booked: their slots, and how many.
    refused: Vec<(Micros, u64)>,
}

impl ExternalUsage {
    /// Returns the permits of a window that are left to others: a little more than expected, for they do not come evenly.
    pub fn permits(&self) -> u64 {
        if self.expected > 0 { self.expected + self.expected / MARGIN_PART + 1 } else { 0 }
    }

    /// Returns the usage under another rate. What lay between a lower one and the upstream's own counted as used by others.
    pub(in crate::limiter) fn under(&self, before: u64, rate: u64) -> ExternalUsage {
        let less = |permits: u64| permits.saturating_sub(before.saturating_sub(rate));
        let (expected, observed, last) = (less(self.expected), less(self.observed), less(self.before));
        ExternalUsage { expected, observed, before: last, ..self.clone() }
    }

    /// Returns how long bookings are kept to compare answers with: an answer concerns the window before its slot, and comes
    /// late.
    pub(in crate::limiter) fn compared_for(&self, window: Micros) -> Micros {
        if self.since > Micros::ZERO { window + window } else { window }
    }

    /// Notes how many permits others had in use. Returns by how many that exceeds the expected ones.
    pub(in crate::limiter) fn observe(&mut self, now: Micros, window: Micros, permits: u64) -> u64 {
        if now >= self.since + window {
            self.expected = self.observed.max(self.before);
            (self.before, self.observed, self.since) = (self.observed, 0, now);
        }
        let more = permits.saturating_sub(self.expected);
        self.observed = self.observed.max(permits);
        self.expected = self.expected.max(permits);
        more
    }

    /// Returns the instant from which the usage does not matter, if nothing more is observed.
    pub(in crate::limiter) fn expires(&self, window: Micros, paused_until: Micros) -> Micros {
        if self.since > Micros::ZERO { self.since.max(paused_until) + window + window } else { Micros::ZERO }
    }

    /// Returns whether the bookings ahead were placed by an outdated external usage: others use more now, or so much less
    /// that the bookings should move up.
    pub(in crate::limiter) fn is_unheeded(&self, rate: u64) -> bool {
        let (left, before) = (rate.saturating_sub(self.permits()), rate.saturating_sub(self.heeded));
        left < before || left > before + before / MOVED_UP_PART
    }

    /// Notes that the bookings ahead are placed by the present external usage.
    pub(in crate::limiter) fn heed(&mut self) {
        self.heeded = self.permits();
    }

    /// Notes that the upstream rejected permits of these slots, and does not count them. Those of a cell are kept as one, at the latest slot:
    /// there are no more of them than cells.
    pub(in crate::limiter) fn refuse(
        &mut self,
        now: Micros,
        (window, cell): (Micros, Micros),
        slots: &[(Micros, u64)],
    ) {
        self.since = if self.since == Micros::ZERO { now } else { self.since };
        self.refused.retain(|(at, _)| *at + window + window > now);
        for (slot, permits) in slots {
            let first = cell_start(*slot, cell);
            match self.refused.iter_mut().find(|(at, _)| cell_start(*at, cell) == first) {
                Some((at, refused)) => (*at, *refused) = ((*at).max(*slot), *refused + permits),
                None => self.refused.push((*slot, *permits)),
            }
        }
    }

    /// Returns the rejected permits of slots between two instants.
    pub(in crate::limiter) fn refused(&self, from: Micros, until: Micros) -> u64 {
        let inside = self.refused.iter().filter(|(slot, _)| from <= *slot && *slot <= until);
        inside.map(|(_, permits)| permits).sum()
    }

    /// Forgets the external usage if none was observed for two windows. During a pause nothing can be observed.
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
    fn the_highest_use_of_the_last_windows_is_expected() {
        let mut usage = ExternalUsage::default();
        let mut hear = |millis: u64, permits| {
            let now = Micros::from_millis(10_000 + millis);
            usage.forget(now, WINDOW, Micros::ZERO);
            (usage.observe(now, WINDOW, permits), usage.expected)
        };
        assert_eq!(hear(0, 5), (5, 5));
        assert_eq!(hear(100, 3), (0, 5));
        assert_eq!(hear(200, 30), (25, 30));
        // The next window begins with the most of the last one.
        assert_eq!(hear(1000, 4), (0, 30));
        assert_eq!(hear(2000, 2), (0, 30));
        assert_eq!(hear(3000, 2), (0, 4));
        assert_eq!(hear(3500, 6), (2, 6));
        // No usage is reported for two windows.
        assert_eq!(hear(5000, 1), (1, 1));
        assert_eq!(hear(5100, 32), (31, 32));
        usage.forget(Micros::from_millis(19_000), WINDOW, Micros::from_millis(17_001));
        assert_eq!((usage.permits(), ExternalUsage::default().permits()), (35, 0));
        usage.forget(Micros::from_millis(19_000), WINDOW, Micros::from_millis(17_000));
        assert_eq!(usage.permits(), 0);
    }

    #[test]
    fn a_rejection_is_kept_for_two_windows() {
        let mut usage = ExternalUsage::default();
        let at = |millis: u64| Micros::from_millis(10_000 + millis);
        assert_eq!(usage.compared_for(WINDOW), WINDOW);
        for (now, slot, permits) in [(20, 0, 3), (21, 0, 1), (500, 480, 2), (1100, 1000, 1)] {
            usage.refuse(at(now), (WINDOW, Micros::ONE), &[(at(slot), permits)]);
        }
        assert_eq!(usage.compared_for(WINDOW), WINDOW + WINDOW);
        let between = |usage: &ExternalUsage, from: u64, until: u64| usage.refused(at(from), at(until));
        assert_eq!([between(&usage, 0, 1000), between(&usage, 0, 480), between(&usage, 1, 479)], [7, 6, 0]);
        usage.refuse(at(2300), (WINDOW, Micros::ONE), &[(at(2300), 1)]);
        assert_eq!((between(&usage, 0, 3000), usage.refused.len()), (4, 3));
    }

    #[test]
    fn rejections_of_a_cell_are_kept_as_one() {
        let mut usage = ExternalUsage::default();
        let at = |millis: u64| Micros::from_millis(10_000 + millis);
        for slot in (0..1000).rev() {
            usage.refuse(at(1000), (WINDOW, Micros::from_millis(100)), &[(at(slot), 2)]);
        }
        assert_eq!((usage.refused.len(), usage.refused(at(0), at(1000))), (10, 2000));
        assert!(usage.refused.contains(&(at(999), 200)), "{:?}", usage.refused);
    }

    #[test]
    fn bookings_move_down_at_once_and_up_for_a_good_reason() {
        let mut usage = ExternalUsage::default();
        assert!(!usage.is_unheeded(60));
        usage.observe(Micros::from_millis(10_000), WINDOW, 30);
        assert!(usage.is_unheeded(60));
        usage.heed();
        assert!(!usage.is_unheeded(60));
        for (expected, is_unheeded) in [(31, true), (30, false), (28, false), (27, false), (26, true)] {
            assert_eq!(
                ExternalUsage { expected, ..usage.clone() }.is_unheeded(60),
                is_unheeded,
                "{expected}"
            );
        }
    }
}
