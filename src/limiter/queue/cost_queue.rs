//! The waiting requests of one cost, and the slots that their replica holds for them.
//!
//! Slots belong to the queue, not to a request: the next due slot goes to the first request. So when a request leaves, later
//! ones move up, and the last slot is left over. Pure; knows no store and no calls.

use std::collections::VecDeque;

use crate::clock::{Micros, Moment};
use crate::limiter::model::Costs;
use crate::limiter::queue::request::{Arrival, Asker, Holder, RequestId};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::store::clock::StoreClock;

/// How long before its slot a request is notified that the slot approaches: time to open a connection with TLS to the other
/// side of the world.
pub(in crate::limiter) const APPROACH: Micros = Micros::from_millis(500);

/// The most requests that prepare at once, each of which may open a connection.
const APPROACHING_MAX: usize = 128;

/// How far a slot may lie beyond its request's deadline. The store measures the wait from the call, not from the request's
/// arrival, and a slot that came late is replaced by a later one.
pub(in crate::limiter) const DEADLINE_SLACK: Micros = Micros::from_millis(75);

/// How long after the last slot that it may get a request is refused: a slot of that instant is due a little later.
pub(in crate::limiter) const REFUSAL_MARGIN: Micros = Micros::from_millis(2);

/// How far a waiting request has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Stage {
    /// The request does not know yet whether it has to wait.
    Asking,
    /// The request has a place in the queue.
    Waiting,
    /// The request was notified that its slot is near.
    Approached,
}

/// A waiting request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Waiter {
    pub(in crate::limiter) request: RequestId,
    /// Its wait, and the number of its slots that came too late. After [`LATE_MAX`](crate::limiter::queue::request::LATE_MAX) of
    /// them the next one is used, late or not: a store that answers more slowly than the guard delays requests, but never stops
    /// them.
    pub(in crate::limiter) holder: Holder,
    /// When it is refused if it has no slot then.
    pub(in crate::limiter) ends: Moment,
    pub(in crate::limiter) stage: Stage,
}

impl Waiter {
    /// Puts the deadline off where its slot came too late, as another one comes no sooner than at a moment. All the same it waits no longer
    /// than before.
    pub(in crate::limiter) fn put_off(&mut self, next_slot: Moment) {
        let last = self.ends.0.saturating_sub(DEADLINE_SLACK.0 + REFUSAL_MARGIN.0);
        self.holder.deadline = self.holder.deadline.max(next_slot.min(Moment(last)));
    }

    /// Returns the request as one that has just come, but for when it came.
    pub(in crate::limiter) fn into_arrival(self, costs: Costs) -> Arrival {
        let Holder { arrived, deadline, flow, .. } = self.holder;
        Arrival { asker: Asker::Request(self.request), costs, arrived, deadline, flow }
    }
}

/// Requests of one cost, in order of arrival, and the slots for them, in order of time.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct CostQueue {
    waiters: VecDeque<Waiter>,
    slots: VecDeque<Slot>,
    /// The number of requests, from the first on, of which none is to be notified any more that its slot is near.
    approached: usize,
    /// The number of slots asked for in place of lost ones, and not answered yet: by the next call, or by one under way. The worker's core
    /// keeps the account of which, in the same steps.
    pub(in crate::limiter) wanted: usize,
    /// A moment before which no request's wait ends.
    first_end: Option<Moment>,
    /// True if a request that came back, and knows that it waits, may stand behind one that does not. Else these are the last ones.
    is_mixed: bool,
}

impl CostQueue {
    pub(in crate::limiter) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.slots.is_empty() && self.wanted == 0
    }

    pub(in crate::limiter) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Returns how many more slots are held and asked for than requests wait.
    pub(in crate::limiter) fn excess(&self) -> usize {
        (self.slots.len() + self.wanted).saturating_sub(self.waiters.len())
    }

    /// Returns whether a request waits for its slot to come, or for the store to book one.
    pub(in crate::limiter) fn is_short(&self, now: Moment) -> bool {
        let last = self.waiters.len().checked_sub(1).map(|last| self.slots.get(last));
        self.wanted > 0 || last.is_some_and(|slot| slot.is_none_or(|slot| slot.due > now))
    }

    /// Returns how far from now a slot may lie: any request may get one that is booked now. No further than [`Self::take_overdue`] looks,
    /// also where a deadline has passed: a slot beyond that is free, and its request would be refused all the same.
    pub(in crate::limiter) fn wait_left(&self, now: Moment) -> Option<Micros> {
        let last = self.waiters.iter().map(|waiter| waiter.holder.deadline).max()?;
        Some((last + DEADLINE_SLACK) - now)
    }

    fn expect_end(&mut self, ends: Moment) {
        self.first_end = Some(self.first_end.map_or(ends, |first| first.min(ends)));
    }

    /// Returns the moment at which the wait of a request may end.
    pub(in crate::limiter) fn first_end(&self) -> Option<Moment> {
        self.first_end.filter(|_| !self.waiters.is_empty())
    }

    /// Adds a request at the end.
    pub(in crate::limiter) fn join(&mut self, waiter: Waiter) {
        self.expect_end(waiter.ends);
        self.waiters.push_back(waiter);
    }

    /// Adds a request before all that arrived later: one that has had its turn, or that others have overtaken on their way here.
    pub(in crate::limiter) fn join_in_order(&mut self, waiter: Waiter) {
        self.expect_end(waiter.ends);
        let place = self.waiters.partition_point(|other| other.holder.arrived <= waiter.holder.arrived);
        let asks = |place: usize| self.waiters.get(place).is_some_and(|waiter| waiter.stage == Stage::Asking);
        self.is_mixed |= match waiter.stage {
            Stage::Asking => place < self.waiters.len() && !asks(place),
            Stage::Waiting | Stage::Approached => place.checked_sub(1).is_some_and(asks),
        };
        if waiter.stage == Stage::Approached && place <= self.approached {
            self.approached += 1;
        } else {
            self.approached = self.approached.min(place);
        }
        self.waiters.insert(place, waiter);
    }

    /// Adds a slot, in order of time.
    pub(in crate::limiter) fn hold(&mut self, slot: Slot) {
        let place = self.slots.partition_point(|held| held.due <= slot.due);
        self.slots.insert(place, slot);
    }

    /// Takes the first slot out, and returns it with the first request, which stays.
    pub(in crate::limiter) fn take_slot(&mut self) -> Option<(Slot, &mut Waiter)> {
        Some((self.slots.pop_front()?, self.waiters.front_mut()?))
    }

    /// Returns when the first request arrived.
    pub(in crate::limiter) fn first_arrived(&self) -> Option<Moment> {
        self.waiters.front().map(|waiter| waiter.holder.arrived)
    }

    /// Corrects when slots of the store are due, after an answer has narrowed the bounds of its clock.
    pub(in crate::limiter) fn refresh(&mut self, clock: &StoreClock) {
        let stored = self.slots.iter_mut().filter(|slot| matches!(slot.source, Source::Store(_)));
        stored.for_each(|slot| slot.due = clock.due(slot.at));
    }

    /// Returns the last slot, if it was booked in the store.
    pub(in crate::limiter) fn last_stored(&self) -> Option<&Slot> {
        self.slots.back().filter(|slot| matches!(slot.source, Source::Store(_)))
    }

    /// Returns whether a booked slot is held. Then the store must be asked regularly, to learn of changed limits, or of the
    /// end of an outage.
    pub(in crate::limiter) fn holds_booked(&self) -> bool {
        self.slots.iter().any(|slot| slot.source != Source::Unlimited)
    }

    /// Returns the first slot, if a request waits for it.
    pub(in crate::limiter) fn next_slot(&self) -> Option<&Slot> {
        self.slots.front().filter(|_| !self.waiters.is_empty())
    }

    /// Takes the first request out.
    pub(in crate::limiter) fn take_first(&mut self) -> Option<Waiter> {
        self.approached = self.approached.saturating_sub(1);
        self.waiters.pop_front()
    }

    /// Takes the last request out, with the moment of its slot.
    pub(in crate::limiter) fn take_last_waiter(&mut self) -> Option<(Waiter, Option<Moment>)> {
        let waiter = self.waiters.pop_back()?;
        self.approached = self.approached.min(self.waiters.len());
        Some((waiter, self.slots.get(self.waiters.len()).map(|slot| slot.due)))
    }

    /// Returns when the last request arrived.
    pub(in crate::limiter) fn last_arrived(&self) -> Option<Moment> {
        self.waiters.back().map(|waiter| waiter.holder.arrived)
    }

    /// Returns how many requests wait for a slot that may not be used yet, which `is_due` tells.
    pub(in crate::limiter) fn waiting_beyond(&self, is_due: impl Fn(&Slot) -> bool) -> usize {
        self.waiters.len().saturating_sub(self.slots.iter().take_while(|slot| is_due(slot)).count())
    }

    /// Returns how many requests do not know yet that they have to wait.
    pub(in crate::limiter) fn newcomers(&self) -> usize {
        let asking =
            self.waiters.iter().rev().take_while(|waiter| self.is_mixed || waiter.stage == Stage::Asking);
        asking.filter(|waiter| waiter.stage == Stage::Asking).count()
    }

    /// Takes all requests out, which leaves their slots as surplus.
    pub(in crate::limiter) fn take_waiters(&mut self) -> VecDeque<Waiter> {
        self.approached = 0;
        std::mem::take(&mut self.waiters)
    }

    /// Takes out the requests for which `goes` holds, by their place and themselves.
    fn take_where(&mut self, mut goes: impl FnMut(usize, &Waiter) -> bool) -> Vec<Waiter> {
        let mut gone = Vec::new();
        let mut kept = VecDeque::with_capacity(self.waiters.len());
        for waiter in self.waiters.drain(..) {
            if goes(kept.len(), &waiter) {
                gone.push(waiter);
            } else {
                kept.push_back(waiter);
            }
        }
        self.waiters = kept;
        self.approached = self.waiters.iter().take_while(|waiter| waiter.stage == Stage::Approached).count();
        gone
    }

    /// Takes the requests out that have left.
    pub(in crate::limiter) fn remove(&mut self, left: &[RequestId]) -> Vec<Waiter> {
        self.take_where(|_, waiter| left.contains(&waiter.request))
    }

    /// Returns the requests without a slot, in order.
    pub(in crate::limiter) fn without_slot(
        &self,
    ) -> impl DoubleEndedIterator<Item = &Waiter> + ExactSizeIterator {
        self.waiters.iter().skip(self.slots.len())
    }

    /// Takes up to `count` of the last requests without a slot that had come by a moment.
    pub(in crate::limiter) fn take_last_until(&mut self, until: Moment, count: usize) -> Vec<Waiter> {
        let held = self.slots.len().min(self.waiters.len());
        let came = self.waiters.iter().rposition(|waiter| waiter.holder.arrived <= until);
        let end = came.map_or(0, |place| place + 1).max(held);
        let gone: Vec<Waiter> = self.waiters.drain(end.saturating_sub(count).max(held)..end).collect();
        self.approached = self.approached.min(self.waiters.len());
        gone
    }

    /// Gives a place to the requests that had come by a moment and do not know yet that they have to wait. From then on they wait for
    /// `slack` behind their deadline, and no more for the store.
    pub(in crate::limiter) fn announce_until(
        &mut self,
        until: Moment,
        slack: Micros,
        mut announce: impl FnMut(RequestId),
    ) {
        let mut first_end = self.first_end;
        for waiter in self.asking().filter(|waiter| waiter.holder.arrived <= until) {
            (waiter.stage, waiter.ends) = (Stage::Waiting, waiter.holder.deadline + slack);
            first_end = Some(first_end.map_or(waiter.ends, |first| first.min(waiter.ends)));
            announce(waiter.request);
        }
        self.first_end = first_end;
        let mut before_last = self.waiters.iter().rev().skip_while(|waiter| waiter.stage == Stage::Asking);
        self.is_mixed = self.is_mixed && before_last.any(|waiter| waiter.stage == Stage::Asking);
    }

    /// Returns the requests that do not know yet that they have to wait, the last one first.
    fn asking(&mut self) -> impl Iterator<Item = &mut Waiter> {
        let is_mixed = self.is_mixed;
        let last = self.waiters.iter_mut().rev();
        let last = last.take_while(move |waiter| is_mixed || waiter.stage == Stage::Asking);
        last.filter(|waiter| waiter.stage == Stage::Asking)
    }

    /// Lets the requests that may have lost a slot wait no longer than [`DEADLINE_SLACK`] behind their deadline: the store has answered them again.
    pub(in crate::limiter) fn end_those_again(&mut self) {
        let notified = self.waiters.iter_mut().filter(|waiter| waiter.stage == Stage::Approached);
        let ends = notified.map(|waiter| {
            waiter.ends = waiter.ends.min(waiter.holder.deadline + DEADLINE_SLACK);
            waiter.ends
        });
        if let Some(first) = ends.min() {
            self.expect_end(first);
        }
    }

    /// Takes the slots that no request needs: the last ones.
    pub(in crate::limiter) fn take_surplus(&mut self) -> VecDeque<Slot> {
        self.slots.split_off(self.waiters.len().min(self.slots.len()))
    }

    /// Takes the requests without a slot, held or asked for: the last ones.
    pub(in crate::limiter) fn take_without_slot(&mut self) -> VecDeque<Waiter> {
        let served = (self.slots.len() + self.wanted).min(self.waiters.len());
        self.approached = self.approached.min(served);
        self.waiters.split_off(served)
    }

    /// Takes the slots booked in the store for which `gone` holds.
    pub(in crate::limiter) fn take_stored(&mut self, mut gone: impl FnMut(&Slot) -> bool) -> VecDeque<Slot> {
        self.take_slots(|slot| matches!(slot.source, Source::Store(_)) && gone(slot))
    }

    /// Takes the slots for which `gone` holds.
    pub(in crate::limiter) fn take_slots(&mut self, gone: impl FnMut(&Slot) -> bool) -> VecDeque<Slot> {
        let (gone, kept) = self.slots.drain(..).partition(gone);
        self.slots = kept;
        gone
    }

    /// Takes the last slots, up to `count`, while they were booked in the store and `trades` holds.
    pub(in crate::limiter) fn take_last(
        &mut self,
        count: usize,
        trades: impl Fn(&Slot) -> bool,
    ) -> VecDeque<Slot> {
        let is_one = |slot: &&Slot| matches!(slot.source, Source::Store(_)) && trades(slot);
        let later = self.slots.iter().rev().take(count).take_while(is_one).count();
        self.slots.split_off(self.slots.len() - later)
    }

    /// Takes the requests whose slot lies beyond their deadline, and beyond `arrival_grace` from their arrival, each with the moment of that
    /// slot; later requests move up. A request whose slot has come already stays, and gets it.
    pub(in crate::limiter) fn take_overdue(
        &mut self,
        now: Moment,
        arrival_grace: Micros,
    ) -> Vec<(Waiter, Moment)> {
        let slots = std::mem::take(&mut self.slots);
        let mut dues = Vec::new();
        let overdue = self.take_where(|place, Waiter { holder, .. }| {
            let last =
                (holder.deadline + DEADLINE_SLACK).max(holder.arrived + arrival_grace - REFUSAL_MARGIN);
            let beyond = slots.get(place).filter(|slot| slot.due > last.max(now));
            dues.extend(beyond.map(|slot| slot.due));
            beyond.is_some()
        });
        self.slots = slots;
        overdue.into_iter().zip(dues).collect()
    }

    /// Takes the requests whose wait has ended, but for those whose slot has come and may be used.
    pub(in crate::limiter) fn take_ended(
        &mut self,
        now: Moment,
        is_due: impl Fn(&Slot) -> bool,
    ) -> Vec<Waiter> {
        if self.first_end.is_none_or(|first| now < first) {
            return Vec::new();
        }
        let slots = std::mem::take(&mut self.slots);
        let ended =
            self.take_where(|place, waiter| waiter.ends <= now && !slots.get(place).is_some_and(&is_due));
        self.slots = slots;
        self.first_end = self.waiters.iter().map(|waiter| waiter.ends).min();
        ended
    }

    /// Notifies the requests whose slot is near.
    pub(in crate::limiter) fn approach(&mut self, now: Moment, mut notify: impl FnMut(RequestId)) {
        while self.next_approach().is_some_and(|near| near <= now) {
            let waiter = &mut self.waiters[self.approached];
            if std::mem::replace(&mut waiter.stage, Stage::Approached) == Stage::Waiting {
                notify(waiter.request);
            }
            self.approached += 1;
        }
    }

    /// Returns when the next request must be notified. One that does not know yet that it waits learns that before.
    pub(in crate::limiter) fn next_approach(&self) -> Option<Moment> {
        let next = self.waiters.get(self.approached).filter(|_| self.approached < APPROACHING_MAX)?;
        let slot = self.slots.get(self.approached).filter(|_| next.stage != Stage::Asking)?;
        Some(slot.due - APPROACH)
    }

    /// Gives a place to the requests that do not know yet that they have to wait: the last ones, from the end on. Each has an answer of its
    /// own, so that their order does not matter.
    pub(in crate::limiter) fn announce(&mut self, mut announce: impl FnMut(RequestId)) {
        for waiter in self.asking() {
            waiter.stage = Stage::Waiting;
            announce(waiter.request);
        }
        self.is_mixed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::model::Flow;

    fn waiter(number: u32, arrived: u64, stage: Stage) -> Waiter {
        let (arrived, ends) = (Moment(arrived), Moment(1_000_000));
        let holder = Holder { arrived, deadline: ends, late: 0, flow: Flow::default() };
        Waiter { request: RequestId(number), holder, ends, stage }
    }

    /// A later request has used a prefetched permit, which was late, and comes back before the first one has its answer.
    #[test]
    fn a_newcomer_in_front_of_a_request_that_came_back_learns_that_it_waits() {
        let queue = || {
            let mut queue = CostQueue::default();
            queue.join(waiter(0, 10, Stage::Asking));
            queue.join_in_order(waiter(1, 20, Stage::Approached));
            queue.join(waiter(2, 30, Stage::Asking));
            assert_eq!(queue.newcomers(), 2);
            queue
        };
        let mut announced = Vec::new();
        let mut all = queue();
        all.announce(|request| announced.push(request.0));
        assert_eq!((announced, all.newcomers()), (vec![2, 0], 0));
        let (mut first, mut announced) = (queue(), Vec::new());
        first.announce_until(Moment(20), Micros::ZERO, |request| announced.push(request.0));
        assert_eq!((announced, first.newcomers()), (vec![0], 1));
        assert!(!first.is_mixed, "those that do not know are the last ones again");
        let mut late = CostQueue::default();
        late.join(waiter(1, 20, Stage::Waiting));
        late.join_in_order(waiter(0, 10, Stage::Asking));
        assert_eq!(late.newcomers(), 1);
    }
}
