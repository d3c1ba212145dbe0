//! Requests that wait before they can ask for permits, because it is not known yet for which.
//!
//! Knows no queue: which one such a request will come to is not known either.

use std::sync::Arc;

use crate::limiter::model::{Flow, Permits, Refusal};
use crate::limiter::queue::active_limiter::ActiveLimiter;
use crate::limiter::queue::handle::INTAKE_RETRY;

/// A request that waits before it asks. It counts among those that wait for its limiters until it is dropped.
#[must_use = "a request that is not held does not count"]
pub struct WaitingOutside(Vec<Arc<ActiveLimiter>>);

impl WaitingOutside {
    /// Counts a request that will ask these limiters.
    ///
    /// # Errors
    /// The refusal of the first one for which as many wait as may. Of a limiter with partitions only those count that have not asked yet.
    pub(in crate::limiter) fn enter<'a>(
        limiters: impl Iterator<Item = &'a Arc<ActiveLimiter>>,
    ) -> Result<WaitingOutside, Refusal> {
        let mut waiting = WaitingOutside(Vec::new());
        for active in limiters.filter(|active| !active.is_shadow()) {
            let max_waiting = active.limiter().queue.as_ref().map(|queue| queue.max_waiting);
            let outside = active.counts.add_outside(1);
            active.add_waiting(1);
            waiting.0.push(active.clone());
            let before = if active.is_partitioned() { outside } else { active.counts.waiting() - 1 };
            if max_waiting.is_some_and(|max| before >= max) {
                active.count_refused(Flow::default(), Permits::ONE.get());
                let (limiter, retry_after) = (active.name.clone(), INTAKE_RETRY);
                return Err(Refusal::QueueFull { limiter, limit: 0, available: 0, retry_after });
            }
        }
        Ok(waiting)
    }
}

impl Drop for WaitingOutside {
    fn drop(&mut self) {
        for active in &self.0 {
            active.counts.add_outside(-1);
            active.add_waiting(-1);
        }
    }
}
