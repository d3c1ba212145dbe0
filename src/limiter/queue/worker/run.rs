//! The loop of a worker: turns what happens into events of the core, and its actions into deeds.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::StreamExt;
use tokio::time::{Duration, Instant, sleep_until};

use super::calling::{Calling, answered};
use super::core::events::{Action, Around, Back, Event, Limits};
use super::core;
use super::fallback::FleetUsage;
use super::reporting::Reporter;
use super::requests::{Receiver, Requests};
use super::siblings::Siblings;
use crate::clock::{Micros, Moment};
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::inbox::{self, Phase, WorkerEvents};
use crate::limiter::queue::permit::{Exchange, OriginQueue, Returned};
use crate::limiter::queue::request::{Arrival, Asker};
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::link::OwnFault;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::store::clock::StoreClock;

/// The worker of a queue.
pub(in crate::limiter) struct Worker {
    pub(super) queue: Arc<Queue>,
    pub(super) siblings: Arc<dyn Siblings>,
    pub(super) fallback: Arc<Fallback>,
    pub(super) session: Arc<StoreSession>,
    pub(super) core: core::Worker,
    pub(super) requests: Requests,
    pub(super) calling: Calling,
    pub(super) own_fault: OwnFault,
    pub(super) usage: FleetUsage,
    pub(super) reporter: Reporter,
    /// The events for the core, and its actions: empty between two turns, and kept so that nothing is allocated under load.
    pub(super) events: Vec<Event>,
    pub(super) actions: Vec<Action>,
}

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
    /// Creates the worker of a queue. It stays for `linger` when it has nothing to do.
    pub(in crate::limiter) fn new(
        queue: Arc<Queue>,
        siblings: Arc<dyn Siblings>,
        fallback: Arc<Fallback>,
        linger: Duration,
    ) -> Worker {
        let session = queue.instances[0].active.session.clone();
        let calling = Calling::new(&queue);
        let limits = limits(&queue, &session, &calling);
        let core = core::Worker::new(limits, Micros::from(linger), session.moment());
        Worker {
            queue,
            siblings,
            fallback,
            session,
            core,
            requests: Requests::default(),
            calling,
            own_fault: OwnFault::default(),
            usage: FleetUsage::default(),
            reporter: Reporter::default(),
            events: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Works until nothing is left to do and nobody holds the queue, or until weir shuts down.
    pub(in crate::limiter) async fn run(mut self) {
        let _ending = Ending { queue: self.queue.clone(), siblings: self.siblings.clone() };
        // Moved only to an earlier instant, or after it has rung: each move takes a lock of the runtime.
        let mut alarm = Box::pin(sleep_until(Instant::now()));
        let mut arrivals = VecDeque::new();
        loop {
            let wake = self.next_wake();
            if wake < alarm.deadline() || alarm.is_elapsed() {
                alarm.as_mut().reset(wake);
            }
            if self.calling.is_under_way() {
                self.queue.set_calling();
            }
            let (under_way, late) = self.calling.futures();
            tokio::select! {
                biased;
                result = answered(under_way) => self.take_result(result),
                reports = self.reporter.reported() => self.settle_reports(reports),
                Some(late) = late.next(), if !late.is_empty() => self.take_late(late),
                () = self.queue.woken() => {}
                () = alarm.as_mut() => {}
            }
            if self.turn(&mut arrivals) {
                return self.keep_usage();
            }
        }
    }

    /// Returns when to look without another event.
    fn next_wake(&self) -> Instant {
        let around = self.around(self.session.moment());
        let wake = self.core.wakes_at(&around);
        let wake = self.reporter.wakes_at().map_or(wake, |at| wake.min(at));
        Instant::now() + (wake - around.now).to_duration()
    }

    /// Returns what surrounds the worker at a moment.
    fn around(&self, now: Moment) -> Around {
        let clock = self.session.known(now).clock.unwrap_or_else(|| StoreClock::new(now, now, Micros::ZERO));
        let (wall, in_flight_left) = (self.fallback.clock.at(now), self.queue.in_flight_left());
        Around { now, clock, wall, in_flight_left }
    }

    /// Takes in everything that has come, and does what the core wants. Returns whether the worker has ended.
    fn turn(&mut self, arrivals: &mut VecDeque<inbox::Arrival>) -> bool {
        let now = self.session.moment();
        let seen = self.queue.take_events(arrivals, self.core.pending(), now);
        let is_closing = seen.phase == Phase::Closing;
        self.tell(seen, arrivals, now);
        if is_closing {
            let (arrived, returned) = self.queue.end();
            self.events.extend(arrived.into_iter().map(|arrival| self.requests.arrived(arrival)));
            self.events.extend(returned.into_iter().map(|returned| self.requests.returned(returned)));
            self.events.push(Event::Close);
        }
        let mut around = self.around(now);
        let mut has_ended = false;
        loop {
            self.core.on(self.events.drain(..), &around, &mut self.actions);
            // Before a request can have its permit.
            self.queue.set_usable(self.core.lease(), self.core.outage());
            has_ended |= self.act(&around);
            if self.events.is_empty() {
                break;
            }
            around.in_flight_left = self.queue.in_flight_left();
        }
        let waiting = u32::try_from(self.core.waiting()).unwrap_or(u32::MAX);
        self.queue.set_waiting(waiting, self.core.first_arrived());
        has_ended
    }

    /// Turns what has come into events.
    fn tell(&mut self, seen: WorkerEvents, arrivals: &mut VecDeque<inbox::Arrival>, now: Moment) {
        let WorkerEvents { events, holders, paused, prefetch, .. } = seen;
        let known = self.session.known(now);
        let store_now = known.clock.map_or_else(|| self.session.wall.at(now), |clock| clock.earliest(now));
        if events.limits_changed || self.calling.has_expired(store_now) {
            self.calling.make_limiter_refs(&self.queue);
            let limits = limits(&self.queue, &self.session, &self.calling);
            self.events.push(Event::Reconfigured(Box::new(limits)));
        }
        let link = self.own_fault.link(known.link, &self.session.terms, now);
        self.events.extend([Event::Linked(link), Event::Kept(holders > 0), Event::Paused(paused)]);
        self.take_report(events.report, now);
        self.events.extend(events.freed.map(Event::Freed));
        let mut left = events.left;
        left.retain(|request| self.requests.has_left(*request));
        if !left.is_empty() {
            left.iter().for_each(|request| drop(self.requests.take(*request)));
            self.events.push(Event::Left(left));
        }
        self.events.push(Event::Prefetched(prefetch));
        self.events.extend(arrivals.drain(..).map(|arrival| self.requests.arrived(arrival)));
        self.events.extend(events.returned.into_iter().map(|returned| self.requests.returned(returned)));
    }
}

impl Requests {
    /// Takes in a request, and returns the event for the core.
    fn arrived(&mut self, arrival: inbox::Arrival) -> Event {
        let inbox::Arrival { cost, arrived, deadline, asker } = arrival;
        let asker = match asker {
            inbox::Asker::Request(entry) => Asker::Request(self.add(Receiver::Asking(entry))),
            inbox::Asker::Shadow => Asker::Shadow,
        };
        Event::Arrived(Arrival { asker, cost, arrived, deadline })
    }

    /// Takes in a permit that comes back, and returns the event for the core.
    fn returned(&mut self, returned: Returned) -> Event {
        match returned {
            Returned::Unused { slot, cost } => Event::Returned(slot, cost, Back::Unused),
            Returned::Refund { slot, cost } => Event::Returned(slot, cost, Back::Refund),
            Returned::Exchanged(Exchange { slot, cost, holder, why, turn }) => {
                let request = self.add(Receiver::Waiting { approach: None, turn });
                Event::Returned(slot, cost, Back::Exchanged(request, holder, why))
            }
        }
    }
}

/// Returns what the limiters of a queue allow now.
fn limits(queue: &Queue, session: &StoreSession, calling: &Calling) -> Limits {
    let instances = queue.instances.iter();
    Limits {
        refs: calling.limiter_refs.to_vec(),
        policies: instances.map(|instance| instance.active.limiter().on_store_failure).collect(),
        guard: queue.guard(),
        cost_max: queue.cost_max(),
        too_costly: queue.too_costly(),
        max_waiting: queue.max_waiting(),
        terms: session.terms,
    }
}
