//! What a worker does when its store has lost its state, or settles.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::state::{Sent, Worker};
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::call::Answer;
use crate::limiter::model::call::Call;
use crate::limiter::model::call::Holding;
use crate::limiter::model::limit::Permits;
use crate::limiter::recovery::ledger::granted;

impl Worker {
    /// The store may have lost its memory, as somebody else was told: then no slot is used that it held.
    pub(super) fn notice_loss(&mut self) {
        let epoch = self.session.epoch.load(Ordering::Acquire);
        if self.epoch != 0 && epoch > self.epoch {
            self.lose_slots();
            self.epoch = epoch;
        }
    }

    /// Forgets every slot of the store, and asks for as many anew.
    pub(super) fn lose_slots(&mut self) {
        // Those in stock have come and may be used: they are written back with all that has.
        self.give_back.clear();
        self.rebook.clear();
        (self.room, self.fruitless) = (None, None);
        self.shared.learn(None);
        let void: Vec<Permits> = self.void.drain(..).map(|(_, cost)| cost).collect();
        void.into_iter().for_each(|cost| *self.replace.entry(cost).or_default() += 1);
        for (cost, cost_queue) in &mut self.cost_queues {
            let lost = cost_queue.take_void(|_| true).len();
            cost_queue.wanted += lost;
            if lost > 0 {
                *self.replace.entry(*cost).or_default() += lost;
            }
        }
    }

    /// Nothing was booked, or in an epoch that is over: everything is asked for anew, when the store grants again.
    pub(super) fn ask_again(&mut self, sent: Sent, settles_until: Option<Micros>) {
        let exchange = sent.exchange.into_iter().map(|(_, cost)| (cost, 1));
        for (cost, count) in exchange.chain(sent.replace) {
            *self.replace.entry(cost).or_default() += count;
        }
        sent.arrivals.into_iter().rev().for_each(|arrival| self.pending.push_front(arrival));
        self.settles_until = settles_until.map(|until| self.clock.due(until));
        self.refuse_who_cannot_wait(Instant::now());
    }

    /// Refuses those for whom the store settles too long.
    pub(super) fn refuse_who_cannot_wait(&mut self, now: Instant) {
        let Some(until) = self.settles_until.filter(|until| *until > now) else { return };
        let (waiting, hasty): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|arrival| arrival.deadline >= until);
        self.pending = waiting;
        let refusal = self.too_far(Some(Micros::from(until - now)));
        hasty.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
    }

    /// Gives back what a call has booked for which nobody waited any more. Where the store has lost its memory meanwhile, or
    /// grants nothing yet, there is nothing to give back.
    pub(super) fn settle_late(&mut self, limiter_refs: &[LimiterRef], call: &Call, answer: &Answer) {
        if self.session.meet_epoch(answer.epoch) {
            self.siblings.wake_all();
        }
        let is_current = answer.epoch.id >= self.session.epoch.load(Ordering::Acquire);
        if !is_current || answer.epoch.settles_until.is_some() {
            return;
        }
        self.session.ledger.remember(limiter_refs, call, answer);
        let known: Arc<[u64]> = answer.generations.iter().map(|generation| generation.number).collect();
        let unused = granted(call, answer).map(|(slot, cost)| Holding { slot, cost, count: 1 });
        self.give_back.extend(unused.map(|holding| (holding, known.clone())));
    }
}
