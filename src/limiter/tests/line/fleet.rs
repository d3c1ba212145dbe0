//! A fleet that calls a store in memory for its line, as workers do, in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::clock::{Clock, Micros};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{
    Call, FLOW_MIN, Limit, Limiter, LimiterName, LineCall, NotTaken, Unused, Waiting, Want,
};
use crate::limiter::store::memory::MemoryStore;

/// How often the fleet looks at its clock.
pub(super) const TICK: Micros = Micros::from_millis(1);
pub(super) const SECOND: u64 = 1_000_000;
pub(super) const AHEAD: Micros = Micros::from_millis(250);

/// A flow: its number, class and weight, and what a request costs.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) id: u64,
    pub(super) class: usize,
    pub(super) weight: u64,
    pub(super) costs: Vec<u64>,
}

pub(super) fn flow(index: u64, class: usize, weight: u64) -> Flow {
    Flow { id: FLOW_MIN + index, class, weight, costs: vec![1] }
}

/// A slot that was used, and when its request came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) slot: Micros,
    pub(super) flow: u64,
    pub(super) came: Micros,
    pub(super) cost: u64,
}

#[derive(Default)]
pub(super) struct Replica {
    pub(super) id: u64,
    /// The requests without a slot, by flow.
    pub(super) waiting: BTreeMap<u64, VecDeque<Micros>>,
    /// How many of each flow the store knows of.
    pub(super) told: BTreeMap<u64, usize>,
    pub(super) left: BTreeMap<u64, Vec<Micros>>,
    pub(super) known: u64,
    pub(super) again: Option<Micros>,
    pub(super) is_silent: bool,
}

/// Replicas that share limiters.
pub(super) struct Fleet {
    pub(super) now: Micros,
    pub(super) store: MemoryStore,
    pub(super) refs: Vec<LimiterRef>,
    pub(super) ceilings: usize,
    pub(super) flows: BTreeMap<u64, Flow>,
    pub(super) replicas: Vec<Replica>,
    pub(super) wait_max: Micros,
    pub(super) served: Vec<Served>,
    pub(super) refused: Vec<NotTaken>,
    pub(super) calls: usize,
    pub(super) late: usize,
}

impl Fleet {
    pub(super) fn new(limiters: &[Vec<Limit>], ceilings: usize, flows: &[Flow], replicas: u64) -> Fleet {
        let refs = limiters.iter().enumerate().map(|(index, limits)| {
            let name = LimiterName::parse(&format!("l{index}")).unwrap();
            let limiter = Limiter { guard: Duration::ZERO, ..Limiter::new(name, limits.clone()) };
            LimiterRef::new(&limiter, None, Micros::ZERO)
        });
        Fleet {
            now: Micros(1_800_000_000_000_000),
            store: MemoryStore::new(Clock::start()),
            refs: refs.collect(),
            ceilings,
            flows: flows.iter().map(|flow| (flow.id, flow.clone())).collect(),
            replicas: (0..replicas).map(|id| Replica { id: id + 1, ..Replica::default() }).collect(),
            wait_max: Micros::from_millis(3_600_000),
            served: Vec::new(),
            refused: Vec::new(),
            calls: 0,
            late: 0,
        }
    }

    pub(super) fn arrive(&mut self, replica: usize, flow: u64, count: usize) {
        let waiting = self.replicas[replica].waiting.entry(FLOW_MIN + flow).or_default();
        waiting.extend(std::iter::repeat_n(self.now, count));
    }

    /// Lets some requests of a flow leave, as they came.
    pub(super) fn leave(&mut self, replica: usize, flow: u64, goes: impl Fn(usize) -> bool) {
        let Replica { waiting, left, again, .. } = &mut self.replicas[replica];
        let waiting = waiting.entry(FLOW_MIN + flow).or_default();
        let (gone, kept): (Vec<_>, Vec<_>) =
            waiting.iter().copied().enumerate().partition(|(place, _)| goes(*place));
        *waiting = kept.into_iter().map(|(_, came)| came).collect();
        left.entry(FLOW_MIN + flow).or_default().extend(gone.into_iter().map(|(_, came)| came));
        *again = Some(self.now);
    }

    pub(super) fn wants(&mut self, index: usize) -> Vec<Want> {
        let (now, wait_max) = (self.now, self.wait_max);
        let Replica { waiting, told, left, .. } = &mut self.replicas[index];
        let mut wants = Vec::new();
        for (id, waiting) in waiting {
            let Flow { class, weight, costs, .. } = &self.flows[id];
            let mut groups: Vec<Waiting> = Vec::new();
            for came in waiting.iter() {
                let ago = now - *came;
                match groups.last_mut() {
                    Some(group)
                        if group.newest == ago
                            || told.get(id).is_some_and(|told| group.count < *told as u64) =>
                    {
                        (group.newest, group.count) = (ago, group.count + 1);
                    }
                    _ => groups.push(Waiting { oldest: ago, newest: ago, wait_max, count: 1 }),
                }
            }
            let left = left.remove(id).unwrap_or_default();
            let left = left.into_iter().map(|came| (now - came, 1)).collect();
            told.insert(*id, waiting.len());
            wants.push(Want {
                flow: *id,
                class: *class,
                weight: *weight,
                costs: costs.clone(),
                waiting: groups,
                begins_with_known: false,
                left,
            });
        }
        wants
    }

    pub(super) fn call(&mut self, index: usize, unused: Vec<Unused>) {
        self.calls += 1;
        let wants = self.wants(index);
        let replica = &mut self.replicas[index];
        let line = LineCall {
            ahead: AHEAD,
            ceilings: self.ceilings,
            known: replica.known,
            begins: replica.known == 0,
            places: [100_000; 4],
            unused,
            expected: Vec::new(),
            wants: wants.clone(),
        };
        let generations = vec![0; self.refs.len()];
        let call = Call { replica: replica.id, generations, line: Some(Box::new(line)), ..Call::default() };
        let answer = self.store.reserve_at(self.now, &self.refs, &call).line.unwrap();
        replica.known = answer.deal;
        replica.again = Some(answer.again).filter(|again| *again > Micros::ZERO);
        let mut unused = Vec::new();
        for dealt in &answer.dealt {
            assert!(dealt.slot <= self.now + AHEAD);
            for _ in 0..dealt.count {
                let waiting = replica.waiting.get_mut(&dealt.flow).unwrap();
                let is_late = dealt.slot < self.now;
                match waiting.pop_front_if(|_| !is_late) {
                    Some(came) => {
                        let cost = dealt.costs[0];
                        self.served.push(Served { slot: dealt.slot, flow: dealt.flow, came, cost });
                    }
                    None => {
                        let class = self.flows[&dealt.flow].class;
                        let costs = dealt.costs.clone();
                        unused.push(Unused { flow: dealt.flow, class, slot: dealt.slot, count: 1, costs });
                        self.late += usize::from(is_late);
                    }
                }
            }
        }
        for refused in &answer.not_taken {
            let waiting = replica.waiting.get_mut(&wants[refused.want].flow).unwrap();
            waiting.truncate(waiting.len() - usize::try_from(refused.count).unwrap());
            self.refused.push(*refused);
        }
        for (flow, waiting) in &replica.waiting {
            replica.told.insert(*flow, waiting.len());
        }
        if !unused.is_empty() {
            self.call(index, unused);
        }
    }

    /// Lets so much time pass, in which `each` lets requests come.
    pub(super) fn run(&mut self, micros: u64, mut each: impl FnMut(&mut Fleet)) {
        let end = self.now + Micros(micros);
        while self.now < end {
            self.now = self.now + TICK;
            each(self);
            for index in 0..self.replicas.len() {
                let replica = &self.replicas[index];
                // Requests behind others of their flow are told of a little later, so that a call tells of several.
                let is_new = replica.waiting.iter().any(|(flow, waiting)| {
                    let told = replica.told.get(flow).copied().unwrap_or_default();
                    let is_old = |came: &Micros| *came + Micros(AHEAD.0 / 10) <= self.now;
                    waiting.get(told).is_some_and(|came| told == 0 || is_old(came))
                });
                if !replica.is_silent && (is_new || replica.again.is_some_and(|again| again <= self.now)) {
                    self.call(index, Vec::new());
                }
            }
        }
    }

    /// Returns how many permits each flow was given between two instants after the beginning.
    pub(super) fn given(&self, from: Micros, till: Micros) -> BTreeMap<u64, u64> {
        let mut given = BTreeMap::new();
        for served in self.served.iter().filter(|served| served.slot >= from && served.slot < till) {
            *given.entry(served.flow - FLOW_MIN).or_default() += served.cost;
        }
        given
    }

    /// Returns the most permits of some flows in a window of that length.
    pub(super) fn fullest(&self, window: Micros, is_one: impl Fn(&Served) -> bool) -> u64 {
        let mut slots: Vec<(Micros, u64)> = self
            .served
            .iter()
            .filter(|served| is_one(served))
            .map(|served| (served.slot, served.cost))
            .collect();
        slots.sort_unstable();
        let (mut first, mut held, mut most) = (0, 0, 0);
        for (at, cost) in &slots {
            held += cost;
            while slots[first].0 + window <= *at {
                held -= slots[first].1;
                first += 1;
            }
            most = most.max(held);
        }
        most
    }

    /// Returns that part of the waits of a flow which no more than `per_mille` of its requests exceed.
    pub(super) fn wait(&self, flow: u64, per_mille: usize) -> Micros {
        let mut waits: Vec<Micros> = self
            .served
            .iter()
            .filter(|served| served.flow == FLOW_MIN + flow)
            .map(|served| served.slot - served.came)
            .collect();
        waits.sort_unstable();
        waits[(waits.len() * per_mille / 1000).min(waits.len() - 1)]
    }
}
