//! The work after the store has lost its state, and while it does not grant yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::state::{SentCall, Worker};
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Answer, Call, Holding, Permits};
use crate::limiter::recovery::grants::granted;

impl Worker {
    /// Drops the slots of the store if an answer to another worker has shown that the store lost its state.
    pub(super) fn notice_loss(&mut self) {
        let epoch = self.session.epoch.load(Ordering::Acquire);
        if self.epoch != 0 && epoch > self.epoch {
            self.lose_slots();
            self.epoch = epoch;
        }
    }

    /// Drops every slot of the store that was not handed out, and asks for as many anew.
    fn lose_slots(&mut self) {
        // Prefetched permits stay: they are due and may be used, and the ledger writes them back with all due slots.
        self.give_back.clear();
        self.rebook.clear();
        (self.freed, self.fruitless_freed) = (None, None);
        self.queue.set_refusal_cache(None);
        let moved: Vec<Permits> = self.reschedule.drain(..).map(|(_, cost)| cost).collect();
        moved.into_iter().for_each(|cost| *self.replace.entry(cost).or_default() += 1);
        for (cost, cost_queue) in &mut self.cost_queues {
            let lost = cost_queue.take_stored(|_| true).len();
            cost_queue.wanted += lost;
            if lost > 0 {
                *self.replace.entry(*cost).or_default() += lost;
            }
        }
    }

    /// Puts back the requests of a call that booked nothing, or booked in an epoch that is over. They go with the next call, once
    /// the store grants again.
    pub(super) fn ask_again(&mut self, sent: SentCall, settles_until: Option<Micros>) {
        let rescheduled = sent.reschedule.into_iter().map(|(_, cost)| (cost, 1));
        for (cost, count) in rescheduled.chain(sent.replace) {
            *self.replace.entry(cost).or_default() += count;
        }
        sent.arrivals.into_iter().rev().for_each(|arrival| self.pending.push_front(arrival));
        self.settles_until = settles_until.map(|until| self.clock.due(until));
        self.refuse_hasty(Instant::now());
    }

    /// Refuses the requests whose wait ends before the store grants again.
    pub(super) fn refuse_hasty(&mut self, now: Instant) {
        let Some(until) = self.settles_until.filter(|until| *until > now) else { return };
        let (waiting, hasty): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|arrival| arrival.deadline >= until);
        self.pending = waiting;
        let refusal = self.too_far(Some(Micros::from(until - now)));
        hasty.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
    }

    /// Gives back the bookings of a failed call that completed late. If the store has lost its state meanwhile, or grants nothing
    /// yet, there is nothing to give back.
    pub(super) fn settle_late(&mut self, limiter_refs: &[LimiterRef], call: &Call, answer: &Answer) {
        if self.session.observe_epoch(answer.epoch) {
            self.siblings.wake_all();
        }
        let is_current = answer.epoch.id >= self.session.epoch.load(Ordering::Acquire);
        if !is_current || answer.epoch.settles_until.is_some() {
            return;
        }
        self.session.ledger.record(limiter_refs, call, answer);
        let generations: Arc<[u64]> = answer.generations.iter().map(|generation| generation.number).collect();
        let unused = granted(call, answer).map(|(slot, cost)| Holding { slot, cost, count: 1 });
        self.give_back.extend(unused.map(|holding| (holding, generations.clone())));
    }
}
