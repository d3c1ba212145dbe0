//! How a worker keeps permits ready for requests that have not come yet.

use tokio::time::Instant;

use super::state::Worker;
use crate::clock::Micros;
use crate::limiter::model::call::Holding;
use crate::limiter::model::call::Outcome;
use crate::limiter::model::limit::Permits;
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::queue::prefetch::{Batch, PrefetchSnapshot};

impl Worker {
    /// Counts who came, gives back what nobody took in time, and all of it where somebody waits or the limits change.
    pub(super) fn look_at_stock(&mut self, arrived: u64, stock: PrefetchSnapshot, now: Instant) {
        let cost = self.pending.back().map(|arrival| arrival.cost);
        self.pace.count(arrived + stock.taken, cost, now, self.shared.guard());
        (self.stocked, self.stocked_until) = (stock.left, stock.until);
        stock.stale.into_iter().for_each(|batch| self.give_back_batch(batch));
        if self.stocked > 0 && (self.limits_changed || self.is_local || self.is_short(now)) {
            self.clear_stock();
        }
    }

    pub(super) fn clear_stock(&mut self) {
        self.shared.clear_stock().into_iter().for_each(|batch| self.give_back_batch(batch));
        (self.stocked, self.stocked_until) = (0, None);
    }

    pub(super) fn give_back_batch(&mut self, Batch { slot, cost, count, known, .. }: Batch) {
        if count > 0 {
            self.give_back.push_back((Holding { slot: slot.at, cost: cost.get(), count }, known));
        }
    }

    /// What should be put in stock by the next call.
    pub(super) fn stock_wanted(&self, now: Instant) -> Option<(Permits, u64)> {
        if self.is_local || self.limits_changed || self.is_short(now) || !self.void.is_empty() {
            return None;
        }
        self.pace.wanted(self.stocked, self.spare, now, self.shared.guard())
    }

    /// Puts what was booked for nobody yet where the next requests find it.
    pub(super) fn put_in_stock(&mut self, cost: Permits, outcomes: impl Iterator<Item = Outcome>) {
        let mut booked: Vec<(Micros, u64)> = Vec::new();
        for outcome in outcomes {
            match (outcome, booked.last_mut()) {
                (Outcome::Booked(at), Some((last, count))) if *last == at => *count += 1,
                (Outcome::Booked(at), _) => booked.push((at, 1)),
                _ => break,
            }
        }
        for (at, count) in booked {
            let known = self.known.clone();
            match Batch::new(at, (cost, count), known, self.clock, self.shared.guard()) {
                Ok(batch) => {
                    self.stocked += count;
                    self.stocked_until = self.stocked_until.or(Some(batch.until()));
                    self.shared.stock(batch, self.pace.low());
                }
                Err(batch) => {
                    self.pace.slow();
                    self.give_back_batch(batch);
                }
            }
        }
    }
}
