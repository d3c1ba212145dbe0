//! A line: the requests that wait for slots which nobody has yet, of all replicas, in flows that share a quota.
//!
//! Pure. A store keeps one for the limiters of a queue whose slots are dealt only a little ahead. What is not dealt yet nobody has
//! heard of, so order, priority and shares need nothing taken back. [`deal`](crate::limiter::arithmetic::deal) is one call. The twin is
//! `lua/line.lua`.
//!
//! A replica says how many of its requests of a flow wait without a slot, and since when: tickets. The line compares that with what
//! it has, so that a call may be lost, repeated or late without harm. Slots that were dealt to another replica than the caller lie
//! ready for it, until it says that it has them.

use crate::clock::Micros;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::model::{CLASSES_MAX, FLOWS_MAX, LineCall, Unused, Want};

/// One permit of a flow of weight one, in virtual time.
const SHARE: u64 = 1 << 20;

/// Two instants of virtual time differ by no more, so that the product with a weight stays exact.
const APART_MAX: u64 = 1 << 42;

/// So many permits of one flow are told from more, for the same reason.
const PERMITS_MAX: u64 = 1 << 32;

/// The most runs of one replica, flow and cost: within a run requests count as if they had come evenly. Beyond so many flows each has fewer, so
/// that a call has no more of them to look at.
const RUNS_MAX: usize = 8;
const RUNS_LEAST: usize = 2;
const FLOWS_WITH_MOST: usize = 16;

/// How long the tickets of a replica are kept that does not call when it has said that it would.
const KEPT: Micros = Micros::from_millis(15_000);

/// A line.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Line {
    /// For each limiter: the generation under which slots were dealt.
    pub(in crate::limiter::arithmetic) generations: Vec<u64>,
    /// The number of the last deal.
    pub(in crate::limiter::arithmetic) deal: u64,
    pub(in crate::limiter::arithmetic) flows: Vec<Flow>,
    pub(in crate::limiter::arithmetic) dealt_slots: Vec<DealtSlot>,
    callers: Vec<Caller>,
    /// For each class: how its refused callers are spread.
    pub(in crate::limiter::arithmetic) spreads: [QueueOrder; CLASSES_MAX],
}

/// A flow of a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter::arithmetic) struct Flow {
    pub(in crate::limiter::arithmetic) id: u64,
    pub(in crate::limiter::arithmetic) class: usize,
    pub(in crate::limiter::arithmetic) weight: u64,
    /// How far the flow is ahead of the virtual time of its class.
    pub(in crate::limiter::arithmetic) tag: u64,
    /// Ascending by their first instant.
    pub(in crate::limiter::arithmetic) runs: Vec<Run>,
}

/// Tickets of one replica, flow and cost, that came one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter::arithmetic) struct Run {
    pub(in crate::limiter::arithmetic) key: Key,
    /// When the first and the last of them came.
    pub(in crate::limiter::arithmetic) first: Micros,
    pub(in crate::limiter::arithmetic) last: Micros,
    pub(in crate::limiter::arithmetic) count: u64,
}

/// Tickets that are alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter::arithmetic) struct Key {
    pub(in crate::limiter::arithmetic) replica: u64,
    /// The flow as the replica named it: one that shares as its class does has another in the line.
    pub(in crate::limiter::arithmetic) origin: u64,
    pub(in crate::limiter::arithmetic) costs: Vec<u64>,
}

impl Key {
    /// Returns what a request counts for in the share of its flow.
    pub(in crate::limiter::arithmetic) fn price(&self) -> u64 {
        price(&self.costs)
    }
}

/// A slot that was dealt, and that its replica has not said to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter::arithmetic) struct DealtSlot {
    pub(in crate::limiter::arithmetic) key: Key,
    pub(in crate::limiter::arithmetic) class: usize,
    pub(in crate::limiter::arithmetic) deal: u64,
    pub(in crate::limiter::arithmetic) slot: Micros,
    pub(in crate::limiter::arithmetic) count: u64,
    /// The generations under which it was dealt, if a change of the limits has voided it since; else empty.
    pub(in crate::limiter::arithmetic) void: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Caller {
    replica: u64,
    /// When it calls again at the latest.
    calls_by: Micros,
    /// The deal with which it was added.
    added: u64,
}

/// Returns what a request counts for in the share of its flow: the largest of its costs.
pub(in crate::limiter::arithmetic) fn price(costs: &[u64]) -> u64 {
    costs.iter().copied().max().unwrap_or_default().max(1)
}

/// Returns the virtual time of so many permits of a flow.
pub(in crate::limiter::arithmetic) fn virtual_of(permits: u64, weight: u64) -> u64 {
    permits.min(PERMITS_MAX) * SHARE / weight
}

/// Returns the permits that a flow is given within a virtual time.
pub(in crate::limiter::arithmetic) fn permits_of(apart: u64, weight: u64) -> u64 {
    apart.min(APART_MAX) * weight / SHARE
}

impl Flow {
    /// Removes up to so many tickets of a key, that came at an instant, or the last ones. Returns how many.
    fn remove(&mut self, key: &Key, since: Option<Micros>, count: u64) -> u64 {
        let is_one = |run: &Run| run.key == *key && since.is_none_or(|since| run.first <= since);
        let Some(place) = self.runs.iter().rposition(is_one) else { return 0 };
        let taken = count.min(self.runs[place].count);
        self.runs[place].count -= taken;
        if self.runs[place].count == 0 {
            self.runs.remove(place);
        }
        taken
    }

    /// Removes the last tickets of a key. Returns how many.
    fn remove_last(&mut self, key: &Key, count: u64) -> u64 {
        let mut left = count;
        while left > 0 {
            match self.remove(key, None, left) {
                0 => break,
                taken => left -= taken,
            }
        }
        count - left
    }

    fn count(&self, key: &Key) -> u64 {
        self.runs.iter().filter(|run| run.key == *key).map(|run| run.count).sum()
    }

    /// Adds tickets that came between two instants. Those of a key that came shortly after others are of their run; a key that has as many runs as
    /// it may gets no further one.
    fn add(
        &mut self,
        key: &Key,
        (first, last): (Micros, Micros),
        count: u64,
        (near, runs_max): (Micros, usize),
    ) {
        let same = self.runs.iter().filter(|run| run.key == *key).count();
        if let Some(latest) = self.runs.iter_mut().rfind(|run| run.key == *key) {
            if last >= latest.first && (last - latest.first <= near || same >= runs_max) {
                latest.last = latest.last.max(last);
                latest.count += count;
                return;
            }
            if same >= runs_max
                && let Some(later) = self.runs.iter_mut().find(|run| run.key == *key && run.last >= last)
            {
                later.count += count;
                return;
            }
        }
        let place = self.runs.partition_point(|run| run.first <= first);
        self.runs.insert(place, Run { key: key.clone(), first, last, count });
    }

    /// Takes the first tickets of a run out.
    fn take(&mut self, place: usize, count: u64) {
        let run = &mut self.runs[place];
        run.first = run.first + Micros((run.last - run.first).0 * count / run.count);
        run.count -= count;
        if run.count == 0 {
            self.runs.remove(place);
            return;
        }
        let mut place = place;
        while self.runs.get(place + 1).is_some_and(|next| next.first < self.runs[place].first) {
            self.runs.swap(place, place + 1);
            place += 1;
        }
    }
}

impl Line {
    /// Returns the instant from which nothing in the line matters.
    #[must_use]
    pub fn expires(&self) -> Micros {
        // Those that wait call more often, or say when.
        const IDLE: Micros = Micros::from_millis(60_000);
        let calls_by = self.callers.iter().map(|caller| caller.calls_by).max().unwrap_or_default();
        self.spreads.iter().map(QueueOrder::expires).fold(calls_by + IDLE, Micros::max)
    }

    /// Forgets replicas that have not called for long, and slots that nobody can use any more.
    pub(in crate::limiter::arithmetic) fn forget(&mut self, now: Micros, lease: Micros) {
        let gone = self.callers.extract_if(.., |caller| caller.calls_by + KEPT <= now);
        for gone in gone.collect::<Vec<_>>() {
            self.drop_of(gone.replica);
        }
        self.dealt_slots.retain(|dealt| dealt.slot + lease > now);
    }

    /// Drops the tickets and slots of a replica.
    fn drop_of(&mut self, replica: u64) {
        self.flows.iter_mut().for_each(|flow| flow.runs.retain(|run| run.key.replica != replica));
        self.dealt_slots.retain(|dealt| dealt.key.replica != replica);
    }

    /// Takes in that a replica calls, and which slots it has. Returns true if the line has forgotten the replica since the deal that it
    /// knows, until it has taken a later answer in.
    pub(in crate::limiter::arithmetic) fn hear(
        &mut self,
        now: Micros,
        replica: u64,
        asked: &LineCall,
    ) -> bool {
        if asked.begins {
            self.drop_of(replica);
        }
        self.dealt_slots.retain(|dealt| dealt.key.replica != replica || dealt.deal > asked.known);
        self.deal = now.0.max(self.deal + 1);
        self.promise(replica, now);
        let is_later = |caller: &Caller| caller.replica == replica && asked.known < caller.added;
        asked.known > 0 && self.callers.iter().any(is_later)
    }

    /// Notes when a replica calls again at the latest.
    pub(in crate::limiter::arithmetic) fn promise(&mut self, replica: u64, calls_by: Micros) {
        match self.callers.iter_mut().find(|caller| caller.replica == replica) {
            Some(caller) => caller.calls_by = calls_by,
            None => self.callers.push(Caller { replica, calls_by, added: self.deal }),
        }
    }

    /// Returns the earliest instant at which a replica can use a slot that is dealt now; `None` if it is silent: it has not called by the
    /// instant that it was told, nor within a grace after that.
    pub(in crate::limiter::arithmetic) fn reach(
        &self,
        replica: u64,
        caller: u64,
        now: Micros,
        (grace, lead): (Micros, Micros),
    ) -> Option<Micros> {
        if replica == caller {
            return Some(now);
        }
        let calls_by = self.callers.iter().find(|caller| caller.replica == replica)?.calls_by;
        (calls_by + grace > now).then(|| calls_by.max(now) + lead)
    }

    /// Returns the place of a flow; it is added if it is not there.
    fn place_of(&mut self, want: &Want) -> usize {
        let Want { flow, class, weight, .. } = *want;
        if let Some(place) = self.flows.iter().position(|known| known.id == flow) {
            let known = &mut self.flows[place];
            known.weight = weight;
            if known.class != class {
                (known.class, known.tag) = (class, 0);
            }
            return place;
        }
        let own = self.flows.iter().filter(|flow| flow.id >= CLASSES_MAX as u64).count();
        let (id, weight) = if own < FLOWS_MAX { (flow, weight) } else { (class as u64, 1) };
        if let Some(place) = self.flows.iter().position(|known| known.id == id) {
            return place;
        }
        self.flows.push(Flow { id, class, weight, tag: 0, runs: Vec::new() });
        self.flows.len() - 1
    }

    /// Returns the places of the flows that may hold tickets of an origin: its own, and that of its class.
    fn places_of(&self, origin: u64, class: usize) -> impl Iterator<Item = usize> + use<> {
        let place = |id| self.flows.iter().position(|flow| flow.id == id);
        [place(origin), place(class as u64)].into_iter().flatten()
    }

    /// Returns how many requests of a key have a ticket.
    pub(in crate::limiter::arithmetic) fn tickets(&self, key: &Key, class: usize) -> u64 {
        self.places_of(key.origin, class).map(|place| self.flows[place].count(key)).sum()
    }

    /// Removes the last tickets of a key.
    pub(in crate::limiter::arithmetic) fn remove_last(&mut self, key: &Key, class: usize, mut count: u64) {
        for place in self.places_of(key.origin, class) {
            count -= self.flows[place].remove_last(key, count);
        }
    }

    /// Brings the tickets of a replica's want to what it says. Returns how many of each group are new.
    pub(in crate::limiter::arithmetic) fn reconcile(
        &mut self,
        now: Micros,
        ahead: Micros,
        key: &Key,
        want: &Want,
    ) -> Vec<u64> {
        let place = self.place_of(want);
        let total: u64 = want.waiting.iter().map(|group| group.count).sum();
        let dealt: u64 =
            self.dealt_slots.iter().filter(|dealt| dealt.key == *key).map(|dealt| dealt.count).sum();
        let has = self.tickets(key, want.class) + dealt;
        let mut surplus = has.saturating_sub(total);
        for (ago, count) in &want.left {
            for place in self.places_of(key.origin, want.class) {
                surplus -= self.flows[place].remove(key, Some(now - *ago), surplus.min(*count));
            }
        }
        self.remove_last(key, want.class, surplus);
        let mut new = vec![0; want.waiting.len()];
        let mut missing = total.saturating_sub(has);
        for (new, group) in new.iter_mut().zip(&want.waiting).rev() {
            *new = missing.min(group.count);
            missing -= *new;
        }
        let runs_max = (RUNS_MAX * FLOWS_WITH_MOST / self.flows.len()).clamp(RUNS_LEAST, RUNS_MAX);
        for (new, group) in new.iter().zip(&want.waiting).filter(|(new, _)| **new > 0) {
            self.flows[place].add(key, (now - group.oldest, now - group.newest), *new, (ahead, runs_max));
        }
        new
    }

    /// Takes in that permits which were dealt are not used: their flow was not given them.
    pub(in crate::limiter::arithmetic) fn take_back(&mut self, unused: &Unused) {
        let permits = price(&unused.costs) * unused.count;
        self.spreads[unused.class].not_used(permits);
        if let Some(place) = self.places_of(unused.flow, unused.class).next() {
            let flow = &mut self.flows[place];
            flow.tag = flow.tag.saturating_sub(virtual_of(permits, flow.weight));
        }
    }

    /// Notes a slot for some tickets of a key.
    pub(in crate::limiter::arithmetic) fn deal_slot(
        &mut self,
        key: &Key,
        class: usize,
        slot: Micros,
        count: u64,
    ) {
        let deal = self.deal;
        self.spreads[class].used(count * key.price());
        match self.dealt_slots.last_mut() {
            Some(last) if last.slot == slot && last.deal == deal && last.key == *key => last.count += count,
            _ => self.dealt_slots.push(DealtSlot {
                key: key.clone(),
                class,
                deal,
                slot,
                count,
                void: Vec::new(),
            }),
        }
    }

    /// Takes in that the first tickets of a run have slots, in a turn that began at an instant of virtual time.
    pub(in crate::limiter::arithmetic) fn end_turn(
        &mut self,
        (flow, run): (usize, usize),
        start: u64,
        count: u64,
    ) {
        let flow = &mut self.flows[flow];
        flow.tag = start + virtual_of(count * flow.runs[run].key.price(), flow.weight);
        flow.take(run, count);
    }

    /// Returns the place of the flow that a replica's tickets of a key are in; `None` if it has none.
    pub(in crate::limiter::arithmetic) fn place_with(&self, key: &Key, class: usize) -> Option<usize> {
        self.places_of(key.origin, class).find(|place| self.flows[*place].count(key) > 0)
    }

    /// Makes the virtual time of each class zero, and forgets the flows that nothing is known of any more.
    pub(in crate::limiter::arithmetic) fn settle(&mut self, virtuals: &[u64; CLASSES_MAX]) {
        for flow in &mut self.flows {
            flow.tag = flow.tag.saturating_sub(virtuals[flow.class]);
        }
        self.flows.retain(|flow| flow.tag > 0 || !flow.runs.is_empty());
    }
}
