//! The part of a limit that one replica may use by itself. Pure.

/// One of several replicas that divide a limit among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The number of replicas.
    pub parts: u64,
    /// The replica's place among them, from zero on; `None` where it is not known, or not the same to all.
    pub place: Option<u64>,
    /// How many microseconds the store's clock, by which calendar windows go, lies ahead of the replica's own; below zero: behind it.
    pub clock_ahead: i64,
}

impl Share {
    /// No share at all.
    pub const NONE: Share = Share { parts: u64::MAX, place: None, clock_ahead: 0 };

    /// Returns whole permits of so many: those of all replicas sum up to no more. What cannot be divided goes to the first.
    pub fn of(self, permits: u64) -> u64 {
        let parts = self.parts.max(1);
        permits / parts + u64::from(self.place.is_some_and(|place| place < permits % parts))
    }

    /// Returns the share if no more than `most` replicas can have one; `None` if this one cannot.
    #[must_use]
    pub fn among(self, most: u64) -> Option<Share> {
        if self.parts <= most {
            return Some(self);
        }
        self.place.filter(|place| *place < most).map(|_| Share { parts: most, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_up_to_the_limit_and_not_to_more() {
        for permits in 0..40 {
            for parts in 1..7 {
                let share = |place| Share { parts, place, clock_ahead: 0 };
                let known = (0..parts).map(|place| share(Some(place)));
                let sum: u64 =
                    known.filter_map(|share| share.among(permits)).map(|share| share.of(permits)).sum();
                assert_eq!(sum, permits, "{parts}");
                assert!(share(None).of(permits) * parts <= permits);
            }
        }
        assert_eq!(Share::NONE.among(1_000_000_000), None);
    }
}
