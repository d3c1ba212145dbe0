//! Single calls of the scripts on a real Redis: how long a large one takes, and one that comes twice.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::{Answer, Call, Holding, Outcome, Run};
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::pause::PauseByHand;
use crate::limiter::model::{CALL_KEPT, UNKNOWN_GENERATION};
use crate::redis::script::script_texts;
use crate::redis::tests::fleet::{Fleet, SECOND, granted};
use crate::redis::tests::lua_parity::rules;
use crate::redis::tests::{START, TestStore, at};

#[test]
fn a_changed_limit_moves_a_long_queue_within_a_calls_deadline() {
    let mut store = TestStore::start();
    for waiting in [1000_u64, 10_000] {
        store.flush();
        let rule = |rate| -> Arc<[Rule]> {
            [Rule {
                rate,
                window: Micros(1_010_000),
                cell: Micros::ONE,
                kind: Kind::SlidingWindow(SlidingWindow),
            }]
            .into()
        };
        let mut limiter_ref = LimiterRef {
            name: LimiterName::parse("a").unwrap(),
            partition: None,
            valid_until: None,
            group: "model".into(),
            rules: rule(100),
        };
        let mut slots = Vec::new();
        let mut slowest = Duration::ZERO;
        let mut ask = |limiter_ref: &LimiterRef, now: u64, call: Call| {
            let before = store.processor_time();
            let answer = store.reserve(&at(Micros(now)), std::slice::from_ref(limiter_ref), &call);
            (answer, store.processor_time() - before)
        };
        for index in 0..waiting {
            let runs = vec![Run { cost: 1, wait_max: Micros(1_000_000_000), count: 1 }];
            let call =
                Call { replica: 1, generations: vec![0], runs, queue_slots_left: 10, ..Call::default() };
            let (answer, took) = ask(&limiter_ref, START + index * 10, call);
            slowest = slowest.max(took);
            let Outcome::Booked(slot) = answer.outcomes[0].1 else { panic!() };
            slots.push(slot);
        }
        eprintln!("{waiting}: slowest booking {slowest:?}");
        limiter_ref.rules = rule(50);
        let now = START + 1_000_000;
        let (answer, took) =
            ask(&limiter_ref, now, Call { replica: 1, generations: vec![0], ..Call::default() });
        eprintln!("{waiting}: reschedule {took:?}");
        let from = answer.generations[0].void_from;
        let void = slots.iter().filter(|slot| **slot >= from).take(1000);
        let reschedule = void.map(|slot| Holding { slot: *slot, cost: 1, count: 1 }).collect();
        let call = Call {
            replica: 1,
            generations: vec![0],
            reschedule,
            reschedule_wait: Micros(10_000_000_000),
            ..Call::default()
        };
        let (mut calls, mut slowest) = (1, Duration::ZERO);
        let took = loop {
            let (answer, took) = ask(&limiter_ref, now, call.clone());
            if !answer.rescheduled.is_empty() {
                break took;
            }
            (calls, slowest) = (calls + 1, slowest.max(took));
        };
        eprintln!("{waiting}: all have new places after {calls} calls of at most {slowest:?}");
        assert!(slowest < Duration::from_millis(100), "{slowest:?}");
        eprintln!("{waiting}: new places for 1000 {took:?}");
        assert!(took < Duration::from_millis(100), "{took:?}");
    }
}

fn limiter_ref() -> LimiterRef {
    LimiterRef {
        name: LimiterName::parse("a").unwrap(),
        partition: None,
        valid_until: None,
        group: "model".into(),
        rules: rules(0),
    }
}

#[test]
fn a_repeated_call_is_counted_once() {
    let mut store = TestStore::start();
    let limiter_refs = [limiter_ref()];
    let runs = vec![Run { cost: 1, wait_max: Micros(60_000_000), count: 12 }];
    let mut ask = |replica, call_number| {
        let call = Call {
            replica,
            generations: vec![0],
            runs: runs.clone(),
            queue_slots_left: 100,
            ..Call::default()
        };
        store.reserve_numbered(&at(Micros(START)), &limiter_refs, &call, call_number)
    };
    let first = ask(1, 1);
    assert_eq!(ask(1, 1), first);
    // Another replica's call of the same number, and the next one, are calls of their own.
    let other = ask(2, 1);
    assert_ne!(other.outcomes, first.outcomes);
    assert_eq!(ask(1, 1), first, "calls of other replicas do not matter");
    assert_eq!(ask(2, 1), other);
    let next = ask(1, 2);
    assert!(next.outcomes != first.outcomes && next.outcomes != other.outcomes);
    let slots = |answer: &Answer| answer.outcomes.iter().map(|(count, _)| *count).sum::<u64>();
    assert_eq!(slots(&first) + slots(&other) + slots(&next), 36);
    let last = next.outcomes.last().map(|(_, outcome)| *outcome);
    // 36 permits at 10 in 10 s: the last ones in the fourth window.
    assert_eq!(last, Some(Outcome::Booked(Micros(START + 30_000_000))));
}

/// `WAIT` speaks of what its own connection has written, and a call is repeated over another one.
#[test]
fn a_repeated_call_writes_so_that_a_replica_confirms_its_answer() {
    let (mut store, limiter_refs) = (TestStore::start(), [limiter_ref()]);
    let call =
        |line| Call { replica: 1, generations: vec![0], line, queue_slots_left: 100, ..Call::default() };
    let booking = Call { runs: vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }], ..call(None) };
    let in_line = call(Some(Box::default()));
    let changes = |store: &mut TestStore| -> u64 {
        let info: String = redis::cmd("INFO").arg("persistence").query(&mut store.connection).unwrap();
        let changes = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        changes.unwrap().parse().unwrap()
    };
    for _ in 0..3 {
        let before = changes(&mut store);
        store.reserve_numbered(&at(Micros(START)), &limiter_refs, &booking, 1);
        let between = changes(&mut store);
        store.deal(&at(Micros(START)), &limiter_refs, &in_line, 1).unwrap();
        assert!(between > before && changes(&mut store) > between);
    }
}

/// The store remembers a call for a second. One that is repeated later seems new, and its slots are another's by then.
#[test]
fn a_call_that_comes_too_late_gives_nothing_back() {
    // Workers name the instant by `CALL_KEPT`; how long a call is known stands in Lua.
    let known_for = format!("local CALL_KEPT = {}\n", CALL_KEPT.0);
    assert!(script_texts().iter().any(|(_, text)| text.contains(&known_for)));
    for (until, free) in [(0, 4), (1_000_000, 4), (999_999, 0)] {
        let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
        let epoch = fleet.begin(0);
        assert_eq!(granted(&fleet.ask(500_000, epoch, 10)).0, 10);
        let call = Call {
            replica: 1,
            epoch,
            generations: vec![fleet.ask(600_000, epoch, 0).generations[0].number],
            give_back: vec![Holding { slot: Micros(START + 500_000), cost: 1, count: 4 }],
            taken_back_until: Micros(if until == 0 { 0 } else { START + until }),
            ..Call::default()
        };
        fleet.call(1_000_000, &call);
        assert_eq!(fleet.available(1_000_000), free, "{until}");
    }
}

/// A request whose queue has ended since costs less than it took: the queue that tells of it has not called before.
#[test]
fn a_refund_of_a_queue_that_has_ended_is_taken_back() {
    for is_moved in [false, true] {
        let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
        let epoch = fleet.begin(0);
        let mut used = 500_000;
        if is_moved {
            // Those that wait move with a pause, and nobody follows them.
            fleet.ask(500_000, epoch, 15);
            let before = fleet.ask(600_000, epoch, 0).generations[0].number;
            let context = fleet.context(700_000);
            let pause = PauseByHand { lasting: Micros(15 * SECOND), ago: Micros::ZERO, replica: 1 };
            fleet.store.pause(&context, &fleet.limiter_ref.clone(), &pause);
            fleet.keep_alive(700_000, 5 * SECOND, epoch);
            fleet.ask(5 * SECOND, epoch, 0);
            fleet.keep_alive(5 * SECOND, 30 * SECOND, epoch);
            assert!(fleet.ask(30 * SECOND, epoch, 0).generations[0].number > before);
            used = 40 * SECOND;
            fleet.keep_alive(30 * SECOND, used, epoch);
        }
        assert_eq!(granted(&fleet.ask(used, epoch, 10)).0, 10);
        let holding = Holding { slot: Micros(START + used), cost: 1, count: 6 };
        let give_back = |generation| Call {
            replica: 2,
            epoch,
            generations: vec![generation],
            give_back: vec![holding],
            ..Call::default()
        };
        fleet.call(used + 100_000, &give_back(7));
        assert_eq!(fleet.available(used + 100_000), 0, "booked under another generation");
        fleet.call(used + 100_000, &give_back(UNKNOWN_GENERATION));
        assert_eq!(fleet.available(used + 100_000), 6);
    }
}
