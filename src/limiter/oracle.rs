//! The model test of the arithmetic: an oracle that keeps every permit by itself says that no window is ever
//! exceeded, and that every slot is the earliest possible one.

use std::sync::Arc;

use proptest::prelude::*;

use crate::clock::Micros;
use crate::limiter::book::Book;
use crate::limiter::calendar::Rule;
use crate::limiter::reserve::{Call, Holding, Outcome, QueueOrder, Run, reserve};

const START: Micros = Micros(1_800_000_000_000_000);
const LEASE: Micros = Micros::from_millis(500);

fn rules(list: &[(u64, u64, u64)]) -> Arc<[Rule]> {
    list.iter()
        .map(|&(rate, window, cell)| Rule { rate, window: Micros(window), cell: Micros(cell) })
        .collect()
}

/// Every permit that is booked: its slot.
#[derive(Default)]
struct Oracle(Vec<Micros>);

impl Oracle {
    /// The most permits in any interval of that length, open at its start.
    fn fullest(&self, window: Micros) -> u64 {
        let mut slots = self.0.clone();
        slots.sort();
        let mut first = 0;
        let mut fullest = 0;
        for (index, end) in slots.iter().enumerate() {
            while slots[first] + window <= *end {
                first += 1;
            }
            fullest = fullest.max(index - first + 1);
        }
        fullest as u64
    }

    fn has_room(&self, rules: &[Rule], at: Micros, cost: u64) -> bool {
        let mut slots = self.0.clone();
        slots.extend((0..cost).map(|_| at));
        let with = Oracle(slots);
        rules.iter().all(|rule| with.fullest(rule.window) <= rule.rate)
    }

    /// The earliest instant from `from` on. Room begins only where an old permit leaves, or behind a later one.
    fn earliest(&self, rules: &[Rule], from: Micros, cost: u64) -> Micros {
        let leaves = self.0.iter().flat_map(|slot| rules.iter().map(|rule| *slot + rule.window));
        let behind = self.0.iter().map(|slot| *slot + Micros::ONE);
        let mut candidates: Vec<Micros> = leaves.chain(behind).filter(|at| *at > from).collect();
        candidates.push(from);
        candidates.sort();
        candidates.into_iter().find(|at| self.has_room(rules, *at, cost)).expect("room behind everything")
    }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Reserve { cost: u64, wait: u64, count: u64 },
    GiveBack(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => prop_oneof![0..5_u64, 0..700_000_u64, Just(1_000_000), Just(5_000_000)].prop_map(Step::Advance),
        4 => (1..=3_u64, prop_oneof![Just(0), 0..4_000_000_u64], 1..5_u64)
            .prop_map(|(cost, wait, count)| Step::Reserve { cost, wait, count }),
        1 => any::<usize>().prop_map(Step::GiveBack),
    ];
    prop::collection::vec(step, 1..40)
}

/// Runs the steps and checks each slot against the oracle; `exact` where every instant is kept apart.
fn check(rules: &Arc<[Rule]>, steps: &[Step], exact: bool) {
    let (mut book, mut order, mut oracle, mut now) =
        (Book::default(), QueueOrder::default(), Oracle::default(), START);
    let mut held: Vec<(Micros, u64)> = Vec::new();
    for step in steps {
        let mut call = Call { known: vec![0], room: 100, ..Call::default() };
        match *step {
            Step::Advance(by) => now = now + Micros(by),
            Step::Reserve { cost, wait, count } => {
                call.runs.push(Run { cost, wait_max: Micros(wait), count });
            }
            Step::GiveBack(index) if !held.is_empty() => {
                let (slot, cost) = held.swap_remove(index % held.len());
                call.give_back.push(Holding { slot, cost, count: 1 });
                for _ in 0..cost {
                    let place = oracle.0.iter().position(|at| *at == slot).unwrap();
                    oracle.0.swap_remove(place);
                }
            }
            Step::GiveBack(_) => {}
        }
        let floor_before = order;
        let answer = reserve(now, LEASE, &mut [(&mut book, rules.clone())], &mut order, &call);
        let Some(run) = call.runs.first() else { continue };
        let hole = floor_before.hole > Micros::ZERO;
        let mut floor = now.max(if hole { floor_before.hole } else { floor_before.last });
        for (count, outcome) in &answer.outcomes {
            for _ in 0..*count {
                let earliest = oracle.earliest(rules, floor, run.cost);
                match *outcome {
                    Outcome::Booked(slot) => {
                        assert!(slot >= earliest, "{slot:?} has no room before {earliest:?}");
                        assert!(!exact || slot == earliest, "{slot:?} is later than {earliest:?}");
                        assert!(slot - now <= run.wait_max);
                        oracle.0.extend((0..run.cost).map(|_| slot));
                        held.push((slot, run.cost));
                        floor = floor.max(slot);
                    }
                    Outcome::TooFar(delay, _) => {
                        assert!(delay > run.wait_max && (!exact || now + delay == earliest));
                        break;
                    }
                    Outcome::Full(..) => panic!("there was room for all"),
                }
            }
        }
        for rule in rules.iter() {
            assert!(oracle.fullest(rule.window) <= rule.rate, "{rule:?} is exceeded");
        }
        held.retain(|(slot, _)| *slot > now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_limit_is_exact(rate in 3..12_u64, steps in steps()) {
        check(&rules(&[(rate, 1_010_000, 1)]), &steps, true);
    }

    #[test]
    fn two_limits_are_exact_together(rate in 3..8_u64, steps in steps()) {
        check(&rules(&[(rate, 1_010_000, 1), (rate * 2, 5_010_000, 1)]), &steps, true);
    }

    #[test]
    fn wide_cells_never_exceed_the_limit(rate in 3..12_u64, cell in 1..500_000_u64, steps in steps()) {
        check(&rules(&[(rate, 1_010_000, cell), (rate * 2, 5_010_000, cell * 3)]), &steps, false);
    }
}

#[test]
fn the_boundary_is_exact() {
    let rules = rules(&[(3, 2_020_000, 1)]);
    let ask = |book: &mut Book, now| {
        let call = Call {
            known: vec![0],
            runs: vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }],
            ..Call::default()
        };
        reserve(now, LEASE, &mut [(book, rules.clone())], &mut QueueOrder::default(), &call).outcomes[0].1
    };
    let mut book = Book::default();
    for offset in 0..3 {
        assert_eq!(ask(&mut book, START + Micros(offset)), Outcome::Booked(START + Micros(offset)));
    }
    let free = START + Micros(2_020_000);
    assert!(matches!(ask(&mut book, free - Micros::ONE), Outcome::TooFar(Micros::ONE, _)));
    assert_eq!(ask(&mut book, free), Outcome::Booked(free));
}

#[test]
fn a_saturated_limit_with_wide_cells_is_used_whole() {
    let rules = rules(&[(500, 1_010_000, 3_906)]);
    let (mut book, mut order) = (Book::default(), QueueOrder::default());
    let mut slots = Vec::new();
    for batch in 0..300_u64 {
        let runs = vec![Run { cost: 1, wait_max: Micros(60_000_000), count: 5 }];
        let call = Call { known: vec![0], runs, room: 100, ..Call::default() };
        let now = START + Micros(batch * 1_000);
        let answer = reserve(now, LEASE, &mut [(&mut book, rules.clone())], &mut order, &call);
        for (count, outcome) in answer.outcomes {
            let Outcome::Booked(slot) = outcome else { panic!("{outcome:?}") };
            slots.extend((0..count).map(|_| slot));
        }
    }
    let taken = slots[1499] - slots[0];
    assert!(taken < Micros(2 * 1_010_000 + 300_000), "{taken:?}");
}
