//! Simulates refused callers against the arithmetic, on a clock of its own: they are spread.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::reserve;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Call, Outcome, RetryDelay, Run};
use crate::limiter::tests::oracle::{LEASE, SLIDING, START, fixed, rule};

/// A limiter of one limit, and its clock.
struct Limiter {
    rules: Arc<[Rule]>,
    state: LimiterState,
    order: QueueOrder,
}

impl Limiter {
    fn new(rule: Rule) -> Limiter {
        Limiter { rules: [rule].into(), state: LimiterState::default(), order: QueueOrder::default() }
    }

    fn ask(&mut self, now: Micros, wait_max: Micros, count: u64) -> Outcome {
        let runs = vec![Run { cost: 1, wait_max, count }];
        let call = Call { generations: vec![0], runs, queue_slots_left: 1000, ..Call::default() };
        let states = &mut [(&mut self.state, self.rules.clone())];
        reserve(now, LEASE, states, &mut self.order, &call).outcomes[0].1
    }

    fn refused(&mut self, now: Micros) -> RetryDelay {
        match self.ask(now, Micros::ZERO, 1) {
            Outcome::TooFar(away) => away,
            other => panic!("{other:?}"),
        }
    }
}

/// Simulates clients that come at once and come back when they are advised to. Returns the attempts for each success, and the part
/// of the quota that was used until all were served.
fn obedient_clients(clients: u64, rate: u64, wait: Micros) -> (f64, f64) {
    let mut limiter = Limiter::new(rule(rate, 1_010_000, 1, SLIDING));
    // All clients come within the first 10 ms; when they come back, a network delays them.
    let mut due: BinaryHeap<_> =
        (0..clients).map(|client| Reverse((START + Micros(client * 10_000 / clients), client))).collect();
    let (mut attempts, mut last) = (0_u32, START);
    while let Some(Reverse((now, client))) = due.pop() {
        attempts += 1;
        match limiter.ask(now, wait, 1) {
            Outcome::Booked(slot) => last = last.max(slot),
            Outcome::TooFar(RetryDelay { advised, .. }) => {
                let late = Micros(client * 7919 % 5_000);
                due.push(Reverse((now + advised + late, client)));
            }
            other => panic!("{other:?}"),
        }
    }
    let took = u32::try_from((last - START).0 / 1000).unwrap();
    let served = u32::try_from(clients).unwrap();
    let capacity = f64::from(u32::try_from(rate).unwrap()) * f64::from(took) / 1000.0;
    (f64::from(attempts) / f64::from(served), f64::from(served) / capacity)
}

#[test]
fn a_thousand_obedient_callers_come_back_one_by_one() {
    let (attempts, used) = obedient_clients(1000, 10, Micros::from_millis(20));
    println!(
        "1000 clients at 10/s: {attempts:.2} attempts for each success, {:.1} % of the quota",
        used * 100.0
    );
    assert!(attempts <= 3.0, "{attempts}");
    assert!(used >= 0.95, "{used}");
}

#[test]
fn successive_refusals_name_successive_instants() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    for _ in 0..10 {
        limiter.ask(START, Micros::ZERO, 1);
    }
    let refused: Vec<_> = (0..1000).map(|_| limiter.refused(START)).collect();
    assert!(refused.iter().all(|away| away.delay == Micros(1_010_000)));
    assert_eq!(refused[0].advised, refused[0].delay);
    assert_eq!(refused[1].advised, refused[0].delay + Micros(101_000));
    let most = refused.iter().map(|away| away.advised - away.delay).max().unwrap();
    assert!(most > Micros(59_000_000) && most <= Micros(60_000_000), "{most:?}");
    // 1000 callers over 60 s in steps of 101 ms.
    let mut instants: Vec<_> = refused.iter().map(|away| away.advised).collect();
    instants.sort_unstable();
    instants.dedup();
    assert!(instants.len() > 500, "{}", instants.len());
}

#[test]
fn callers_that_never_come_back_are_forgotten() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.ask(START, Micros::ZERO, 10);
    for _ in 0..300 {
        limiter.refused(START);
    }
    // Another caller uses half of the quota for a while and is refused now and then.
    let mut now = START;
    for second in 0..20 {
        now = START + Micros(2_000_000 + second * 1_000_000);
        for _ in 0..5 {
            limiter.ask(now, Micros::ZERO, 1);
        }
    }
    for _ in 0..20 {
        limiter.ask(now, Micros::ZERO, 1);
    }
    let refused = limiter.refused(now + Micros::ONE);
    let beyond = refused.advised - refused.delay;
    assert!(beyond < Micros(3_000_000), "{beyond:?} after twenty seconds");
}

#[test]
fn callers_of_a_calendar_window_are_spread_by_milliseconds() {
    let mut limiter = Limiter::new(rule(3, 2_020_000, 1, fixed(1_500_000)));
    limiter.ask(START, Micros::ZERO, 3);
    let (first, second) = (limiter.refused(START), limiter.refused(START));
    assert_eq!((first.advised, second.advised), (first.delay, first.delay + Micros(10_000)));
}

#[test]
fn refusals_without_asking_have_instants_of_their_own() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.ask(START, Micros::ZERO, 10);
    let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }];
    let call = Call { generations: vec![0], runs, refusal_budget: 3, ..Call::default() };
    let states = &mut [(&mut limiter.state, limiter.rules.clone())];
    let answer = reserve(START, LEASE, states, &mut limiter.order, &call);
    let [(1, Outcome::TooFar(first))] = answer.outcomes[..] else { panic!("{answer:?}") };
    assert_eq!(limiter.refused(START).advised, first.advised + Micros(4 * 101_000));
}
