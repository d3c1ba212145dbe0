//! The waiting requests of one cost, and the slots that their replica holds for them.
//!
//! Slots belong to the queue, not to a request: the next due slot goes to the first request. So when a request leaves, later
//! ones move up, and the last slot is left over. Knows no store and no calls.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use crate::limiter::model::Refusal;
use crate::limiter::queue::permit::{Permit, Turn};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::ticket::Entered;

/// How long before its slot a request is notified that the slot approaches: time to open a connection with TLS to the other
/// side of the world.
pub(in crate::limiter) const APPROACH: Duration = Duration::from_millis(500);

/// The most requests that prepare at once, each of which may open a connection.
const APPROACHING_MAX: usize = 128;

/// How far a slot may lie beyond its request's deadline. The store measures the wait from the call, not from the request's
/// arrival, and a slot that came late is replaced by a later one.
pub(in crate::limiter) const DEADLINE_SLACK: Duration = Duration::from_millis(100);

/// The stage of a waiting request.
pub(in crate::limiter) enum Stage {
    /// The request does not know yet whether it has to wait.
    Asking(oneshot::Sender<Result<Entered, Refusal>>),
    /// The request has a place in the queue.
    Waiting {
        /// Notifies the request, once, that its slot is near.
        approach: Option<oneshot::Sender<()>>,
        /// Delivers the permit when the slot is due.
        turn: Turn,
    },
}

/// A waiting request.
pub(in crate::limiter) struct Waiter {
    pub(in crate::limiter) arrived: Instant,
    pub(in crate::limiter) deadline: Instant,
    /// The number of its slots that came too late. After [`LATE_MAX`](crate::limiter::queue::permit::LATE_MAX) of them the next
    /// one is used, late or not: a store that answers more slowly than the guard delays requests, but never stops them.
    pub(in crate::limiter) late: u8,
    pub(in crate::limiter) stage: Stage,
}

impl Waiter {
    fn has_left(&self) -> bool {
        match &self.stage {
            Stage::Asking(entry) => entry.is_closed(),
            Stage::Waiting { turn, .. } => turn.is_closed(),
        }
    }

    /// Extends the deadline of a request that missed its slot, because the processor was busy or a connection took long to
    /// open. It gets the next slot if that comes at once, even after its wait has ended.
    pub(in crate::limiter) fn extend_deadline(&mut self, now: Instant) {
        self.deadline = self.deadline.max(now);
    }

    /// Hands the permit to the request. If that has left, the permit gives itself back.
    pub(in crate::limiter) fn grant(self, permit: Permit) {
        match self.stage {
            Stage::Asking(entry) => drop(entry.send(Ok(Entered::Granted(permit)))),
            Stage::Waiting { turn, .. } => drop(turn.send(Ok(permit))),
        }
    }

    /// Refuses the request.
    pub(in crate::limiter) fn refuse(self, refusal: Refusal) {
        match self.stage {
            Stage::Asking(entry) => drop(entry.send(Err(refusal))),
            Stage::Waiting { turn, .. } => drop(turn.send(Err(refusal))),
        }
    }
}

/// Requests of one cost, in order of arrival, and the slots for them, in order of time.
#[derive(Default)]
pub(in crate::limiter) struct CostQueue {
    waiters: VecDeque<Waiter>,
    slots: VecDeque<Slot>,
    /// The number of requests, from the first on, that were notified that their slot is near.
    approached: usize,
    /// The number of slots asked for in place of lost ones, and not answered yet.
    pub(in crate::limiter) wanted: usize,
}

impl CostQueue {
    pub(in crate::limiter) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.slots.is_empty() && self.wanted == 0
    }

    pub(in crate::limiter) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Returns whether a request waits for its slot to come, or for the store to book one.
    pub(in crate::limiter) fn is_short(&self, now: Instant) -> bool {
        let last = self.waiters.len().checked_sub(1).map(|last| self.slots.get(last));
        self.wanted > 0 || last.is_some_and(|slot| slot.is_none_or(|slot| slot.due > now))
    }

    /// Returns the latest deadline: any request may get a slot that is booked now.
    pub(in crate::limiter) fn last_deadline(&self) -> Option<Instant> {
        self.waiters.iter().map(|waiter| waiter.deadline).max()
    }

    /// Adds a request at the end.
    pub(in crate::limiter) fn join(&mut self, waiter: Waiter) {
        self.waiters.push_back(waiter);
    }

    /// Puts back a request that has had its turn, before all that arrived later.
    pub(in crate::limiter) fn join_again(&mut self, waiter: Waiter) {
        let place = self.waiters.iter().take_while(|other| other.arrived <= waiter.arrived).count();
        self.waiters.insert(place, waiter);
        self.approached += usize::from(place <= self.approached);
    }

    /// Adds a slot, in order of time.
    pub(in crate::limiter) fn hold(&mut self, slot: Slot) {
        let place = self.slots.partition_point(|held| held.due <= slot.due);
        self.slots.insert(place, slot);
    }

    /// Returns the first request.
    pub(in crate::limiter) fn first_mut(&mut self) -> Option<&mut Waiter> {
        self.waiters.front_mut()
    }

    /// Returns when the first request arrived.
    pub(in crate::limiter) fn first_arrived(&self) -> Option<Instant> {
        self.waiters.front().map(|waiter| waiter.arrived)
    }

    /// Corrects when slots are due, after an answer has narrowed the bounds of the store's clock.
    pub(in crate::limiter) fn refresh(&mut self, due: impl Fn(&Slot) -> Instant) {
        self.slots.iter_mut().for_each(|slot| slot.due = due(slot));
    }

    /// Returns the last slot, if it was booked in the store.
    pub(in crate::limiter) fn last_stored(&self) -> Option<&Slot> {
        self.slots.back().filter(|slot| slot.source == Source::Store)
    }

    /// Returns whether a booked slot is held. Then the store must be asked regularly, to learn of changed limits, or of the
    /// end of an outage.
    pub(in crate::limiter) fn holds_booked(&self) -> bool {
        self.slots.iter().any(|slot| slot.source != Source::Unlimited)
    }

    /// Takes the next due slot, if a request waits for it.
    pub(in crate::limiter) fn take_due(&mut self, now: Instant) -> Option<Slot> {
        self.slots.front().filter(|slot| slot.due <= now)?;
        self.remove_leavers_in_front();
        if self.waiters.is_empty() { None } else { self.slots.pop_front() }
    }

    fn remove_leavers_in_front(&mut self) {
        while self.waiters.front().is_some_and(Waiter::has_left) {
            self.take_first();
        }
    }

    /// Takes the first request out.
    pub(in crate::limiter) fn take_first(&mut self) -> Option<Waiter> {
        self.approached = self.approached.saturating_sub(1);
        self.waiters.pop_front()
    }

    /// Takes all requests out, which leaves their slots as surplus.
    pub(in crate::limiter) fn take_waiters(&mut self) -> VecDeque<Waiter> {
        self.approached = 0;
        std::mem::take(&mut self.waiters)
    }

    /// Removes the requests that have left.
    pub(in crate::limiter) fn remove_leavers(&mut self) {
        self.waiters.retain(|waiter| !waiter.has_left());
        let is_told = |waiter: &&Waiter| matches!(waiter.stage, Stage::Waiting { approach: None, .. });
        self.approached = self.waiters.iter().take_while(is_told).count();
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
        self.take_slots(|slot| slot.source == Source::Store && gone(slot))
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
        let is_one = |slot: &&Slot| slot.source == Source::Store && trades(slot);
        let later = self.slots.iter().rev().take(count).take_while(is_one).count();
        self.slots.split_off(self.slots.len() - later)
    }

    /// Takes the requests whose slot lies beyond their deadline, each with the instant of that slot; later requests move up.
    /// A request whose slot has come already stays, and gets it.
    pub(in crate::limiter) fn take_overdue(&mut self, now: Instant) -> Vec<(Waiter, Instant)> {
        let mut overdue = Vec::new();
        let mut kept = VecDeque::with_capacity(self.waiters.len());
        for waiter in self.waiters.drain(..) {
            match self.slots.get(kept.len()) {
                Some(slot) if slot.due > waiter.deadline.max(now) + DEADLINE_SLACK => {
                    overdue.push((waiter, slot.due));
                }
                _ => kept.push_back(waiter),
            }
        }
        self.waiters = kept;
        if !overdue.is_empty() {
            self.remove_leavers();
        }
        overdue
    }

    /// Notifies the requests whose slot is near. Returns when the next request must be notified.
    pub(in crate::limiter) fn approach(&mut self, now: Instant) -> Option<Instant> {
        while self.approached < self.waiters.len().min(self.slots.len()).min(APPROACHING_MAX) {
            let near = self.slots[self.approached].due - APPROACH;
            if near > now {
                return Some(near);
            }
            if let Stage::Waiting { approach, .. } = &mut self.waiters[self.approached].stage
                && let Some(approach) = approach.take()
            {
                // An error means that the request has left.
                let _ = approach.send(());
            }
            self.approached += 1;
        }
        None
    }

    /// Returns when the next slot for a request is due.
    pub(in crate::limiter) fn next_due(&self) -> Option<Instant> {
        self.slots.front().filter(|_| !self.waiters.is_empty()).map(|slot| slot.due)
    }

    /// Returns the requests that do not know yet that they have to wait: the last ones.
    pub(in crate::limiter) fn asking(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.waiters.iter_mut().rev().take_while(|waiter| matches!(waiter.stage, Stage::Asking(_)))
    }

    /// Takes all requests and slots, to be refused and given back.
    pub(in crate::limiter) fn close(&mut self) -> (VecDeque<Waiter>, VecDeque<Slot>) {
        (std::mem::take(&mut self.waiters), std::mem::take(&mut self.slots))
    }
}
