//! Carries out what the core wants.

use tokio::sync::oneshot;
use tracing::{debug, info};

use super::events::{Action, Context, Event, ReturnReason};
use super::requests::Receiver;
use super::state::Worker;
use crate::limiter::model::{Costs, Flow, Refusal};
use crate::limiter::queue::permit::{OriginQueue, Permit};
use crate::limiter::queue::prefetch::PrefetchSnapshot;
use crate::limiter::queue::request::{Asker, Holder, RequestId};
use crate::limiter::queue::slot::Slot;
use crate::limiter::queue::ticket::{Entered, Ticket};
use std::time::Duration;

impl Worker {
    /// Carries out the core's actions. Those that have an answer at once tell it by further events. Returns whether the worker
    /// has ended.
    pub(super) fn act(&mut self, context: &Context) -> bool {
        let mut has_ended = false;
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Book(call) => self.call_store(*call, context),
                Action::BookLocally(call) => self.book_locally(*call),
                Action::BeginOutage => self.begin_outage(),
                Action::Abandon => self.store_calls.abandon(),
                Action::ReturnLocally(unused) => self.return_locally(&unused),
                Action::AllowUnlimited(permits) => self.record_unlimited(&permits),
                Action::Grant(request, slot, costs, holder) => {
                    self.grant(request, slot, costs, holder, context);
                }
                Action::Charge(source, cost) => self.queue.count_used(source, Flow::default(), &cost.into()),
                Action::Wait(request, place) => self.wait(request, place),
                Action::Approach(request) => self.approach(request),
                Action::Refuse(asker, costs, refusal) => self.refuse(asker, &costs, refusal),
                Action::Offer(batch, low) => self.queue.add_prefetched(*batch, low),
                Action::Withdraw => {
                    let stale = self.queue.clear_prefetched().into_iter().collect();
                    let seen = PrefetchSnapshot { stale, ..PrefetchSnapshot::default() };
                    self.events.push(Event::Prefetched(seen));
                }
                Action::Cache(cache) => self.queue.set_refusal_cache(cache),
                Action::CountRefused(count) => self.queue.count_refused_by_store(count, context.now),
                Action::CountCancelled(costs, flow, count) => {
                    (0..count).for_each(|_| self.queue.count_cancelled(flow, &costs));
                }
                Action::CountLate(late) => self.queue.count_late(late),
                Action::LogMoved(slots) => self.log_moved(slots),
                Action::End => has_ended |= self.end_if_idle(),
            }
        }
        self.actions = actions;
        has_ended
    }

    /// Logs that waiting requests get other slots. A pause has a line of its own.
    fn log_moved(&self, slots: usize) {
        let limiter = self.queue.name();
        if self.queue.has_pause() {
            debug!(%limiter, slots, "the pause moves waiting requests");
        } else {
            info!(%limiter, slots, "limits changed: rescheduling waiting requests");
        }
    }

    /// Ends the queue, if nothing has come meanwhile and nobody holds it. Returns whether the worker has ended: a queue that closes ends
    /// before its last requests have been told.
    fn end_if_idle(&mut self) -> bool {
        let awaits = || !self.store_calls.late.is_empty() || !self.reporter.unsure.is_empty();
        let may_end = || !awaits() && self.queue.end_if_idle();
        self.reporter.is_idle() && (self.queue.has_ended() || may_end())
    }

    /// Gives a request its permit. If it has left, the next one gets the slot.
    fn grant(&mut self, request: RequestId, slot: Slot, costs: Costs, holder: Holder, context: &Context) {
        let receiver = self.requests.take(request);
        if receiver.as_ref().is_some_and(Receiver::has_left) {
            self.queue.count_cancelled(holder.flow, &costs);
        }
        let Some(receiver) = receiver.filter(|receiver| !receiver.has_left()) else {
            return self.events.push(Event::Returned(slot, costs, ReturnReason::Unused(holder.flow)));
        };
        let waited = match receiver {
            Receiver::Asking(_) => Duration::ZERO,
            Receiver::Waiting { .. } => (context.now - holder.arrived).to_duration(),
        };
        self.queue.count_waited(holder.flow, waited);
        let clock = context.clock_of(slot.source);
        receiver.grant(Permit::new(self.queue.clone(), slot, clock, costs, (holder, waited)).in_flight());
    }

    /// Gives a request a ticket, with its place in the fleet's queue, if that is known.
    fn wait(&mut self, request: RequestId, place: Option<u64>) {
        let Some(receiver @ Receiver::Asking(..)) = self.requests.get_mut(request) else { return };
        let (approach, approaching) = oneshot::channel();
        let (turn, turned) = oneshot::channel();
        let waiting = Receiver::Waiting { approach: Some(approach), turn };
        if let Receiver::Asking(entry) = std::mem::replace(receiver, waiting) {
            let ticket = Ticket::new(self.queue.clone(), (request, place), approaching, turned);
            // A request that has left drops its ticket, which tells the worker.
            let _ = entry.send(Ok(Entered::Waiting(ticket)));
        }
    }

    fn approach(&mut self, request: RequestId) {
        if let Some(Receiver::Waiting { approach, .. }) = self.requests.get_mut(request)
            && let Some(approach) = approach.take()
        {
            // An error means that the request has left.
            let _ = approach.send(());
        }
    }

    fn refuse(&mut self, asker: Asker, costs: &Costs, refusal: Refusal) {
        let request = match asker {
            Asker::Request(request) => self.requests.take_of(request),
            Asker::Shadow => None,
            // It was counted then, or has left.
            Asker::Refused => return,
        };
        let flow = request.as_ref().map_or(Flow::default(), |(flow, _)| *flow);
        self.queue.count_refused(&refusal, (flow, costs), asker == Asker::Shadow);
        if let Some((_, receiver)) = request {
            receiver.refuse(refusal);
        }
    }
}
