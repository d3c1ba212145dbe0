//! Hands slots out to those who wait, and takes back what is left over.

use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use super::state::Worker;
use crate::limiter::model::limit::Permits;
use crate::limiter::queue::cost_queue::{CostQueue, Stage, Waiter};
use crate::limiter::queue::permit::{LATE_MAX, LatePermit, OriginQueue, Permit, Returned, Whose};
use crate::limiter::queue::slot::Slot;
use crate::limiter::queue::ticket::{Entered, Ticket};
use crate::limiter::store::clock::StoreClock;

impl Worker {
    pub(super) fn take_returned(&mut self, returned: Vec<Returned>, now: Instant) {
        let guard = self.shared.guard();
        for returned in returned {
            match returned {
                Returned::Unused { slot, cost } => {
                    let good =
                        !slot.is_late(&self.clock_of(slot.source, now), now, guard) && !self.holds(slot.due);
                    match self.cost_queues.get_mut(&cost) {
                        Some(cost_queue) if good && cost_queue.waiting() > 0 => cost_queue.hold(slot),
                        _ => self.give_back(slot, cost),
                    }
                }
                Returned::Late(LatePermit { slot, cost, arrived, deadline, late, is_paused, turn }) => {
                    self.give_back(slot, cost);
                    let stage = Stage::Waiting { approach: None, turn };
                    let mut waiter = Waiter { arrived, deadline, late, stage };
                    waiter.has_missed(now);
                    self.cost_queues.entry(cost).or_default().join_again(waiter);
                    self.want(cost);
                    // In a pause all bookings move, and keep their order by that.
                    if !is_paused {
                        self.rebook.insert(cost);
                    }
                }
                Returned::Refund { slot, cost } => self.give_back(slot, cost),
            }
        }
    }

    /// Hands every slot that is due to the first request of its cost_queue. One that lies in a pause waits for the store to say where
    /// it is to be used instead, or for the end of the pause.
    pub(super) fn hand_out(&mut self, now: Instant) {
        self.notice_loss();
        self.paused.take_if(|paused| paused.until <= now);
        let guard = self.shared.guard();
        let costs: Vec<Permits> = self.cost_queues.keys().copied().collect();
        let mut room = self.shared.sending_room();
        for cost in costs {
            let mut is_first_late = true;
            while room > 0
                && !self
                    .cost_queues
                    .get(&cost)
                    .and_then(CostQueue::next_due)
                    .is_some_and(|due| self.holds(due))
                && let Some(slot) =
                    self.cost_queues.get_mut(&cost).and_then(|cost_queue| cost_queue.take_due(now))
            {
                let clock = self.clock_of(slot.source, now);
                let is_late = slot.is_late(&clock, now, guard);
                let Some(first) = self.cost_queues.get_mut(&cost).and_then(CostQueue::first_mut) else {
                    break;
                };
                if is_late && (first.late < LATE_MAX || !is_first_late) {
                    first.late += u8::from(is_first_late);
                    first.has_missed(now);
                    is_first_late = false;
                    self.shared.count_late(slot.lateness(&clock, now));
                    self.give_back(slot, cost);
                    self.want(cost);
                    self.rebook.insert(cost);
                } else if let Some(waiter) = self.cost_queues.get_mut(&cost).and_then(CostQueue::take_first) {
                    self.grant(waiter, slot, clock, cost, now);
                    room -= 1;
                }
            }
        }
    }

    pub(super) fn grant(&self, waiter: Waiter, slot: Slot, clock: StoreClock, cost: Permits, now: Instant) {
        let waited = match waiter.stage {
            Stage::Asking(_) => Duration::ZERO,
            Stage::Waiting { .. } => now - waiter.arrived,
        };
        self.shared.count_waited(waited);
        let Waiter { arrived, deadline, late, .. } = waiter;
        let whose = Whose { arrived, deadline, waited, late };
        waiter.grant(Permit::new(self.shared.clone(), slot, clock, cost, whose).sending());
    }

    pub(super) fn give_back_surplus(&mut self) {
        let mut surplus = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            surplus.extend(cost_queue.take_surplus().into_iter().map(|slot| (slot, *cost)));
        }
        for (slot, cost) in surplus {
            self.give_back(slot, cost);
        }
    }

    /// Tells those who have just been booked for that they wait.
    pub(super) fn tell_waiting(&mut self) {
        for cost_queue in self.cost_queues.values_mut() {
            for waiter in cost_queue.asking() {
                let (approach, approaching) = oneshot::channel();
                let (turn, turned) = oneshot::channel();
                let waiting = Stage::Waiting { approach: Some(approach), turn };
                if let Stage::Asking(entry) = std::mem::replace(&mut waiter.stage, waiting) {
                    let ticket = Ticket::new(self.shared.clone(), approaching, turned);
                    // Whoever has left drops its ticket, and the worker hears of that.
                    let _ = entry.send(Ok(Entered::Waiting(ticket)));
                }
            }
        }
    }
}
