//! The Lua script moves and fills queues of hundreds of instants as its twin in Rust does.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::algorithm::warm_up::WarmUp;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{Call, Holding, Outcome, Run};
use crate::redis::tests::lua_parity::{Model, both, first_of, rescheduled, rules, split, times};
use crate::redis::tests::{TestStore, at};

/// Books some permits, in as many calls as that takes. Returns their slots and the number of calls.
fn book(model: &mut Model, store: &mut TestStore, permits: usize) -> (Vec<Micros>, u32) {
    let (mut slots, mut calls) = (Vec::new(), 0);
    while slots.len() < permits {
        let count = (permits - slots.len()) as u64;
        let runs = vec![Run { cost: 1, wait_max: Micros(3_000_000_000), count }];
        let call = Call { replica: 1, generations: vec![0], runs, queue_slots_left: 1000, ..Call::default() };
        for (count, outcome) in both(model, store, 1, &call).outcomes {
            let Outcome::Booked(slot) = outcome else { panic!("{outcome:?}") };
            slots.extend(times(slot, count));
        }
        calls += 1;
    }
    (slots, calls)
}

/// A token bucket, a leaky one and a warm-up. Each permit is booked among hundreds of later ones.
#[test]
fn lua_fills_gaps_in_a_long_queue_as_rust_does_in_several_calls() {
    let mut store = TestStore::start();
    for index in [5, 6, 14] {
        store.flush();
        let mut model = Model::new(index);
        let (slots, calls) = book(&mut model, &mut store, 400);
        assert!((4..=10).contains(&calls), "{calls}");
        let give_back = slots.iter().skip(30).step_by(7);
        let give_back = give_back.map(|slot| Holding { slot: *slot, cost: 1, count: 1 }).collect();
        let call = Call { replica: 1, generations: vec![0], give_back, ..Call::default() };
        both(&mut model, &mut store, 1, &call);
        let (freed, calls) = book(&mut model, &mut store, 50);
        assert!(freed[0] < slots[60] && freed.is_sorted(), "{freed:?}");
        assert!(calls > 1 && calls <= 50, "{calls}");
    }
}

/// A leaky bucket, alone and with a window. Several permits pass hundreds of bookings to the end, and what the script remembers of that way
/// does not keep single permits from the gaps on it.
#[test]
fn lua_books_one_permit_in_gaps_that_several_have_passed() {
    let mut store = TestStore::start();
    let bucket = Rule {
        rate: 10,
        window: Micros::from_millis(1000),
        cell: Micros::ONE,
        kind: Kind::Bucket(Bucket { burst: 1 }),
    };
    let window = Rule {
        rate: 90,
        window: Micros::from_millis(10_000),
        cell: Micros::ONE,
        kind: Kind::SlidingWindow(SlidingWindow),
    };
    for rules in [vec![bucket.clone()], vec![bucket.clone(), window.clone()], vec![window, bucket]] {
        store.flush();
        let mut model = Model::new(0);
        model.limiter_refs[0].rules = rules.into();
        let (slots, _) = book(&mut model, &mut store, 300);
        let give_back = slots.iter().skip(100).step_by(7).take(20);
        let give_back = give_back.map(|slot| Holding { slot: *slot, cost: 1, count: 1 }).collect();
        let call = Call { replica: 1, generations: vec![0], queue_slots_left: 1000, ..Call::default() };
        both(&mut model, &mut store, 1, &Call { give_back, ..call.clone() });
        for cost in [5, 3, 2] {
            let runs = vec![Run { cost, wait_max: Micros(3_000_000_000), count: 1 }];
            let outcomes = both(&mut model, &mut store, 1, &Call { runs, ..call.clone() }).outcomes;
            assert!(matches!(outcomes[..], [(1, Outcome::Booked(_))]), "{outcomes:?}");
        }
        let (freed, _) = book(&mut model, &mut store, 15);
        assert!(freed[0] < slots[250], "{freed:?}");
    }
}

/// A warm-up that stays cold for all of 900 bookings, and one that is warm behind some of them. Some are given back, some leave with time, and
/// what is booked then stands behind the others or among them.
#[test]
fn lua_passes_a_long_cold_queue_as_rust_does() {
    let mut store = TestStore::start();
    for warm_up_millis in [100_000, 20_000] {
        store.flush();
        let mut model = Model::new(0);
        let kind = Kind::WarmUp(WarmUp { warm_up: Micros::from_millis(warm_up_millis), cold: 3 });
        model.limiter_refs[0].rules =
            [Rule { rate: 7, window: Micros::from_millis(1000), cell: Micros::ONE, kind }].into();
        let (slots, _) = book(&mut model, &mut store, 900);
        assert!(slots.is_sorted_by(|one, other| one < other), "each has an instant of its own");
        let call = Call { replica: 1, generations: vec![0], ..Call::default() };
        for (first, seconds) in [(850, 0), (600, 20), (700, 1), (250, 0), (400, 0)] {
            model.now = model.now + Micros::from_millis(1000 * seconds);
            let give_back = slots.iter().skip(first).step_by(2).take(5);
            let give_back = give_back.map(|slot| Holding { slot: *slot, cost: 1, count: 1 }).collect();
            both(&mut model, &mut store, 1, &Call { give_back, ..call.clone() });
            // No gap is wide enough for these: they stand at the end, behind pages that are passed with another level than before.
            let runs = vec![Run { cost: 5, wait_max: Micros(3_000_000_000), count: 2 }];
            let wide = Call { runs, queue_slots_left: 1000, ..call.clone() };
            let outcomes = both(&mut model, &mut store, 1, &wide).outcomes;
            assert!(
                matches!(outcomes[..], [(_, Outcome::Booked(slot)), ..] if slot > slots[899]),
                "{outcomes:?}"
            );
            let (booked, _) = book(&mut model, &mut store, 3);
            assert!(booked.is_sorted(), "{booked:?}");
        }
    }
}

/// Every algorithm takes the place of a leaky bucket, one limiter and two. The script moves some bookings with each call, then
/// tells of some places with each, and only then of newcomers.
#[test]
fn lua_moves_a_long_queue_as_rust_does_in_several_calls() {
    let mut store = TestStore::start();
    for changed in [3, 4, 5, 8, 10, 12, 14] {
        store.flush();
        let mut model = Model::new(6);
        let (slots, _) = book(&mut model, &mut store, 500);
        model.limiter_refs[0].rules = rules(changed);
        let ask = Call { replica: 1, generations: vec![0], queue_slots_left: 1, ..Call::default() };
        let void_from = model.reserve(1, &ask).generations[0].void_from;
        let void = slots.iter().filter(|slot| **slot >= void_from);
        let mut reschedule: Vec<_> = void.map(|slot| Holding { slot: *slot, cost: 1, count: 1 }).collect();
        let reschedule_wait = Micros(20_000_000_000);
        let newcomer = Run { cost: 1, wait_max: reschedule_wait, count: 1 };
        let mut calls = 0;
        while !reschedule.is_empty() {
            let call =
                Call { reschedule: reschedule.clone(), reschedule_wait, runs: vec![newcomer], ..ask.clone() };
            let answer = store.reserve(&at(model.now), &model.limiter_refs[..1], &call);
            calls += 1;
            if !answer.rescheduled.is_empty() {
                assert_eq!(answer, model.reserve(1, &first_of(&call, &answer)), "{changed}");
                reschedule = split(&reschedule, rescheduled(&answer)).1;
            }
            assert_eq!(answer.outcomes.is_empty(), !reschedule.is_empty(), "a newcomer waits: {answer:?}");
        }
        assert!((3..=20).contains(&calls), "{changed}: {calls}");
    }
}

/// More than 512 instants, of which some are given back, and some leave the window. What has left it stays forgotten when limits come into
/// force that see further back.
#[test]
fn lua_keeps_a_very_long_queue_as_rust_does() {
    let mut store = TestStore::start();
    let sliding = |rate, millis| {
        let (window, kind) = (Micros::from_millis(millis), Kind::SlidingWindow(SlidingWindow));
        [Rule { rate, window, cell: Micros::ONE, kind }].into()
    };
    let mut model = Model::new(0);
    model.limiter_refs[0].rules = sliding(1, 100);
    let (slots, _) = book(&mut model, &mut store, 900);
    assert!(slots.is_sorted_by(|one, other| one < other), "each has an instant of its own");
    let call = Call { replica: 1, generations: vec![0], ..Call::default() };
    for (first, step, seconds) in [(30, 3, 20), (300, 2, 30), (650, 1, 10)] {
        let give_back = slots.iter().take(850).skip(first).step_by(step).take(100);
        let give_back = give_back.map(|slot| Holding { slot: *slot, cost: 1, count: 1 }).collect();
        both(&mut model, &mut store, 1, &Call { give_back, ..call.clone() });
        let (freed, _) = book(&mut model, &mut store, 20);
        assert!(freed.iter().all(|slot| slots.contains(slot)), "{freed:?}");
        model.now = model.now + Micros::from_millis(seconds * 1000);
    }
    let (last, _) = book(&mut model, &mut store, 200);
    assert!(last.last() > slots.last());
    model.limiter_refs[0].rules = sliding(400, 60_000);
    book(&mut model, &mut store, 100);
}
