//! Simulates an upstream whose quota others use, too, in virtual time. Their use is left to them, the rest is used, and when they
//! stop, all of it is used.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::moving::place_void;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{PauseRequest, Remaining};
use crate::limiter::tests::oracle::{LEASE, SLIDING, START, rule};

const LIMIT: u64 = 60;
const OTHERS: u64 = 30;
const SECOND: u64 = 1_000_000;
const GUARD: u64 = 10_000;
const REPLICAS: usize = 3;
const CLIENTS: usize = 60;
const REPORT_EVERY: Micros = Micros::from_millis(100);

/// Numbers that look random, the same in every run (Knuth's MMIX).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// The arrivals of others: how many come at once, and how much later the next ones.
type Coming = fn(&mut Dice) -> (u64, u64);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ExternalUsage,
    /// A client asks its replica.
    Ask(usize),
    /// A client's slot is due, unless the slot has moved.
    Due(usize),
    /// A request of a slot reaches the upstream.
    Reach(usize, Micros),
    Answer(usize, Answered),
    /// A replica reports the last answer to the store.
    Report(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Answered {
    slot: Micros,
    left: u64,
    is_refused: bool,
}

struct World {
    dice: Dice,
    now: Micros,
    /// The events in order of time; the number orders the events of one instant.
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    number: u64,
    state: LimiterState,
    rules: Arc<[Rule]>,
    /// The slot of each waiting client, and its generation.
    waiting: BTreeMap<usize, (Micros, u64)>,
    /// The requests that the upstream counts in the last second. It rejects those of the fleet beyond its limit, and never others.
    used: VecDeque<Micros>,
    coming: Coming,
    until: Micros,
    passed: u64,
    refused: u64,
    /// The latency of a request each way, by half more or less.
    latency: u64,
    /// The answer that each replica has still to report, and when it may.
    reports: [Option<Remaining>; REPLICAS],
    reports_at: [Micros; REPLICAS],
}

impl World {
    /// Begins a simulation in which others come until an instant.
    fn new(seed: u64, latency: u64, coming: Coming, until: Micros) -> World {
        let mut world = World {
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            now: START,
            events: BinaryHeap::new(),
            number: 0,
            state: LimiterState::default(),
            rules: [rule(LIMIT, SECOND + GUARD, 1, SLIDING)].into(),
            waiting: BTreeMap::new(),
            used: VecDeque::new(),
            coming,
            until,
            passed: 0,
            refused: 0,
            latency,
            reports: [None; REPLICAS],
            reports_at: [START; REPLICAS],
        };
        world.plan(START, Event::ExternalUsage);
        for client in 0..CLIENTS {
            let at = START + Micros(world.dice.roll(20_000));
            world.plan(at, Event::Ask(client));
        }
        world
    }

    fn plan(&mut self, at: Micros, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, event)));
    }

    fn under_way(&mut self) -> Micros {
        Micros(self.latency / 2 + self.dice.roll(self.latency))
    }

    fn open(&mut self, client: usize) {
        let rules = self.rules.clone();
        self.state.open(self.now, &rules, LEASE, 1 + (client % REPLICAS) as u64);
    }

    /// Claims the new place of each void slot.
    fn claim(&mut self) {
        place_void(self.now, &mut [(&mut self.state, self.rules.clone())]);
        let number = self.state.generation().number;
        let mut void: Vec<_> = self.waiting.iter().map(|(client, held)| (*held, *client)).collect();
        void.retain(|((_, known), _)| *known != number);
        void.sort_unstable();
        for ((slot, known), client) in void {
            let mut cursor = self.state.cursor(slot, known);
            let to = self.state.seek(&mut cursor, 0, 1);
            if let Some(to) = to {
                self.state.claim(&mut cursor, 1);
                self.plan(to, Event::Due(client));
            }
            self.waiting.insert(client, (to.unwrap_or(slot), number));
        }
    }

    fn used(&mut self) -> u64 {
        while self.used.front().is_some_and(|at| *at + Micros(SECOND) <= self.now) {
            self.used.pop_front();
        }
        self.used.len() as u64
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::ExternalUsage => {
                let (count, after) = (self.coming)(&mut self.dice);
                self.used.extend((0..count).map(|_| now));
                if now + Micros(after) < self.until {
                    self.plan(now + Micros(after), Event::ExternalUsage);
                }
            }
            Event::Ask(client) => {
                self.open(client);
                place_void(now, &mut [(&mut self.state, self.rules.clone())]);
                let mut search = self.state.search(now);
                let slot = search.earliest(1).at;
                search.charge(1);
                self.waiting.insert(client, (slot, self.state.generation().number));
                self.plan(slot, Event::Due(client));
                self.claim();
            }
            Event::Due(client) => {
                if self.waiting.get(&client).is_some_and(|(slot, _)| *slot == now) {
                    self.waiting.remove(&client);
                    let reached = now + Micros(self.dice.roll(2000)) + self.under_way();
                    self.plan(reached, Event::Reach(client, now));
                }
            }
            Event::Reach(client, slot) => {
                let is_refused = self.used() >= LIMIT;
                if is_refused {
                    self.refused += 1;
                } else {
                    self.passed += 1;
                    self.used.push_back(now);
                }
                let answered = Answered { slot, left: LIMIT.saturating_sub(self.used()), is_refused };
                let answered_at = now + self.under_way();
                self.plan(answered_at, Event::Answer(client, answered));
            }
            Event::Answer(client, answered) => self.answer(client, answered),
            Event::Report(replica) => {
                let Some(remaining) = self.reports[replica].take() else { return };
                self.reports_at[replica] = now + REPORT_EVERY;
                self.open(replica);
                self.state.observe_remaining(now, &self.rules[0], &remaining);
                self.state.follow_external_usage(now, LEASE);
                self.claim();
            }
        }
    }

    fn answer(&mut self, client: usize, Answered { slot, left, is_refused }: Answered) {
        let (now, replica) = (self.now, client % REPLICAS);
        self.reports[replica] =
            Some(Remaining { permits: left, per: Micros(SECOND), slot, took: now - slot });
        if is_refused {
            self.open(client);
            self.state.observe_refused(now, &[(slot, 1)]);
            let request = PauseRequest {
                wait: None,
                fallback: REPORT_EVERY,
                max: Micros(300 * SECOND),
                sent_ago: now - slot,
                jitter: self.dice.roll(1024),
                status: 429,
                made_ago: Micros::ZERO,
            };
            self.state.ask_pause(now, LEASE, &request, 1);
            self.claim();
        }
        self.plan(now.max(self.reports_at[replica]), Event::Report(replica));
        let again = now + Micros(self.dice.roll(1000));
        self.plan(again, Event::Ask(client));
    }

    /// Returns how many requests pass and are rejected between two instants, in seconds from the start.
    fn watch(&mut self, from: u64, until: u64) -> (u64, u64) {
        self.run(from);
        let before = (self.passed, self.refused);
        self.run(until);
        (self.passed - before.0, self.refused - before.1)
    }

    fn run(&mut self, until: u64) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            self.happen(event);
            if at >= START + Micros(until * SECOND) {
                return;
            }
        }
    }
}

/// Others come evenly, or all together once in a window.
const REGULAR: [Coming; 2] = [|_| (1, SECOND / OTHERS), |_| (OTHERS, SECOND)];

/// The latencies of requests, from a local one to another continent.
const LATENCIES: [u64; 3] = [500, 5000, 20_000];

#[test]
fn the_rest_of_the_quota_is_used_and_no_more() {
    const SEEDS: u64 = 20;
    let left = 10 * (LIMIT - OTHERS);
    for (latency, coming) in LATENCIES.into_iter().flat_map(|latency| REGULAR.map(|coming| (latency, coming)))
    {
        let mut all = (0, 0);
        for seed in 0..SEEDS {
            let (passed, refused) = World::new(seed, latency, coming, Micros(u64::MAX)).watch(4, 14);
            assert!(passed * 100 > left * 85, "{passed} of {left} used, seed {seed}, latency {latency}");
            assert!(refused <= OTHERS, "{refused} refused, seed {seed}, latency {latency}");
            all = (all.0 + passed, all.1 + refused);
        }
        let (passed, refused) = all;
        assert!(passed * 100 > SEEDS * left * 92, "{passed} of {left} in all, latency {latency}");
        assert!(refused * 1000 <= passed, "{refused} refused in all, latency {latency}");
    }
}

/// Others come at random, so their next use is unknown, but neither side starves.
#[test]
fn random_external_usage_is_left_about_as_much() {
    let coming: Coming = |dice| (1, dice.roll(2 * SECOND / OTHERS));
    for seed in 0..20 {
        let (passed, refused) = World::new(seed, LATENCIES[1], coming, Micros(u64::MAX)).watch(4, 24);
        let left = 20 * (LIMIT - OTHERS);
        assert!(passed * 10 > left * 6, "{passed} of {left} used, seed {seed}");
        assert!(refused * 12 < passed, "{refused} of {passed} refused, seed {seed}");
    }
}

/// Waiting requests move up.
#[test]
fn quota_that_others_stop_using_is_used() {
    for (seed, coming) in (0..20).flat_map(|seed| REGULAR.map(|coming| (seed, coming))) {
        let mut world = World::new(seed, LATENCIES[0], coming, START + Micros(6 * SECOND));
        let (passed, refused) = world.watch(10, 20);
        assert!(passed > 10 * LIMIT * 92 / 100, "{passed} passed, seed {seed}");
        assert_eq!(refused, 0);
    }
}
