//! The charges of the scripts on a real Redis for what silent members may have been granted without it.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::{Call, Holding, Outcome, Run};
use crate::limiter::model::heartbeat::{Heartbeat, Reported};
use crate::limiter::model::write_back::{Unknown, WriteBack};
use crate::redis::tests::fleet::{Fleet, SECOND, granted, heartbeat, lost, slots};
use crate::redis::tests::{LEASE, START};

/// Two replicas are silent until an instant, and the second one is never heard again. Returns the epochs before and behind that; the latter
/// is open half a second later.
fn lose_the_second(fleet: &mut Fleet, silent_until: u64) -> (u64, u64) {
    let first = fleet.begin(0);
    for replica in [1, 2] {
        fleet.beat(700_000, replica, first, Reported::default());
    }
    let second = fleet.renew(silent_until, first);
    fleet.beat(silent_until + 100_000, 1, second, Reported { memory: first, epoch: second });
    fleet.ask(silent_until + 500_000, second, 0);
    (first, second)
}

/// A booking is kept at the latest instant of its cell. With the slots ahead all that was used in it would go.
#[test]
fn a_silence_voids_no_use_in_the_cell_of_slots_ahead() {
    let mut fleet = Fleet::with_cells();
    let first = fleet.begin(0);
    let beat = |fleet: &mut Fleet, after, known, epoch| {
        for replica in [1, 2] {
            fleet.beat(after, replica, known, Reported { memory: first, epoch });
        }
    };
    beat(&mut fleet, 600_000, first, first);
    let book = |cost, lead| Call {
        replica: 1,
        epoch: first,
        generations: vec![0],
        runs: vec![Run { cost, wait_max: Micros(20 * SECOND), count: 1 }],
        prefetching_runs: 1,
        lead: Micros(lead),
        queue_slots_left: 9,
        ..Call::default()
    };
    fleet.call(SECOND, &book(6, 0));
    fleet.call(1_100_000, &book(2, 2_400_000));
    beat(&mut fleet, 1_100_000, first, first);
    let answer = fleet.ask(1_800_000, first, 0).epoch;
    assert_eq!((answer.id > first, answer.memory), (true, first));
    fleet.hear(1_800_000, answer.id);
    beat(&mut fleet, 1_900_000, answer.id, answer.id);
    fleet.keep_alive(1_900_000, 2_400_000, answer.id);
    assert_eq!(granted(&fleet.ask(2_400_000, answer.id, 10)).0, 2);
}

#[test]
fn a_silence_of_all_members_is_a_doubt() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    for replica in [1, 2] {
        fleet.beat(600_000, replica, first, Reported::default());
        fleet.beat(700_000, replica, first, Reported { memory: first, epoch: first });
    }
    assert_eq!(granted(&fleet.ask(SECOND, first, 4)), (4, None));
    // Half a second without both, and then one asks.
    let answer = fleet.ask(1_200_001, first, 1);
    let second = answer.epoch;
    assert_eq!((second.id > first, second.memory), (true, first));
    assert_eq!(second.settles_until, Some(Micros(START + 1_200_001) + LEASE));
    fleet.hear(1_200_001, second.id);
    // Both report what they granted meanwhile, one of them twice.
    for (replica, permits) in [(1, 2), (2, 1), (1, 2)] {
        let away = WriteBack { unknown: Unknown::Away, ..lost(replica, second.id, &[(100_000, permits)]) };
        assert_eq!(fleet.write_back(1_400_000, &away).id, second.id);
    }
    for replica in [1, 2] {
        fleet.beat(1_500_000, replica, second.id, Reported { memory: first, epoch: second.id });
    }
    // The server's own counts are still in force: four, and three.
    assert_eq!(granted(&fleet.ask(1_800_000, second.id, 10)).0, 3);
}

/// Its members were heard at instants that the clock has yet to reach again.
#[test]
fn a_silence_soon_after_the_clock_was_set_back_is_a_doubt() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(5 * SECOND);
    for replica in [1, 2] {
        fleet.beat(6 * SECOND, replica, first, Reported::default());
        fleet.beat(9 * SECOND, replica, first, Reported { memory: first, epoch: first });
    }
    let second = fleet.renew(2 * SECOND, first);
    for replica in [1, 2] {
        fleet.beat(2_600_000, replica, second, Reported { memory: second, epoch: second });
    }
    assert_eq!(fleet.ask(3 * SECOND, second, 1).epoch.id, second);
    assert!(fleet.ask(3_100_001, second, 1).epoch.id > second);
}

#[test]
fn slots_that_nobody_had_a_lease_to_use_do_not_count_behind_a_silence() {
    let used_behind = |silence: u64| {
        let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
        let first = fleet.begin(0);
        for replica in [1, 2] {
            fleet.beat(600_000, replica, first, Reported::default());
            fleet.beat(700_000, replica, first, Reported { memory: first, epoch: first });
        }
        // All ten, and three a window later.
        fleet.ask(SECOND, first, 13);
        for after in (SECOND..=silence).step_by(200_000) {
            fleet.beat(after, 2, first, Reported { memory: first, epoch: first });
        }
        let second = fleet.renew(12 * SECOND, first);
        for replica in [1, 2] {
            fleet.beat(12_100_000, replica, second, Reported { memory: first, epoch: second });
        }
        fleet.ask(12_600_000, second, 0);
        10 - fleet.available(12_600_000)
    };
    assert_eq!(used_behind(9_800_000), 0, "every lease was over at 10.8 s");
    assert_eq!(used_behind(10_200_000), 3, "a slot at 11 s may have been used");
}

#[test]
fn a_probe_behind_a_long_silence_leaves_the_members_in_doubt() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    for replica in [1, 2] {
        fleet.beat(600_000, replica, first, Reported::default());
        fleet.beat(700_000, replica, first, Reported { memory: first, epoch: first });
    }
    // Longer than a silent replica is counted; each has granted something by its share meanwhile.
    fleet.store.heartbeat(&fleet.context(60 * SECOND), &Heartbeat::default());
    let answer = fleet.beat(60 * SECOND + 1, 1, first, Reported { memory: first, epoch: first });
    assert!(answer.epoch.id > first, "{answer:?}");
    assert!(answer.epoch.settles_until.is_some(), "{answer:?}");
}

#[test]
fn a_member_that_stands_still_behind_a_long_outage_may_have_been_granted_its_share_until_then() {
    for is_lost in [false, true] {
        let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
        let first = fleet.begin(0);
        for replica in [1, 2] {
            fleet.beat(600_000, replica, first, Reported::default());
            fleet.beat(700_000, replica, first, Reported { memory: first, epoch: first });
        }
        if is_lost {
            fleet.run = "two";
        }
        // Longer than the permits matter that the store has granted.
        let second = fleet.beat(20 * SECOND, 1, first, Reported { memory: first, epoch: first }).epoch.id;
        fleet.hear(20 * SECOND, second);
        let memory = if is_lost { second } else { first };
        fleet.beat(20 * SECOND + 100_000, 1, second, Reported { memory, epoch: second });
        fleet.ask(20 * SECOND + 600_000, second, 0);
        assert_eq!(fleet.available(20 * SECOND + 600_000), 0, "is_lost {is_lost}");
    }
}

#[test]
fn possible_offline_grants_of_a_silent_member_are_charged_by_the_time() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let rule = Rule { rate: 100, window: Micros(100 * SECOND), ..fleet.limiter_ref.rules[0].clone() };
    fleet.limiter_ref.rules = [rule].into();
    lose_the_second(&mut fleet, 1_700_000);
    // A second and a half until it opens, and five seconds' worth at once: six, and one because it grants whole permits.
    assert_eq!(fleet.available(2_200_000), 93);
}

#[test]
fn the_crash_of_a_replica_costs_a_limit_of_a_day_one_permit() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let rule = Rule { rate: 3, window: Micros(86_400 * SECOND), ..fleet.limiter_ref.rules[0].clone() };
    fleet.limiter_ref.rules = [rule].into();
    let first = fleet.begin(0);
    fleet.beat(700_000, 1, first, Reported::default());
    // It is killed, and another one starts: twelve hours later.
    let start = 43_200 * SECOND;
    let second = fleet.send(start, &heartbeat(start, 2, 0, Reported::default())).epoch.id;
    assert!(second > first, "a silence of all is a doubt");
    fleet.hear(start, second);
    fleet.beat(start + 100_000, 2, second, Reported { memory: first, epoch: second });
    fleet.ask(start + SECOND, second, 0);
    assert_eq!(fleet.available(start + SECOND), 2);
}

#[test]
fn a_second_silence_takes_back_nothing_that_was_charged_behind_the_first() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let (first, second) = lose_the_second(&mut fleet, 4 * SECOND);
    let left = fleet.available(4_600_000);
    assert!(left <= 2, "{left}");
    fleet.keep_alive(4_600_000, 5 * SECOND, second);
    let third = fleet.renew(6 * SECOND, second);
    fleet.beat(6_100_000, 1, third, Reported { memory: first, epoch: third });
    fleet.ask(6_700_000, third, 0);
    assert!(fleet.available(6_700_000) <= left);
}

/// Of `[1000/1h, 40/4s]` it may have been granted forty, which are many times the pace of the hour: nothing is granted until they have left
/// the four seconds. The hour is charged with its own pace. Who is refused is told of the four seconds.
#[test]
fn a_short_limit_that_may_be_used_up_closes_for_its_window_and_takes_nothing_from_a_long_one() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let rule =
        |rate, seconds| Rule { rate, window: Micros(seconds * SECOND), ..fleet.limiter_ref.rules[0].clone() };
    fleet.limiter_ref.rules = [rule(1000, 3600), rule(40, 4)].into();
    let (_, second) = lose_the_second(&mut fleet, 1_700_000);
    fleet.keep_alive(2_200_000, 6_300_000, second);
    let (opens, waits) = (2_200_000, |wait_max, count| Run { cost: 1, wait_max: Micros(wait_max), count });
    let ask = |fleet: &mut Fleet, after, run| {
        let call =
            Call { replica: 1, epoch: second, generations: vec![0], runs: vec![run], ..Call::default() };
        fleet.call(after, &Call { queue_slots_left: 100, ..call }).outcomes
    };
    // However often it is asked.
    for _ in 0..40 {
        ask(&mut fleet, opens + SECOND, waits(0, 1));
    }
    let refused = ask(&mut fleet, opens + SECOND, waits(SECOND, 1));
    let [(1, Outcome::TooFar(away))] = refused.as_slice() else { panic!("{refused:?}") };
    assert_eq!((away.delay, away.violated.limit), (Micros(3 * SECOND + 1), 1));
    let granted = ask(&mut fleet, opens + 3 * SECOND, waits(2 * SECOND, 40));
    let [(40, Outcome::Booked(slot))] = granted.as_slice() else { panic!("{granted:?}") };
    assert_eq!(*slot, Micros(START + opens + 4 * SECOND + 1));
    let left = fleet.store.inspect(&fleet.context(opens + 4 * SECOND + 1), &fleet.limiter_ref).available;
    assert_eq!(*left, [1000 - 40 - 2, 0]);
}

/// `40/2s`, one by one, beside `40000/1h`, whose pace for the time is 73 permits.
#[test]
fn what_a_long_limit_is_charged_with_closes_no_bucket_for_longer_than_it_takes_to_be_full() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let hour = Rule { rate: 40_000, window: Micros(3600 * SECOND), ..fleet.limiter_ref.rules[0].clone() };
    let spaced =
        Rule { rate: 40, window: Micros(2 * SECOND), kind: Kind::Bucket(Bucket { burst: 1 }), ..hour };
    fleet.limiter_ref.rules = [hour, spaced].into();
    let (_, second) = lose_the_second(&mut fleet, 1_700_000);
    fleet.keep_alive(2_200_000, 3_000_000, second);
    let answer = fleet.ask(3_000_000, second, 1);
    // To the microsecond of a cell.
    assert_eq!(slots(&answer), [2_200_000 + 2_000_000 - 1]);
}

#[test]
fn a_replica_that_is_alone_causes_no_doubt_by_silence() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    fleet.beat(600_000, 1, first, Reported::default());
    assert_eq!(fleet.ask(60 * SECOND, first, 1).epoch.id, first);
}

/// Returns the call that gives back so many permits of an instant, which were booked under a generation.
fn giving_back((slot, count): (u64, u64), generation: u64, epoch: u64) -> Call {
    let give_back = vec![Holding { slot: Micros(START + slot), cost: 1, count }];
    Call { replica: 1, epoch, generations: vec![generation], give_back, ..Call::default() }
}

/// The part of an estimate that a response has not cost comes back when the server has stood still.
#[test]
fn permits_are_given_back_behind_a_silence_where_they_were_booked() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    for (after, replica) in [(600_000, 1), (600_000, 2), (700_000, 1), (700_000, 2)] {
        fleet.beat(after, replica, first, Reported { memory: first, epoch: first });
    }
    let used = fleet.ask(SECOND, first, 6);
    assert_eq!(granted(&used).0, 6);
    // A call that was on its way finds that all were silent.
    let known = used.generations[0].number;
    let answer = fleet.call(1_300_000, &giving_back((SECOND, 3), known, first));
    let second = answer.epoch;
    assert_eq!((second.id > first, second.memory), (true, first));
    assert_eq!(fleet.available(1_300_000), 7);
    fleet.hear(1_300_000, second.id);
    for replica in [1, 2] {
        fleet.beat(1_500_000, replica, second.id, Reported { memory: first, epoch: second.id });
    }
    // So does one behind the opening, by the generation of either epoch.
    for (known, left) in [(known, 8), (answer.generations[0].number, 9)] {
        fleet.call(1_900_000, &giving_back((SECOND, 1), known, second.id));
        assert_eq!(fleet.available(1_900_000), left);
    }
    assert_eq!(granted(&fleet.ask(1_900_000, second.id, 10)).0, 9);
}

/// No more was charged for it than the permits from before have left of the limit.
#[test]
fn permits_from_before_a_charged_doubt_are_not_given_back() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    for (after, replica) in [(600_000, 1), (600_000, 2), (700_000, 1), (700_000, 2)] {
        fleet.beat(after, replica, first, Reported { memory: first, epoch: first });
    }
    let used = fleet.ask(SECOND, first, 6);
    let second = fleet.renew(3 * SECOND, first);
    fleet.beat(3_100_000, 1, second, Reported { memory: first, epoch: second });
    assert_eq!(granted(&fleet.ask(3_500_000, second, 1)).0, 0, "the second replica may have used the rest");
    let back = giving_back((SECOND, 5), used.generations[0].number, second);
    fleet.call(3_600_000, &back);
    assert_eq!(fleet.available(3_600_000), 0);
    // It has used one, and says so.
    let away = WriteBack { unknown: Unknown::Away, ..lost(2, second, &[(SECOND.cast_signed(), 1)]) };
    fleet.write_back(3_700_000, &away);
    fleet.beat(3_700_000, 2, second, Reported { memory: first, epoch: second });
    assert_eq!(fleet.ask(3_800_000, second, 0).available[0][0], 3);
    let moved = fleet.ask(3_900_000, second, 0).generations[0];
    assert_eq!(fleet.call(3_900_000, &giving_back((SECOND, 5), moved.number, second)).available[0][0], 8);
}
