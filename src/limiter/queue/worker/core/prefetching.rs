//! Keeps permits ready for requests that have not come yet.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Holding, Outcome, Permits};
use crate::limiter::queue::prefetch::{Batch, PrefetchSnapshot};
use crate::limiter::queue::slot::Source;
use crate::limiter::recovery::link::Link;

use super::BookedCore;
use crate::limiter::queue::worker::events::{Action, Context};

impl BookedCore {
    /// Counts the permits that were taken, and gives back those that were not used in time, or were withdrawn.
    pub(super) fn observe_prefetched(&mut self, seen: PrefetchSnapshot, now: Moment, out: &mut Vec<Action>) {
        self.prefetch.pace.count(seen.taken, None, now, self.limits.guard);
        (self.prefetch.left, self.prefetch.until) = (seen.left, seen.until);
        self.prefetch.is_withdrawn = false;
        seen.stale.into_iter().for_each(|batch| self.give_back_batch(batch, out));
    }

    /// Takes all prefetched permits out: when a request waits, the limits have changed or the store is unreachable.
    pub(super) fn withdraw(&mut self, out: &mut Vec<Action>) {
        if self.prefetch.left > 0 && !self.prefetch.is_withdrawn {
            self.prefetch.is_withdrawn = true;
            out.push(Action::Withdraw);
        }
    }

    /// Takes all prefetched permits out when a request waits: it must not be overtaken.
    pub(super) fn withdraw_if_short(&mut self, now: Moment, out: &mut Vec<Action>) {
        if self.is_short(now) {
            self.withdraw(out);
        }
    }

    fn give_back_batch(&mut self, batch: Batch, out: &mut Vec<Action>) {
        let Batch { slot, cost, count, generations, .. } = batch;
        if count > 0 && slot.source == Source::Store(self.owed.epoch) {
            out.push(Action::Cache(None));
            self.owed.give_back.push_back((Holding { slot: slot.at, cost: cost.get(), count }, generations));
        }
    }

    /// Returns the cost and number of permits that the next call should prefetch.
    pub(super) fn prefetch_wanted(&self, now: Moment) -> Option<(Permits, u64)> {
        let is_calm = matches!(self.link, Link::Up { .. })
            && !self.calls.is_outdated
            && self.owed.reschedule.slots.is_empty()
            && !self.is_short(now);
        let prefetch = &self.prefetch;
        is_calm
            .then(|| prefetch.pace.wanted(prefetch.left, prefetch.budget, now, self.limits.guard))
            .flatten()
    }

    /// Makes the permits that a call has booked in advance available to the next requests.
    pub(super) fn add_prefetched(
        &mut self,
        cost: Permits,
        outcomes: impl Iterator<Item = Outcome>,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let mut booked: Vec<(Micros, u64)> = Vec::new();
        for outcome in outcomes {
            match (outcome, booked.last_mut()) {
                (Outcome::Booked(at), Some((last, count))) if *last == at => *count += 1,
                (Outcome::Booked(at), _) => booked.push((at, 1)),
                _ => break,
            }
        }
        for (at, count) in booked {
            let (generations, clock) = (self.owed.generations.clone(), (context.clock, context.now));
            match Batch::new((at, self.owed.epoch), (cost, count), generations, clock, self.limits.guard) {
                Ok(batch) => {
                    self.prefetch.left += count;
                    self.prefetch.until = self.prefetch.until.or(Some(batch.until()));
                    out.push(Action::Offer(Box::new(batch), self.prefetch.pace.low()));
                }
                Err(batch) => {
                    self.prefetch.pace.slow(context.now);
                    self.give_back_batch(batch, out);
                }
            }
        }
    }
}
