//! The model test of the arithmetic. An oracle keeps every permit by itself: no limit is ever exceeded, and every slot is the
//! earliest possible one.

use std::sync::Arc;

use proptest::prelude::*;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::fixed_window::FixedWindow;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::algorithm::warm_up::WarmUp;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::reserve;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Answer, Call, Holding, Outcome, RetryDelay, Run, Stretch, window_of};

pub(in crate::limiter) const START: Micros = Micros(1_800_000_000_000_000);
pub(in crate::limiter) const LEASE: Micros = Micros::from_millis(500);
const GUARD: Micros = Micros(10_000);
pub(in crate::limiter) const SLIDING: Kind = Kind::SlidingWindow(SlidingWindow);

/// A rule that keeps instants apart as finely as `cell`.
pub(in crate::limiter) fn rule(rate: u64, window: u64, cell: u64, kind: Kind) -> Rule {
    Rule { rate, window: Micros(window), cell: Micros(cell), kind }
}

pub(in crate::limiter) fn fixed(length: u64) -> Kind {
    let stretch = |start: Micros, length| Stretch { start, length: Micros(length) };
    // Some windows, then longer ones that do not follow on.
    let stretches =
        [stretch(START - Micros(400_000), length), stretch(START + Micros(5_300_000), length * 2)];
    Kind::FixedWindow(FixedWindow { guard: GUARD, stretches: stretches.into() })
}

/// Every booked request: its slot and its cost.
#[derive(Default)]
struct Oracle(Vec<(Micros, u64)>);

impl Oracle {
    /// Returns the most permits in any interval of that length, open at its start, that begins at `from` or later.
    fn fullest(&self, window: Micros, from: Micros) -> u64 {
        let mut slots: Vec<_> = self.0.iter().filter(|(at, _)| *at >= from).collect();
        slots.sort();
        let (mut first, mut held, mut fullest) = (0, 0, 0);
        for (end, cost) in &slots {
            held += cost;
            while slots[first].0 + window <= *end {
                held -= slots[first].1;
                first += 1;
            }
            fullest = fullest.max(held);
        }
        fullest
    }

    /// Returns whether a bucket has enough for each request in the order of time, and when it could take one of `cost` after
    /// each. All sums are in parts of a microsecond, `rate` of them.
    fn bucket(&self, rule: &Rule, burst: u64, cost: u64, new: Option<Micros>) -> (bool, Vec<Micros>) {
        let parts = |micros: Micros| u128::from(micros.0) * u128::from(rule.rate);
        let span = |permits: u64| u128::from(permits) * u128::from(rule.window.0);
        let beyond = |cost: u64| span(burst.saturating_sub(cost));
        let ahead = |cost: u64| match rule.cell {
            Micros::ONE => beyond(cost).max(parts(rule.cell)),
            // On a grid of cells the arrival time may lie ahead by two cells more.
            cell => beyond(cost) + 2 * parts(cell),
        };
        let mut requests = self.0.clone();
        requests.sort_by_key(|(at, _)| *at);
        let (mut full_at, mut holds, mut free) = (0, true, Vec::new());
        for (at, permits) in requests {
            // Requests of one instant are kept as one booking. If together they empty the bucket, the arrival time
            // may lie ahead by one cell more.
            let together: u64 = self.0.iter().filter(|(other, _)| *other == at).map(|(_, cost)| cost).sum();
            let is_one = together > permits && together >= burst && Some(at) != new;
            let rounding = if is_one { parts(rule.cell) } else { 0 };
            holds &= full_at <= parts(at) + ahead(permits) + rounding;
            full_at = full_at.max(parts(at)) + span(permits);
            let from = (full_at - ahead(cost).min(full_at)).div_ceil(u128::from(rule.rate));
            free.push(Micros(u64::try_from(from).unwrap()));
        }
        (holds, free)
    }

    /// Returns whether the bookings keep a rule, in the windows from `from` on; `new` is the instant of the booking that is
    /// tried.
    fn keeps(&self, rule: &Rule, from: Micros, new: Option<Micros>) -> bool {
        match &rule.kind {
            Kind::SlidingWindow(_) => self.fullest(rule.window, from) <= rule.rate,
            Kind::Bucket(Bucket { burst }) => self.bucket(rule, *burst, 1, new).0,
            // Never more than a leaky bucket gives.
            Kind::WarmUp(_) => self.since(from).bucket(rule, 1, 1, new).0,
            Kind::FixedWindow(FixedWindow { guard, stretches }) => self.0.iter().all(|(at, _)| {
                let (start, end) = window_of(stretches, *at);
                let inside = self.0.iter().filter(|(other, _)| start <= *other && *other < end);
                start < from || (*at + *guard < end && inside.map(|(_, cost)| cost).sum::<u64>() <= rule.rate)
            }),
        }
    }

    fn since(&self, from: Micros) -> Oracle {
        Oracle(self.0.iter().copied().filter(|(at, _)| *at >= from).collect())
    }

    fn has_room(&mut self, rules: &[Rule], at: Micros, cost: u64) -> bool {
        self.0.push((at, cost));
        let kept = rules.iter().all(|rule| self.keeps(rule, Micros::ZERO, Some(at)));
        self.0.pop();
        kept
    }

    /// Returns the earliest instant from `from` on. Room begins only where permits come back, or behind a later booking.
    fn earliest(&mut self, rules: &[Rule], from: Micros, cost: u64) -> Micros {
        let mut candidates = vec![from];
        for rule in rules {
            let slots = self.0.iter().map(|(at, _)| *at);
            match &rule.kind {
                Kind::SlidingWindow(_) => candidates.extend(slots.map(|at| at + rule.window)),
                Kind::Bucket(Bucket { burst }) => candidates.extend(self.bucket(rule, *burst, cost, None).1),
                Kind::WarmUp(_) => candidates.extend(self.bucket(rule, 1, cost, None).1),
                Kind::FixedWindow(..) => {}
            }
        }
        candidates.extend(self.0.iter().map(|(at, _)| *at + Micros::ONE));
        for rule in rules {
            if let Kind::FixedWindow(FixedWindow { stretches, .. }) = &rule.kind {
                let end = |at| window_of(stretches, at).1;
                let ends: Vec<_> = candidates.iter().flat_map(|at| [end(*at), end(end(*at))]).collect();
                candidates.extend(ends);
            }
        }
        candidates.retain(|at| *at >= from);
        candidates.sort();
        candidates.into_iter().find(|at| self.has_room(rules, *at, cost)).expect("room behind everything")
    }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Reserve { cost: u64, wait: u64, count: u64 },
    GiveBack(usize),
    Change(usize),
}

fn steps(changes: u32) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop_oneof![0..5_u64, 0..700_000_u64, Just(1_000_000), Just(5_000_000)].prop_map(Step::Advance),
        8 => (1..=3_u64, prop_oneof![Just(0), 0..4_000_000_u64], 1..5_u64)
            .prop_map(|(cost, wait, count)| Step::Reserve { cost, wait, count }),
        2 => any::<usize>().prop_map(Step::GiveBack),
        changes => any::<usize>().prop_map(Step::Change),
    ];
    prop::collection::vec(step, 1..40)
}

/// The check of a slot.
#[derive(Clone, Copy, PartialEq)]
enum Judge {
    /// The slot is the earliest possible one.
    Exact,
    /// The slot is no earlier than the earliest possible one.
    Rounded,
    /// The slot is not checked: bookings under other limits may still be in the way.
    Changing,
}

/// A limiter with the oracle beside it, and the permits that its only caller holds.
struct Model {
    now: Micros,
    rules: Arc<[Rule]>,
    state: LimiterState,
    /// Two queues share the limiter.
    orders: [QueueOrder; 2],
    oracle: Oracle,
    held: [Vec<(Micros, u64)>; 2],
    generation: u64,
    /// The instant from which the limits in force must be kept.
    kept_from: Micros,
}

impl Model {
    fn new(rules: Vec<Rule>) -> Model {
        let rules: Arc<[Rule]> = rules.into();
        Model {
            now: START,
            rules,
            state: LimiterState::default(),
            orders: Default::default(),
            oracle: Oracle::default(),
            held: Default::default(),
            generation: 0,
            kept_from: Micros::ZERO,
        }
    }

    /// Makes a call, and reschedules permits that a change of the limits has voided.
    fn call(&mut self, queue: usize, call: Call) -> Answer {
        let answer = self.ask(queue, call);
        let generation = answer.generations[0];
        if generation.number == self.generation {
            return answer;
        }
        for queue in [0, 1] {
            self.reschedule(queue, generation.void_from);
        }
        (self.generation, self.kept_from) = (generation.number, generation.void_from);
        answer
    }

    fn reschedule(&mut self, queue: usize, void_from: Micros) {
        let mut void: Vec<_> = self.held[queue].extract_if(.., |(slot, _)| *slot >= void_from).collect();
        void.sort_unstable();
        let reschedule =
            void.iter().map(|(slot, cost)| Holding { slot: *slot, cost: *cost, count: 1 }).collect();
        let reschedule_wait = Micros::from_millis(60_000);
        let answer = self.ask(queue, Call { reschedule, reschedule_wait, ..Call::default() });
        let times = |count: u64| usize::try_from(count).unwrap();
        let mut places =
            answer.rescheduled.iter().flat_map(|(count, at)| std::iter::repeat_n(*at, times(*count)));
        for (slot, cost) in void {
            self.forget(slot, cost);
            if let Some(place) = places.next().unwrap() {
                assert!(place >= void_from);
                self.oracle.0.push((place, cost));
                self.held[queue].push((place, cost));
            }
        }
    }

    fn ask(&mut self, queue: usize, call: Call) -> Answer {
        let call = Call { generations: vec![self.generation], queue_slots_left: 100, ..call };
        reserve(self.now, LEASE, &mut [(&mut self.state, self.rules.clone())], &mut self.orders[queue], &call)
    }

    fn forget(&mut self, slot: Micros, cost: u64) {
        let place = self.oracle.0.iter().position(|booked| *booked == (slot, cost)).unwrap();
        self.oracle.0.swap_remove(place);
    }

    fn give_back(&mut self, index: usize) {
        let queue = index % 2;
        if self.held[queue].is_empty() {
            return;
        }
        let place = index / 2 % self.held[queue].len();
        let (slot, cost) = self.held[queue].swap_remove(place);
        self.forget(slot, cost);
        self.call(queue, Call { give_back: vec![Holding { slot, cost, count: 1 }], ..Call::default() });
    }

    /// Books, and checks each slot against the oracle.
    fn reserve(&mut self, run: Run, judge: Judge) {
        let queue = usize::from(run.wait_max.0 % 2 == 1);
        let mut order = self.orders[queue];
        order.open(self.now, self.generation);
        let answer = self.call(queue, Call { runs: vec![run], ..Call::default() });
        for (count, outcome) in &answer.outcomes {
            for _ in 0..*count {
                let floor = self.now.max(order.floor(run.cost));
                let earliest = match judge {
                    Judge::Changing => self.now,
                    Judge::Exact | Judge::Rounded => self.oracle.earliest(&self.rules, floor, run.cost),
                };
                let exact = judge == Judge::Exact;
                match *outcome {
                    Outcome::Booked(slot) => {
                        assert!(slot >= earliest, "{slot:?} has no room before {earliest:?}");
                        assert!(!exact || slot == earliest, "{slot:?} is later than {earliest:?}");
                        assert!(slot - self.now <= run.wait_max);
                        self.oracle.0.push((slot, run.cost));
                        self.held[queue].push((slot, run.cost));
                        order.booked(slot, 1, run.cost, slot > self.now);
                    }
                    Outcome::TooFar(RetryDelay { delay, advised, violated, .. }) => {
                        assert!(delay > run.wait_max && (!exact || self.now + delay == earliest));
                        assert!(
                            advised >= delay && advised - delay <= self.rules[violated.limit].spread_max()
                        );
                        break;
                    }
                    Outcome::Full(..) => panic!("there was room for all"),
                }
            }
        }
    }

    fn run(&mut self, steps: &[Step], judge: Judge, others: &[Vec<Rule>]) {
        for step in steps {
            match *step {
                Step::Advance(by) => self.now = self.now + Micros(by),
                Step::Reserve { cost, wait, count } => {
                    self.reserve(Run { cost, wait_max: Micros(wait), count }, judge);
                }
                Step::GiveBack(index) => self.give_back(index),
                Step::Change(index) => {
                    self.rules = others[index % others.len()].clone().into();
                    self.call(0, Call::default());
                }
            }
            for rule in self.state.rules() {
                assert!(
                    self.oracle.keeps(rule, self.kept_from, None),
                    "{rule:?} is exceeded: {:?}",
                    self.oracle.0
                );
            }
            self.held.iter_mut().for_each(|held| held.retain(|(slot, _)| *slot > self.now));
            assert!(self.state.timeline().entries().is_sorted_by_key(|entry| entry.at));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_limit_is_exact(rate in 3..12_u64, steps in steps(0)) {
        Model::new(vec![rule(rate, 1_010_000, 1, SLIDING)]).run(&steps, Judge::Exact, &[]);
    }

    #[test]
    fn two_limits_are_exact_together(rate in 3..8_u64, steps in steps(0)) {
        let rules = vec![rule(rate, 1_010_000, 1, SLIDING), rule(rate * 2, 5_010_000, 1, SLIDING)];
        Model::new(rules).run(&steps, Judge::Exact, &[]);
    }

    #[test]
    fn wide_cells_never_exceed_the_limit(rate in 3..12_u64, cell in 1..500_000_u64, steps in steps(0)) {
        let rules = vec![rule(rate, 1_010_000, cell, SLIDING), rule(rate * 2, 5_010_000, cell * 3, SLIDING)];
        Model::new(rules).run(&steps, Judge::Rounded, &[]);
    }

    #[test]
    fn a_bucket_is_exact(rate in 3..12_u64, burst in 3..20_u64, steps in steps(0)) {
        Model::new(vec![rule(rate, 1_010_001, 1, Kind::Bucket(Bucket { burst }))]).run(&steps, Judge::Exact, &[]);
    }

    #[test]
    fn even_spacing_is_exact(rate in 3..12_u64, steps in steps(0)) {
        Model::new(vec![rule(rate, 1_010_001, 1, Kind::Bucket(Bucket { burst: 1 }))]).run(&steps, Judge::Exact, &[]);
    }

    #[test]
    fn a_bucket_on_a_grid_never_gives_more(rate in 3..12_u64, burst in 1..20_u64, cell in 1..100_000_u64, steps in steps(0)) {
        let bucket = rule(rate, 1_010_000 + cell, cell, Kind::Bucket(Bucket { burst }));
        Model::new(vec![bucket]).run(&steps, Judge::Rounded, &[]);
    }

    #[test]
    fn a_warm_up_never_gives_more_than_a_leaky_bucket(rate in 3..12_u64, cell in prop_oneof![Just(1), 1..100_000_u64], warm_up in 1_000..20_000_000_u64, cold in 1..=100_u64, steps in steps(0)) {
        let warm_up = rule(rate, 1_010_000 + cell, cell, Kind::WarmUp(WarmUp { warm_up: Micros(warm_up), cold }));
        Model::new(vec![warm_up]).run(&steps, Judge::Rounded, &[]);
    }

    #[test]
    fn fixed_windows_are_exact(rate in 3..12_u64, length in 50_000..1_500_000_u64, steps in steps(0)) {
        Model::new(vec![rule(rate, 3_010_000, 1, fixed(length))]).run(&steps, Judge::Exact, &[]);
    }

    #[test]
    fn fixed_windows_on_a_grid_never_hold_more(rate in 3..12_u64, length in 50_000..1_500_000_u64, cell in 1..700_000_u64, steps in steps(0)) {
        Model::new(vec![rule(rate, 3_010_000, cell, fixed(length))]).run(&steps, Judge::Rounded, &[]);
    }

    #[test]
    fn mixed_algorithms_are_exact_together(rate in 3..8_u64, burst in 3..9_u64, steps in steps(0)) {
        let rules = vec![
            rule(rate, 1_010_001, 1, Kind::Bucket(Bucket { burst })),
            rule(rate * 2, 3_010_000, 1, fixed(1_500_000)),
            rule(rate * 3, 5_010_000, 1, SLIDING),
        ];
        Model::new(rules).run(&steps, Judge::Exact, &[]);
    }

    #[test]
    fn changed_limits_are_kept_from_one_lease_on(steps in steps(2), first in 0..7_usize) {
        let others = [
            vec![rule(10, 1_010_000, 1, SLIDING)],
            vec![rule(4, 1_010_000, 1, SLIDING)],
            vec![rule(12, 5_010_000, 1, SLIDING), rule(5, 1_010_000, 1, SLIDING)],
            vec![rule(30, 2_010_000, 70_000, SLIDING)],
            vec![rule(6, 3_010_000, 1, fixed(1_500_000))],
            vec![rule(6, 1_010_000, 1, Kind::WarmUp(WarmUp { warm_up: Micros(4_000_000), cold: 5 }))],
            vec![rule(9, 1_010_000, 1, Kind::WarmUp(WarmUp { warm_up: Micros(400_000), cold: 50 }))],
        ];
        Model::new(others[first].clone()).run(&steps, Judge::Changing, &others);
    }
}

/// Asks for one permit without waiting.
fn one(state: &mut LimiterState, order: &mut QueueOrder, rules: &Arc<[Rule]>, now: Micros) -> Outcome {
    let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }];
    let call = Call { generations: vec![0], runs, ..Call::default() };
    reserve(now, LEASE, &mut [(state, rules.clone())], order, &call).outcomes[0].1
}

#[test]
fn the_boundary_is_exact() {
    let cases = [
        (rule(3, 2_020_000, 1, SLIDING), 2_020_000),
        (rule(3, 3_000_000, 1, Kind::Bucket(Bucket { burst: 3 })), 1_000_000),
        (rule(1, 3_000_000, 1, Kind::Bucket(Bucket { burst: 3 })), 3_000_000),
        (rule(3, 2_020_000, 1, fixed(1_500_000)), 1_100_000),
    ];
    for (rule, free) in cases {
        let rules: Arc<[Rule]> = [rule].into();
        let (mut state, mut order) = (LimiterState::default(), QueueOrder::default());
        for _ in 0..3 {
            assert_eq!(one(&mut state, &mut order, &rules, START), Outcome::Booked(START), "{rules:?}");
        }
        let free = START + Micros(free);
        let early = one(&mut state, &mut order, &rules, free - Micros::ONE);
        let Outcome::TooFar(RetryDelay { delay, .. }) = early else { panic!("{rules:?}: {early:?}") };
        assert_eq!(delay, Micros::ONE, "{rules:?}");
        assert_eq!(one(&mut state, &mut order, &rules, free), Outcome::Booked(free), "{rules:?}");
    }
}

#[test]
fn wide_cells_lose_no_quota() {
    let cases = [
        (SLIDING, 2_320_000),
        (Kind::Bucket(Bucket { burst: 500 }), 2 * 1_010_000 + 3_906),
        (Kind::Bucket(Bucket { burst: 1 }), 3 * 1_010_000 + 3_906),
    ];
    for (kind, longest) in cases {
        let rules: Arc<[Rule]> = [rule(500, 1_010_000, 3_906, kind)].into();
        let (mut state, mut order) = (LimiterState::default(), QueueOrder::default());
        let mut slots = Vec::new();
        for batch in 0..300_u64 {
            let runs = vec![Run { cost: 1, wait_max: Micros(60_000_000), count: 5 }];
            let call = Call { generations: vec![0], runs, queue_slots_left: 100, ..Call::default() };
            let now = START + Micros(batch * 1_000);
            let answer = reserve(now, LEASE, &mut [(&mut state, rules.clone())], &mut order, &call);
            for (count, outcome) in answer.outcomes {
                let Outcome::Booked(slot) = outcome else { panic!("{outcome:?}") };
                slots.extend((0..count).map(|_| slot));
            }
        }
        let taken = slots[1499] - slots[0];
        assert!(taken <= Micros(longest), "{rules:?}: {taken:?}");
    }
}

/// A million permits, a thousand in a call: the last slot is right to within one permit.
#[test]
fn a_million_permits_do_not_drift() {
    let day = 86_400_000_000;
    for (rate, per) in [(7, 1_000_000), (1000, 7_000_000), (1, day), (1_000_000, 1_000_000)] {
        for kind in [SLIDING, Kind::Bucket(Bucket { burst: rate }), Kind::Bucket(Bucket { burst: 1 })] {
            let precise = if rate <= 256 { 1 } else { per / 256 };
            let rule = rule(rate, per, precise, kind.clone());
            let rules: Arc<[Rule]> = [rule].into();
            let (mut state, mut order) = (LimiterState::default(), QueueOrder::default());
            let (mut now, mut last, mut granted) = (START, START, 0);
            let at_once = match kind {
                Kind::Bucket(Bucket { burst: 1 }) => 1,
                _ => rate,
            };
            while granted < 1_000_000 {
                let runs = vec![Run { cost: 1, wait_max: Micros(u64::MAX / 2), count: 1000 }];
                let call =
                    Call { generations: vec![0], runs, queue_slots_left: u64::MAX / 2, ..Call::default() };
                let answer = reserve(now, LEASE, &mut [(&mut state, rules.clone())], &mut order, &call);
                for (count, outcome) in answer.outcomes {
                    let Outcome::Booked(slot) = outcome else { panic!("{outcome:?}") };
                    (granted, last) = (granted + count, slot);
                }
                now = last;
            }
            let due = match kind {
                // Whole windows, of which the last has just been filled.
                Kind::SlidingWindow(_) => (granted - 1) / rate * per,
                _ => (granted - at_once) * per / rate,
            };
            let error = (last - START).0.abs_diff(due);
            let permit = (per / rate).max(precise) + 1;
            assert!(error <= permit, "{rate}/{per}us {kind:?}: {error}us off");
        }
    }
}
