//! Keeps permits ready for requests that have not come yet.

use tokio::time::Instant;

use super::state::Worker;
use crate::clock::Micros;
use crate::limiter::model::{Holding, Outcome, Permits};
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::queue::prefetch::{Batch, PrefetchSnapshot};

impl Worker {
    /// Counts the arrivals, and gives back the prefetched permits that were not used in time; all of them when a request waits,
    /// the limits have changed or the store is unreachable.
    pub(super) fn observe_prefetched(&mut self, arrived: u64, seen: PrefetchSnapshot, now: Instant) {
        let cost = self.pending.back().map(|arrival| arrival.cost);
        self.pace.count(arrived + seen.taken, cost, now, self.queue.guard());
        (self.prefetched, self.prefetched_until) = (seen.left, seen.until);
        seen.stale.into_iter().for_each(|batch| self.give_back_batch(batch));
        if self.prefetched > 0 && (self.limits_changed || self.is_local || self.is_short(now)) {
            self.clear_prefetched();
        }
    }

    /// Gives back all prefetched permits.
    pub(super) fn clear_prefetched(&mut self) {
        self.queue.clear_prefetched().into_iter().for_each(|batch| self.give_back_batch(batch));
        (self.prefetched, self.prefetched_until) = (0, None);
    }

    fn give_back_batch(&mut self, Batch { slot, cost, count, generations, .. }: Batch) {
        if count > 0 {
            self.give_back.push_back((Holding { slot: slot.at, cost: cost.get(), count }, generations));
        }
    }

    /// Returns the cost and number of permits that the next call should prefetch.
    pub(super) fn prefetch_wanted(&self, now: Instant) -> Option<(Permits, u64)> {
        if self.is_local || self.limits_changed || self.is_short(now) || !self.reschedule.is_empty() {
            return None;
        }
        self.pace.wanted(self.prefetched, self.prefetch_budget, now, self.queue.guard())
    }

    /// Makes the permits that a call has booked in advance available to the next requests.
    pub(super) fn add_prefetched(&mut self, cost: Permits, outcomes: impl Iterator<Item = Outcome>) {
        let mut booked: Vec<(Micros, u64)> = Vec::new();
        for outcome in outcomes {
            match (outcome, booked.last_mut()) {
                (Outcome::Booked(at), Some((last, count))) if *last == at => *count += 1,
                (Outcome::Booked(at), _) => booked.push((at, 1)),
                _ => break,
            }
        }
        for (at, count) in booked {
            let generations = self.generations.clone();
            match Batch::new(at, (cost, count), generations, self.clock, self.queue.guard()) {
                Ok(batch) => {
                    self.prefetched += count;
                    self.prefetched_until = self.prefetched_until.or(Some(batch.until()));
                    self.queue.add_prefetched(batch, self.pace.low());
                }
                Err(batch) => {
                    self.pace.slow();
                    self.give_back_batch(batch);
                }
            }
        }
    }
}
