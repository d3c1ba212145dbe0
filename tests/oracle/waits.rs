//! Waits, their number and their order; requests without an answer.

use super::{Court, Event, LimiterModel, MS, QUIET, S, STATE, Settings, What, limiter, sliding};

fn court() -> Court {
    Court::new(&[LimiterModel { wait_max: Some(2 * S), max_waiting: 2, ..limiter(&[sliding(1000, S)]) }])
}

#[test]
fn a_request_is_answered_within_its_wait_and_100_ms() {
    let mut court = court();
    let (first, second) = (court.arrive(0, 1), court.arrive(0, 1));
    court.send(2_100 * MS, first);
    assert_eq!(court.whats(), []);
    court.send(2_100 * MS + 1, second);
    assert_eq!(court.whats(), [What::Waited]);
}

#[test]
fn a_request_may_shorten_its_wait_and_without_a_queue_there_is_none() {
    let mut court = court();
    let request = court.arrive_at(0, 0, &[STATE], 1, Some(S));
    court.send(1_100 * MS + 1, request);
    assert_eq!(court.whats(), [What::Waited]);
    let mut court = Court::new(&[LimiterModel { wait_max: None, ..limiter(&[sliding(1000, S)]) }]);
    let request = court.arrive_at(0, 0, &[STATE], 1, Some(S));
    court.refuse(100 * MS + 1, request);
    assert!(court.whats().contains(&What::Waited));
}

#[test]
fn the_timeout_of_the_store_and_a_lease_count_where_they_are_longer() {
    let settings = Settings { floor_wait: 600 * MS, ..Settings::default() };
    let mut court = Court::with(settings, &[LimiterModel { wait_max: None, ..limiter(&[sliding(1000, S)]) }]);
    let (first, second) = (court.arrive(0, 1), court.arrive(0, 1));
    court.send(700 * MS, first);
    assert_eq!(court.whats(), []);
    court.send(700 * MS + 1, second);
    assert_eq!(court.whats(), [What::Waited]);
}

#[test]
fn a_hung_request_is_found_once_while_it_waits() {
    let mut court = court();
    let hung = court.arrive(0, 1);
    court.pass(2_100 * MS, 1);
    assert_eq!(court.whats(), []);
    court.pass(2_200 * MS, 1);
    assert_eq!(court.whats(), [What::Waited]);
    court.send(9 * S, hung);
    assert_eq!(court.whats(), []);
}

#[test]
fn time_in_which_the_replica_is_stopped_does_not_count() {
    let mut court = court();
    let (first, second) = (court.arrive(0, 1), court.arrive(0, 1));
    court.see(S, &Event::ReplicaStopped { replica: 0 });
    (1..100).for_each(|step| court.pass(S + step * 30 * MS, 1));
    court.see(4 * S, &Event::ReplicaContinued { replica: 0 });
    court.send(5_100 * MS, first);
    assert_eq!(court.whats(), []);
    court.send(5_100 * MS + 1, second);
    assert_eq!(court.whats(), [What::Waited]);
    let other = court.arrive_at(6 * S, 1, &[STATE], 1, None);
    court.see(6 * S, &Event::ReplicaStopped { replica: 0 });
    court.send(9 * S, other);
    assert_eq!(court.whats(), [What::Waited], "another replica's standstill is no excuse");
}

#[test]
fn a_turn_that_is_due_in_a_stall_is_on_time_however_long_its_connection_takes() {
    let mut court = court();
    let (first, second) = (court.arrive(0, 1), court.arrive(0, 1));
    court.see(2_050 * MS, &Event::ReplicaStalled { replica: 0, until: 2_150 * MS });
    court.see(2_150 * MS, &Event::Connecting { request: first });
    court.pass(2_200 * MS, 1);
    assert_eq!(court.whats(), [], "the stall does not count");
    court.pass(2_210 * MS, 1);
    assert_eq!(court.whats(), [What::Waited], "the other one has no turn");
    court.see(2_250 * MS, &Event::Connected { request: first });
    court.send(2_250 * MS, first);
    court.send(2_250 * MS, second);
    assert_eq!(court.whats(), []);
}

#[test]
fn stalls_after_the_wait_do_not_count() {
    let mut court = court();
    let (first, second) = (court.arrive(0, 1), court.arrive(0, 1));
    court.see(S, &Event::ReplicaStalled { replica: 0, until: 1_500 * MS });
    court.see(1_950 * MS, &Event::ReplicaStalled { replica: 0, until: 2_050 * MS });
    court.see(2_060 * MS, &Event::ReplicaStalled { replica: 0, until: 2_150 * MS });
    court.send(2_240 * MS, first);
    assert_eq!(court.whats(), [], "50 and 90 ms of the stalls were after the wait");
    court.send(2_240 * MS + 1, second);
    assert_eq!(court.whats(), [What::Waited], "what was before counts as waiting");
    let third = court.arrive(3 * S, 1);
    court.see(5_100 * MS + 1, &Event::ReplicaStalled { replica: 0, until: 6 * S });
    assert_eq!(court.whats(), [What::Waited], "a stall that begins too late is no excuse");
    court.send(6 * S, third);
}

#[test]
fn a_stall_counts_once_beside_a_connection_and_only_after_the_wait() {
    let mut court = court();
    let (first, second) = (court.arrive(0, 1), court.arrive(0, 1));
    court.see(2_020 * MS, &Event::ReplicaStalled { replica: 0, until: 2_080 * MS });
    court.see(2_090 * MS, &Event::Connecting { request: first });
    court.see(2_090 * MS, &Event::Connecting { request: second });
    court.see(2_100 * MS, &Event::Connected { request: first });
    court.see(2_100 * MS, &Event::Connected { request: second });
    court.see(2_110 * MS, &Event::ReplicaStalled { replica: 0, until: 2_150 * MS });
    court.send(2_210 * MS, first);
    assert_eq!(court.whats(), [], "30 ms without a stall before its connection, 70 after it");
    court.send(2_210 * MS + 1, second);
    assert_eq!(court.whats(), [What::Waited]);
}

#[test]
fn a_request_that_comes_in_a_stall_is_seen_at_its_end() {
    let mut court = court();
    court.see(0, &Event::ReplicaStalled { replica: 0, until: 50 * MS });
    let (first, second) = (court.arrive(0, 1), court.arrive(0, 1));
    court.send(2_150 * MS, first);
    assert_eq!(court.whats(), []);
    court.send(2_150 * MS + 1, second);
    assert_eq!(court.whats(), [What::Waited]);
    court.see(4 * S, &Event::ReplicaStalled { replica: 0, until: 4_050 * MS });
    let other = court.arrive_at(4 * S, 1, &[STATE], 1, None);
    court.send(6_100 * MS + 1, other);
    assert_eq!(court.whats(), [What::Waited], "another replica's stall is no excuse");
}

#[test]
fn a_request_that_comes_in_a_stall_waits_as_a_reload_in_that_stall_says() {
    let mut court = court();
    court.see(0, &Event::ReplicaStalled { replica: 0, until: 50 * MS });
    let first = court.arrive(0, 1);
    let longer = LimiterModel { wait_max: Some(3 * S), ..limiter(&[sliding(1000, S)]) };
    let reload = |limiters| Event::Configured { replica: None, limiters };
    court.see(10 * MS, &reload(vec![longer.clone()]));
    let second = court.arrive(50 * MS, 1);
    court.see(60 * MS, &reload(vec![LimiterModel { wait_max: Some(5 * S), ..longer }]));
    court.send(3_150 * MS, first);
    assert_eq!(court.whats(), []);
    court.send(3_150 * MS + 1, second);
    assert_eq!(court.whats(), [What::Waited], "it was seen before the reload");
}

#[test]
fn a_request_that_comes_while_its_replica_is_stopped_waits_as_a_reload_says_that_is_read_before_it_goes_on() {
    let mut court = court();
    court.see(0, &Event::ReplicaStopped { replica: 0 });
    let first = court.arrive(S, 1);
    let elsewhere = court.arrive_at(S, 1, &[STATE], 1, None);
    let longer = LimiterModel { wait_max: Some(3 * S), ..limiter(&[sliding(1000, S)]) };
    court.see(2 * S, &Event::Configured { replica: None, limiters: vec![longer] });
    court.see(9 * S, &Event::ReplicaContinued { replica: 0 });
    court.send(9 * S, elsewhere);
    assert_eq!(court.whats(), [What::Waited], "the other replica had seen its request before");
    court.send(12_100 * MS, first);
    assert_eq!(court.whats(), []);
}

#[test]
fn a_request_that_waits_for_its_connection_waits_in_no_queue() {
    let mut court = court();
    let requests: Vec<u64> = (0..3).map(|_| court.arrive(0, 1)).collect();
    court.wait(0, requests[0]);
    court.wait(0, requests[1]);
    court.see(S, &Event::Connecting { request: requests[0] });
    court.wait(S, requests[2]);
    assert_eq!(court.whats(), []);
    court.pass(3 * S, 1);
    assert_eq!(court.whats(), [What::Waited], "the others are late by then");
    court.see(3 * S, &Event::Connected { request: requests[0] });
    court.send(4_100 * MS, requests[0]);
    assert_eq!(court.whats(), [], "the time of its connection does not count");
}

#[test]
fn no_more_wait_than_may_in_each_queue() {
    let mut court = court();
    let requests: Vec<u64> = (0..3).map(|_| court.arrive(0, 1)).collect();
    court.wait(0, requests[0]);
    court.wait(0, requests[1]);
    let elsewhere = court.arrive_at(0, 1, &[STATE], 1, None);
    court.wait(0, elsewhere);
    assert_eq!(court.whats(), [], "another replica has a queue of its own");
    court.send(0, requests[0]);
    court.wait(0, requests[2]);
    assert_eq!(court.whats(), []);
    let third = court.arrive(0, 1);
    court.wait(0, third);
    court.send(0, third);
    let fourth = court.arrive(1, 1);
    court.wait(1, fourth);
    assert_eq!(court.whats(), [], "one that leaves at once has not waited");
    court.pass(2, 1);
    let found = court.found.remove(0);
    assert_eq!((found.what, found.sent, found.limit), (What::TooManyWaiting, 3, 2));
}

fn two_waiting(court: &mut Court, at: u64, costs: [u64; 2]) -> [u64; 2] {
    let requests = [court.arrive(at, costs[0]), court.arrive(at + 1, costs[1])];
    requests.iter().for_each(|request| court.wait(at + 1, *request));
    requests
}

#[test]
fn waiting_requests_of_a_cost_are_sent_in_order() {
    let mut court = court();
    let [first, second] = two_waiting(&mut court, 10 * S, [1, 1]);
    court.send(10 * S + 9, first);
    court.send(10 * S + 9, second);
    let [_, second] = two_waiting(&mut court, 11 * S, [2, 1]);
    court.send(11 * S + 9, second);
    assert_eq!(court.whats(), []);
    let mut court = super::waits::court();
    let [_, second] = two_waiting(&mut court, 10 * S, [1, 1]);
    court.send(10 * S + 9, second);
    assert_eq!(court.whats(), [What::Order]);
}

#[test]
fn a_request_that_did_not_wait_may_pass() {
    let mut court = court();
    let first = court.arrive(10 * S, 1);
    court.wait(10 * S, first);
    court.pass(10 * S + 1, 1);
    assert_eq!(court.whats(), []);
}

#[test]
fn order_is_not_judged_near_a_fault() {
    let disturbances: [&dyn Fn(&mut Court); 3] = [
        &|court| court.fault(9 * S, 9 * S + 1, QUIET),
        &|court| court.see(9 * S, &Event::ReplicaStopped { replica: 3 }),
        &|court| court.see(9 * S, &Event::Paused(super::Scope::Limiter(0))),
    ];
    for disturb in disturbances {
        let mut court = court();
        disturb(&mut court);
        let [_, second] = two_waiting(&mut court, 10 * S, [1, 1]);
        court.send(10 * S + 9, second);
        assert_eq!(court.whats(), []);
    }
}

#[test]
fn requests_without_an_answer_are_found_at_the_end() {
    let mut court = court();
    let (gone, _hung) = (court.arrive(0, 1), court.arrive(0, 1));
    court.see(1, &Event::Left { request: gone });
    court.see(2, &Event::Ended);
    let found = court.found.remove(0);
    assert_eq!((found.what, found.sent), (What::Leaked, 1));
    assert_eq!(court.oracle.summary().unanswered, 1);
}

#[test]
fn a_replica_takes_its_requests_with_it() {
    let mut court = court();
    let request = court.arrive(0, 1);
    court.wait(0, request);
    court.see(1, &Event::ReplicaEnded { replica: 0 });
    court.see(9 * S, &Event::Ended);
    assert_eq!(court.whats(), []);
    court.send(9 * S, request);
    assert_eq!(court.oracle.summary().senseless, 1, "a request that is gone cannot be sent");
}
