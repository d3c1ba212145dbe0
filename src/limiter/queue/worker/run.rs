//! The loop of a worker: waits for an event, and restores the invariants after it.

use futures_util::future::BoxFuture;
use futures_util::stream::StreamExt;
use tokio::time::{Duration, Instant, sleep_until};

use super::ending::Ending;
use super::state::{BATCH_MAX, CallInFlight, Reports, SentCall, Worker};
use crate::limiter::model::Answer;
use crate::limiter::queue::cost_queue::CostQueue;
use crate::limiter::queue::inbox::{Phase, WorkerEvents};
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::store::Failure;

/// How long a worker sleeps when nothing is due. Any event wakes it earlier.
const IDLE: Duration = Duration::from_secs(3600);

impl Worker {
    /// Works until nothing is left to do and nobody holds the queue, or until weir shuts down.
    pub(in crate::limiter) async fn run(mut self) {
        let _ending = Ending { queue: self.queue.clone(), siblings: self.siblings.clone() };
        // Moved only to an earlier instant, or after it has rung: each move takes a lock of the runtime.
        let mut alarm = Box::pin(sleep_until(Instant::now()));
        loop {
            let wake = self.next_wake();
            if wake < alarm.deadline() || alarm.is_elapsed() {
                alarm.as_mut().reset(wake);
            }
            if self.call.is_some() {
                self.queue.set_calling();
            }
            tokio::select! {
                biased;
                (sent, result) = answered(&mut self.call) => {
                    self.call = None;
                    self.settle(sent, result);
                }
                reports = reported(&mut self.reporting) => {
                    self.reporting = None;
                    self.settle_reports(reports);
                }
                Some((limiter_refs, call, answer)) = self.late_calls.next(), if !self.late_calls.is_empty() => {
                    if let Some(answer) = answer {
                        self.settle_late(&limiter_refs, &call, &answer);
                    }
                }
                () = self.queue.woken() => {}
                () = alarm.as_mut() => {}
            }
            let events = self.queue.take_events(&mut self.pending, BATCH_MAX, Instant::now());
            if events.phase == Phase::Closing {
                // Boxed, because its future is large and every worker's future would hold it.
                return Box::pin(self.close()).await;
            }
            self.advance(events);
            if self.is_over() && self.queue.end_if_idle() {
                return self.keep_usage();
            }
        }
    }

    /// Restores the invariants after an event.
    fn advance(&mut self, seen: WorkerEvents) {
        let (now, events) = (Instant::now(), seen.events);
        self.is_held = seen.holders > 0;
        if events.limits_changed {
            self.make_limiter_refs();
            self.limits_changed = true;
        }
        if let Some(freed) = events.freed {
            self.freed = Some(freed);
        }
        self.paused = seen.paused;
        self.take_report(events.report, now);
        if events.leavers > 0 {
            self.cost_queues.values_mut().for_each(CostQueue::remove_leavers);
        }
        self.notice_loss();
        self.refuse_hasty(now);
        self.observe_prefetched(seen.arrived, seen.prefetch, now);
        self.take_returned(events.returned, now);
        self.refuse_too_costly();
        self.hand_out(now);
        self.give_back_surplus();
        self.cost_queues.retain(|_, cost_queue| !cost_queue.is_empty());
        self.start_call(now);
        let first_arrived = self.cost_queues.values().filter_map(CostQueue::first_arrived).min();
        self.queue.set_waiting(u32::try_from(self.waiting()).unwrap_or(u32::MAX), first_arrived);
    }

    /// Returns whether the store must be asked at each heartbeat.
    pub(super) fn must_call(&self) -> bool {
        // Slots that an unreachable store could not take back are offered again with each heartbeat, not at once.
        !self.reschedule.is_empty()
            || !self.give_back.is_empty()
            || self.cost_queues.values().any(CostQueue::holds_booked)
    }

    fn next_wake(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake = self.next_slot(now).unwrap_or(now + IDLE);
        // No call is made before a store has settled: a heartbeat that is overdue then would wake the worker again and again.
        let settles = self.settles_until.is_some_and(|until| now < until);
        if self.call.is_none() && !self.is_pausing && !settles && self.must_call() {
            wake = wake.min(self.last_contact + self.session.heartbeat());
        }
        if self.pending_report.is_some() && self.reporting.is_none() {
            wake = wake.min(self.report_not_before);
        }
        if let Some(until) = self.settles_until.filter(|until| *until > now) {
            wake = wake.min(until);
        }
        // While permits are prefetched, their use is checked in each step of the pace.
        if let Some(until) = self.prefetched_until {
            wake = wake.min(until).min(self.pace.next(self.queue.guard()));
        }
        if let Some(since) = self.idle_since {
            wake = wake.min(since + self.linger);
        }
        wake.min(now + IDLE)
    }

    /// Notifies the requests whose slot is near. Returns when the next request must be notified, or gets its slot.
    fn next_slot(&mut self, now: Instant) -> Option<Instant> {
        let can_hand_out = self.queue.in_flight_left() > 0;
        let paused = self.paused.clone();
        let mut next = None;
        for cost_queue in self.cost_queues.values_mut() {
            let near = cost_queue.approach(now);
            // While as many permits are in flight as may be, a sent request wakes the worker.
            let due = cost_queue.next_due().filter(|_| can_hand_out);
            let due = due.map(|due| {
                let paused = paused.as_ref().filter(|paused| paused.holds(due));
                paused.map_or(due, |paused| paused.until)
            });
            next = [next, due, near].into_iter().flatten().min();
        }
        next
    }
}

async fn reported(reporting: &mut Option<BoxFuture<'static, Reports>>) -> Reports {
    match reporting {
        Some(reporting) => reporting.await,
        None => std::future::pending().await,
    }
}

async fn answered(call: &mut Option<CallInFlight>) -> (SentCall, Result<Answer, Failure>) {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}
