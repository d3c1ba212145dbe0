//! The model test: the scripts on a real Redis return the same as their twins in Rust, step by step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket;
use crate::limiter::arithmetic::algorithm::fixed_window::FixedWindow;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::algorithm::warm_up;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::{self, reserve};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::calendar_windows::Stretch;
use crate::limiter::model::call::{Answer, Call, Holding, Outcome, Run};
use crate::limiter::model::generations::Generations;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::pause::PauseRequest;
use crate::limiter::model::upstream_report::{Remaining, ReportResult, UpstreamReport};
use crate::limiter::store::StateView;
use crate::redis::tests::{LEASE, START, TestStore, at, keep, rounding};

#[derive(Clone, Debug)]
pub(super) enum Step {
    Advance(u64),
    Reserve {
        limiter_refs: usize,
        runs: Vec<(u64, u64, u64)>,
        not_new: (usize, usize),
        lead: u64,
        queue_slots_left: u64,
        refusal_budget: u64,
    },
    /// Gives back so many of the holding at this place, modulo how many there are.
    GiveBack(usize, u64),
    /// Gives the limiter another set of rules.
    Change(usize),
    /// Another replica calls from here on.
    Replica(u64),
    /// An upstream signals something about the quota of one limiter.
    Report {
        limiter_ref: usize,
        pause: Option<PauseRequest>,
        refused: Vec<(u64, u64)>,
        cost: u64,
        remaining: Option<(u64, u64, u64, u64)>,
    },
}

/// Rate, window, cell and kind of a rule.
type Given = (u64, u64, u64, GivenKind);

#[derive(Clone, Copy)]
enum GivenKind {
    Sliding,
    Bucket(u64),
    /// Windows of this length; 40 s after the start of the other one.
    Fixed(u64, u64),
    /// The warm-up and `cold`.
    WarmUp(u64, u64),
}
use GivenKind::{Bucket, Fixed, Sliding, WarmUp};

/// Windows are long, so that no key expires by the server's clock while a sequence runs.
const RULES: &[&[Given]] = &[
    &[(10, 10_000_000, 1, Sliding)],
    &[(3, 10_000_000, 1, Sliding)],
    &[(20, 10_000_000, 1, Sliding), (50, 47_000_000, 1, Sliding)],
    &[(1000, 10_100_000, 39_062, Sliding)],
    &[(7, 11_000_000, 1, Sliding), (300, 100_000_000, 390_625, Sliding)],
    &[(7, 10_000_001, 1, Bucket(12))],
    &[(7, 10_000_001, 1, Bucket(1))],
    &[(3, 11_000_000, 1, Bucket(50))],
    &[(999_983, 10_239_062, 39_062, Bucket(500_000))],
    &[(1000, 10_139_062, 39_062, Bucket(1))],
    &[(10, 10_100_000, 1, Fixed(10_000_000, 3_000_000))],
    &[(500, 30_100_000, 117_187, Fixed(30_000_000, 30_000_000))],
    &[
        (5, 10_100_000, 1, Bucket(3)),
        (12, 20_100_000, 1, Fixed(20_000_000, 7_000_000)),
        (9, 15_000_000, 1, Sliding),
    ],
    &[
        (7, 10_000_001, 1, Bucket(20)),
        (400, 60_000_000, 234_375, Sliding),
        (400, 61_000_000, 234_375, Bucket(400)),
    ],
    &[(7, 10_000_001, 1, WarmUp(10_000_000, 3))],
    &[(31, 10_000_003, 1, WarmUp(3_000_001, 100)), (7, 10_000_001, 1, Bucket(12))],
    &[(1000, 10_139_062, 39_062, WarmUp(30_000_000, 7))],
    &[(999_983, 10_239_062, 39_062, WarmUp(777_777, 2)), (300, 47_000_000, 1, Sliding)],
    &[(1000, 10_110_000, 5_000, Bucket(1))],
    &[(9000, 10_110_000, 5_000, Bucket(10)), (9, 15_000_000, 1, Sliding)],
    &[(1000, 10_110_000, 5_000, WarmUp(3_000_000, 7))],
];

pub(super) fn rules(index: usize) -> Arc<[Rule]> {
    let rule = |&(rate, window, cell, kind): &Given| {
        let kind = match kind {
            Sliding => Kind::SlidingWindow(SlidingWindow),
            Bucket(burst) => Kind::Bucket(bucket::Bucket { burst }),
            WarmUp(warm_up, cold) => Kind::WarmUp(warm_up::WarmUp { warm_up: Micros(warm_up), cold }),
            Fixed(length, later) => {
                let stretch = |start, length| Stretch { start: Micros(start), length: Micros(length) };
                let stretches =
                    [stretch(START - 3_700_000, length), stretch(START + 40_000_000, later)].into();
                Kind::FixedWindow(FixedWindow { guard: Micros(100_000), stretches })
            }
        };
        Rule { rate, window: Micros(window), cell: Micros(cell), kind }
    };
    RULES[index % RULES.len()].iter().map(rule).collect()
}

fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![8 => 1..4_u64, 1 => 1..121_u64];
    let run = (cost, prop_oneof![Just(0), 1..20_000_000_u64, Just(60_000_000)], 1..12_u64);
    prop_oneof![
        3 => prop_oneof![0..3_u64, 0..2_000_000_u64, Just(600_000), Just(10_000_000), Just(1_000_000_000)]
            .prop_map(Step::Advance),
        6 => (
            1..=2_usize,
            prop::collection::vec(run, 0..4),
            prop_oneof![3 => Just((0, 0)), 1 => (0..3_usize, 0..2_usize)],
            prop_oneof![3 => Just(0), 1 => 1..500_000_u64],
            0..30_u64,
            prop_oneof![Just(0), 0..500_u64],
        )
            .prop_map(|(limiter_refs, runs, not_new, lead, queue_slots_left, refusal_budget)| {
                Step::Reserve { limiter_refs, runs, not_new, lead, queue_slots_left, refusal_budget }
            }),
        2 => (any::<usize>(), 1..5_u64).prop_map(|(holding, count)| Step::GiveBack(holding, count)),
        1 => any::<usize>().prop_map(Step::Change),
        1 => (1..4_u64).prop_map(Step::Replica),
        1 => report_upstream(),
    ]
}

/// Returns requests for a pause; the shortest named wait is a microsecond.
pub(super) fn pause_request() -> impl Strategy<Value = PauseRequest> {
    let wait = prop_oneof![Just(None), prop_oneof![1..100_u64, 1..30_000_000_u64].prop_map(Some)];
    let status = prop_oneof![Just(429), Just(503)];
    let made_ago = prop_oneof![2 => Just(0), 1 => 1..20_000_000_u64];
    let request = (wait, 0..3_000_000_u64, 0..1100_u64, status, made_ago);
    request.prop_map(|(wait, sent_ago, jitter, status, made_ago)| PauseRequest {
        wait: wait.map(Micros),
        fallback: Micros(700_000),
        max: Micros(20_000_000),
        sent_ago: Micros(sent_ago),
        jitter,
        status,
        made_ago: Micros(made_ago),
    })
}

fn report_upstream() -> impl Strategy<Value = Step> {
    let pause = prop::option::of(pause_request());
    let refused = prop::collection::vec((slot_ago(), 1..20_u64), 0..3);
    let cost = prop_oneof![3 => Just(0), 1 => 1..20_u64, 1 => 20..121_u64];
    let remaining = prop::option::of((0..30_u64, 1..20_000_000_u64, slot_ago(), 0..1_000_000_u64));
    (0..2_usize, pause, refused, cost, remaining).prop_map(
        |(limiter_ref, pause, refused, cost, remaining)| Step::Report {
            limiter_ref,
            pause,
            refused,
            cost,
            remaining,
        },
    )
}

/// Returns the age of a slot; most limits look further back.
fn slot_ago() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_000_000_u64, 0..20_000_000_u64]
}

/// The Rust side, and the slots that its caller holds.
pub(super) struct Model {
    pub(super) now: Micros,
    replica: u64,
    pub(super) limiter_refs: Vec<LimiterRef>,
    /// The most permits that are ahead in all states.
    ahead_max: u64,
    states: Vec<LimiterState>,
    /// Until when each state exists, as the server notes it.
    lives_until: Vec<Micros>,
    orders: BTreeMap<usize, QueueOrder>,
    /// For each number of limiters taken at once: the generations that the caller knows, and the slots that it holds.
    generations: BTreeMap<usize, Vec<u64>>,
    held: BTreeMap<usize, Vec<Holding>>,
}

impl Model {
    pub(super) fn new(first: usize) -> Model {
        let limiter_ref = |name: &str, index| LimiterRef {
            name: LimiterName::parse(name).unwrap(),
            partition: None,
            valid_until: None,
            group: "model".into(),
            rules: rules(index),
        };
        Model {
            now: Micros(START),
            replica: 1,
            limiter_refs: vec![limiter_ref("a", first), limiter_ref("b", first + 1)],
            ahead_max: AHEAD_MAX,
            states: vec![LimiterState::default(), LimiterState::default()],
            lives_until: vec![Micros::ZERO; 2],
            orders: BTreeMap::new(),
            generations: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// Returns the permits that are booked ahead in all states, or may come to lie ahead where a pause moves them: those that nobody holds
    /// any more, too.
    fn ahead(&self) -> u64 {
        let longest_cell = Micros(400_000);
        let permits = |state: &LimiterState| {
            let entries = state.timeline().entries().iter();
            let ahead = entries.filter(|entry| entry.at + longest_cell >= self.now);
            state.void_permits() + ahead.map(|entry| entry.permits).sum::<u64>()
        };
        self.states.iter().map(permits).sum()
    }

    pub(super) fn reserve(&mut self, count: usize, call: &Call) -> Answer {
        let mut order = self.orders.remove(&count).unwrap_or_default();
        let mut states: Vec<_> = self
            .states
            .iter_mut()
            .zip(&self.limiter_refs)
            .take(count)
            .map(|(state, limiter_ref)| (state, limiter_ref.rules.clone()))
            .collect();
        let answer = reserve(self.now, LEASE, &mut states, &mut order, call);
        (0..count).for_each(|index| keep(self.now, &mut self.states[index], &mut self.lives_until[index]));
        if order.expires() > self.now {
            self.orders.insert(count, order);
        }
        answer
    }

    fn report_upstream(&mut self, index: usize, report: &UpstreamReport) -> ReportResult {
        let (state, limiter_ref) = (&mut self.states[index], &self.limiter_refs[index]);
        state.open(self.now, &limiter_ref.rules, LEASE, report.replica);
        let result = reserve::report_upstream(state, self.now, LEASE, limiter_ref, report);
        keep(self.now, &mut self.states[index], &mut self.lives_until[index]);
        result
    }

    fn inspect(&self, index: usize) -> StateView {
        let (now, state, limiter_ref) = (self.now, &self.states[index], &self.limiter_refs[index]);
        let last = state.timeline().last().unwrap_or_default();
        StateView { now, last, pause: state.pause(now), available: state.available(now, &limiter_ref.rules) }
    }
}

/// Compares on both sides a report of an upstream's answers.
fn both_report(model: &mut Model, store: &mut TestStore, index: usize, report: &UpstreamReport) {
    let expected = model.report_upstream(index, report);
    let (context, limiter_ref) = (at(model.now), &model.limiter_refs[index]);
    assert_eq!(store.report_upstream(&context, limiter_ref, report), expected, "{report:?}");
    assert_eq!(store.inspect(&context, limiter_ref), model.inspect(index), "{report:?}");
}

/// Compares one call on both sides and returns the common answer.
pub(super) fn both(model: &mut Model, store: &mut TestStore, count: usize, call: &Call) -> Answer {
    // Bookings of many instants are moved by several calls, before which a call takes none of its requests. Nor does one that has
    // searched for long.
    let is_moved = |answer: &Answer| {
        (taken(answer) > 0 || call.runs.iter().all(|run| run.count == 0))
            && answer.rescheduled.is_empty() == call.reschedule.is_empty()
    };
    let again = Call { give_back: Vec::new(), ..call.clone() };
    let only = |call: &Call| Call { runs: Vec::new(), reschedule: Vec::new(), ..call.clone() };
    for call in std::iter::once(call).chain(std::iter::repeat_n(&again, 63)) {
        let answer = store.reserve(&at(model.now), &model.limiter_refs[..count], call);
        if is_moved(&answer) {
            let expected = model.reserve(count, &first_of(call, &answer));
            let is_apart = rounding::are_rounded_apart(&answer, &expected, &model.states[..count]);
            model.ahead_max *= u64::from(!is_apart);
            assert!(is_apart || answer == expected, "{call:?}: {answer:?}, and not {expected:?}");
            return answer;
        }
        // A state that matters no more ends with this call.
        model.reserve(count, &only(call));
    }
    panic!("{call:?}");
}

/// Returns how many requests an answer tells of.
fn taken(answer: &Answer) -> u64 {
    answer.outcomes.iter().map(|(count, _)| count).sum()
}

/// Returns a call for the first permits and requests of another, of which an answer tells: for the rest of them the script may take
/// too long.
pub(super) fn first_of(call: &Call, answer: &Answer) -> Call {
    let mut call = call.clone();
    let mut requests = taken(answer);
    for run in &mut call.runs {
        run.count = run.count.min(requests);
        requests -= run.count;
    }
    let asked = call.runs.len();
    call.runs.retain(|run| run.count > 0);
    call.prefetching_runs = call.prefetching_runs.saturating_sub(asked - call.runs.len());
    let (first, _) = split(&call.reschedule, rescheduled(answer));
    Call { reschedule: first, ..call }
}

/// Returns how many permits an answer has rescheduled.
pub(super) fn rescheduled(answer: &Answer) -> u64 {
    answer.rescheduled.iter().map(|(count, _)| count).sum()
}

/// Returns the first permits of some holdings, and the others.
pub(super) fn split(holdings: &[Holding], mut permits: u64) -> (Vec<Holding>, Vec<Holding>) {
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for holding in holdings {
        let count = holding.count.min(permits);
        permits -= count;
        first.push(Holding { count, ..*holding });
        others.push(Holding { count: holding.count - count, ..*holding });
    }
    let some = |holdings: &mut Vec<Holding>| holdings.retain(|holding| holding.count > 0);
    some(&mut first);
    some(&mut others);
    (first, others)
}

pub(super) fn run(model: &mut Model, store: &mut TestStore, steps: &[Step]) {
    for step in steps {
        // Slots that two changes have voided are booked anew, and stay where they were. Nor does it go on where the twins are apart.
        if model.ahead() > model.ahead_max {
            return;
        }
        match step {
            Step::Advance(by) => model.now = model.now + Micros(*by),
            Step::Replica(replica) => model.replica = *replica,
            Step::Change(index) => model.limiter_refs[0].rules = rules(*index),
            Step::GiveBack(holding, count) => give_back(model, store, *holding, *count),
            Step::Report { limiter_ref, pause, refused, cost, remaining } => {
                let slot = |ago: u64| model.now - Micros(ago);
                // The use of a bucket by others is booked, and may be more than a change moves at once.
                let of = &model.limiter_refs[*limiter_ref].rules[0];
                let left = model.ahead_max.saturating_sub(model.ahead());
                let remaining = remaining.filter(|_| of.has_windows() || of.capacity() <= left);
                let remaining = remaining.map(|(permits, per, ago, took)| {
                    (0, Remaining { permits, per: Micros(per), slot: slot(ago), took: Micros(took) })
                });
                let report = UpstreamReport {
                    replica: model.replica,
                    known_epoch: 0,
                    pause: *pause,
                    refused: refused.iter().map(|(ago, permits)| (slot(*ago), *permits)).collect(),
                    cost: (*cost).min(left),
                    remaining: remaining.into_iter().collect(),
                };
                both_report(model, store, *limiter_ref, &report);
            }
            Step::Reserve { limiter_refs, runs, not_new, lead, queue_slots_left, refusal_budget } => {
                let call = Call {
                    runs: asked(model, runs),
                    replacing_runs: not_new.0,
                    prefetching_runs: not_new.1,
                    lead: Micros(*lead),
                    queue_slots_left: *queue_slots_left,
                    refusal_budget: *refusal_budget,
                    ..Call::default()
                };
                ask(model, store, *limiter_refs, call);
            }
        }
    }
}

/// The most permits in all states that changes move: so many one call of the script moves in any case. More are moved by several calls,
/// while the model moves all.
const AHEAD_MAX: u64 = 48;

/// So many are ahead at most where nothing moves them.
const UNMOVED_MAX: u64 = 120;

/// Returns the runs with as many permits as changes move at once.
fn asked(model: &Model, runs: &[(u64, u64, u64)]) -> Vec<Run> {
    let mut left = model.ahead_max.saturating_sub(model.ahead()) / 2;
    let mut asked = Vec::new();
    for &(cost, wait, count) in runs.iter().filter(|(cost, ..)| *cost <= model.ahead_max) {
        let count = count.min(left / cost);
        left -= cost * count;
        asked.push(Run { cost, wait_max: Micros(wait), count });
    }
    asked.retain(|run| run.count > 0);
    asked
}

/// Calls as a worker does, and reschedules at once the slots that a change has voided, behind giving them back where nothing has moved.
fn ask(model: &mut Model, store: &mut TestStore, count: usize, mut call: Call) {
    let generations = model.generations.entry(count).or_insert_with(|| vec![0; count]).clone();
    call.generations.clone_from(&generations);
    call.replica = model.replica;
    let answer = both(model, store, count, &call);
    let numbers: Vec<u64> = answer.generations.iter().map(|generation| generation.number).collect();
    let held = model.held.entry(count).or_default();
    held.retain(|holding| holding.slot >= model.now);
    let (mut void, mut partial) = (Vec::new(), None);
    let mut moved = generations.clone();
    if numbers != generations {
        let changed = answer.generations.iter().zip(&generations).filter(|(new, old)| new.number != **old);
        let from = changed.map(|(new, old)| if new.before == *old { new.void_from } else { Micros::ZERO });
        let from = from.min().unwrap_or_default();
        void = held.extract_if(.., |holding| holding.slot >= from).collect();
        void.sort_by_key(|holding| holding.slot);
        let (of_moved, of_others) =
            Generations::from_iter(generations).split(&numbers.iter().copied().collect());
        moved = of_moved.to_vec();
        partial = of_others.is_partial().then(|| of_others.to_vec());
        model.generations.insert(count, numbers);
    }
    let costs = call.runs.iter().flat_map(|run| times(run.cost, run.count));
    let outcomes = answer.outcomes.iter().flat_map(|(n, outcome)| times(*outcome, *n));
    for (cost, outcome) in costs.zip(outcomes) {
        if let Outcome::Booked(slot) = outcome {
            held.push(Holding { slot, cost, count: 1 });
        }
    }
    if !void.is_empty() {
        let (replica, reschedule_wait) = (model.replica, Micros(30_000_000));
        if let Some(generations) = partial {
            both(
                model,
                store,
                count,
                &Call { replica, generations, give_back: void.clone(), ..Call::default() },
            );
        }
        let (mut reschedule, mut places) = (void.clone(), Vec::new());
        while !reschedule.is_empty() {
            let generations = moved.clone();
            let call = Call { replica, generations, reschedule, reschedule_wait, ..Call::default() };
            let answer = both(model, store, count, &call);
            reschedule = split(&call.reschedule, rescheduled(&answer)).1;
            places.extend(answer.rescheduled.iter().flat_map(|(n, at)| times(*at, *n)));
        }
        let held = model.held.entry(count).or_default();
        held.extend(void.iter().zip(places).filter_map(|(was, slot)| Some(Holding { slot: slot?, ..*was })));
    }
}

pub(super) fn times<T: Clone>(value: T, count: u64) -> std::iter::RepeatN<T> {
    std::iter::repeat_n(value, usize::try_from(count).unwrap())
}

fn give_back(model: &mut Model, store: &mut TestStore, index: usize, count: u64) {
    let limiter_refs = if index.is_multiple_of(2) { 1 } else { 2 };
    let held = model.held.entry(limiter_refs).or_default();
    held.retain(|holding| holding.slot >= model.now);
    let mut call = Call::default();
    for _ in 0..count {
        if !held.is_empty() {
            call.give_back.push(held.swap_remove(index % held.len()));
        }
    }
    ask(model, store, limiter_refs, call);
}

/// Each half has a server of its own: a test and its server wait for each other by turns.
#[test]
fn lua_equals_rust() {
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(|| compare(5000)))));
}

fn compare(cases: u32) {
    let store = RefCell::new(TestStore::start());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    runner
        .run(
            &(0..RULES.len(), any::<bool>(), prop::collection::vec(step(), 1..40)),
            |(first, moves, mut steps)| {
                let (store, mut model) = (&mut *store.borrow_mut(), Model::new(first));
                store.flush();
                if !moves {
                    steps.retain(|step| !matches!(step, Step::Change(_) | Step::Report { .. }));
                    model.ahead_max = UNMOVED_MAX;
                }
                run(&mut model, store, &steps);
                Ok(())
            },
        )
        .unwrap();
}
