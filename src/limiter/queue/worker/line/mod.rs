//! The core of the worker of a queue whose callers share the quota by classes and weights, or whose limiters have costs of their own. Pure,
//! as [`core`](super::core) is, with the same events and actions.
//!
//! The requests without a slot stand in the store's line, all replicas' together: this core says how many wait in each flow queue, and is
//! dealt slots a little ahead of their time. So nothing has to be traded, moved or taken back: a request that leaves before is only counted
//! no more, and a slot that is void or late makes its request one without a slot again, in its old place.
//!
//! Invariants, restored after every event:
//! - no more slots are held in a flow queue than requests wait there; what is left over is given back;
//! - what the store was told of a flow queue is the number of its requests without a slot, or else the flow queue has a moment by which it is told
//!   ([`FlowQueue::tell_at`]);
//! - no slot is handed out before the store's clock has surely reached it, later than its guard, outside the lease of the last answer, or in
//!   another epoch or outage than its own;
//! - while a slot is held, the store is heard at least twice in a lease;
//! - no request waits longer than its wait and a slack, or than the store may take to answer where that is longer.
//!
//! `asking` builds calls, `answers` takes in an answer, `links` does what follows from the state of the store, `serving` hands slots out,
//! `refusing` refuses.

mod answers;
mod asking;
mod ending;
mod links;
mod refusing;
mod serving;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use super::common::{IDLE, Pause, Stay, is_usable, outage_of};
use super::events::{Action, Carryover, Context, Event};
use super::limits::Limits;
use crate::clock::{Micros, Moment};
use crate::limiter::model::{
    Costs, Flow, Generations, Holding, NO_GENERATION, Permits, QuotaShare, UNKNOWN_GENERATION, Unused,
};
use crate::limiter::queue::cost_queue::{CostQueue, REFUSAL_MARGIN};
use crate::limiter::queue::shared_quota::SharedQuota;
use crate::limiter::queue::slot::Slot;
use crate::limiter::queue::waiting::FlowWaiting;
use crate::limiter::recovery::link::Link;

/// Requests that are alike: of one flow, and of the same costs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct FlowQueueKey {
    flow: Flow,
    costs: Costs,
}

/// The waiting requests of one flow and the same costs, and the slots that they were dealt.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FlowQueue {
    queue: CostQueue,
    /// The requests that had come by then have been told of, in an answered call or the one under way. They are refused no more for the
    /// number of those that wait, nor for the length of their wait, also where the store has lost them.
    told_until: Moment,
    /// The requests that had come by then have been answered: they have a place.
    answered_until: Moment,
    /// By when the store is to be told what has changed; `None` if nothing has.
    tell_at: Option<Moment>,
    /// When those came that have left since they were told of.
    left: Vec<Moment>,
    /// How many permits go until its last request has its own, as last answered.
    before: u64,
    /// How long its last request waits at most, as last answered.
    wait: Micros,
}

/// Work for the next calls.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owed {
    /// The epoch in which all slots of the store were dealt.
    epoch: u64,
    /// The generation of each limiter's limits, as last answered.
    generations: Generations,
    /// The slots to give back.
    unused: VecDeque<Unneeded>,
    /// Parts of used permits to give back, with the epochs in which they were dealt. Those of an earlier one wait for an answer of this: they stand
    /// where they were dealt as long as the store keeps its memory, and one that has lost it knows no generation of that answer.
    refunds: VecDeque<(u64, Unused)>,
    /// The epoch of the last answer.
    heard: u64,
    /// Since when callers share the quota as they do now: earlier slots were charged of the ceilings of other classes.
    shared_since: Moment,
}

/// Permits of slots that nobody needs, as they were dealt: a reload may have put their callers into other classes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Unneeded {
    unused: Unused,
    /// The generations under which they were dealt.
    generations: Generations,
}

/// The calls to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Calls {
    under_way: Option<Sent>,
    /// The slots that the last call which was given up gives back, unless it is not made.
    abandoned: Vec<Unneeded>,
    /// When the latest answered call was sent.
    contact: Option<Moment>,
    /// The moment before which no call is made: one has failed.
    not_before: Moment,
    /// True until the next call: the store does not know of changed limits yet, or the queue of moved bookings.
    is_outdated: bool,
    told: Told,
    /// Counts the lines: a reload begins another where what it finds requests by has changed.
    line: u64,
    /// The call to this replica's own memory. Its answer comes at once.
    asked_locally: Option<Sent>,
    told_locally: Told,
}

/// How far the store, or this replica's own memory, and this worker know of each other.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Told {
    /// The number of the last deal that was taken in; zero if the line has nothing of this worker that it knows.
    known: u64,
    /// When to call again, though nothing has changed here.
    again: Option<Moment>,
}

/// A call, with what it was made for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sent {
    at: Moment,
    /// The line that it was made for.
    line: u64,
    /// The flow queues that it tells of.
    wants: Vec<SentWant>,
    /// The slots that it gives back.
    unused: Vec<Unneeded>,
}

/// The part of a call that is about a flow queue.
#[derive(Clone, PartialEq, Eq, Debug)]
struct SentWant {
    key: FlowQueueKey,
    /// The requests that had been told of before.
    told_until: Moment,
    /// When the last request of each group came.
    groups: Vec<Moment>,
    left: Vec<Moment>,
}

/// The core of the worker of a queue whose callers share the quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct LineCore {
    limits: Limits,
    flow_queues: BTreeMap<FlowQueueKey, FlowQueue>,
    owed: Owed,
    calls: Calls,
    /// The state of the store, as last told.
    link: Link,
    pause: Pause,
    stay: Stay,
}

impl FlowQueue {
    fn new() -> FlowQueue {
        FlowQueue {
            queue: CostQueue::default(),
            told_until: Moment(0),
            answered_until: Moment(0),
            tell_at: None,
            left: Vec::new(),
            before: 0,
            wait: Micros::ZERO,
        }
    }

    /// Returns when its last request came, if no call has told of it.
    fn last_untold(&self) -> Option<Moment> {
        let last = self.queue.without_slot().next_back()?.holder.arrived;
        Some(last).filter(|last| *last > self.told_until)
    }

    /// Notes that the store is to be told by a moment at the latest.
    fn tell_by(&mut self, at: Moment) {
        self.tell_at = Some(self.tell_at.map_or(at, |known| known.min(at)));
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.tell_at.is_none()
    }

    /// Returns how many requests without a slot no call has told of: the last ones.
    fn untold(&self) -> usize {
        let last = self.queue.without_slot().rev();
        last.take_while(|waiter| waiter.holder.arrived > self.told_until).count()
    }
}

impl LineCore {
    /// Creates the core of a worker that stays for `linger` when it has nothing to do.
    pub(in crate::limiter) fn new(limits: Limits, linger: Micros, now: Moment) -> LineCore {
        let generations: Generations = limits.refs.iter().map(|_| UNKNOWN_GENERATION).collect();
        // Slots may come back that were dealt to a worker that has ended.
        let shared_since = limits.shared.as_ref().map(|shared| shared.since).unwrap_or_default();
        LineCore {
            limits,
            flow_queues: BTreeMap::new(),
            owed: Owed {
                epoch: 0,
                generations,
                unused: VecDeque::new(),
                refunds: VecDeque::new(),
                heard: 0,
                shared_since,
            },
            calls: Calls {
                under_way: None,
                abandoned: Vec::new(),
                contact: None,
                not_before: now,
                is_outdated: false,
                told: Told::default(),
                line: 0,
                asked_locally: None,
                told_locally: Told::default(),
            },
            link: Link::Up { epoch: 0 },
            pause: Pause::default(),
            stay: Stay::new(linger),
        }
    }

    /// Returns how long the worker stays when it has nothing to do.
    pub(in crate::limiter::queue::worker) fn linger(&self) -> Micros {
        self.stay.linger
    }

    /// Takes over what another core leaves.
    pub(in crate::limiter::queue::worker) fn take_over(&mut self, carryover: Carryover, now: Moment) {
        let Carryover { arrivals, unused, epoch } = carryover;
        // Else the link would seem to have begun a new one, in which none of the slots is known.
        self.owed.epoch = epoch;
        self.owed.shared_since = now;
        unused.into_iter().for_each(|unused| self.give_back_of_nobody(unused));
        arrivals.into_iter().for_each(|arrival| self.wait(arrival, now));
    }

    /// Gives back permits that were booked without the line, for nobody's flow.
    fn give_back_of_nobody(&mut self, (slot, costs, count, generations): (Micros, Costs, u64, Generations)) {
        let flow = Flow::of(&[]);
        // They are in the limiters, and not in the ceilings.
        let (limiters, all) = (self.limits.policies.len(), self.limits.refs.len());
        let costs = costs.of(limiters).chain(std::iter::repeat(0)).take(all).collect();
        let generations = generations.iter().copied().take(limiters);
        let generations = generations.chain(std::iter::repeat(NO_GENERATION)).take(all).collect();
        let unused = Unused { flow: flow.id, class: self.class(flow), slot, count, costs };
        self.owed.unused.push_back(Unneeded { unused, generations });
    }

    /// Returns everything that waits or is held.
    pub(in crate::limiter::queue::worker) fn into_carryover(mut self) -> Carryover {
        self.release_refunds();
        let limiters = self.limits.policies.len();
        let mut carryover = Carryover { epoch: self.owed.epoch, ..Carryover::default() };
        let of_limiters = |all: &Generations| all.iter().copied().take(limiters).collect::<Generations>();
        for (FlowQueueKey { costs, .. }, mut flow_queue) in std::mem::take(&mut self.flow_queues) {
            for slot in flow_queue.queue.take_stored(|_| true) {
                let generations = of_limiters(&self.owed.generations);
                carryover.unused.push((slot.at, costs.clone(), 1, generations));
            }
            let waiters = flow_queue.queue.take_waiters().into_iter();
            carryover.arrivals.extend(waiters.map(|waiter| waiter.into_arrival(costs.clone())));
        }
        for Unneeded { unused: Unused { slot, count, costs, .. }, generations } in self.owed.unused {
            let costs = Costs::each_or_same(costs.into_iter().take(limiters));
            carryover.unused.extend(costs.map(|costs| (slot, costs, count, of_limiters(&generations))));
        }
        carryover.arrivals.sort_by_key(|arrival| arrival.arrived);
        carryover
    }

    /// Takes in events that came together, and restores the invariants. The only entrance.
    pub(in crate::limiter) fn on(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        events.into_iter().for_each(|event| self.take(event, context, out));
        self.pause.now.take_if(|paused| paused.until <= context.now);
        self.hand_out(context, out);
        self.serve_without_store(context, out);
        // A waiter that has a place waits no longer for an answer.
        self.announce_waiting(context.now, out);
        self.refuse_ended(context.now, out);
        self.refuse_overfull(out);
        self.give_back_surplus(context.now, out);
        self.ask(context, out);
        self.flow_queues.retain(|_, flow_queue| !flow_queue.is_empty());
        self.end_if_idle(context.now, out);
    }

    /// Takes in one event; decides nothing about others.
    fn take(&mut self, event: Event, context: &Context, out: &mut Vec<Action>) {
        let now = context.now;
        match event {
            Event::Arrived(arrival) => self.arrive(arrival, now, out),
            Event::Left(left) => self.remove(&left, now, out),
            Event::Returned(slot, costs, reason) => self.take_back(slot, costs, reason, context, out),
            Event::Answered { answer, sent, .. } => self.answered(&answer, sent, context, out),
            Event::PutBack { is_unsent } => self.put_back_call(is_unsent, now),
            Event::Failed { is_unsent } => self.failed(is_unsent, now),
            Event::AnsweredLocally(answer) => self.answered_locally(&answer, context, out),
            Event::Linked(link) => self.relink(link, context, out),
            Event::Reconfigured(limits) => self.reconfigure(*limits, now, out),
            Event::Moved => self.calls.is_outdated = true,
            Event::Paused(paused) => self.follow_pause(paused, now, out),
            Event::Reporting(is_reported) => self.pause.is_reported = is_reported,
            Event::Kept(is_kept) => self.stay.is_kept = is_kept,
            Event::Close => self.close(now, out),
            // Of a call of the core before this one, which had no line. Slots that were dealt to a call that was given up lie ready in the
            // line.
            Event::Unneeded(holdings, generations) => {
                for Holding { slot, cost, count } in holdings {
                    let costs =
                        Permits::new(cost).map(|cost| (slot, cost.into(), count, generations.clone()));
                    costs.into_iter().for_each(|unused| self.give_back_of_nobody(unused));
                }
            }
            Event::UnneededOfLine(unused) => self.give_back_abandoned(&unused),
            // Nothing is traded or prefetched here, and each replica that holds slots calls often enough.
            Event::Freed(_) | Event::Prefetched(_) | Event::Unmoved(_) => {}
        }
    }

    /// Returns the next moment at which something happens by itself.
    pub(in crate::limiter) fn wakes_at(&self, context: &Context) -> Moment {
        let now = context.now;
        let ends = self.flow_queues.values().filter_map(|flow_queue| flow_queue.queue.first_end()).min();
        let next = [
            self.next_slot(context),
            self.next_call(now),
            self.link.changes_at().filter(|at| *at > now),
            ends.filter(|at| *at > now),
            self.stay.ends_at(),
        ];
        next.into_iter().flatten().min().unwrap_or(now + IDLE).min(now + IDLE)
    }

    /// Returns how many requests wait.
    pub(in crate::limiter) fn waiting(&self) -> usize {
        self.flow_queues.values().map(|flow_queue| flow_queue.queue.waiting()).sum()
    }

    /// Returns the flows that wait.
    pub(in crate::limiter) fn flows(&self) -> Vec<FlowWaiting> {
        let mut flows: Vec<FlowWaiting> = Vec::new();
        // The flow queues of a flow stand beside each other.
        for (FlowQueueKey { flow, .. }, flow_queue) in &self.flow_queues {
            let Some(since) = flow_queue.queue.first_arrived() else { continue };
            let count = u32::try_from(flow_queue.queue.waiting()).unwrap_or(u32::MAX);
            match flows.last_mut() {
                Some(last) if last.flow == *flow => {
                    last.count = last.count.saturating_add(count);
                    last.since = last.since.min(since);
                }
                _ => flows.push(FlowWaiting { flow: *flow, count, since }),
            }
        }
        flows
    }

    /// Returns when the first waiting request arrived.
    pub(in crate::limiter) fn first_arrived(&self) -> Option<Moment> {
        self.flow_queues.values().filter_map(|flow_queue| flow_queue.queue.first_arrived()).min()
    }

    /// Returns how many requests no call has told of yet.
    pub(in crate::limiter) fn pending(&self) -> usize {
        self.flow_queues.values().map(FlowQueue::untold).sum()
    }

    /// Returns until when slots of the store may be used.
    pub(in crate::limiter) fn lease(&self) -> Moment {
        self.calls.contact.map_or(Moment(0), |heard| heard + self.limits.terms.lease)
    }

    /// Returns the number of the outage whose local slots may be used; zero for none.
    pub(in crate::limiter) fn outage(&self) -> u64 {
        outage_of(self.link)
    }

    /// Returns how callers share the quota.
    fn share(&self) -> Option<&QuotaShare> {
        self.limits.shared.as_ref().map(|shared| &shared.share)
    }

    /// Returns the place of the class of a flow.
    fn class(&self, flow: Flow) -> usize {
        self.share().map_or(0, |share| share.member(flow).class)
    }

    /// Returns how far ahead slots are dealt.
    fn ahead(&self) -> Micros {
        self.share().map_or(Micros::ZERO, |share| Micros::from(share.ahead))
    }

    /// Returns what a request takes of each limiter: nothing of a ceiling that does not bound its class.
    fn costs(&self, key: &FlowQueueKey) -> Vec<u64> {
        let class = self.class(key.flow);
        let limiters = key.costs.of(self.limits.policies.len());
        let bounds = self.limits.shared.iter().flat_map(|SharedQuota { ceilings, place, .. }| {
            ceilings.iter().map(|classes| if classes.contains(&class) { key.costs.at(*place) } else { 0 })
        });
        limiters.chain(bounds).collect()
    }

    /// Returns when a request is refused if it has no slot then: behind its deadline, or when the store has had its time to answer.
    fn ends(&self, asked: Moment, deadline: Moment) -> Moment {
        (deadline + REFUSAL_MARGIN).max(asked + self.limits.terms.answer_wait())
    }

    /// Returns whether a slot may be used as far as the link and the lease go.
    fn is_usable(&self, slot: &Slot, now: Moment) -> bool {
        is_usable(slot, self.link, self.lease(), now)
    }

    /// Lets every flow queue be told of anew.
    fn tell_all_by(&mut self, at: Moment) {
        for flow_queue in self.flow_queues.values_mut() {
            flow_queue.tell_by(at);
            flow_queue.left.clear();
        }
    }

    /// Makes requests of those whose slots are gone: they have none again.
    fn lose(&mut self, gone: impl Fn(&Slot) -> bool, now: Moment) -> Vec<(FlowQueueKey, Slot)> {
        let mut lost = Vec::new();
        for (key, flow_queue) in &mut self.flow_queues {
            let slots = flow_queue.queue.take_slots(&gone);
            if !slots.is_empty() {
                flow_queue.tell_by(now);
            }
            lost.extend(slots.into_iter().map(|slot| (key.clone(), slot)));
        }
        lost
    }
}
