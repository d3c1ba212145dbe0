//! The model test of the line: the script on a real Redis returns the same as its twin in Rust, step by step.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::clock::Micros;
use crate::limiter::arithmetic::deal::deal;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::line::Line;
use crate::limiter::arithmetic::reserve;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::call::{Answer, Call};
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::line::{Dealt, LineCall, Unused, Waiting, Want};
use crate::limiter::model::pause::PauseRequest;
use crate::limiter::model::upstream_report::UpstreamReport;
use crate::redis::tests::lua_parity::{pause_request, rules};
use crate::redis::tests::{LEASE, START, TestStore, at, keep};

/// So many permits are booked ahead or wait at most where nothing changes, and so many in all states where something does, so that a change
/// moves all bookings at once.
const PERMITS_MAX: u64 = 120;
const MOVED_MAX: u64 = 48;

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Call(Box<Asking>),
    /// Gives the limiter at this place another set of rules.
    Change(usize, usize),
    Pause(PauseRequest),
}

#[derive(Clone, Debug)]
struct Asking {
    replica: u64,
    wants: Vec<Wanted>,
    /// How many of the slots that the replica holds are given back.
    unused: usize,
    places: u64,
    /// True if its answer arrives.
    is_heard: bool,
    begins: bool,
    refusal_budget: u64,
    lead: u64,
    expected: u64,
}

#[derive(Clone, Debug)]
struct Wanted {
    flow: u64,
    cost: u64,
    /// Age, time from the first to the last, longest wait, count.
    groups: Vec<(u64, u64, u64, u64)>,
    begins_with_known: bool,
    left: Vec<(u64, u64)>,
}

fn asking(flows: u64) -> impl Strategy<Value = Asking> {
    let wait = prop_oneof![Just(0), 1..20_000_000_u64, Just(60_000_000)];
    let age = prop_oneof![2 => 0..1000_u64, 1 => 0..3_000_000_u64];
    let span = prop_oneof![2 => Just(0), 1 => 0..2_000_000_u64];
    let groups = prop::collection::vec((age, span, wait, 1..9_u64), 0..4);
    let left = prop::collection::vec((0..3_000_000_u64, 1..4_u64), 0..3);
    let cost = prop_oneof![6 => Just(1), 2 => 2..4_u64, 1 => 1..60_u64];
    let is_known = prop::bool::weighted(0.3);
    let want =
        (0..flows, cost, groups, is_known, left).prop_map(|(flow, cost, groups, begins_with_known, left)| {
            Wanted { flow, cost, groups, begins_with_known, left }
        });
    (
        1..4_u64,
        prop::collection::vec(want, 0..5),
        prop_oneof![3 => Just(0), 1 => 1..6_usize],
        prop_oneof![1 => 0..5_u64, 2 => Just(1000)],
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.03),
        prop_oneof![Just(0), 0..500_u64],
        prop_oneof![3 => Just(0), 1 => 1..300_000_u64],
        prop_oneof![3 => Just(0), 1 => 1..4_000_000_u64],
    )
        .prop_map(
            |(replica, wants, unused, places, is_heard, begins, refusal_budget, lead, expected)| Asking {
                replica,
                wants,
                unused,
                places,
                is_heard,
                begins,
                refusal_budget,
                lead,
                expected,
            },
        )
}

fn step(flows: u64) -> impl Strategy<Value = Step> {
    let by =
        prop_oneof![4 => 0..150_000_u64, 2 => 0..2_000_000_u64, 1 => Just(10_000_000), 1 => Just(20_000_000)];
    prop_oneof![
        6 => by.prop_map(Step::Advance),
        12 => asking(flows).prop_map(|asking| Step::Call(Box::new(asking))),
        1 => (0..4_usize, any::<usize>()).prop_map(|(place, rules)| Step::Change(place, rules)),
        1 => pause_request().prop_map(Step::Pause),
    ]
}

/// The shape of a sequence: how many limiters, how many of them ceilings, and how far ahead slots are dealt.
#[derive(Clone, Copy, Debug)]
struct Shape {
    first: usize,
    books: usize,
    ceilings: usize,
    ahead: u64,
    /// True if limits change and pauses begin.
    has_changes: bool,
}

/// A replica, as the test knows it.
#[derive(Default)]
struct Replica {
    known: u64,
    generations: Vec<u64>,
    held: Vec<Dealt>,
}

/// The Rust side.
struct Model {
    now: Micros,
    shape: Shape,
    limiter_refs: Vec<LimiterRef>,
    states: Vec<LimiterState>,
    /// Until when each state exists, as the server notes it.
    lives_until: Vec<Micros>,
    line: Line,
    replicas: BTreeMap<u64, Replica>,
    /// The permits that wait, by replica, flow and cost.
    waiting: BTreeMap<(u64, u64, u64), u64>,
    /// The permits that were dealt and lie ahead.
    ahead: Vec<(Micros, u64)>,
}

impl Model {
    fn new(shape: Shape) -> Model {
        let limiter_ref = |index: usize| LimiterRef {
            name: LimiterName::parse(&format!("m{index}")).unwrap(),
            partition: None,
            valid_until: None,
            group: "model".into(),
            rules: rules(shape.first + index),
        };
        Model {
            now: Micros(START),
            shape,
            limiter_refs: (0..shape.books).map(limiter_ref).collect(),
            states: vec![LimiterState::default(); shape.books],
            lives_until: vec![Micros::ZERO; shape.books],
            line: Line::default(),
            replicas: BTreeMap::new(),
            waiting: BTreeMap::new(),
            ahead: Vec::new(),
        }
    }

    fn deal(&mut self, call: &Call) -> Answer {
        let refs = self.limiter_refs.iter().map(|one| one.rules.clone());
        let mut states: Vec<_> = self.states.iter_mut().zip(refs).collect();
        let asked = call.line.as_ref().unwrap();
        let answer = deal(self.now, LEASE, &mut states, &mut self.line, call, asked);
        (0..self.states.len())
            .for_each(|index| keep(self.now, &mut self.states[index], &mut self.lives_until[index]));
        if self.line.expires() <= self.now {
            self.line = Line::default();
        }
        answer
    }

    /// Returns what a request costs of each limiter: the same, or an own cost of each. A ceiling holds for some classes.
    fn costs(&self, wanted: &Wanted, class: usize) -> Vec<u64> {
        let limiters = self.shape.books - self.shape.ceilings;
        let own = |book: usize| {
            let times =
                if wanted.flow.is_multiple_of(3) && book < limiters { 1 + book as u64 % 3 } else { 1 };
            let is_free = book >= limiters && (class + book) % 2 == 1;
            if is_free { 0 } else { wanted.cost * times }
        };
        (0..self.shape.books).map(own).collect()
    }

    /// Returns a want of so many requests as fit.
    fn want(&mut self, replica: u64, wanted: &Wanted) -> Want {
        let class = usize::try_from(wanted.flow % 4).unwrap();
        let ahead: u64 =
            self.ahead.iter().filter(|(slot, _)| *slot > self.now).map(|(_, permits)| permits).sum();
        self.waiting.remove(&(replica, wanted.flow, wanted.cost));
        let costs = self.costs(wanted, class);
        let most = costs.iter().copied().fold(1, u64::max);
        let permits_max =
            if self.shape.has_changes { MOVED_MAX / self.shape.books as u64 } else { PERMITS_MAX };
        let mut left = permits_max.saturating_sub(ahead + self.waiting.values().sum::<u64>()) / most;
        let mut waiting = Vec::new();
        let mut groups = wanted.groups.clone();
        groups.sort_by_key(|(age, ..)| std::cmp::Reverse(*age));
        for (age, span, wait, count) in groups {
            let count = count.min(left);
            left -= count;
            if count > 0 {
                let (newest, oldest) = (Micros(age), Micros(age + if count > 1 { span } else { 0 }));
                waiting.push(Waiting { oldest, newest, wait_max: Micros(wait), count });
            }
        }
        let count: u64 = waiting.iter().map(|group| group.count).sum();
        self.waiting.insert((replica, wanted.flow, wanted.cost), count * most);
        Want {
            flow: 100 + wanted.flow,
            class,
            weight: 1 + wanted.flow % 5,
            costs,
            waiting,
            begins_with_known: wanted.begins_with_known,
            left: wanted.left.iter().map(|(age, count)| (Micros(*age), *count)).collect(),
        }
    }

    fn call(&mut self, asking: &Asking) -> Call {
        let mut wants: Vec<Want> = Vec::new();
        for wanted in &asking.wants {
            let want = self.want(asking.replica, wanted);
            if !wants.iter().any(|other| (other.flow, &other.costs) == (want.flow, &want.costs)) {
                wants.push(want);
            }
        }
        let Shape { books, ceilings, ahead, .. } = self.shape;
        let replica = self.replicas.entry(asking.replica).or_default();
        replica.generations.resize(books, 0);
        let unused = replica.held.drain(..asking.unused.min(replica.held.len()));
        let unused = unused.map(|Dealt { flow, class, slot, count, costs }| Unused {
            flow,
            class,
            slot,
            count,
            costs,
        });
        let line = LineCall {
            ahead: Micros(ahead),
            ceilings,
            known: replica.known,
            begins: asking.begins,
            places: [asking.places; 4],
            unused: unused.collect(),
            expected: if asking.expected > 0 { vec![asking.expected; books] } else { Vec::new() },
            wants,
        };
        Call {
            replica: asking.replica,
            generations: replica.generations.clone(),
            refusal_budget: asking.refusal_budget,
            lead: Micros(asking.lead),
            line: Some(Box::new(line)),
            ..Call::default()
        }
    }

    /// Takes in an answer, which may not arrive.
    fn hear(&mut self, asking: &Asking, answer: &Answer) {
        let line = answer.line.as_ref().unwrap();
        for dealt in &line.dealt {
            assert!(dealt.slot <= answer.now + Micros(self.shape.ahead), "{dealt:?}");
            self.ahead.push((dealt.slot, dealt.count * dealt.costs.iter().max().unwrap()));
        }
        self.ahead.retain(|(slot, _)| *slot > answer.now);
        let replica = self.replicas.entry(asking.replica).or_default();
        if asking.is_heard {
            replica.known = line.deal;
            replica.generations = answer.generations.iter().map(|generation| generation.number).collect();
            replica.held.retain(|dealt| dealt.slot >= answer.now);
            replica.held.extend(line.dealt.iter().cloned());
        }
    }
}

fn run(model: &mut Model, store: &mut TestStore, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Advance(by) => model.now = model.now + Micros(*by),
            Step::Change(..) | Step::Pause(_) if !model.shape.has_changes => {}
            Step::Change(place, index) => {
                let place = place % model.limiter_refs.len();
                model.limiter_refs[place].rules = rules(*index);
            }
            Step::Pause(request) => {
                let report = UpstreamReport {
                    replica: 1,
                    known_epoch: 0,
                    pause: Some(*request),
                    refused: Vec::new(),
                    cost: 0,
                    remaining: Vec::new(),
                };
                let (state, limiter_ref) = (&mut model.states[0], &model.limiter_refs[0]);
                state.open(model.now, &limiter_ref.rules, LEASE, 1);
                let expected = reserve::report_upstream(state, model.now, LEASE, limiter_ref, &report);
                let found = store.report_upstream(&at(model.now), limiter_ref, &report);
                keep(model.now, &mut model.states[0], &mut model.lives_until[0]);
                assert_eq!(found, expected);
            }
            Step::Call(asking) => {
                let call = model.call(asking);
                let found = store.deal(&at(model.now), &model.limiter_refs, &call, 0).unwrap();
                let mut expected = model.deal(&call);
                if has_dealt_less(&expected, &found, model.now) {
                    return;
                }
                leave_untold(&mut expected, &found);
                assert_eq!(found, expected, "{call:#?}");
                model.hear(asking, &found);
            }
        }
    }
}

/// Returns whether the script has left slots to the next call because it has done too much: the twin does not count that.
fn has_dealt_less(expected: &Answer, found: &Answer, now: Micros) -> bool {
    let (Some(expected), Some(found)) = (&expected.line, &found.line) else { return false };
    let is_cut = found.again == now && found.dealt.len() < expected.dealt.len();
    is_cut && expected.dealt.starts_with(&found.dealt)
}

/// Takes out how long the last requests wait where the script has done too much to tell: the twin does not count that.
fn leave_untold(expected: &mut Answer, found: &Answer) {
    let (Some(expected), Some(found)) = (&mut expected.line, &found.line) else { return };
    for (expected, found) in expected.lasts.iter_mut().zip(&found.lasts) {
        expected.take_if(|_| found.is_none());
    }
}

fn compare(cases: u32, flows: u64) {
    let store = RefCell::new(TestStore::start());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let shape = (0..21_usize, 1..4_usize, 0..3_usize, 50_000..1_000_001_u64, any::<bool>()).prop_map(
        |(first, books, ceilings, ahead, has_changes)| Shape {
            first,
            books,
            ceilings: ceilings.min(books - 1),
            ahead,
            has_changes,
        },
    );
    runner
        .run(&(shape, prop::collection::vec(step(flows), 1..40)), |(shape, steps)| {
            let store = &mut *store.borrow_mut();
            store.flush();
            run(&mut Model::new(shape), store, &steps);
            Ok(())
        })
        .unwrap();
}

#[test]
fn lua_deals_as_rust_does() {
    std::thread::scope(|scope| {
        scope.spawn(|| compare(400, 9));
        scope.spawn(|| compare(200, 100));
    });
}

#[test]
#[ignore = "takes minutes"]
fn lua_deals_as_rust_does_in_ten_thousand_sequences() {
    std::thread::scope(|scope| {
        scope.spawn(|| compare(5000, 9));
        scope.spawn(|| compare(5000, 100));
    });
}
