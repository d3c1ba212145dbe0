//! How many retries a route may still send: a share of its requests. Where every attempt fails, retries would multiply the load, and those
//! of clients again. Decides nothing about single requests.

use std::sync::atomic::{AtomicU64, Ordering};

/// One retry.
const RETRY: u64 = 1_000_000;
/// The most that is left of earlier requests.
const SAVED_MAX: u64 = 10 * RETRY;

/// The retries of a route that are left, in millionths. At first there are none.
#[derive(Debug, Default)]
pub(crate) struct RetryBudget(AtomicU64);

impl RetryBudget {
    /// Adds the share of one request, in millionths of a retry.
    pub(crate) fn add(&self, ppm: u32) {
        let more = |left: u64| Some((left + u64::from(ppm)).min(SAVED_MAX));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Takes one retry, if one is left.
    pub(crate) fn take(&self) -> bool {
        let less = |left: u64| left.checked_sub(RETRY);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_the_requests() {
        let budget = RetryBudget::default();
        let retries = (0..1000).filter(|_| {
            budget.add(200_000);
            budget.take()
        });
        assert_eq!(retries.count(), 200);
    }

    #[test]
    fn saved_retries_are_bounded() {
        let budget = RetryBudget::default();
        (0..1000).for_each(|_| budget.add(1_000_000));
        assert_eq!((0..100).filter(|_| budget.take()).count(), 10);
    }
}
