//! The permits that a request takes of each of several limiters: the same of all, as most do, or of each its own. Pure.

use std::sync::Arc;

use crate::limiter::model::limit::Permits;

/// The permits that a request takes of each of several limiters, in their order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Costs {
    /// The same of each. It is never allocated.
    Same(Permits),
    /// So many permits of each; of one at least more than none.
    Each(Arc<[u64]>),
}

impl Costs {
    /// Returns these costs; `None` if all of them are zero.
    pub fn each(costs: impl IntoIterator<Item = u64>) -> Option<Costs> {
        let costs: Arc<[u64]> = costs.into_iter().collect();
        costs.iter().any(|cost| *cost > 0).then_some(Costs::Each(costs))
    }

    /// Returns these costs in the shorter form, if they are the same everywhere; `None` if all of them are zero.
    pub fn each_or_same(costs: impl IntoIterator<Item = u64>) -> Option<Costs> {
        let Costs::Each(costs) = Costs::each(costs)? else { return None };
        let first = costs[0];
        let same = costs.iter().all(|cost| *cost == first).then(|| Permits::new(first)).flatten();
        Some(same.map_or(Costs::Each(costs), Costs::Same))
    }

    /// Returns the cost at a place.
    pub fn at(&self, place: usize) -> u64 {
        match self {
            Costs::Same(cost) => cost.get(),
            Costs::Each(costs) => costs.get(place).copied().unwrap_or_default(),
        }
    }

    /// Returns the largest cost.
    pub fn largest(&self) -> Permits {
        match self {
            Costs::Same(cost) => *cost,
            Costs::Each(costs) => costs.iter().copied().max().and_then(Permits::new).unwrap_or(Permits::ONE),
        }
    }

    /// Returns the cost that is the same everywhere; `None` if each has its own.
    pub fn same(&self) -> Option<Permits> {
        match self {
            Costs::Same(cost) => Some(*cost),
            Costs::Each(_) => None,
        }
    }

    /// Returns the costs of the first `count` limiters, in order.
    pub fn of(&self, count: usize) -> impl Iterator<Item = u64> {
        (0..count).map(|place| self.at(place))
    }
}

/// The true cost of a request at a limiter, as its response told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrueCost {
    /// The permits that it has used.
    pub permits: u64,
    /// True if those that it has taken beyond are given back.
    pub is_refunded: bool,
}

impl TrueCost {
    /// Returns the permits that stay charged of a request that has taken so many.
    pub fn charged(self, taken: u64) -> u64 {
        if self.is_refunded { self.permits } else { self.permits.max(taken) }
    }
}

impl From<Permits> for Costs {
    fn from(cost: Permits) -> Costs {
        Costs::Same(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_their_own_take_no_more_room_than_a_pointer() {
        assert_eq!(size_of::<Costs>(), size_of::<Arc<[u64]>>());
        assert_eq!(Costs::each([0, 0]), None);
        let costs = Costs::each([1, 4000]).unwrap();
        assert_eq!((costs.at(0), costs.at(1), costs.at(2)), (1, 4000, 0));
        assert_eq!((costs.largest().get(), costs.same()), (4000, None));
        let costs = Costs::from(Permits::ONE);
        assert_eq!((costs.of(3).collect::<Vec<_>>(), costs.same()), (vec![1; 3], Some(Permits::ONE)));
    }
}
