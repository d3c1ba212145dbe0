//! Hands slots out to the waiting requests, takes permits back, and gives surplus slots back to the store.

use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use super::state::Worker;
use crate::clock::Micros;
use crate::limiter::model::Permits;
use crate::limiter::queue::cost_queue::{CostQueue, Stage, Waiter};
use crate::limiter::queue::permit::{Holder, LATE_MAX, LatePermit, OriginQueue, Permit, Returned};
use crate::limiter::queue::slot::Slot;
use crate::limiter::queue::ticket::{Entered, Ticket};
use crate::limiter::store::clock::StoreClock;

impl Worker {
    /// Takes permits back. A good one goes to the next request of its cost, the others to the store.
    pub(super) fn take_returned(&mut self, returned: Vec<Returned>, now: Instant) {
        let guard = self.queue.guard();
        for returned in returned {
            match returned {
                Returned::Unused { slot, cost } => {
                    let is_good = !slot.is_late(&self.clock_of(slot.source, now), now, guard)
                        && !self.is_in_pause(slot.due);
                    match self.cost_queues.get_mut(&cost) {
                        Some(cost_queue) if is_good && cost_queue.waiting() > 0 => cost_queue.hold(slot),
                        _ => self.give_back(slot, cost),
                    }
                }
                Returned::Late(late) => self.take_late(late, now),
                Returned::Refund { slot, cost } => self.give_back(slot, cost),
            }
        }
    }

    /// Puts the request of a late permit back into its cost queue, and asks for another slot.
    fn take_late(&mut self, permit: LatePermit, now: Instant) {
        let LatePermit { slot, cost, arrived, deadline, late, is_paused, turn } = permit;
        self.give_back(slot, cost);
        let stage = Stage::Waiting { approach: None, turn };
        let mut waiter = Waiter { arrived, deadline, late, stage };
        waiter.extend_deadline(now);
        self.cost_queues.entry(cost).or_default().join_again(waiter);
        self.want(cost);
        // A pause moves all bookings in order, so none of them needs to be booked anew.
        if !is_paused {
            self.rebook.insert(cost);
        }
    }

    /// Hands every due slot to the first request of its cost queue. A slot that lies in a pause is kept until the store has
    /// rescheduled it, or until the pause ends.
    pub(super) fn hand_out(&mut self, now: Instant) {
        self.notice_loss();
        self.paused.take_if(|paused| paused.until <= now);
        let guard = self.queue.guard();
        let costs: Vec<Permits> = self.cost_queues.keys().copied().collect();
        let mut in_flight_left = self.queue.in_flight_left();
        for cost in costs {
            self.hand_out_cost(cost, guard, &mut in_flight_left, now);
        }
    }

    fn hand_out_cost(&mut self, cost: Permits, guard: Micros, in_flight_left: &mut u32, now: Instant) {
        let mut is_first_late = true;
        while *in_flight_left > 0
            && let Some(slot) = self.take_due(cost, now)
        {
            let clock = self.clock_of(slot.source, now);
            let is_late = slot.is_late(&clock, now, guard);
            let Some(first) = self.cost_queues.get_mut(&cost).and_then(CostQueue::first_mut) else {
                break;
            };
            if is_late && (first.late < LATE_MAX || !is_first_late) {
                first.late += u8::from(is_first_late);
                first.extend_deadline(now);
                is_first_late = false;
                self.queue.count_late(slot.lateness(&clock, now));
                self.give_back(slot, cost);
                self.want(cost);
                self.rebook.insert(cost);
            } else if let Some(waiter) = self.cost_queues.get_mut(&cost).and_then(CostQueue::take_first) {
                self.grant(waiter, slot, clock, cost, now);
                *in_flight_left -= 1;
            }
        }
    }

    /// Takes the next due slot of a cost queue, if a request waits for it and it lies in no pause.
    fn take_due(&mut self, cost: Permits, now: Instant) -> Option<Slot> {
        let next = self.cost_queues.get(&cost).and_then(CostQueue::next_due);
        if next.is_some_and(|due| self.is_in_pause(due)) {
            return None;
        }
        self.cost_queues.get_mut(&cost)?.take_due(now)
    }

    fn grant(&self, waiter: Waiter, slot: Slot, clock: StoreClock, cost: Permits, now: Instant) {
        let waited = match waiter.stage {
            Stage::Asking(_) => Duration::ZERO,
            Stage::Waiting { .. } => now - waiter.arrived,
        };
        self.queue.count_waited(waited);
        let Waiter { arrived, deadline, late, .. } = waiter;
        let holder = Holder { arrived, deadline, waited, late };
        waiter.grant(Permit::new(self.queue.clone(), slot, clock, cost, holder).in_flight());
    }

    /// Gives the slots back that no request needs.
    pub(super) fn give_back_surplus(&mut self) {
        let mut surplus = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            surplus.extend(cost_queue.take_surplus().into_iter().map(|slot| (slot, *cost)));
        }
        for (slot, cost) in surplus {
            self.give_back(slot, cost);
        }
    }

    /// Gives a ticket to each request that has just been booked a later slot.
    pub(super) fn announce_waiting(&mut self) {
        for cost_queue in self.cost_queues.values_mut() {
            for waiter in cost_queue.asking() {
                let (approach, approaching) = oneshot::channel();
                let (turn, turned) = oneshot::channel();
                let waiting = Stage::Waiting { approach: Some(approach), turn };
                if let Stage::Asking(entry) = std::mem::replace(&mut waiter.stage, waiting) {
                    let ticket = Ticket::new(self.queue.clone(), approaching, turned);
                    // A request that has left drops its ticket, which tells the worker.
                    let _ = entry.send(Ok(Entered::Waiting(ticket)));
                }
            }
        }
    }
}
