//! The charges of the scripts on a real Redis for members that have not reported, and their doubts of their own memory.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::grant_copy::{CopyExchange, GrantCopy};
use crate::limiter::model::heartbeat::{Heartbeat, HeartbeatAnswer, Member, Reported};
use crate::limiter::model::limit::LimiterName;
use crate::redis::tests::fleet::{Fleet, SECOND, granted, heartbeat, lost, slots};
use crate::redis::tests::{LEASE, START};

/// Grants of two replicas, so many of them at one instant, are lost, and the first has reported its own. Returns the new epoch.
fn lose_with_two(fleet: &mut Fleet, count: u64, reported: &[(i64, u64)]) -> u64 {
    let first = fleet.begin(0);
    for replica in [1, 2] {
        let answer = fleet.beat(600_000, replica, first, Reported::default());
        assert_eq!((answer.epoch.id, answer.epoch.memory), (first, first));
    }
    assert_eq!(granted(&fleet.ask(SECOND, first, count)), (count, None));
    fleet.lose_everything();
    // The first replica tells the server of the second.
    let members = vec![Member { replica: 2, matters_for: Micros(10 * SECOND), is_counted: true }];
    let heartbeat = Heartbeat {
        replica: 1,
        known_epoch: first,
        heard: Micros(START + SECOND),
        matters_for: Micros(10 * SECOND),
        reported: Reported { memory: first, epoch: first },
        members,
        ..Heartbeat::default()
    };
    let second = fleet.store.heartbeat(&fleet.context(SECOND + 100_000), &heartbeat).epoch.id;
    assert!(second > first);
    fleet.hear(SECOND + 100_000, second);
    fleet.write_back(SECOND + 200_000, &lost(1, second, reported));
    fleet.beat(SECOND + 200_000, 1, second, Reported { memory: second, epoch: second });
    second
}

#[test]
fn all_is_charged_that_a_silent_member_may_have_been_granted() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    // The window is full from when the epoch opened, until the known three have passed, and then the others.
    let opened = SECOND + 600_000;
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 4)), (0, Some(11 * SECOND)));
    fleet.keep_alive(2 * SECOND, opened + 10 * SECOND, second);
    assert_eq!(granted(&fleet.ask(opened + 10 * SECOND, second, 10)).0, 6);
}

/// It may have been one request of all permits of a window.
#[test]
fn all_is_charged_that_a_limit_which_spaces_permits_grants_in_a_window() {
    let mut fleet = Fleet::new(Kind::Bucket(Bucket { burst: 1 }));
    let second = lose_with_two(&mut fleet, 1, &[]);
    let (count, next) = granted(&fleet.ask(2 * SECOND, second, 1));
    // A slot may be early by its cell, a microsecond.
    assert_eq!((count, next), (0, Some(SECOND + 600_000 + 10 * SECOND - 1)));
}

/// Its permits flow in every second and a part of a microsecond. Rounded down, that left one to be granted.
#[test]
fn all_is_charged_that_a_bucket_holds() {
    let mut fleet = Fleet::new(Kind::Bucket(Bucket { burst: 4 }));
    let rules = fleet.limiter_ref.rules.iter();
    fleet.limiter_ref.rules =
        rules.map(|rule| Rule { window: rule.window + Micros(2), ..rule.clone() }).collect();
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    let opened = SECOND + 600_000;
    let (granted, next) = granted(&fleet.ask(2 * SECOND, second, 4));
    assert_eq!(granted, 0);
    assert!(next.is_some_and(|next| (opened + SECOND..opened + SECOND + 10).contains(&next)), "{next:?}");
}

/// The first replica restores a copy of the second one's grants: four permits a tenth of a second after the start.
fn restore(fleet: &mut Fleet, after: u64, epoch: u64, is_final: bool) -> HeartbeatAnswer {
    restore_line(fleet, (after, epoch), is_final, "a")
}

/// Does the same for a state of this name.
fn restore_line(
    fleet: &mut Fleet,
    (after, epoch): (u64, u64),
    is_final: bool,
    name: &str,
) -> HeartbeatAnswer {
    let lines = format!("\nother 1:1\n{name} {}:4", START + 100_000);
    let heartbeat = Heartbeat {
        replica: 1,
        known_epoch: epoch,
        heard: Micros(START + after),
        matters_for: Micros(10 * SECOND),
        reported: Reported { memory: epoch, epoch },
        copies: copy_of(2, is_final, SECOND + 150_000, lines),
        ..Heartbeat::default()
    };
    fleet.store.heartbeat(&fleet.context(after), &heartbeat)
}

/// A replica's copy of its grants, written so long after the start.
fn copy_of(replica: u64, is_final: bool, written_after: u64, lines: String) -> CopyExchange {
    let written = Micros(START + written_after);
    let copy = GrantCopy { replica, number: 7, is_final, shift: 0, written, text: lines.into() };
    CopyExchange { told: vec![copy], ..CopyExchange::default() }
}

/// The first replica's copy of four permits that it was granted after a second.
fn four_granted(is_final: bool) -> CopyExchange {
    copy_of(1, is_final, SECOND + 50_000, format!("\na {}:4", START + SECOND))
}

#[test]
fn a_final_copy_of_an_ended_member_is_all_that_is_charged_for_it() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    assert!(restore(&mut fleet, SECOND + 300_000, second, true).awaited.is_empty());
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 10)), (3, Some(10 * SECOND + 100_000)));
}

/// The only replica ends in order, or is killed, and then its server is restarted with its data.
#[test]
fn a_restart_with_the_data_costs_nothing_where_all_replicas_had_ended_in_order() {
    for (leaves, left) in [(true, 6), (false, 0)] {
        let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
        let first = fleet.begin(0);
        fleet.beat(600_000, 1, first, Reported::default());
        assert_eq!(granted(&fleet.ask(SECOND, first, 4)).0, 4);
        let copies = four_granted(leaves);
        let reported = Reported { memory: first, epoch: first };
        fleet.send(1_100_000, &Heartbeat { leaves, copies, ..heartbeat(1_100_000, 1, first, reported) });
        fleet.run = "two";
        let second = fleet.beat(2 * SECOND, 2, 0, Reported::default()).epoch.id;
        fleet.hear(2 * SECOND, second);
        fleet.beat(2_100_000, 2, second, Reported { memory: second, epoch: second });
        fleet.ask(3 * SECOND, second, 0);
        assert_eq!(fleet.available(3 * SECOND), left, "leaves {leaves}");
        // The four were used where they were, and not at the restart.
        if leaves {
            fleet.keep_alive(3 * SECOND, 11_200_000, second);
            assert_eq!(fleet.available(11_100_000), 10);
        }
    }
}

#[test]
fn a_server_whose_clock_was_stepped_does_not_charge_the_copies_of_those_that_have_ended_as_they_are() {
    for (step, awaited) in [(0, &[][..]), (1, &[1])] {
        let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
        let first = fleet.begin(0);
        fleet.beat(600_000, 1, first, Reported::default());
        fleet.beat(600_000, 2, first, Reported::default());
        assert_eq!(granted(&fleet.ask(SECOND, first, 4)).0, 4);
        let copies = four_granted(true);
        let reported = Reported { memory: first, epoch: first };
        fleet
            .send(1_100_000, &Heartbeat { leaves: true, copies, ..heartbeat(1_100_000, 1, first, reported) });
        // Restarted with its data, or with a clock that the other replica has seen stepped: that one knows by how much.
        fleet.run = if step == 0 { "two" } else { fleet.run };
        let answer = fleet.beat(4 * SECOND, 2, first + step, reported);
        assert!(answer.epoch.memory > first);
        assert_eq!(answer.awaited, awaited);
    }
}

#[test]
fn a_copy_that_is_not_final_is_charged_where_it_was_granted_and_the_rest_at_the_opening() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    assert_eq!(restore(&mut fleet, SECOND + 300_000, second, false).awaited, [2]);
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 4)), (0, Some(10 * SECOND + 100_000)));
}

#[test]
fn grants_in_both_a_late_report_and_a_copy_count_once() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    restore(&mut fleet, SECOND + 300_000, second, false);
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 1)).0, 0);
    fleet.keep_alive(2 * SECOND, 3 * SECOND, second);
    fleet.write_back(3 * SECOND, &lost(2, second, &[(2_900_000, 4)]));
    fleet.beat(3 * SECOND, 2, second, Reported { memory: second, epoch: second });
    fleet.ask(3 * SECOND, second, 0);
    // Three and the four are in use, and who was booked meanwhile moves up.
    assert_eq!(fleet.available(3 * SECOND), 3);
}

#[test]
fn a_late_report_takes_the_place_of_what_was_charged() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 1)).0, 0);
    fleet.keep_alive(2 * SECOND, 3 * SECOND, second);
    fleet.write_back(3 * SECOND, &lost(2, second, &[(2 * 1_000_000, 1)]));
    assert_eq!(granted(&fleet.ask(3 * SECOND, second, 1)).0, 0);
    fleet.beat(3 * SECOND, 2, second, Reported { memory: second, epoch: second });
    // Three and one are in use, and who was booked meanwhile moves up.
    fleet.ask(3 * SECOND, second, 0);
    assert_eq!(fleet.available(3 * SECOND), 6);
}

/// An operator resets a limit that is closed by what nobody knows. The charge is gone then, and others have the cell where it was.
#[test]
fn a_late_report_takes_nothing_back_of_a_charge_that_was_reset() {
    let mut fleet = Fleet::with_cells();
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    fleet.ask(SECOND + 600_000, second, 0);
    assert_eq!(fleet.available(SECOND + 600_000), 0);
    fleet.reset(SECOND + 700_000).unwrap();
    fleet.keep_alive(SECOND + 700_000, 2 * SECOND, second);
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 0)).0, 0);
    assert_eq!(granted(&fleet.ask(2_100_000, second, 7)).0, 7);
    fleet.keep_alive(2_100_000, 3 * SECOND, second);
    fleet.write_back(3 * SECOND, &lost(2, second, &[(2_900_000, 4)]));
    fleet.beat(3 * SECOND, 2, second, Reported { memory: second, epoch: second });
    fleet.ask(3 * SECOND, second, 0);
    assert_eq!(fleet.available(3 * SECOND), 3);
}

/// Behind its second a booking is seen by the longer window alone, and one with the others of its cell.
#[test]
fn a_late_report_takes_a_charge_back_that_was_merged_with_later_bookings() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let rule = |rate, seconds, cell| Rule {
        rate,
        window: Micros(seconds * SECOND),
        cell,
        kind: Kind::SlidingWindow(SlidingWindow),
    };
    fleet.limiter_ref.rules = [rule(10, 1, Micros::ONE), rule(100, 60, Micros(4 * SECOND))].into();
    let first = fleet.begin(0);
    for replica in [1, 2] {
        fleet.beat(600_000, replica, first, Reported { memory: first, epoch: first });
    }
    assert_eq!(granted(&fleet.ask(SECOND, first, 4)).0, 4);
    let second = fleet.ask(1_200_001, first, 0).epoch.id;
    fleet.hear(1_200_001, second);
    let reported = Reported { memory: first, epoch: second };
    fleet.beat(1_300_000, 1, second, reported);
    let left = |fleet: &mut Fleet, after| {
        let view = fleet.store.inspect(&fleet.context(after), &fleet.limiter_ref.clone());
        view.available[1]
    };
    fleet.keep_alive(1_300_000, 1_900_000, second);
    assert_eq!(granted(&fleet.ask(1_900_000, second, 1)).1.is_some(), left(&mut fleet, 1_900_000) < 95);
    fleet.keep_alive(1_900_000, 4 * SECOND, second);
    fleet.ask(4 * SECOND, second, 0);
    assert!(left(&mut fleet, 4 * SECOND) < 95, "what the second was granted is not known");
    fleet.beat(4_100_000, 2, second, reported);
    fleet.ask(4_100_000, second, 0);
    assert_eq!(left(&mut fleet, 4_100_000), 95);
}

/// The name of a limiter stands in the keys of its states behind a word that may be the name of a limiter.
#[test]
fn a_copy_of_a_limiter_of_any_name_is_charged() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let partition = crate::limiter::Partition::of([Some(&b"tenant"[..])]);
    fleet.limiter_ref.name = LimiterName::parse("limiter").unwrap();
    fleet.limiter_ref.partition = Some(partition);
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    restore_line(&mut fleet, (SECOND + 300_000, second), true, &format!("limiter:{partition}"));
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 10)).0, 3);
}

#[test]
fn those_who_wait_move_up_when_a_late_report_takes_a_charge_back() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let second = lose_with_two(&mut fleet, 4, &[(200_000, 3)]);
    fleet.keep_alive(SECOND + 200_000, 2 * SECOND, second);
    let waiting = fleet.ask(2 * SECOND, second, 4);
    assert_eq!(granted(&waiting), (0, Some(11 * SECOND)));
    fleet.beat(2_100_000, 2, second, Reported { memory: second, epoch: second });
    let moved = fleet.ask(2_200_000, second, 0);
    assert_eq!(moved.epoch.id, second);
    assert!(moved.generations[0].number > waiting.generations[0].number);
    assert!(moved.generations[0].void_from <= Micros(START + 11 * SECOND));
}

/// Two members of `10/1s`, behind a silence that the first one has ended. Returns the epoch and what either has to report then.
fn silence_of_two(fleet: &mut Fleet) -> (u64, Reported) {
    let rules = fleet.limiter_ref.rules.iter();
    fleet.limiter_ref.rules = rules.map(|rule| Rule { window: Micros(SECOND), ..rule.clone() }).collect();
    let first = fleet.begin(0);
    for replica in [1, 2] {
        fleet.beat(600_000, replica, first, Reported { memory: first, epoch: first });
    }
    let second = fleet.renew(3 * SECOND, first);
    fleet.keep_alive(3 * SECOND, 3_500_000, second);
    (second, Reported { memory: first, epoch: second })
}

/// It goes by its share until it comes back, while the one that came back first goes by the store.
#[test]
fn a_member_that_is_still_away_is_left_its_share() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let (epoch, reported) = silence_of_two(&mut fleet);
    // Its possible use from before the opening leaves the window first, at 4.5 s.
    let waiting = fleet.ask(3_600_000, epoch, 15);
    let expected: Vec<u64> = (4..7).flat_map(|second| [second * SECOND + 500_000; 5]).collect();
    assert_eq!(slots(&waiting), expected);
    fleet.keep_alive(3_600_000, 4_400_000, epoch);
    fleet.beat(4_400_000, 2, epoch, reported);
    // The waiting requests move up, and nothing is left to others any more.
    let moved = fleet.ask(4_400_000, epoch, 0);
    assert!(moved.generations[0].number > waiting.generations[0].number, "{moved:?}");
    assert_eq!(fleet.available(4_500_000), 5);
}

#[test]
fn a_member_that_has_lost_the_store_again_is_left_its_share() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let (epoch, reported) = silence_of_two(&mut fleet);
    fleet.beat(3_600_000, 2, epoch, reported);
    fleet.keep_alive(3_600_000, 4_200_000, epoch);
    assert_eq!(granted(&fleet.ask(4_100_000, epoch, 4)).0, 4);
    assert_eq!(granted(&fleet.ask(4_200_000, epoch, 6)).0, 1);
}

/// A member that stays away has died, as a rule.
#[test]
fn a_member_that_does_not_come_back_is_left_its_share_for_a_second_and_a_half() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let (epoch, _) = silence_of_two(&mut fleet);
    fleet.keep_alive(3_500_000, 4_300_000, epoch);
    assert_eq!(slots(&fleet.ask(4_400_000, epoch, 6)), [[4_500_000; 5].as_slice(), &[5_500_000]].concat());
    assert_eq!(granted(&fleet.ask(4_500_000, epoch, 4)).0, 4);
}

#[test]
fn a_member_that_has_left_matters_for_as_long_as_its_permits() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    fleet.beat(600_000, 1, first, Reported::default());
    fleet.beat(600_000, 2, first, Reported::default());
    let last = Heartbeat {
        replica: 2,
        known_epoch: first,
        heard: Micros(START + 600_000),
        matters_for: Micros(3 * SECOND),
        reported: Reported { memory: first, epoch: first },
        leaves: true,
        ..Heartbeat::default()
    };
    let answer = fleet.store.heartbeat(&fleet.context(SECOND), &last);
    let member =
        |replica, matters_for, is_counted| Member { replica, matters_for: Micros(matters_for), is_counted };
    assert_eq!(answer.members, [member(1, 9_600_000, true), member(2, 3 * SECOND, false)]);
    // Its memory is lost, and nobody can report for it.
    fleet.run = "two";
    let second = fleet.beat(2 * SECOND, 1, first, Reported { memory: first, epoch: first }).epoch.id;
    fleet.hear(2 * SECOND, second);
    fleet.beat(2_100_000, 1, second, Reported { memory: second, epoch: second });
    assert_eq!(granted(&fleet.ask(2_600_000, second, 1)).0, 0);
    let answer = fleet.beat(4 * SECOND, 1, second, Reported { memory: second, epoch: second });
    assert_eq!(answer.members.len(), 1);
    fleet.ask(4_100_000, second, 0);
    assert_eq!(fleet.available(4_100_000), 10);
}

/// The clock is set ahead by eight seconds: permits of a member that has ended would seem to matter so much shorter.
#[test]
fn grants_of_an_ended_member_matter_as_long_if_the_clock_is_set_ahead() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    let reported = Reported { memory: first, epoch: first };
    fleet.beat(SECOND, 1, first, reported);
    fleet.beat(SECOND, 2, first, Reported::default());
    let farewell = Heartbeat {
        replica: 2,
        known_epoch: first,
        heard: Micros(START + SECOND),
        matters_for: Micros(10 * SECOND),
        reported,
        leaves: true,
        ..Heartbeat::default()
    };
    fleet.store.heartbeat(&fleet.context(SECOND), &farewell);
    let known = Member { replica: 2, matters_for: Micros(9 * SECOND), is_counted: false };
    let beat = Heartbeat {
        replica: 1,
        known_epoch: first + 1,
        heard: Micros(START + SECOND),
        matters_for: Micros(10 * SECOND),
        reported,
        members: vec![known],
        ..Heartbeat::default()
    };
    let answer = fleet.store.heartbeat(&fleet.context(10 * SECOND), &beat);
    assert!(answer.epoch.id > first && answer.members.contains(&known), "{answer:?}");
    // It is told once in an epoch, or what each adds on the way would sum up.
    let again = Heartbeat { known_epoch: answer.epoch.id, ..beat };
    let answer = fleet.store.heartbeat(&fleet.context(11 * SECOND), &again);
    assert!(answer.members.contains(&Member { matters_for: Micros(8 * SECOND), ..known }), "{answer:?}");
}

#[test]
fn an_epoch_opens_only_after_somebody_has_heard_of_it() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let begun = fleet.ask(0, 0, 1).epoch;
    // The answers are lost, and each call comes as if it were the first.
    let answer = fleet.ask(3 * SECOND, 0, 1);
    let expected = Epoch { now: answer.now, settles_until: Some(answer.now + LEASE), ..begun };
    assert_eq!((answer.epoch, answer.outcomes.len()), (expected, 0));
    fleet.hear(3_100_000, begun.id);
    assert!(fleet.ask(3_599_999, begun.id, 1).outcomes.is_empty());
    assert_eq!(granted(&fleet.ask(3_600_000, begun.id, 1)).0, 1);
}

#[test]
fn nothing_is_charged_in_another_epoch_than_it_is_written_for() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    fleet.run = "two";
    let second = fleet.write_back(SECOND, &lost(1, first, &[(0, 10)])).id;
    assert!(second > first);
    fleet.hear(SECOND, second);
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 10)).0, 10);
}
