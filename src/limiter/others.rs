//! What others use of an upstream's quota, as its answers tell: the limit is that much smaller for the fleet.
//!
//! An answer tells what is left when it is made, which is less than is left when it is read, for other requests are on
//! their way; so what others use is at least what is missing. The most of the last two to three windows is what they are
//! expected to use in the next one. Pure. `lua/calendar.lua` is the twin.

use crate::clock::Micros;

/// The part of it that others may use beyond what they are expected to.
const MARGIN_PART: u64 = 16;

/// What others use of one limit in a window.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Others {
    /// What is expected.
    permits: u64,
    /// The most that was heard since an instant, that, and the most of the window before: one whose answers come at a bad moment
    /// must not let all go at once.
    seen: u64,
    since: Micros,
    before: u64,
}

impl Others {
    /// What is left to them in a window: what they are expected to use, and a little more, for they do not come evenly.
    pub fn permits(&self) -> u64 {
        if self.permits > 0 { self.permits + self.permits / MARGIN_PART + 1 } else { 0 }
    }

    /// Hears how much they have in use. Returns by how much more than was expected.
    pub(super) fn hear(&mut self, now: Micros, window: Micros, permits: u64) -> u64 {
        if now >= self.since + window {
            self.permits = self.seen.max(self.before);
            (self.before, self.seen, self.since) = (self.seen, 0, now);
        }
        let more = permits.saturating_sub(self.permits);
        self.seen = self.seen.max(permits);
        self.permits = self.permits.max(permits);
        more
    }

    /// Expects nothing any more of whom nothing was heard for two windows.
    pub(super) fn forget(&mut self, now: Micros, window: Micros) {
        if now >= self.since + window + window {
            *self = Others::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Micros = Micros::from_millis(1000);

    #[test]
    fn the_most_of_the_last_windows_is_expected() {
        let mut others = Others::default();
        let mut hear = |millis: u64, permits| {
            let now = Micros::from_millis(10_000 + millis);
            others.forget(now, WINDOW);
            (others.hear(now, WINDOW, permits), others.permits)
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
        assert_eq!((others.permits(), Others::default().permits()), (35, 0));
    }
}
