//! No window over its limit.

use super::{
    Algorithm, Court, Event, Excess, FaultKind, LimiterModel, MS, Policy, QUIET, S, STATE, Scope, State,
    What, limit, limiter, sliding,
};

fn court(algorithm: Algorithm) -> Court {
    Court::new(&[limiter(&[limit(4, S, algorithm)])])
}

#[test]
fn a_sliding_window_is_half_open() {
    let mut court = court(Algorithm::SlidingWindow);
    (0..4).for_each(|_| court.pass(S, 1));
    court.pass(2 * S, 1);
    assert_eq!(court.whats(), []);
    (0..3).for_each(|_| court.pass(2 * S, 1));
    assert_eq!(court.whats(), []);
    court.pass(3 * S - 1, 1);
    let found = court.found.remove(0);
    assert_eq!((found.what, found.at, found.sent, found.limit), (What::Over, 3 * S - 1, 5, 4));
}

#[test]
fn costs_count_and_one_cause_is_told_once_a_window() {
    let mut court = court(Algorithm::SlidingWindow);
    court.pass(0, 3);
    court.pass(10, 2);
    court.pass(20, 2);
    assert_eq!(court.whats(), [What::Over]);
    let worst = &court.oracle.summary().worst[0];
    assert_eq!((worst.sent, worst.limit, court.oracle.summary().repeated), (7, 4, 1));
    court.pass(2 * S, 5);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn all_limits_of_a_limiter_hold() {
    let mut court = Court::new(&[limiter(&[sliding(4, S), sliding(6, 10 * S)])]);
    (0..4).for_each(|_| court.pass(0, 1));
    (0..2).for_each(|_| court.pass(2 * S, 1));
    assert_eq!(court.whats(), []);
    court.pass(10 * S - 1, 1);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn fixed_windows_follow_the_clock_of_the_store() {
    let mut court = court(Algorithm::FixedWindow);
    court.ahead = 300 * MS;
    (0..4).for_each(|_| court.pass(700 * MS - 1, 1));
    (0..4).for_each(|_| court.pass(700 * MS, 1));
    assert_eq!(court.whats(), []);
    court.pass(1_700 * MS - 1, 1);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn a_fixed_window_across_a_step_is_not_judged() {
    let mut court = court(Algorithm::FixedWindow);
    (0..4).for_each(|_| court.pass(3 * S, 1));
    court.see(3 * S + 500 * MS, &Event::ClockStepped);
    court.ahead = 200 * MS;
    (0..4).for_each(|_| court.pass(3 * S + 600 * MS, 1));
    assert_eq!(court.whats(), []);
    (0..5).for_each(|_| court.pass(3 * S + 800 * MS, 1));
    assert_eq!(court.whats(), [What::Over], "the first whole window after it is");
}

#[test]
fn a_token_bucket_holds_its_burst_and_what_flows_in() {
    let mut court = court(Algorithm::TokenBucket { burst: 6 });
    (0..6).for_each(|_| court.pass(S, 1));
    court.pass(S + 250 * MS, 1);
    court.pass(S + 500 * MS, 1);
    assert_eq!(court.whats(), []);
    court.pass(S + 500 * MS, 1);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn a_bucket_is_judged_by_slots_within_a_window_and_without_slack_beyond() {
    // Each used between 0 and a guard of 10 ms after its slot: the first late, the others at once.
    let run = |spacing: u64| {
        let mut court = court(Algorithm::LeakyBucket);
        court.pass(S + 10 * MS, 1);
        (1..40).for_each(|slot| court.pass(S + slot * spacing, 1));
        court.whats()
    };
    assert_eq!(run(252_501), [], "slots of windows that are longer by the guard");
    assert!(run(250_000).contains(&What::Over), "slots that forget the guard: five within a second");
}

#[test]
fn a_large_request_may_overtake_a_small_one_that_is_late_by_a_guard() {
    let run = |late: u64| {
        let mut court = Court::new(&[limiter(&[limit(200, S, Algorithm::LeakyBucket)])]);
        court.pass(S + 5_050, 5);
        court.pass(S + late, 1);
        court.whats()
    };
    assert_eq!(run(9 * MS), [], "its slot was 5 ms before");
    assert_eq!(run(18 * MS), [What::Over], "a slot of its own lies 25 ms behind");
}

#[test]
fn an_empty_bucket_takes_one_request_of_any_cost() {
    let mut court = court(Algorithm::LeakyBucket);
    court.pass(0, 4);
    court.pass(S, 2);
    assert_eq!(court.whats(), []);
    court.pass(S + 400 * MS, 1);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn a_warm_up_never_gives_more_than_a_leaky_bucket() {
    let mut court = court(Algorithm::WarmUp { cold: 3 });
    court.pass(0, 1);
    court.pass(250 * MS, 1);
    assert_eq!(court.whats(), []);
    court.pass(300 * MS, 1);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn a_bucket_of_a_huge_rate_does_not_overflow() {
    let day = 86_400 * S;
    let mut court = Court::new(&[limiter(&[limit(
        1_000_000_000,
        366 * day,
        Algorithm::TokenBucket { burst: 1_000_000_000 },
    )])]);
    court.pass(0, 1_000_000_000);
    assert_eq!(court.whats(), []);
    court.pass(S, 10_000_000);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn partitions_and_replicas_have_states_of_their_own() {
    let mut model = limiter(&[sliding(1, S)]);
    model.is_per_replica = true;
    let mut court = Court::new(&[model]);
    for (replica, partition) in [(0, None), (1, None), (1, Some(7))] {
        let request = court.arrive_at(0, replica, &[State { partition, ..STATE }], 1, None);
        court.send(0, request);
    }
    assert_eq!(court.whats(), []);
    let request = court.arrive_at(0, 1, &[STATE], 1, None);
    court.send(0, request);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn shadows_are_not_judged() {
    let mut court = Court::new(&[LimiterModel { is_shadow: true, ..limiter(&[sliding(1, S)]) }]);
    (0..9).for_each(|_| court.pass(0, 1));
    assert_eq!(court.whats(), []);
}

#[test]
fn allow_is_not_judged_until_a_window_and_a_second_after_the_fault() {
    let mut court = Court::new(&[LimiterModel { policy: Policy::Allow, ..limiter(&[sliding(1, S)]) }]);
    court.fault(5 * S, 6 * S, QUIET);
    (0..9).for_each(|_| court.pass(7 * S, 1));
    (0..9).for_each(|_| court.pass(8 * S - 2, 1));
    assert_eq!(court.whats(), []);
    court.pass(8 * S - 1, 1);
    assert_eq!(court.whats(), [What::Over]);
    let mut court = Court::new(&[limiter(&[sliding(1, S)])]);
    court.see(5 * S, &Event::FaultBegins { fault: 1, kind: QUIET });
    (0..2).for_each(|_| court.pass(6 * S, 1));
    assert_eq!(court.whats(), [What::Over], "other policies are judged in the fault as well");
}

#[test]
fn a_fault_may_excuse_a_share_of_the_limit() {
    let cut_off = FaultKind { excess: Excess { local: 50, other: 0 }, ..QUIET };
    let mut court = Court::new(&[limiter(&[sliding(4, S)])]);
    court.fault(5 * S, 6 * S, cut_off);
    (0..6).for_each(|_| court.pass(6 * S + 500 * MS, 1));
    assert_eq!(court.whats(), []);
    court.pass(6 * S + 600 * MS, 1);
    assert_eq!(court.whats(), [What::Over]);
    (0..5).for_each(|_| court.pass(9 * S, 1));
    assert_eq!(court.whats(), [What::Over], "a window later the limit is the limit again");
    let mut court = Court::new(&[LimiterModel { policy: Policy::Reject, ..limiter(&[sliding(4, S)]) }]);
    court.fault(5 * S, 6 * S, cut_off);
    (0..5).for_each(|_| court.pass(6 * S, 1));
    assert_eq!(court.whats(), [What::Over], "reject is not excused");
}

#[test]
fn the_shares_of_replicas_that_are_cut_off_at_once_add_up_but_for_one() {
    let cut_off = |replica, fault| {
        let excess = Excess { local: 25, other: 0 };
        Event::FaultBegins { fault, kind: FaultKind { apart: Some(replica), excess, ..QUIET } }
    };
    let sent_at_most = |replicas: &[usize], most: u64| {
        let mut court = Court::new(&[limiter(&[sliding(4, S)])]);
        (1..).zip(replicas).for_each(|(fault, replica)| court.see(5 * S, &cut_off(*replica, fault)));
        (0..most).for_each(|_| court.pass(6 * S, 1));
        assert_eq!(court.whats(), [], "{replicas:?}");
        court.pass(6 * S, 1);
        assert_eq!(court.whats(), [What::Over], "{replicas:?}");
    };
    sent_at_most(&[0], 5);
    sent_at_most(&[0, 0], 5);
    sent_at_most(&[0, 1], 6);
    sent_at_most(&[0, 1, 2, 3], 7);
}

#[test]
fn a_policy_may_be_followed_for_as_long_as_its_requests_wait() {
    let cut_off = FaultKind { excess: Excess { local: 50, other: 0 }, ..QUIET };
    let mut court = Court::new(&[LimiterModel { wait_max: Some(3 * S), ..limiter(&[sliding(4, S)]) }]);
    court.see(5 * S, &Event::FaultBegins { fault: 1, kind: cut_off });
    let strict = LimiterModel { policy: Policy::Reject, wait_max: Some(3 * S), ..limiter(&[sliding(4, S)]) };
    court.configure(6 * S, &[strict]);
    (0..6).for_each(|_| court.pass(9 * S + 400 * MS, 1));
    assert_eq!(court.whats(), []);
    (0..5).for_each(|_| court.pass(10 * S + 600 * MS, 1));
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn a_window_is_judged_by_the_largest_rate_in_force_in_it() {
    let mut court = Court::new(&[limiter(&[sliding(10, S)])]);
    court.configure(5 * S, &[limiter(&[sliding(4, S)])]);
    (0..10).for_each(|_| court.pass(5 * S + 400 * MS, 1));
    court.pass(6 * S + 400 * MS, 10);
    assert_eq!(court.whats(), [], "from 5.4 on: the old rate, until 5.5");
    court.pass(7 * S + 500 * MS, 5);
    assert_eq!(court.whats(), [What::Over]);
    court.configure(10 * S, &[limiter(&[sliding(20, S)])]);
    court.pass(10 * S, 20);
    assert_eq!(court.whats(), [], "a higher rate is good at once");
}

#[test]
fn a_limit_with_another_window_is_judged_after_a_lease() {
    let mut court = Court::new(&[limiter(&[sliding(10, S)])]);
    court.configure(5 * S, &[limiter(&[sliding(10, 2 * S)])]);
    court.pass(5 * S, 10);
    court.pass(6 * S, 10);
    assert_eq!(court.whats(), []);
    court.pass(8 * S, 11);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn a_lower_burst_is_not_held_against_the_past() {
    let bucket = |burst| limiter(&[limit(10, S, Algorithm::TokenBucket { burst })]);
    let mut court = Court::new(&[bucket(20)]);
    court.configure(5 * S, &[bucket(2)]);
    court.pass(5 * S + 400 * MS, 20);
    court.pass(6 * S + 500 * MS, 2);
    assert_eq!(court.whats(), []);
    court.pass(6 * S + 600 * MS, 2);
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn a_rolling_reload_is_judged_by_the_loosest() {
    let mut court = Court::new(&[limiter(&[sliding(10, S)])]);
    let to = |replica, rate| Event::Configured { replica, limiters: vec![limiter(&[sliding(rate, S)])] };
    court.see(5 * S, &to(Some(0), 4));
    court.pass(9 * S, 10);
    court.see(10 * S, &to(Some(1), 4));
    court.see(10 * S, &to(None, 4));
    court.pass(11 * S, 10);
    assert_eq!(court.whats(), []);
    court.pass(13 * S, 5);
    assert_eq!(court.whats(), [What::Over]);
}

/// Those with the small guard leave too little free for those that use their slots later.
#[test]
fn guards_that_differ_excuse_twice_the_limit_until_a_lease_later() {
    let small = LimiterModel { guard: 5 * MS, ..limiter(&[sliding(4, S)]) };
    let to = |replica| Event::Configured { replica, limiters: vec![small.clone()] };
    for all_at in [9 * S, 5 * S + 300 * MS] {
        let mut court = Court::new(&[limiter(&[sliding(4, S)])]);
        court.see(5 * S, &to(Some(0)));
        court.see(all_at, &to(None));
        court.pass(all_at + 100 * MS, 8);
        assert_eq!(court.whats(), []);
        court.pass(all_at + 3 * S, 5);
        assert_eq!(court.whats(), [What::Over]);
    }
}

#[test]
fn after_a_reset_earlier_use_does_not_count() {
    let court = |algorithm| {
        let mut court = court(algorithm);
        court.pass(5 * S + 100 * MS, 4);
        court.see(5 * S + 200 * MS, &Event::Reset(Scope::State(STATE)));
        court.pass(5 * S + 300 * MS, 4);
        court
    };
    for algorithm in [
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow,
        Algorithm::LeakyBucket,
        Algorithm::TokenBucket { burst: 4 },
    ] {
        let mut court = court(algorithm);
        assert_eq!(court.whats(), [], "{algorithm:?}");
        court.pass(5 * S + 400 * MS, 1);
        assert_eq!(court.whats(), [What::Over], "{algorithm:?}");
    }
}

#[test]
fn a_settled_cost_counts_as_the_lower_one() {
    for algorithm in [Algorithm::SlidingWindow, Algorithm::FixedWindow, Algorithm::TokenBucket { burst: 4 }] {
        let mut court = court(algorithm);
        court.pass(5 * S, 4);
        court.see(5 * S + MS, &Event::Settled { replica: 0, less: vec![(STATE, 3)], sent_at: 5 * S });
        court.pass(5 * S + 2 * MS, 3);
        assert_eq!(court.whats(), [], "{algorithm:?}");
        court.pass(5 * S + 3 * MS, 1);
        assert_eq!(court.whats(), [What::Over], "{algorithm:?}");
    }
}
