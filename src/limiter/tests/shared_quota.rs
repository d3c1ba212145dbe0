//! An upstream whose quota others use, too, in virtual time: what they use is left to them, what they leave is used, and when they
//! stop, all of it is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::{Kind, Rule};
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::pause::PauseRequest;
use crate::limiter::model::upstream_report::Remaining;
use crate::limiter::tests::oracle::{LEASE, START, rule};

const LIMIT: u64 = 60;
const OTHERS: u64 = 30;
const SECOND: u64 = 1_000_000;
const GUARD: u64 = 10_000;
const REPLICAS: usize = 3;
const CLIENTS: usize = 60;
const HEARD_EVERY: Micros = Micros::from_millis(100);

/// Numbers that look random, the same in every run (Knuth's MMIX).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// How others come: so many, and the next ones so much later.
type Coming = fn(&mut Dice) -> (u64, u64);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ExternalUsage,
    /// A client asks its replica.
    Ask(usize),
    /// A client's slot is due, unless it has moved.
    Due(usize),
    /// A request of a slot reaches the upstream.
    Reach(usize, Micros),
    Answer(usize, Answered),
    /// A replica tells the store what it has heard last.
    Tell(usize),
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
    /// In order; the number tells apart what is to happen at one instant.
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    number: u64,
    book: LimiterState,
    rules: Arc<[Rule]>,
    /// The slot of each client that waits, and the generation under which it was booked.
    waiting: BTreeMap<usize, (Micros, u64)>,
    /// What the upstream counts of the last second; it refuses this fleet beyond its limit, and others never.
    used: VecDeque<Micros>,
    coming: Coming,
    until: Micros,
    passed: u64,
    refused: u64,
    /// How long a request is under way each way, by half more or less.
    latency: u64,
    /// What each replica has still to tell, and when it may.
    news: [Option<Remaining>; REPLICAS],
    tells: [Micros; REPLICAS],
}

impl World {
    /// ExternalUsage come until an instant.
    fn new(seed: u64, latency: u64, coming: Coming, until: Micros) -> World {
        let mut world = World {
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            now: START,
            events: BinaryHeap::new(),
            number: 0,
            book: LimiterState::default(),
            rules: [rule(LIMIT, SECOND + GUARD, 1, Kind::Sliding)].into(),
            waiting: BTreeMap::new(),
            used: VecDeque::new(),
            coming,
            until,
            passed: 0,
            refused: 0,
            latency,
            news: [None; REPLICAS],
            tells: [START; REPLICAS],
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
        self.book.open(self.now, &rules, LEASE, 1 + (client % REPLICAS) as u64);
    }

    /// Whoever holds a void slot fetches its place.
    fn fetch(&mut self) {
        let number = self.book.generation().number;
        let mut void: Vec<_> = self.waiting.iter().map(|(client, held)| (*held, *client)).collect();
        void.retain(|((_, known), _)| *known != number);
        void.sort_unstable();
        for ((slot, known), client) in void {
            let to = self.book.place(slot, 1, known, 0);
            if let Some(to) = to {
                self.book.fetch(slot, 1, 0);
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
                let mut search = self.book.search(now);
                let slot = search.earliest(1).at;
                search.charge(1);
                self.waiting.insert(client, (slot, self.book.generation().number));
                self.plan(slot, Event::Due(client));
                self.fetch();
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
            Event::Tell(replica) => {
                let Some(remaining) = self.news[replica].take() else { return };
                self.tells[replica] = now + HEARD_EVERY;
                self.open(replica);
                self.book.hear_remaining(now, &self.rules[0], &remaining);
                self.book.follow_others(now, LEASE);
                self.fetch();
            }
        }
    }

    fn answer(&mut self, client: usize, Answered { slot, left, is_refused }: Answered) {
        let (now, replica) = (self.now, client % REPLICAS);
        self.news[replica] = Some(Remaining { permits: left, per: Micros(SECOND), slot, took: now - slot });
        if is_refused {
            self.open(client);
            self.book.hear_refused(now, &[(slot, 1)]);
            let request = PauseRequest {
                wait: None,
                fallback: HEARD_EVERY,
                max: Micros(300 * SECOND),
                sent_ago: now - slot,
                jitter: self.dice.roll(1024),
                status: 429,
            };
            self.book.ask_pause(now, LEASE, &request, 1);
            self.fetch();
        }
        self.plan(now.max(self.tells[replica]), Event::Tell(replica));
        let again = now + Micros(self.dice.roll(1000));
        self.plan(again, Event::Ask(client));
    }

    /// What passes and what is refused between two instants, in seconds from the start.
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

/// Evenly, or all together once in a window.
const REGULAR: [Coming; 2] = [|_| (1, SECOND / OTHERS), |_| (OTHERS, SECOND)];

/// From a millisecond on a machine to another continent.
const LATENCIES: [u64; 3] = [500, 5000, 20_000];

#[test]
fn what_others_leave_is_used_and_no_more() {
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

/// Nobody knows how many will come next; but neither side starves.
#[test]
fn others_who_come_at_random_are_left_about_as_much() {
    let coming: Coming = |dice| (1, dice.roll(2 * SECOND / OTHERS));
    for seed in 0..20 {
        let (passed, refused) = World::new(seed, LATENCIES[1], coming, Micros(u64::MAX)).watch(4, 24);
        let left = 20 * (LIMIT - OTHERS);
        assert!(passed * 10 > left * 6, "{passed} of {left} used, seed {seed}");
        assert!(refused * 12 < passed, "{refused} of {passed} refused, seed {seed}");
    }
}

/// Those who wait move up.
#[test]
fn what_others_use_no_longer_is_used() {
    for (seed, coming) in (0..20).flat_map(|seed| REGULAR.map(|coming| (seed, coming))) {
        let mut world = World::new(seed, LATENCIES[0], coming, START + Micros(6 * SECOND));
        let (passed, refused) = world.watch(10, 20);
        assert!(passed > 10 * LIMIT * 92 / 100, "{passed} passed, seed {seed}");
        assert_eq!(refused, 0);
    }
}
