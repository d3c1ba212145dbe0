//! The generations of the limits under which slots were booked.

use std::ops::Deref;
use std::sync::Arc;

/// The number of no generation: permits that are said to be booked under it stay where they are.
pub const NO_GENERATION: u64 = (1 << 53) - 1;

/// The number that a caller gives which has had no answer yet. Permits that it gives back were used: they stand where they were booked, unless a
/// change is being followed.
pub const UNKNOWN_GENERATION: u64 = NO_GENERATION - 1;

/// The generation of the limits of each limiter of a queue. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generations(Arc<[u64]>);

impl Generations {
    /// Returns these generations for the limiters that have changed since, and for the others: [`NO_GENERATION`] stands for the rest.
    pub fn split(&self, since: &Generations) -> (Generations, Generations) {
        let only = |changed: bool| {
            let pairs = self.iter().zip(since.iter());
            let number =
                |(known, now): (&u64, &u64)| if (known != now) == changed { *known } else { NO_GENERATION };
            pairs.map(number).collect()
        };
        (only(true), only(false))
    }

    /// Returns these generations for the limiter at a place, and for all others: [`NO_GENERATION`] stands for the rest.
    pub fn alone(&self, place: usize) -> (Generations, Generations) {
        let only = |alone: bool| {
            let numbers = self.iter().enumerate();
            numbers
                .map(|(index, known)| if (index == place) == alone { *known } else { NO_GENERATION })
                .collect()
        };
        (only(true), only(false))
    }

    /// Returns whether they are of some limiters alone.
    pub fn is_partial(&self) -> bool {
        let left_alone = self.iter().filter(|number| **number == NO_GENERATION).count();
        0 < left_alone && left_alone < self.len()
    }
}

impl FromIterator<u64> for Generations {
    fn from_iter<T: IntoIterator<Item = u64>>(numbers: T) -> Generations {
        Generations(numbers.into_iter().collect())
    }
}

impl Deref for Generations {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.0
    }
}
