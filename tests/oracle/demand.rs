//! The use of what the windows leave room for.

use super::{
    Algorithm, Court, Event, LimitModel, LimiterModel, QUIET, S, STATE, Scope, State, What, limit, limiter,
    sliding,
};

/// The fate of a request at each slot of regular traffic: sent, or refused.
struct Traffic {
    /// Requests each second.
    demand: u64,
    /// Returns how many of ten pass at an instant.
    passes: fn(u64) -> u64,
    /// Something that happens at an instant.
    events: Vec<(u64, Event)>,
    states: Vec<State>,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic { demand: 60, passes: |_| 3, events: Vec::new(), states: vec![STATE] }
    }
}

/// Runs half a minute of traffic over `20/1s`, and returns what is found.
fn run(model: &LimiterModel, mut traffic: Traffic) -> Vec<What> {
    let other = LimiterModel { id: 1, ..limiter(&[sliding(1000, S)]) };
    let mut court = Court::new(&[model.clone(), other]);
    for number in 0..40 * traffic.demand {
        let at = number * S / traffic.demand;
        while traffic.events.first().is_some_and(|(due, _)| *due <= at) {
            let (due, event) = traffic.events.remove(0);
            court.see(due, &event);
        }
        let request = court.arrive_at(at, 0, &traffic.states, 1, None);
        if number % 10 < (traffic.passes)(at) {
            court.send(at, request);
        } else {
            court.see(at, &Event::Left { request });
        }
    }
    court.see(41 * S, &Event::Ended);
    court.whats()
}

fn model() -> LimiterModel {
    limiter(&[sliding(20, S)])
}

#[test]
fn enough_use_is_enough() {
    assert_eq!(run(&model(), Traffic::default()), []);
}

#[test]
fn a_store_that_grants_nothing_fails() {
    let found = run(&model(), Traffic { passes: |_| 0, ..Traffic::default() });
    assert!(found.contains(&What::Unused) && found.contains(&What::NotBack), "{found:?}");
}

#[test]
fn a_gap_of_six_seconds_fails_and_of_three_does_not() {
    let gap = |passes| run(&model(), Traffic { passes, ..Traffic::default() });
    assert!(gap(|at| if (20 * S..26 * S).contains(&at) { 0 } else { 3 }).contains(&What::Unused));
    assert_eq!(gap(|at| if (20 * S..23 * S).contains(&at) { 0 } else { 3 }), []);
}

#[test]
fn without_demand_nothing_is_missing() {
    assert_eq!(run(&model(), Traffic { demand: 20, ..Traffic::default() }), []);
}

#[test]
fn limiters_without_a_queue_or_with_others_on_the_route_are_not_judged() {
    let nothing = || Traffic { passes: |_| 0, ..Traffic::default() };
    assert_eq!(run(&LimiterModel { wait_max: None, ..model() }, nothing()), []);
    assert_eq!(run(&LimiterModel { judges_room: false, ..model() }, nothing()), []);
    let states = vec![STATE, State { limiter: 1, partition: None }];
    assert_eq!(run(&model(), Traffic { states, ..nothing() }), []);
}

#[test]
fn a_fault_that_goes_on_excuses() {
    let events = vec![(0, Event::FaultBegins { fault: 1, kind: QUIET })];
    assert_eq!(run(&model(), Traffic { passes: |_| 0, events, ..Traffic::default() }), []);
    let events = vec![(0, Event::Paused(Scope::Limiter(0)))];
    assert_eq!(run(&model(), Traffic { passes: |_| 0, events, ..Traffic::default() }), []);
}

#[test]
fn the_rate_is_back_a_window_and_two_seconds_after_a_fault() {
    let events = || {
        vec![(10 * S, Event::FaultBegins { fault: 1, kind: QUIET }), (12 * S, Event::FaultEnds { fault: 1 })]
    };
    let back_at = |passes| run(&model(), Traffic { passes, events: events(), ..Traffic::default() });
    assert_eq!(back_at(|at| if (10 * S..15 * S).contains(&at) { 0 } else { 3 }), []);
    assert_eq!(back_at(|at| if (10 * S..17 * S).contains(&at) { 0 } else { 3 }), [What::NotBack]);
}

/// Sends `20/10s` at once in each window of 10.1 s: much of the time there is no room.
fn bursts(limit: LimitModel, period: u64) -> Vec<What> {
    let mut court = Court::new(&[limiter(&[limit])]);
    let mut open = 0;
    let mut sent = 0;
    for number in 0..12 * 120 {
        let at = number * S / 12;
        if at >= open + period {
            (open, sent) = (at, 0);
        }
        let request = court.arrive(at, 1);
        if sent < 20 {
            sent += 1;
            court.send(at, request);
        } else {
            court.see(at, &Event::Left { request });
        }
    }
    court.whats()
}

#[test]
fn a_full_window_has_no_room() {
    assert_eq!(bursts(sliding(20, 10 * S), 101 * S / 10), []);
    assert_eq!(bursts(limit(20, 10 * S, Algorithm::FixedWindow), 10 * S), []);
    assert!(bursts(sliding(20, 10 * S), 30 * S).contains(&What::Unused));
    assert!(bursts(limit(20, 10 * S, Algorithm::FixedWindow), 30 * S).contains(&What::Unused));
}
