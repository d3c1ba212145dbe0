//! The loop of a worker: waits for an event, and restores the invariants after it.

use futures_util::future::BoxFuture;
use futures_util::stream::StreamExt;
use tokio::time::{Duration, Instant, sleep_until};

use super::ending::Ending;
use super::state::{BATCH_MAX, CallInFlight, Hearing, Sent, Worker};
use crate::limiter::model::call::Answer;
use crate::limiter::queue::cost_queue::CostQueue;
use crate::limiter::queue::inbox::WorkerEvents;
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::store::Failure;

/// How long a worker sleeps when nothing is due. Any event wakes it before.
const IDLE: Duration = Duration::from_secs(3600);

impl Worker {
    /// Works until nothing is left to do and nobody holds the queue, or until weir shuts down.
    pub(in crate::limiter) async fn run(mut self) {
        let _ending = Ending { shared: self.shared.clone(), siblings: self.siblings.clone() };
        // Moved only for an earlier instant, or when it has rung: each move takes a lock of the runtime.
        let mut alarm = Box::pin(sleep_until(Instant::now()));
        loop {
            let wake = self.next_wake();
            if wake < alarm.deadline() || alarm.is_elapsed() {
                alarm.as_mut().reset(wake);
            }
            if self.call.is_some() {
                self.shared.set_calling();
            }
            tokio::select! {
                biased;
                (sent, result) = answered(&mut self.call) => {
                    self.call = None;
                    self.settle(sent, result);
                }
                hearing = heard(&mut self.hearing) => {
                    self.hearing = None;
                    self.settle_hearing(hearing);
                }
                Some((limiter_refs, call, answer)) = self.late.next(), if !self.late.is_empty() => {
                    if let Some(answer) = answer {
                        self.settle_late(&limiter_refs, &call, &answer);
                    }
                }
                () = self.shared.woken() => {}
                () = alarm.as_mut() => {}
            }
            let news = self.shared.news(&mut self.pending, BATCH_MAX, Instant::now());
            if news.closing {
                // In a place of its own: there it is large, and every worker would have it.
                return Box::pin(self.close()).await;
            }
            self.advance(news);
            if self.is_over() && self.shared.end_if_idle() {
                return self.remember_use();
            }
        }
    }

    /// Restores the invariants after an event.
    pub(super) fn advance(&mut self, news: WorkerEvents) {
        let now = Instant::now();
        self.is_kept = news.is_kept;
        if news.changed {
            self.make_limiter_refs();
            self.limits_changed = true;
        }
        if let Some(room) = news.room {
            self.room = Some(room);
        }
        self.paused = news.paused;
        self.take_said(news.said, now);
        if news.left {
            self.cost_queues.values_mut().for_each(CostQueue::forget_those_who_left);
        }
        self.notice_loss();
        self.refuse_who_cannot_wait(now);
        self.look_at_stock(news.arrived, news.stock, now);
        self.take_returned(news.returned, now);
        self.refuse_too_costly();
        self.hand_out(now);
        self.give_back_surplus();
        self.cost_queues.retain(|_, cost_queue| !cost_queue.is_empty());
        self.start_call(now);
        let first_came = self.cost_queues.values().filter_map(CostQueue::first_came).min();
        self.shared.set_waiting(u32::try_from(self.waiting()).unwrap_or(u32::MAX), first_came);
    }

    pub(super) fn must_hear(&self) -> bool {
        // What a store that is away could not take back is offered again with each heartbeat, not at once.
        !self.void.is_empty()
            || !self.give_back.is_empty()
            || self.cost_queues.values().any(CostQueue::holds_booked)
    }

    pub(super) fn next_wake(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake = now + IDLE;
        let has_room = self.shared.sending_room() > 0;
        let paused = self.paused.clone();
        for cost_queue in self.cost_queues.values_mut() {
            let near = cost_queue.approach(now);
            // While as many are being sent as may be, one that has been wakes the worker.
            let due = cost_queue.next_due().filter(|_| has_room);
            let due =
                due.map(|due| paused.as_ref().filter(|paused| paused.holds(due)).map_or(due, |it| it.until));
            wake = [due, near].into_iter().flatten().fold(wake, Instant::min);
        }
        if self.call.is_none() && !self.is_pausing && self.must_hear() {
            wake = wake.min(self.heard + self.session.heartbeat());
        }
        if self.said.is_some() && self.hearing.is_none() {
            wake = wake.min(self.heard_next);
        }
        if let Some(until) = self.settles_until.filter(|until| *until > now) {
            wake = wake.min(until);
        }
        // While there is a stock, it is looked at in each step of the pace.
        if let Some(until) = self.stocked_until {
            wake = wake.min(until).min(self.pace.next(self.shared.guard()));
        }
        if let Some(since) = self.idle_since {
            wake = wake.min(since + self.linger);
        }
        wake
    }
}

async fn heard(hearing: &mut Option<BoxFuture<'static, Hearing>>) -> Hearing {
    match hearing {
        Some(hearing) => hearing.await,
        None => std::future::pending().await,
    }
}

async fn answered(call: &mut Option<CallInFlight>) -> (Sent, Result<Answer, Failure>) {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}
