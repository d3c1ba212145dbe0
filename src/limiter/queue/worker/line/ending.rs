//! Ends a worker that has nothing to do, or when weir shuts down.

use crate::clock::Moment;
use crate::limiter::queue::request::Asker;
use crate::limiter::queue::worker::events::Action;

use super::LineCore;
use crate::limiter::queue::worker::common::IdleStep;

impl LineCore {
    /// Refuses all requests, and gives every slot back.
    pub(super) fn close(&mut self, now: Moment, out: &mut Vec<Action>) {
        self.stay.close();
        let refusal = self.limits.closed();
        for (key, flow_queue) in &mut self.flow_queues {
            for waiter in flow_queue.queue.take_waiters() {
                out.push(Action::Refuse(Asker::Request(waiter.request), key.costs.clone(), refusal.clone()));
            }
            flow_queue.tell_by(now);
        }
    }

    fn is_busy(&self) -> bool {
        self.calls.under_way.is_some()
            || self.calls.asked_locally.is_some()
            || !self.flow_queues.is_empty()
            || !self.owed.unused.is_empty()
            || !self.owed.refunds.is_empty()
            || self.pause.is_reported
    }

    /// Ends the worker that has had nothing to do for long enough, or that closes and has given back what it can.
    pub(super) fn end_if_idle(&mut self, now: Moment, out: &mut Vec<Action>) {
        if self.stay.is_closing() {
            // Slots that cannot be given back now expire.
            if self.calls.under_way.is_none() {
                out.push(Action::End);
            }
        } else if self.stay.update(self.is_busy(), now) == IdleStep::Over {
            out.push(Action::End);
        }
    }
}
