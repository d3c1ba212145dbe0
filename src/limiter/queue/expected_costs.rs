//! The part of their costs that requests of a queue turn out to use: estimates are often too high, and what is given back makes room. Knows no
//! response.

use std::sync::{Mutex, PoisonError};

/// A cost that is taken and stays charged, in millionths.
const AS_TAKEN: u64 = 1_000_000;

/// The most that is expected.
const MOST: u64 = 4 * AS_TAKEN;

/// A settled request counts for such a part of what is expected.
const WEIGHT: u64 = 16;

/// The part of their costs that requests turn out to use, for each limiter; empty until the first is settled.
#[derive(Default)]
pub(in crate::limiter) struct ExpectedCosts(Mutex<Vec<u64>>);

impl ExpectedCosts {
    /// Takes in what a request has taken of each limiter, and what stays charged of it.
    pub(in crate::limiter) fn settle(&self, taken: &[u64], charged: &[u64]) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.resize(taken.len(), AS_TAKEN);
        for (part, (taken, charged)) in parts.iter_mut().zip(taken.iter().zip(charged)) {
            if *taken > 0 {
                let new = (u128::from(*charged) * u128::from(AS_TAKEN) / u128::from(*taken)).min(MOST.into());
                *part = (*part * (WEIGHT - 1) + u64::try_from(new).unwrap_or(MOST)) / WEIGHT;
            }
        }
    }

    /// Returns the parts of the first `limiters` limiters, in millionths, and for `ceilings` more the largest of them; empty where all stays as
    /// it was taken.
    pub(in crate::limiter) fn parts(&self, limiters: usize, ceilings: usize) -> Vec<u64> {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.len() != limiters || parts.iter().all(|part| *part == AS_TAKEN) {
            return Vec::new();
        }
        let largest = parts.iter().copied().max().unwrap_or(AS_TAKEN);
        parts.iter().copied().chain(std::iter::repeat_n(largest, ceilings)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_requests_are_expected_to_cost_as_earlier_ones_did() {
        let costs = ExpectedCosts::default();
        assert!(costs.parts(2, 1).is_empty());
        costs.settle(&[1, 1000], &[1, 1000]);
        assert!(costs.parts(2, 1).is_empty());
        (0..200).for_each(|_| costs.settle(&[1, 1000], &[1, 300]));
        let parts = costs.parts(2, 1);
        assert_eq!((parts[0], parts[2]), (AS_TAKEN, AS_TAKEN));
        assert!(parts[1].abs_diff(300_000) < 20, "{parts:?}");
        (0..200).for_each(|_| costs.settle(&[0, 1], &[0, u64::MAX]));
        assert!(costs.parts(2, 0)[1].abs_diff(MOST) < 20);
        assert!(costs.parts(3, 0).is_empty());
    }
}
