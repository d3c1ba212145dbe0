//! Builds the next call to the store, or to this replica's own memory.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{
    CLASSES_MAX, Call, Generations, LineCall, OnStoreFailure, Unused, Waiting, Want,
};
use crate::limiter::queue::cost_queue::{DEADLINE_SLACK, Waiter};
use crate::limiter::queue::worker::events::{Action, Context};
use crate::limiter::recovery::link::Link;

use super::{FlowQueue, FlowQueueKey, LineCore, Sent, SentWant, Told, Unneeded};

/// The most flow queues that one call tells of; of fewer where it gives slots back, and of so many at least.
const WANTS_MAX: usize = 24;
const WANTS_LEAST: usize = 8;

/// The most groups of requests that one call tells of.
const GROUPS_MAX: usize = 128;

/// How often one call gives a slot back to a limiter, of which its queue may need several. So many permits of one slot are one more: a change
/// of the limits may have moved them to places of their own, but not to more than so many times that.
const GIVEN_BACK_MAX: u64 = 100;
const PERMITS_AT_ONCE: u64 = 8;
const PLACES_MAX: u64 = 8;

/// Requests whose waits end so close to each other go into one group, with the shortest of their waits.
const GROUP_SPREAD: Micros = Micros::from_millis(1);

/// A change that does not press is told within this part of the time that slots are dealt ahead, so that a call tells of several.
const LATER: u64 = 10;

impl LineCore {
    /// Returns by when a change is told that does not press.
    pub(super) fn later(&self, now: Moment) -> Moment {
        now + Micros(self.ahead().0 / LATER)
    }

    fn may_call(&self, now: Moment) -> bool {
        let is_reported = self.pause.is_reported && !self.stay.is_closing();
        self.calls.under_way.is_none()
            && !is_reported
            && !matches!(self.link, Link::Settling { .. } | Link::Away { .. })
            && now >= self.calls.not_before
    }

    /// Returns when the next call is to be made, as far as there is a reason for one.
    fn calls_at(&self) -> Option<Moment> {
        let at_once = (self.calls.is_outdated && self.is_in_use())
            || !self.owed.unused.is_empty()
            || !self.owed.refunds.is_empty();
        // While slots are held, the store must be heard.
        let holds = self.flow_queues.values().any(|flow_queue| flow_queue.queue.holds_booked());
        let heartbeat = self.calls.contact.map(|contact| contact + self.limits.terms.heartbeat);
        let next = [
            at_once.then_some(Moment(0)),
            self.flow_queues.values().filter_map(|flow_queue| flow_queue.tell_at).min(),
            self.calls.told.again,
            heartbeat.filter(|_| holds),
        ];
        next.into_iter().flatten().min()
    }

    /// Returns whether somebody waits, or keeps the queue.
    fn is_in_use(&self) -> bool {
        self.stay.is_kept || !self.flow_queues.is_empty()
    }

    /// Returns when a call is to be made without another event.
    pub(super) fn next_call(&self, now: Moment) -> Option<Moment> {
        if self.outage() != 0 {
            let told = self.flow_queues.values().filter_map(|flow_queue| flow_queue.tell_at).min();
            return told.into_iter().chain(self.calls.told_locally.again).min().map(|at| at.max(now));
        }
        if !self.may_call(now.max(self.calls.not_before)) {
            return None;
        }
        self.calls_at().map(|at| at.max(self.calls.not_before).max(now))
    }

    /// Makes the next call, if there is a reason for one and none is under way.
    pub(super) fn ask(&mut self, context: &Context, out: &mut Vec<Action>) {
        let now = context.now;
        if self.may_call(now) && self.calls_at().is_some_and(|at| at <= now) {
            self.calls.is_outdated = false;
            let call = self.make_call(context);
            out.push(Action::Book(Box::new(call)));
        }
    }

    fn make_call(&mut self, context: &Context) -> Call {
        let Context { now, latency, .. } = *context;
        self.release_refunds();
        let generations =
            self.owed.unused.front().map_or(&self.owed.generations, |unused| &unused.generations).clone();
        let unused = self.take_unused(&generations);
        let ceilings = self.limits.shared.as_ref().map_or(0, |shared| shared.ceilings.len());
        let places = self.places();
        let (wants, sent) = self.wants(now, WANTS_MAX.saturating_sub(unused.len() / 2).max(WANTS_LEAST));
        let Told { known, .. } = self.calls.told;
        let line = LineCall {
            ahead: self.ahead(),
            ceilings,
            known,
            begins: known == 0,
            places,
            unused: unused.iter().map(|unneeded| unneeded.unused.clone()).collect(),
            expected: Vec::new(),
            wants,
        };
        self.calls.told.again = None;
        self.calls.under_way = Some(Sent { at: now, line: self.calls.line, wants: sent, unused });
        // Where an answer takes longer than a slot stays good, one that begins with the call is late when the answer comes.
        let lead = if latency > self.limits.guard { latency } else { Micros::ZERO };
        Call { generations: generations.to_vec(), lead, line: Some(Box::new(line)), ..Call::default() }
    }

    /// Asks this replica's own memory.
    pub(super) fn ask_locally(&mut self, now: Moment, out: &mut Vec<Action>) {
        let places = self.places();
        let (mut wants, sent) = self.wants(now, WANTS_MAX);
        let Told { known, .. } = self.calls.told_locally;
        // The shares of the limiters that are kept: no ceilings, as there is no fleet. Where each has a cost of its own, all are kept.
        let limiters = self.limits.policies.iter().filter(|policy| **policy == OnStoreFailure::Local).count();
        for (want, sent) in wants.iter_mut().zip(&sent) {
            want.costs = sent.key.costs.of(limiters).collect();
        }
        let (ahead, begins) = (self.ahead(), known == 0);
        let line = LineCall { ahead, known, begins, places, wants, ..LineCall::default() };
        self.calls.told_locally.again = None;
        self.calls.asked_locally =
            Some(Sent { at: now, line: self.calls.line, wants: sent, unused: Vec::new() });
        out.push(Action::BookLocally(Box::new(Call { line: Some(Box::new(line)), ..Call::default() })));
    }

    /// Takes the slots to give back that were dealt under these generations, in their order, which is the cheapest to look up; others go with the
    /// next call.
    fn take_unused(&mut self, generations: &Generations) -> Vec<Unneeded> {
        let (mut taken, mut given_back) = (Vec::new(), 0);
        while given_back < GIVEN_BACK_MAX
            && let Some(unneeded) = self.owed.unused.pop_front_if(|of| of.generations == *generations)
        {
            let Unused { count, costs, .. } = &unneeded.unused;
            let places = |cost: &u64| 1 + (cost * count / PERMITS_AT_ONCE).min(PLACES_MAX);
            given_back += costs.iter().filter(|cost| **cost > 0).map(places).sum::<u64>();
            taken.push(unneeded);
        }
        taken.sort_by_key(|unneeded| unneeded.unused.slot);
        taken
    }

    /// Returns how many more requests of each class may wait than those that were told of.
    fn places(&self) -> [u64; CLASSES_MAX] {
        let mut places = [0; CLASSES_MAX];
        let classes = self.share().map(|share| share.classes.clone()).unwrap_or_default();
        for (place, class) in places.iter_mut().zip(classes.iter()) {
            *place = u64::from(class.queue.max_waiting);
        }
        for (key, flow_queue) in &self.flow_queues {
            let told = flow_queue.queue.without_slot().len() - flow_queue.untold();
            if let Some(place) = places.get_mut(self.class(key.flow)) {
                *place = place.saturating_sub(told as u64);
            }
        }
        places
    }

    /// Returns what the call tells of up to so many flow queues: of those that have waited longest to be told of.
    fn wants(&mut self, now: Moment, most: usize) -> (Vec<Want>, Vec<SentWant>) {
        let mut keys: Vec<(Moment, FlowQueueKey)> = self
            .flow_queues
            .iter()
            .filter_map(|(key, flow_queue)| Some((flow_queue.tell_at?, key.clone())))
            .collect();
        keys.sort_unstable();
        keys.truncate(most);
        let near = Micros(self.ahead().0 / LATER);
        let (mut wants, mut sent, mut left) = (Vec::new(), Vec::new(), GROUPS_MAX);
        for (_, key) in keys {
            let (costs, member) = (self.costs(&key), self.share().map(|share| share.member(key.flow)));
            let (Some(flow_queue), Some(member)) = (self.flow_queues.get_mut(&key), member) else { continue };
            if left == 0 {
                break;
            }
            let (begins_with_known, groups) = flow_queue.groups(now, near, left);
            left -= groups.len();
            let (told_until, last) = (flow_queue.told_until, groups.iter().map(|group| group.last).max());
            flow_queue.told_until = told_until.max(last.unwrap_or_default());
            let is_cut =
                flow_queue.queue.without_slot().any(|waiter| waiter.holder.arrived > flow_queue.told_until);
            flow_queue.tell_at = is_cut.then_some(now);
            let gone = std::mem::take(&mut flow_queue.left);
            wants.push(Want {
                flow: key.flow.id,
                class: member.class,
                weight: member.weight,
                costs,
                waiting: groups.iter().map(|group| group.waiting).collect(),
                begins_with_known,
                left: gone.iter().map(|came| (now - *came, 1)).collect(),
            });
            let groups = groups.iter().map(|group| group.last).collect();
            sent.push(SentWant { key, told_until, groups, left: gone });
        }
        (wants, sent)
    }
}

/// Requests that a call tells of together.
struct Group {
    first: Moment,
    last: Moment,
    deadline: Moment,
    waiting: Waiting,
}

impl Group {
    fn of(waiter: &Waiter, now: Moment) -> Group {
        let came = waiter.holder.arrived;
        let waiting = Waiting {
            oldest: now - came,
            newest: now - came,
            wait_max: waiter.holder.deadline - now,
            count: 1,
        };
        Group { first: came, last: came, deadline: waiter.holder.deadline, waiting }
    }

    fn add(&mut self, waiter: &Waiter, now: Moment) {
        self.last = self.last.max(waiter.holder.arrived);
        self.waiting.newest = now - self.last;
        self.waiting.wait_max = self.waiting.wait_max.min(waiter.holder.deadline - now);
        self.waiting.count += 1;
    }
}

impl FlowQueue {
    /// Returns the requests without a slot in groups: those that were told of before, then those that came close to each other. And whether
    /// there are any of the former.
    fn groups(&self, now: Moment, near: Micros, most: usize) -> (bool, Vec<Group>) {
        let mut groups: Vec<Group> = Vec::new();
        let mut known: Option<Group> = None;
        for waiter in self.queue.without_slot() {
            let Waiter { holder, .. } = waiter;
            if holder.arrived <= self.told_until && groups.is_empty() {
                match &mut known {
                    Some(known) => known.add(waiter, now),
                    None => known = Some(Group::of(waiter, now)),
                }
                continue;
            }
            let is_near = |group: &&mut Group| {
                holder.arrived - group.first <= near
                    && holder.deadline.0.abs_diff(group.deadline.0) < GROUP_SPREAD.0
            };
            let has_room = groups.len() + usize::from(known.is_some()) < most;
            match groups.last_mut().filter(is_near) {
                Some(group) => group.add(waiter, now),
                None if has_room => groups.push(Group::of(waiter, now)),
                None => break,
            }
        }
        if let Some(known) = &mut known {
            known.waiting.wait_max = self.queue.wait_left(now).unwrap_or(DEADLINE_SLACK);
        }
        (known.is_some(), known.into_iter().chain(groups).collect())
    }
}
