//! A line, in virtual time.

mod fleet;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::{Clock, Micros};
use crate::limiter::model::{Algorithm, FLOW_MIN, FLOWS_MAX, Limit, Outcome, Permits, Unused};
use crate::limiter::store::memory::MemoryStore;
use fleet::*;

fn limit(rate: u64, per: Duration, algorithm: Algorithm) -> Limit {
    Limit { rate: Permits::new(rate).unwrap(), per, algorithm, label: format!("{rate}/{per:?}").into() }
}

fn sliding(rate: u64, per: Duration) -> Limit {
    limit(rate, per, Algorithm::SlidingWindow { precision: 256.try_into().unwrap() })
}

fn leaky(rate: u64, per: Duration) -> Limit {
    limit(rate, per, Algorithm::LeakyBucket)
}

fn assert_shares(given: &BTreeMap<u64, u64>, goal: &[f64]) {
    let sum: u64 = given.values().sum();
    for (flow, goal) in goal.iter().enumerate() {
        let share = given.get(&(flow as u64)).copied().unwrap_or_default() as f64 / sum as f64;
        assert!((share - goal).abs() <= 0.01, "{given:?}");
    }
}

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

#[test]
fn weights_hold_at_every_rate_over_replicas_with_uneven_backlogs() {
    for rate in [100, 1000, 20_000] {
        for limits in [vec![leaky(rate, SECONDS(1))], vec![sliding(rate, SECONDS(1))]] {
            let flows = [flow(0, 0, 3), flow(1, 0, 1), flow(2, 0, 1)];
            let mut fleet = Fleet::new(&[limits], 0, &flows, 3);
            let many = usize::try_from(rate).unwrap();
            for (replica, share) in [(0, 20), (1, 7), (2, 3)] {
                for flow in 0..3 {
                    fleet.arrive(replica, flow, many * share * (1 + usize::try_from(flow).unwrap()) / 5);
                }
            }
            let start = fleet.now;
            // The third flow stops when it has had its share of five seconds.
            fleet.run(5 * SECOND, |_| {});
            assert_shares(&fleet.given(start + Micros(SECOND), fleet.now), &[0.6, 0.2, 0.2]);
            for replica in 0..3 {
                fleet.leave(replica, 2, |_| true);
            }
            fleet.run(3 * SECOND, |_| {});
            assert_shares(&fleet.given(fleet.now - Micros(2 * SECOND), fleet.now), &[0.75, 0.25, 0.0]);
            let used: u64 = fleet.given(start, fleet.now).values().sum();
            assert!(used * 100 >= 98 * 8 * rate && used <= 9 * rate, "{used} at {rate}/s");
            eprintln!(
                "{rate}/s: {:.2} calls a permit, {} late",
                fleet.calls as f64 / used as f64,
                fleet.late
            );
        }
    }
}

#[test]
fn the_first_class_waits_no_longer_than_slots_are_dealt_ahead() {
    let flows = [flow(0, 0, 1), flow(1, 1, 1)];
    let mut fleet = Fleet::new(&[vec![leaky(100, SECONDS(1))]], 0, &flows, 3);
    fleet.arrive(0, 1, 750);
    fleet.arrive(1, 1, 750);
    fleet.run(SECOND, |_| {});
    let start = fleet.now;
    let mut ticks = 0_u64;
    fleet.run(12 * SECOND, |fleet| {
        ticks += 1;
        if ticks.is_multiple_of(50) {
            fleet.arrive(2, 0, 1);
        }
    });
    let used: u64 = fleet.given(start, fleet.now).values().sum();
    let calls = fleet.calls as f64 / used as f64;
    eprintln!(
        "p50 {:?} p99 {:?}, {used} of 1200, {calls:.2} calls a permit",
        fleet.wait(0, 500),
        fleet.wait(0, 990)
    );
    assert!(fleet.wait(0, 990) <= AHEAD + Micros::from_millis(50), "{:?}", fleet.wait(0, 990));
    assert!(used >= 1176 && calls <= 1.5);
}

#[test]
fn a_floor_leaves_room_in_a_long_window_that_others_would_spend() {
    // The class that goes first has a fifth of the window to itself.
    let (first, second) =
        (Flow { costs: vec![1, 0], ..flow(0, 0, 1) }, Flow { costs: vec![1, 1], ..flow(1, 1, 1) });
    let books = [vec![sliding(1000, SECONDS(60))], vec![sliding(800, SECONDS(60))]];
    let mut fleet = Fleet::new(&books, 1, &[first, second], 3);
    fleet.arrive(0, 1, 2500);
    fleet.arrive(1, 1, 2500);
    let mut ticks = 0_u64;
    fleet.run(130 * SECOND, |fleet| {
        ticks += 1;
        if ticks.is_multiple_of(330) {
            fleet.arrive(2, 0, 1);
        }
    });
    let window = fleet.refs[0].rules[0].window;
    assert!(fleet.wait(0, 990) < Micros::from_millis(100), "{:?}", fleet.wait(0, 990));
    assert_eq!(fleet.fullest(window, |served| served.flow == FLOW_MIN + 1), 800);
    assert!(fleet.fullest(window, |_| true) <= 1000);
}

#[test]
fn a_ceiling_is_a_sliding_window_beside_a_leaky_bucket() {
    let flows = [Flow { costs: vec![1, 1], ..flow(0, 1, 1) }, Flow { costs: vec![1, 0], ..flow(1, 0, 1) }];
    let books = [vec![leaky(100, SECONDS(1))], vec![sliding(70, SECONDS(1))]];
    let mut fleet = Fleet::new(&books, 1, &flows, 2);
    fleet.arrive(0, 0, 2000);
    fleet.run(5 * SECOND, |_| {});
    let given = fleet.given(fleet.now - Micros(3 * SECOND), fleet.now);
    assert!((205..=211).contains(&given[&0]), "{given:?}");
    assert_eq!(fleet.fullest(fleet.refs[1].rules[0].window, |_| true), 70);
    // The others have what is left at once.
    let mut ticks = 0_u64;
    fleet.run(5 * SECOND, |fleet| {
        ticks += 1;
        if ticks.is_multiple_of(40) {
            fleet.arrive(1, 1, 1);
        }
    });
    assert_eq!(fleet.fullest(fleet.refs[1].rules[0].window, |served| served.flow == FLOW_MIN), 70);
    assert!(fleet.wait(1, 990) <= AHEAD + Micros::from_millis(50), "{:?}", fleet.wait(1, 990));
}

#[test]
fn an_absent_class_costs_nothing() {
    let flows = [flow(0, 0, 1), flow(1, 1, 1)];
    let mut fleet = Fleet::new(&[vec![leaky(100, SECONDS(1))]], 0, &flows, 2);
    fleet.arrive(0, 1, 1000);
    let start = fleet.now;
    fleet.run(8 * SECOND, |_| {});
    assert!(fleet.given(start, fleet.now)[&1] >= 784);
}

#[test]
fn a_request_that_leaves_costs_nothing_and_moves_no_other_back() {
    let flows = [flow(0, 0, 1)];
    let mut fleet = Fleet::new(&[vec![leaky(100, SECONDS(1))]], 0, &flows, 3);
    let mut ticks = 0_usize;
    fleet.run(SECOND, |fleet| {
        ticks += 1;
        if ticks <= 900 {
            fleet.arrive(ticks % 3, 0, 1);
        }
    });
    let start = fleet.now;
    fleet.leave(0, 0, |_| true);
    fleet.run(5 * SECOND, |_| {});
    let used: u64 = fleet.given(start, fleet.now).values().sum();
    assert!(used >= 490, "{used}");
    // In order but for a few permits of a turn.
    let mut served = fleet.served.clone();
    served.sort_by_key(|served| served.slot);
    let inverted =
        served.windows(2).filter(|pair| pair[0].came > pair[1].came + Micros::from_millis(20)).count();
    assert!(inverted * 100 <= served.len(), "{inverted} of {}", served.len());
}

#[test]
fn a_replica_that_falls_silent_costs_half_a_second_at_most() {
    let flows = [flow(0, 0, 1)];
    let mut fleet = Fleet::new(&[vec![leaky(100, SECONDS(1))]], 0, &flows, 3);
    for replica in 0..3 {
        fleet.arrive(replica, 0, 1000);
    }
    fleet.run(2 * SECOND, |_| {});
    let start = fleet.now + AHEAD;
    fleet.replicas[0].is_silent = true;
    fleet.run(5 * SECOND, |_| {});
    let used: u64 = fleet.given(start, start + Micros(4 * SECOND)).values().sum();
    assert!(used >= 350, "{used} of 400");
}

#[test]
fn the_longest_wait_goes_first_when_the_store_has_lost_the_line() {
    let flows = [flow(0, 0, 1), flow(1, 0, 1)];
    let mut fleet = Fleet::new(&[vec![leaky(100, SECONDS(1))]], 0, &flows, 3);
    let mut ticks = 0_usize;
    fleet.run(SECOND, |fleet| {
        ticks += 1;
        if ticks <= 300 {
            fleet.arrive(ticks % 3, 0, 1);
        }
    });
    fleet.store = MemoryStore::new(Clock::start());
    let (lost, before) = (fleet.now, fleet.served.len());
    // They call in another order than they waited.
    for replica in [2, 0, 1] {
        fleet.replicas[replica].known = 0;
        fleet.replicas[replica].again = Some(lost + Micros(1000 * (1 + replica as u64)));
    }
    fleet.run(3 * SECOND, |_| {});
    let mut served = fleet.served[before..].to_vec();
    served.sort_by_key(|served| served.slot);
    // The slots that the first caller was dealt before the others could say anything came in no order.
    let late = served.iter().skip(30);
    let late: Vec<_> = late.map(|served| served.came).collect();
    let inverted = late.windows(2).filter(|pair| pair[0] > pair[1] + Micros::from_millis(40)).count();
    assert!(inverted * 50 <= late.len(), "{inverted} of {}", late.len());
}

#[test]
fn a_large_cost_is_neither_starved_nor_passed_for_ever() {
    let small = [flow(0, 0, 1), flow(1, 0, 1)];
    let large = Flow { costs: vec![60], ..flow(2, 0, 1) };
    let mut fleet =
        Fleet::new(&[vec![sliding(100, SECONDS(1))]], 0, &[small[0].clone(), small[1].clone(), large], 3);
    fleet.arrive(0, 0, 2000);
    fleet.arrive(1, 1, 2000);
    fleet.run(SECOND, |_| {});
    let start = fleet.now;
    fleet.arrive(2, 2, 10);
    fleet.run(25 * SECOND, |_| {});
    let given = fleet.given(start, fleet.now);
    // A third of 2500 would be 833 permits: all ten are served, one each 180 permits.
    assert_eq!(given[&2], 600, "{given:?}");
    let mut slots: Vec<_> =
        fleet.served.iter().filter(|served| served.cost == 60).map(|served| served.slot).collect();
    slots.sort_unstable();
    assert!(slots[9] - start <= Micros(1_500_000 * 18 * 10 / 10), "{:?}", slots[9] - start);
}

#[test]
fn a_flow_without_a_place_shares_as_its_class_does() {
    let count = FLOWS_MAX as u64 + 3;
    let flows: Vec<Flow> = (0..count).map(|index| flow(index, 0, 1)).collect();
    let mut fleet = Fleet::new(&[vec![leaky(1000, SECONDS(1))]], 0, &flows, 1);
    for index in 0..count {
        fleet.arrive(0, index, 2000);
    }
    fleet.run(10 * SECOND, |_| {});
    let given = fleet.given(Micros::ZERO, fleet.now);
    let (own, rest): (Vec<_>, Vec<_>) = given.iter().partition(|(flow, _)| **flow < FLOWS_MAX as u64);
    let rest: u64 = rest.iter().map(|(_, permits)| **permits).sum();
    // Three flows have the share of one.
    for (_, permits) in own {
        assert!(permits.abs_diff(rest) <= 16, "{given:?}");
    }
}

#[test]
fn the_share_of_a_slot_that_is_not_used_goes_back_to_its_flow() {
    // Of sixty-five flows the last one has no place of its own; it gives back every second slot.
    for last in [0, FLOWS_MAX as u64] {
        let flows: Vec<Flow> = (0..=last.max(1)).map(|index| flow(index, 0, 1)).collect();
        let mut fleet = Fleet::new(&[vec![leaky(1000, SECONDS(1))]], 0, &flows, 1);
        for flow in &flows {
            fleet.arrive(0, flow.id - FLOW_MIN, 3000);
        }
        let mut kept = Vec::new();
        for _ in 0..100 {
            fleet.run(100_000, |_| {});
            let mut unused = Vec::new();
            for (place, served) in std::mem::take(&mut fleet.served).into_iter().enumerate() {
                if served.flow == FLOW_MIN + last && place % 2 == 0 && served.slot > fleet.now {
                    unused.push(Unused {
                        flow: served.flow,
                        class: 0,
                        slot: served.slot,
                        count: 1,
                        costs: vec![1],
                    });
                    fleet.replicas[0].waiting.get_mut(&served.flow).unwrap().push_front(served.came);
                } else {
                    kept.push(served);
                }
            }
            fleet.call(0, unused);
        }
        kept.append(&mut fleet.served);
        fleet.served = kept;
        let given = fleet.given(Micros::ZERO, fleet.now);
        let (own, other) = (given[&last], given[&(1 - last.min(1))]);
        assert!(own.abs_diff(other) * 100 <= 3 * other + 800, "{given:?}");
    }
}

#[test]
fn a_request_that_would_wait_too_long_is_refused_by_the_prospects_of_its_class() {
    let flows = [flow(0, 0, 1), flow(1, 1, 1)];
    let mut fleet = Fleet::new(&[vec![leaky(100, SECONDS(1))]], 0, &flows, 2);
    fleet.wait_max = Micros(5 * SECOND);
    fleet.arrive(0, 1, 700);
    fleet.run(2000, |_| {});
    // Five seconds hold five hundred.
    let waiting = fleet.replicas[0].waiting[&(FLOW_MIN + 1)].len() + fleet.served.len();
    assert!((495..=505).contains(&waiting), "{waiting}");
    let spread: Vec<_> = fleet.refused.clone();
    fleet.arrive(1, 0, 10);
    fleet.run(2000, |_| {});
    assert_eq!(fleet.refused.len(), spread.len(), "the first class is taken");
    let Outcome::TooFar(away) = spread[0].outcome else { panic!("{spread:?}") };
    assert!(away.delay > Micros(5 * SECOND) && away.delay < Micros(5_100_000), "{away:?}");
    assert!(away.is_spread, "a crowd does not come back at one instant");
}
