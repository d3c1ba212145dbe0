//! Refusals while there is room.

use super::{
    Algorithm, Court, Event, FLUSH, LimiterModel, MS, QUIET, S, STATE, Scope, State, What, Why, limit,
    limiter, sliding,
};

fn court() -> Court {
    Court::new(&[LimiterModel { wait_max: None, ..limiter(&[sliding(10, S)]) }])
}

#[test]
fn a_limit_that_is_hardly_used_refuses_nobody() {
    let mut court = court();
    court.pass(5 * S, 5);
    court.turn_away(5 * S + 1, 6);
    assert_eq!(court.whats(), [], "too little is left");
    court.turn_away(5 * S + 1, 5);
    let found = court.found.remove(0);
    assert_eq!((found.what, found.sent, found.limit), (What::RefusedWithRoom, 10, 10));
}

#[test]
fn more_than_half_in_use_may_be_prefetched() {
    let mut court = court();
    court.pass(5 * S, 6);
    court.turn_away(5 * S + 1, 1);
    assert_eq!(court.whats(), []);
    court.turn_away(6 * S + 20 * MS, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom], "a window, a guard and a grid later");
}

#[test]
fn requests_without_an_answer_count_and_those_that_left_for_a_lease() {
    let mut court = court();
    let other = court.arrive_at(5 * S, 2, &[STATE], 6, None);
    court.turn_away(5 * S, 1);
    court.see(5 * S, &Event::Left { request: other });
    court.turn_away(5 * S + 499 * MS, 1);
    assert_eq!(court.whats(), []);
    court.turn_away(5 * S + 500 * MS, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
}

#[test]
fn a_late_answer_of_the_store_is_no_excuse() {
    let mut court = court();
    court.see(5 * S, &Event::FaultBegins { fault: 1, kind: QUIET });
    court.turn_away(5 * S + 100 * MS, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
}

#[test]
fn a_loss_is_an_excuse_for_a_window() {
    let mut court = court();
    court.see(5 * S, &Event::FaultBegins { fault: 1, kind: FLUSH });
    court.turn_away(5 * S + 100 * MS, 1);
    court.see(6 * S, &Event::FaultEnds { fault: 1 });
    // The store grants again two leases later.
    court.turn_away(8 * S, 1);
    assert_eq!(court.whats(), []);
    court.turn_away(8 * S + 20 * MS, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
}

#[test]
fn pauses_reloads_and_standstills_are_excuses() {
    let mut court = court();
    court.see(5 * S, &Event::Paused(Scope::Limiter(0)));
    court.turn_away(6 * S, 1);
    court.see(7 * S, &Event::Resumed(Scope::Limiter(0)));
    court.turn_away(8 * S, 1);
    court.configure(9 * S, &[LimiterModel { wait_max: None, ..limiter(&[sliding(11, S)]) }]);
    court.turn_away(9 * S + 499 * MS, 1);
    let request = court.arrive(9 * S + 600 * MS, 1);
    court.see(9 * S + 601 * MS, &Event::ReplicaStopped { replica: 0 });
    court.see(9 * S + 602 * MS, &Event::ReplicaContinued { replica: 0 });
    court.refuse(9 * S + 603 * MS, request);
    assert_eq!(court.whats(), []);
    court.turn_away(9 * S + 700 * MS, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
}

#[test]
fn a_pause_may_begin_anew_when_the_clock_is_set_back() {
    let mut court = court();
    court.see(5 * S, &Event::Paused(Scope::Limiter(0)));
    court.see(10 * S, &Event::Resumed(Scope::Limiter(0)));
    court.see(10 * S + 500 * MS, &Event::ClockStepped);
    court.turn_away(15 * S, 1);
    assert_eq!(court.whats(), []);
    court.turn_away(18 * S, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
}

#[test]
fn a_cost_that_a_limit_can_hold_is_not_too_large() {
    let mut court = Court::new(&[limiter(&[sliding(10, S), limit(8, S, Algorithm::LeakyBucket)])]);
    for (cost, whats) in [(9, vec![]), (8, vec![What::RefusedWithRoom])] {
        let request = court.arrive(5 * S, cost);
        court.see(5 * S, &Event::Refused { request, why: Why::TooCostly, store_clock: 0 });
        assert_eq!(court.whats(), whats);
    }
}

#[test]
fn one_limiter_without_room_is_enough() {
    let other = LimiterModel { id: 1, name: "other".to_owned(), ..limiter(&[sliding(1, S)]) };
    let mut court = Court::new(&[limiter(&[sliding(10, S)]), other]);
    let states = [STATE, State { limiter: 1, partition: None }];
    let request = court.arrive_at(5 * S, 0, &states, 1, None);
    court.send(5 * S, request);
    let request = court.arrive_at(5 * S, 0, &states, 1, None);
    court.refuse(5 * S, request);
    assert_eq!(court.whats(), []);
    let request = court.arrive_at(7 * S, 0, &states, 1, None);
    court.refuse(7 * S, request);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
}

#[test]
fn a_bucket_has_room_when_it_has_drained() {
    let mut court = Court::new(&[LimiterModel {
        wait_max: None,
        ..limiter(&[limit(10, S, Algorithm::TokenBucket { burst: 4 })])
    }]);
    court.pass(5 * S, 4);
    court.turn_away(5 * S + 200 * MS, 1);
    assert_eq!(court.whats(), [], "not down to half of it");
    court.turn_away(5 * S + 203 * MS, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
    let mut court =
        Court::new(&[LimiterModel { wait_max: None, ..limiter(&[limit(10, S, Algorithm::LeakyBucket)]) }]);
    court.pass(5 * S, 1);
    court.turn_away(5 * S + 100 * MS, 1);
    assert_eq!(court.whats(), []);
    court.turn_away(5 * S + 102 * MS, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
}

#[test]
fn the_last_guard_of_a_fixed_window_gives_nothing() {
    let mut court =
        Court::new(&[LimiterModel { wait_max: None, ..limiter(&[limit(10, S, Algorithm::FixedWindow)]) }]);
    court.turn_away(5 * S + 990 * MS, 1);
    assert_eq!(court.whats(), []);
    court.turn_away(6 * S, 1);
    assert_eq!(court.whats(), [What::RefusedWithRoom]);
}

#[test]
fn external_usage_is_not_the_oracles_to_know() {
    let mut court = Court::new(&[LimiterModel { judges_room: false, ..limiter(&[sliding(10, S)]) }]);
    court.turn_away(5 * S, 1);
    assert_eq!(court.whats(), []);
}

#[test]
fn a_queue_is_full_only_where_as_many_have_been_there_as_may_wait() {
    let mut court = Court::new(&[LimiterModel { max_waiting: 3, ..limiter(&[sliding(10, S)]) }]);
    let is_full = |court: &mut Court, at, request| {
        court.see(at, &Event::Refused { request, why: Why::QueueFull, store_clock: 0 });
        court.whats().is_empty()
    };
    let waiting: Vec<u64> = (0..4).map(|_| court.arrive(5 * S, 1)).collect();
    assert!(is_full(&mut court, 5 * S + MS, waiting[3]));
    let last = court.arrive(5 * S + 2 * MS, 1);
    court.send(5 * S + 3 * MS, waiting[0]);
    assert!(is_full(&mut court, 5 * S + 4 * MS, last), "three were there while it was asked for");
    let last = court.arrive(9 * S, 1);
    assert!(!is_full(&mut court, 9 * S + MS, last), "two have been there since it came");
}
