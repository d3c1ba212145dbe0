//! Refuses requests, with the reason and the time after which to come back.

use std::ops::Bound;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Permits, Refusal, RetryDelay};
use crate::limiter::queue::cost_queue::CostQueue;
use crate::limiter::queue::pause::in_pause;
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::queue::request::{Arrival, Asker};
use crate::limiter::queue::worker::limits::FULL_RETRY;
use crate::limiter::recovery::link::Link;
use crate::limiter::store::clock::StoreClock;

use super::BookedCore;
use crate::limiter::queue::worker::events::Action;

impl BookedCore {
    /// Refuses the requests that cost more than the limits, after a change, can ever hold.
    ///
    /// The store gives a place to every void permit, also to those that come back with the call that brings the change. So the slots behind
    /// those of the refused are booked anew with that call: their places would lie behind room that nobody uses.
    pub(super) fn refuse_too_costly(&mut self, out: &mut Vec<Action>) {
        let (cost_max, too_costly) = (self.limits.cost_max(), &self.limits.too_costly);
        let mut has_refused = false;
        for (cost, queue) in self.cost_queues.range_mut((Bound::Excluded(cost_max), Bound::Unbounded)) {
            let refused = queue.take_waiters().into_iter();
            has_refused |= refused.len() > 0;
            out.extend(refused.map(|waiter| {
                Action::Refuse(Asker::Request(waiter.request), (*cost).into(), too_costly.clone())
            }));
        }
        if has_refused {
            self.owed.rebook.extend(self.cost_queues.range(..=cost_max).map(|(cost, _)| *cost));
        }
        self.arrivals.list.retain(|arrival| {
            let fits = arrival.cost() <= cost_max;
            if !fits {
                out.push(Action::Refuse(arrival.asker, arrival.costs.clone(), too_costly.clone()));
            }
            fits
        });
    }

    /// Takes in that a slot that was asked for does not come, and refuses the last requests that are without one for it: mostly one, or none
    /// where some have left since it was asked for.
    pub(super) fn refuse_without_slot(&mut self, cost: Permits, refusal: &Refusal, out: &mut Vec<Action>) {
        let Some(cost_queue) = self.cost_queues.get_mut(&cost) else { return };
        cost_queue.wanted = cost_queue.wanted.saturating_sub(1);
        for waiter in cost_queue.take_without_slot() {
            let refusal = in_pause(refusal.clone(), self.pause.now.as_ref(), waiter.holder.deadline);
            out.push(Action::Refuse(Asker::Request(waiter.request), cost.into(), refusal));
        }
    }

    /// Refuses the requests whose slot has moved beyond their deadline, and beyond the grace from their arrival.
    pub(super) fn refuse_overdue(&mut self, now: Moment, arrival_grace: Micros, out: &mut Vec<Action>) {
        let mut overdue = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let gone = cost_queue.take_overdue(now, arrival_grace);
            overdue.extend(gone.into_iter().map(|(waiter, due)| (*cost, waiter, due)));
        }
        for (cost, waiter, due) in overdue {
            let refusal = self.limits.too_far((due - now).max(Micros::ONE));
            let refusal = in_pause(refusal, self.pause.now.as_ref(), waiter.holder.deadline);
            out.push(Action::Refuse(Asker::Request(waiter.request), cost.into(), refusal));
        }
    }

    /// Refuses the requests whose wait has ended, or ends before the store grants again.
    pub(super) fn refuse_ended(&mut self, now: Moment, out: &mut Vec<Action>) {
        let until = if let Link::Settling { opens, .. } = self.link { now.max(opens) } else { now };
        let mut queues = std::mem::take(&mut self.cost_queues);
        for (cost, cost_queue) in &mut queues {
            for waiter in cost_queue.take_ended(until, |slot| self.is_due(slot, now)) {
                let refusal = self.ended(waiter.holder.deadline, now);
                out.push(Action::Refuse(Asker::Request(waiter.request), (*cost).into(), refusal));
            }
        }
        self.cost_queues = queues;
        if self.arrivals.first_end.is_some_and(|first| first <= until) {
            self.refuse_ended_arrivals(now, until, out);
        }
    }

    /// Refuses the arrivals whose wait ends by `until`, before which there is nothing for them. What the call under way books for them is
    /// given back.
    pub(super) fn refuse_ended_arrivals(&mut self, now: Moment, until: Moment, out: &mut Vec<Action>) {
        let mut list = std::mem::take(&mut self.arrivals.list);
        let mut sent = self.calls.under_way.take();
        let mut first: Option<Moment> = None;
        let of_call = sent.iter_mut().flat_map(|sent| &mut sent.arrivals).filter(|it| it.is_waited_for());
        for arrival in list.iter_mut().chain(of_call) {
            let ends = self.ends(arrival.arrived, arrival.deadline);
            if ends > until {
                first = Some(first.map_or(ends, |first| first.min(ends)));
                continue;
            }
            let asker = std::mem::replace(&mut arrival.asker, Asker::Refused);
            out.push(Action::Refuse(asker, arrival.costs.clone(), self.ended(arrival.deadline, now)));
        }
        list.retain(Arrival::is_waited_for);
        (self.arrivals.list, self.calls.under_way, self.arrivals.first_end) = (list, sent, first);
    }

    /// Refuses the latest arrivals where more wait than may, while the store cannot be asked. Where nobody may wait for a permit,
    /// requests wait for the store's answer alone.
    pub(super) fn refuse_overfull(&mut self, out: &mut Vec<Action>) {
        let is_stopped = self.pause.is_reported || !matches!(self.link, Link::Up { .. });
        let max = usize::try_from(self.limits.max_waiting).unwrap_or(usize::MAX);
        if !is_stopped || max == 0 {
            return;
        }
        let kept = max.saturating_sub(self.waiting()).min(self.arrivals.list.len());
        let refusal = self.limits.full(FULL_RETRY);
        for arrival in self.arrivals.list.drain(kept..) {
            out.push(Action::Refuse(arrival.asker, arrival.costs.clone(), refusal.clone()));
        }
    }

    /// Refuses the latest arrivals where more wait than may: a request came back with a slot that it could not use, or a pause holds slots
    /// that had come. Each such request has displaced one place at most.
    pub(super) fn refuse_displaced(&mut self, came_back: usize, now: Moment, out: &mut Vec<Action>) {
        let queues = self.cost_queues.values();
        let newcomers: usize = queues.clone().map(CostQueue::newcomers).sum();
        let max = usize::try_from(self.limits.max_waiting).unwrap_or(usize::MAX);
        let mut left = came_back + newcomers;
        if left == 0 || max == 0 {
            return;
        }
        let waiting = queues.map(|queue| queue.waiting_beyond(|slot| self.is_due(slot, now)));
        left = left.min(waiting.sum::<usize>().saturating_sub(max));
        while left > 0
            && let Some((cost, queue)) =
                self.cost_queues.iter_mut().max_by_key(|(_, queue)| queue.last_arrived())
            && let Some((waiter, due)) = queue.take_last_waiter()
        {
            let due = due.map(|due| self.pause.opens(due));
            let refusal = self.limits.full(due.map_or(FULL_RETRY, |due| (due - now).max(Micros::ONE)));
            out.push(Action::Refuse(Asker::Request(waiter.request), (*cost).into(), refusal));
            left -= 1;
        }
    }

    /// Returns the refusal of a request whose wait has ended without a slot.
    fn ended(&self, deadline: Moment, now: Moment) -> Refusal {
        match (self.link, &self.pause.now) {
            (_, Some(paused)) if paused.until > deadline => {
                in_pause(self.limits.too_far(paused.until - now), Some(paused), deadline)
            }
            (Link::Settling { opens, .. }, _) => self.limits.too_far((opens - now).max(Micros::ONE)),
            // Its slot was moved, and the queue waits with the next one until others have given theirs back: the store is there.
            (Link::Up { .. }, _) if !self.owed.reschedule.slots.is_empty() => {
                self.limits.too_far((self.owed.reschedule.from - now).max(Micros::ONE))
            }
            // Its answer, or the slot in place of another, has not come in time: that the store is `Up` says that others have come.
            _ => self.limits.store_unavailable(),
        }
    }

    /// Returns the cache of a store's refusal, by which further requests can be refused.
    pub(super) fn refusal_cache(
        &self,
        cost: Permits,
        away: RetryDelay,
        store_now: Micros,
        clock: (StoreClock, Moment),
    ) -> Option<Box<RefusalCache>> {
        let limiter_ref = self.limits.refs.get(away.violated.limiter)?;
        let rule = limiter_ref.rules.get(away.violated.limit)?.clone();
        Some(Box::new(RefusalCache::new(limiter_ref.name.clone(), rule, cost, away, store_now, clock)))
    }
}
