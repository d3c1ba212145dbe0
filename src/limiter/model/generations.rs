//! The generations of the limits under which slots were booked.

use std::ops::Deref;
use std::sync::Arc;

/// The generation of the limits of each limiter of a queue. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generations(Arc<[u64]>);

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
