//! The waiting requests of one cost and the slots that their replica holds for them.
//!
//! Slots belong to the cost_queue, not to a request: the next due slot goes to the first request. So whoever
//! leaves lets those behind move up, and what is left over is the last slot. Knows no store and no calls.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::permit::{Permit, Turn};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::ticket::Entered;

/// How long before its slot a request hears that it approaches: time to open a connection, TLS included, to
/// the other side of the world.
pub(in crate::limiter) const APPROACH: Duration = Duration::from_millis(500);

/// The most requests that prepare at once: a connection each.
const APPROACHING_MAX: usize = 128;

/// By how much a slot may overrun a request's deadline: the store measures the wait from when it carries
/// the call out, the request from when it arrived, and what is booked anew moves by as much as it was late.
pub(in crate::limiter) const DEADLINE_SLACK: Duration = Duration::from_millis(100);

/// Where a request stands.
pub(in crate::limiter) enum Stage {
    /// It has not heard yet whether it waits.
    Asking(oneshot::Sender<Result<Entered, Refusal>>),
    /// It waits.
    Waiting {
        /// Told once, when the slot is near.
        approach: Option<oneshot::Sender<()>>,
        /// Told when the slot is due.
        turn: Turn,
    },
}

/// A waiting request.
pub(in crate::limiter) struct Waiter {
    pub(in crate::limiter) arrived: Instant,
    pub(in crate::limiter) deadline: Instant,
    /// How often its slot came too late. After [`LATE_MAX`] the next one counts, late or not: a store whose answers
    /// take longer than the guard delays requests but never stops them.
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

    /// Its slot came in time and was missed, for a processor was busy or a connection took long to open: that is not the
    /// limit's doing, so whoever would not wait any longer takes the next slot if there is room at once.
    pub(in crate::limiter) fn has_missed(&mut self, now: Instant) {
        self.deadline = self.deadline.max(now);
    }

    /// Lets the request go. If it has left meanwhile, the permit drops and gives itself back.
    pub(in crate::limiter) fn grant(self, permit: Permit) {
        match self.stage {
            Stage::Asking(entry) => drop(entry.send(Ok(Entered::Granted(permit)))),
            Stage::Waiting { turn, .. } => drop(turn.send(Ok(permit))),
        }
    }

    /// Tells the request that it may not pass.
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
    /// How many of the first requests have heard that their slot is near.
    approached: usize,
    /// Slots asked for, in place of some that were lost, and not answered yet.
    pub(in crate::limiter) wanted: usize,
}

impl CostQueue {
    pub(in crate::limiter) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.slots.is_empty() && self.wanted == 0
    }

    pub(in crate::limiter) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Whether a slot is not due or not even there, for somebody who wants it.
    pub(in crate::limiter) fn is_short(&self, now: Instant) -> bool {
        let last = self.waiters.len().checked_sub(1).map(|last| self.slots.get(last));
        self.wanted > 0 || last.is_some_and(|slot| slot.is_none_or(|slot| slot.due > now))
    }

    /// The latest deadline of those who wait, for a slot that any of them may get.
    pub(in crate::limiter) fn last_deadline(&self) -> Option<Instant> {
        self.waiters.iter().map(|waiter| waiter.deadline).max()
    }

    pub(in crate::limiter) fn join(&mut self, waiter: Waiter) {
        self.waiters.push_back(waiter);
    }

    /// Puts a request that has had its turn before all who arrived later.
    pub(in crate::limiter) fn join_again(&mut self, waiter: Waiter) {
        let place = self.waiters.iter().take_while(|other| other.arrived <= waiter.arrived).count();
        self.waiters.insert(place, waiter);
        self.approached += usize::from(place <= self.approached);
    }

    pub(in crate::limiter) fn hold(&mut self, slot: Slot) {
        let place = self.slots.partition_point(|held| held.due <= slot.due);
        self.slots.insert(place, slot);
    }

    /// The first request.
    pub(in crate::limiter) fn first_mut(&mut self) -> Option<&mut Waiter> {
        self.waiters.front_mut()
    }

    /// When it came.
    pub(in crate::limiter) fn first_came(&self) -> Option<Instant> {
        self.waiters.front().map(|waiter| waiter.arrived)
    }

    /// Corrects when slots are due, after more was learnt of the store's clock.
    pub(in crate::limiter) fn refresh(&mut self, due: impl Fn(&Slot) -> Instant) {
        self.slots.iter_mut().for_each(|slot| slot.due = due(slot));
    }

    /// The last slot, if it is the store's.
    pub(in crate::limiter) fn last_stored(&self) -> Option<&Slot> {
        self.slots.back().filter(|slot| slot.source == Source::Store)
    }

    /// Whether a booked slot is held: then the store must be heard, for its changes or for its being back.
    pub(in crate::limiter) fn holds_booked(&self) -> bool {
        self.slots.iter().any(|slot| slot.source != Source::Unlimited)
    }

    /// The next slot that is due, if a request waits for it.
    pub(in crate::limiter) fn take_due(&mut self, now: Instant) -> Option<Slot> {
        self.slots.front().filter(|slot| slot.due <= now)?;
        self.forget_those_in_front_who_left();
        if self.waiters.is_empty() { None } else { self.slots.pop_front() }
    }

    fn forget_those_in_front_who_left(&mut self) {
        while self.waiters.front().is_some_and(Waiter::has_left) {
            self.take_first();
        }
    }

    /// Takes the first request out.
    pub(in crate::limiter) fn take_first(&mut self) -> Option<Waiter> {
        self.approached = self.approached.saturating_sub(1);
        self.waiters.pop_front()
    }

    /// Takes out everybody; their slots are surplus.
    pub(in crate::limiter) fn take_waiters(&mut self) -> VecDeque<Waiter> {
        self.approached = 0;
        std::mem::take(&mut self.waiters)
    }

    /// Forgets all who have left.
    pub(in crate::limiter) fn forget_those_who_left(&mut self) {
        self.waiters.retain(|waiter| !waiter.has_left());
        let told = |waiter: &&Waiter| matches!(waiter.stage, Stage::Waiting { approach: None, .. });
        self.approached = self.waiters.iter().take_while(told).count();
    }

    /// The slots that nobody needs: the last ones.
    pub(in crate::limiter) fn take_surplus(&mut self) -> VecDeque<Slot> {
        self.slots.split_off(self.waiters.len().min(self.slots.len()))
    }

    /// The requests for which there is no slot: the last ones.
    pub(in crate::limiter) fn take_without_slot(&mut self) -> VecDeque<Waiter> {
        let served = (self.slots.len() + self.wanted).min(self.waiters.len());
        self.approached = self.approached.min(served);
        self.waiters.split_off(served)
    }

    /// The store's slots for which `void` holds.
    pub(in crate::limiter) fn take_void(&mut self, mut void: impl FnMut(&Slot) -> bool) -> VecDeque<Slot> {
        self.take_slots(|slot| slot.source == Source::Store && void(slot))
    }

    /// The slots for which `gone` holds.
    pub(in crate::limiter) fn take_slots(&mut self, gone: impl FnMut(&Slot) -> bool) -> VecDeque<Slot> {
        let (gone, kept) = self.slots.drain(..).partition(gone);
        self.slots = kept;
        gone
    }

    /// The store's slots for which `trades` holds, up to `count` of the last ones.
    pub(in crate::limiter) fn take_last(
        &mut self,
        count: usize,
        trades: impl Fn(&Slot) -> bool,
    ) -> VecDeque<Slot> {
        let is_one = |slot: &&Slot| slot.source == Source::Store && trades(slot);
        let later = self.slots.iter().rev().take(count).take_while(is_one).count();
        self.slots.split_off(self.slots.len() - later)
    }

    /// Takes out the requests whose slot lies behind their deadline, each with its slot's instant. Those behind move up.
    /// Whoever's slot has come already goes, however late that is: there is nothing left to wait for.
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
            self.forget_those_who_left();
        }
        overdue
    }

    /// Tells those whose slot is near. Returns when the next one must be told.
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

    /// When the next slot is due for somebody.
    pub(in crate::limiter) fn next_due(&self) -> Option<Instant> {
        self.slots.front().filter(|_| !self.waiters.is_empty()).map(|slot| slot.due)
    }

    /// Requests that have not heard yet that they wait: the last ones.
    pub(in crate::limiter) fn asking(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.waiters.iter_mut().rev().take_while(|waiter| matches!(waiter.stage, Stage::Asking(_)))
    }

    /// Everything, to be refused and given back.
    pub(in crate::limiter) fn close(&mut self) -> (VecDeque<Waiter>, VecDeque<Slot>) {
        (std::mem::take(&mut self.waiters), std::mem::take(&mut self.slots))
    }
}
