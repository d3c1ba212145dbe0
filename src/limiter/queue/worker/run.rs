//! The loop of a worker: turns what happens into events of the core, and its actions into deeds.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::StreamExt;
use tokio::time::{Instant, sleep_until};

use super::events::{Context, Event, ReturnReason};
use super::reporter::next_reports;
use super::requests::{Receiver, Requests};
use super::siblings::Siblings;
use super::state::{Worker, limits};
use super::store_calls::next_result;
use crate::clock::{Micros, Moment};
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::inbox::{Caller, InboxSnapshot, LastEvents, Phase};
use crate::limiter::queue::permit::{Exchange, Returned};
use crate::limiter::queue::request::{Arrival, Asker};
use crate::limiter::recovery::session::Known;
use crate::limiter::store::clock::StoreClock;

/// The events, actions and requests for which an idle worker keeps room.
const BUFFER_KEPT: usize = 16;

/// Ends the queue when its worker ends, for whatever reason, so that no request waits for an answer in vain.
struct Ending {
    queue: Arc<Queue>,
    siblings: Arc<dyn Siblings>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.queue.end();
        self.queue.set_waiting(0, None);
        self.siblings.ended(&self.queue);
    }
}

impl Worker {
    /// Works until nothing is left to do and nobody holds the queue, or until weir shuts down.
    pub(in crate::limiter) async fn run(mut self) {
        let _ending = Ending { queue: self.queue.clone(), siblings: self.siblings.clone() };
        // Moved only to an earlier instant, or after it has rung: each move takes a lock of the runtime.
        let mut alarm = Box::pin(sleep_until(Instant::now()));
        let mut arrivals = VecDeque::new();
        let now = self.session.moment();
        let mut context = self.context(&self.session.advance(now), now);
        loop {
            let wake = self.next_wake(&context);
            if wake < alarm.deadline() || alarm.is_elapsed() {
                alarm.as_mut().reset(wake);
            }
            if self.store_calls.is_under_way() {
                self.queue.set_calling();
            }
            let (under_way, late) = self.store_calls.futures();
            let (reporting, unsure) = (&mut self.reporter.under_way, &mut self.reporter.unsure);
            tokio::select! {
                biased;
                result = next_result(under_way) => self.take_result(result),
                reports = next_reports(reporting) => self.settle_reports(reports),
                end = unsure.ended(), if !unsure.is_empty() => self.take_unsure(end),
                Some(late) = late.next(), if !late.is_empty() => self.take_late(late),
                () = self.queue.woken() => {}
                () = alarm.as_mut() => {}
            }
            let has_ended;
            (context, has_ended) = self.turn(&mut arrivals);
            if has_ended {
                return self.keep_usage();
            }
        }
    }

    /// Returns when to look without another event.
    fn next_wake(&self, context: &Context) -> Instant {
        let context = Context { in_flight_left: self.queue.in_flight_left(), ..*context };
        let wake = self.core.wakes_at(&context);
        let wake = self.reporter.wakes_at().map_or(wake, |at| wake.min(at));
        Instant::now() + (wake - self.session.moment()).to_duration()
    }

    /// Returns what surrounds the worker at a moment.
    fn context(&self, known: &Known, now: Moment) -> Context {
        let clock = known.clock.unwrap_or_else(|| StoreClock::new(now, now, Micros::ZERO));
        let (wall, in_flight_left) = (self.fallback.clock.at(now), self.queue.in_flight_left());
        let latency = self.session.gate.latency(now);
        Context { now, clock, wall, latency, memory: known.memory, in_flight_left }
    }

    /// Takes in everything that has come, and does what the core wants. Returns what surrounds the worker, and whether it has
    /// ended.
    fn turn(&mut self, arrivals: &mut VecDeque<Arrival<Caller>>) -> (Context, bool) {
        let now = self.session.moment();
        let known = self.session.advance(now);
        let inbox = self.queue.take_events(arrivals, self.core.pending(), now);
        let is_closing = inbox.phase == Phase::Closing;
        self.gather_events(inbox, arrivals, &known, now);
        if is_closing {
            let LastEvents { arrivals, returned, report } = self.queue.end();
            self.take_report(report, now);
            self.events.extend(arrivals.into_iter().map(|arrival| self.requests.arrived(arrival)));
            self.events.extend(returned.into_iter().map(|returned| self.requests.returned(returned)));
            self.events.push(Event::Close);
        }
        let mut context = self.context(&known, now);
        let mut has_ended = false;
        loop {
            self.core.on(self.events.drain(..), &context, &mut self.actions);
            // Before a request can have its permit.
            self.queue.set_usable(self.core.lease(), self.core.outage());
            has_ended |= self.act(&context);
            if self.events.is_empty() {
                break;
            }
            context.in_flight_left = self.queue.in_flight_left();
        }
        self.requests.end_turn();
        let waiting = u32::try_from(self.core.waiting()).unwrap_or(u32::MAX);
        self.queue.set_waiting(waiting, self.core.first_arrived());
        self.core.show_flows(&self.queue.waiting);
        if waiting == 0 && !self.store_calls.is_under_way() {
            // A burst leaves no memory behind.
            self.events.shrink_to(BUFFER_KEPT);
            self.actions.shrink_to(BUFFER_KEPT);
            self.requests.shrink_to(BUFFER_KEPT);
        }
        (context, has_ended)
    }

    /// Turns what has come into events.
    fn gather_events(
        &mut self,
        inbox: InboxSnapshot,
        arrivals: &mut VecDeque<Arrival<Caller>>,
        known: &Known,
        now: Moment,
    ) {
        let InboxSnapshot { events, holders, paused, prefetch, .. } = inbox;
        let store_now = known.clock.map_or_else(|| self.session.wall.at(now), |clock| clock.earliest(now));
        if events.reconfigures || self.store_calls.has_expired(store_now) {
            self.store_calls.make_limiter_refs(&self.queue);
            let limits = limits(&self.queue, &self.session, &self.store_calls);
            if self.core.is_other(&limits) {
                self.store_calls.abandon();
                self.queue.clear_prefetched();
                self.core.replace(limits, now);
            } else {
                self.events.push(Event::Reconfigured(Box::new(limits)));
            }
        }
        if !self.core.asks_while_away() {
            self.own_fault.lapse(&self.session.terms, now);
        }
        let link = self.own_fault.link(known.link, &self.session.terms, now);
        self.events.extend([Event::Linked(link), Event::Kept(holders > 0), Event::Paused(paused)]);
        if let Some(at) = events.moved {
            self.store_calls.moves.moved(at);
            self.events.push(Event::Moved);
        }
        self.events.push(Event::Unmoved(self.store_calls.moves.unmoved_at(known.moves_told)));
        self.take_report(events.report, now);
        self.events.extend(events.freed.map(Event::Freed));
        let mut left = events.left;
        left.retain(|request| self.requests.take_leaver(*request));
        if !left.is_empty() {
            self.events.push(Event::Left(left));
        }
        self.events.push(Event::Prefetched(prefetch));
        self.events.extend(arrivals.drain(..).map(|arrival| self.requests.arrived(arrival)));
        self.events.extend(events.returned.into_iter().map(|returned| self.requests.returned(returned)));
        if events.left_exchanges > 0 {
            // Behind those that have only now come back.
            let left = self.requests.take_leavers();
            self.events.extend((!left.is_empty()).then_some(Event::Left(left)));
        }
    }
}

impl Requests {
    /// Takes in a request, and returns the event for the core.
    fn arrived(&mut self, arrival: Arrival<Caller>) -> Event {
        let Arrival { costs, arrived, deadline, asker, flow } = arrival;
        let asker = match asker {
            Caller::Request(entry) => Asker::Request(self.add(flow, Receiver::Asking(entry))),
            Caller::Shadow => Asker::Shadow,
        };
        Event::Arrived(Arrival { asker, costs, arrived, deadline, flow })
    }

    /// Takes in a permit that comes back, and returns the event for the core.
    fn returned(&mut self, returned: Returned) -> Event {
        match returned {
            Returned::Unused { slot, costs, flow } => {
                Event::Returned(slot, costs, ReturnReason::Unused(flow))
            }
            Returned::Refund { slot, costs, flow } => {
                Event::Returned(slot, costs, ReturnReason::Refund(flow))
            }
            Returned::Exchanged(Exchange { slot, costs, holder, why, turn }) => {
                let request = self.add(holder.flow, Receiver::Waiting { approach: None, turn });
                Event::Returned(slot, costs, ReturnReason::Exchanged(request, holder, why))
            }
        }
    }
}
