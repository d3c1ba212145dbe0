//! Epochs on a real Redis: what begins one, what it carries over, and how long its keys live.

use crate::clock::Micros;
use crate::limiter::MEMBERSHIP_TTL;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::Answer;
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::heartbeat::{Heartbeat, HeartbeatAnswer, Member, Reported, Reports};
use crate::limiter::model::pause::PauseByHand;
use crate::redis::tests::START;
use crate::redis::tests::fleet::{self, Fleet, SECOND, lost};

const STATE: &str = "p:{a}:v2:limiter:a";

fn new_fleet() -> Fleet {
    Fleet::new(Kind::SlidingWindow(SlidingWindow))
}

/// Returns for how many seconds a key lives at most.
fn lives_for(fleet: &mut Fleet, key: &str) -> u64 {
    let millis: i64 = redis::cmd("PTTL").arg(key).query(&mut fleet.store.connection).unwrap();
    u64::try_from(millis).expect("a key that expires").div_ceil(1000)
}

/// Changes the limit to half of it.
fn halve(fleet: &mut Fleet) {
    let rules = fleet.limiter_ref.rules.iter();
    fleet.limiter_ref.rules = rules.map(|rule| Rule { rate: rule.rate / 2, ..rule.clone() }).collect();
}

/// Returns the heartbeat of a replica that has reported to these, and whose permits matter for a minute.
fn heartbeat(after: u64, replica: u64, known_epoch: u64, reported: Reported) -> Heartbeat {
    let matters_for = Micros(60 * SECOND);
    Heartbeat { matters_for, ..fleet::heartbeat(after, replica, known_epoch, reported) }
}

fn beat(
    fleet: &mut Fleet,
    after: u64,
    replica: u64,
    known_epoch: u64,
    reported: Reported,
) -> HeartbeatAnswer {
    fleet.send(after, &heartbeat(after, replica, known_epoch, reported))
}

fn generation(answer: &Answer) -> u64 {
    answer.generations[0].number
}

#[test]
fn the_keys_of_an_epoch_live_as_long_as_what_they_tell_of() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    fleet.ask(SECOND, epoch, 30);
    // Bookings for 10 s ahead, and a window of as much; all with a margin.
    let lives = ["p:{a}:v2:limiter:a", "p:live", "p:epoch"].map(|key| lives_for(&mut fleet, key));
    assert!(
        (20..=40).contains(&lives[0]) && lives[1..].iter().all(|own| (lives[0]..=100).contains(own)),
        "{lives:?}"
    );
    // A change of the limits moves bookings, which the heartbeat tells.
    let followed = beat(&mut fleet, SECOND, 1, epoch, Reported { memory: epoch, epoch }).epoch.now;
    halve(&mut fleet);
    fleet.ask(SECOND + 100_000, epoch, 0);
    let heartbeat = Heartbeat { replica: 1, known_epoch: epoch, followed, ..Heartbeat::default() };
    let moved = fleet.send(SECOND + 100_000, &heartbeat).moved.unwrap();
    assert_eq!(moved.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!((10..=60).contains(&lives_for(&mut fleet, "p:moved")));
}

/// All replicas may be away behind it for as long as a state matters.
#[test]
fn an_epoch_behind_a_silence_lives_as_long_as_the_states_of_the_one_before() {
    let mut fleet = new_fleet();
    let rule = Rule { window: Micros(3600 * SECOND), ..fleet.limiter_ref.rules[0].clone() };
    fleet.limiter_ref.rules = [rule].into();
    let first = fleet.begin(0);
    let reported = Reported { memory: first, epoch: first };
    for after in (0..=SECOND).step_by(200_000) {
        for replica in [1, 2] {
            beat(&mut fleet, after, replica, first, reported);
        }
    }
    fleet.ask(SECOND, first, 10);
    let second = beat(&mut fleet, 3 * SECOND, 1, first, reported).epoch;
    assert!(second.id > first && second.memory == first, "{second:?}");
    for after in (3 * SECOND..5 * SECOND).step_by(200_000) {
        for replica in [1, 2] {
            beat(&mut fleet, after, replica, second.id, Reported { epoch: second.id, ..reported });
        }
    }
    let lives = [STATE, "p:epoch", "p:live"].map(|key| lives_for(&mut fleet, key));
    assert!(lives[0] >= 3600 && lives[1..].iter().all(|own| *own >= lives[0]), "{lives:?}");
    assert_eq!(
        fleet.ask(5 * SECOND, second.id, 1).epoch,
        Epoch { now: Micros(START + 5 * SECOND), settles_until: None, ..second }
    );
    assert_eq!(fleet.available(5 * SECOND), 0);
}

#[test]
fn a_state_that_is_written_back_lives_until_what_it_was_charged_with_matters_no_more() {
    let mut fleet = new_fleet();
    let first = fleet.begin(0);
    fleet.lose_everything();
    let second = fleet.renew(SECOND, first);
    fleet.write_back(SECOND, &lost(1, second, &[(8_000_000, 1)]));
    assert!(lives_for(&mut fleet, STATE) >= 10, "until a window behind the opening");
}

#[test]
fn a_lost_key_is_a_lost_memory() {
    let mut fleet = new_fleet();
    let first = fleet.begin(0);
    fleet.ask(SECOND, first, 4);
    redis::cmd("DEL").arg(STATE).exec(&mut fleet.store.connection).unwrap();
    let epoch = fleet.ask(SECOND + 100_000, first, 1).epoch;
    assert!(epoch.id > first);
    assert_eq!(epoch.memory, epoch.id);
}

/// A server that is short of memory takes keys away at any time, in any order.
#[test]
fn no_two_lost_keys_hide_the_loss_of_a_state() {
    const KEYS: [&str; 4] = [STATE, "p:live", "p:moved", "p:{a}:v2:queue:a"];
    for other in KEYS {
        for (is_first, has_heartbeat) in [(true, false), (true, true), (false, false), (false, true)] {
            let mut fleet = new_fleet();
            let first = fleet.begin(0);
            fleet.ask(SECOND, first, 4);
            let mut lost = [other, STATE];
            lost[..].rotate_left(usize::from(!is_first));
            let mut found = first;
            for (after, key) in [(SECOND + 100_000, lost[0]), (SECOND + 200_000, lost[1])] {
                redis::cmd("DEL").arg(key).exec(&mut fleet.store.connection).unwrap();
                if has_heartbeat {
                    found = found.max(
                        beat(&mut fleet, after, 1, first, Reported { memory: first, epoch: first }).epoch.id,
                    );
                }
            }
            found = found.max(fleet.ask(SECOND + 300_000, first, 1).epoch.id);
            assert!(found > first, "{other} lost, first: {is_first}, noticed between: {has_heartbeat}");
        }
    }
}

/// Of a version that did not know of the list's own member, replicas may run beside this one.
#[test]
fn a_list_of_states_without_itself_is_of_an_earlier_version() {
    let mut fleet = new_fleet();
    let first = fleet.begin(0);
    let reported = Reported { memory: first, epoch: first };
    fleet.ask(SECOND, first, 4);
    redis::cmd("ZREM").arg("p:live").arg("").exec(&mut fleet.store.connection).unwrap();
    assert_eq!(beat(&mut fleet, SECOND + 100_000, 1, first, reported).epoch.id, first);
    // One that is lost is not made anew by the states that are left.
    redis::cmd("DEL").arg("p:live").exec(&mut fleet.store.connection).unwrap();
    assert_eq!(fleet.ask(30 * SECOND, first, 10).epoch.id, first);
    assert!(beat(&mut fleet, 30 * SECOND + 100_000, 1, first, reported).epoch.id > first);
}

#[test]
fn the_list_of_states_is_lost_neither_by_time_nor_by_a_new_epoch() {
    let mut fleet = new_fleet();
    let first = fleet.begin(0);
    let reported = Reported { memory: first, epoch: first };
    fleet.ask(SECOND, first, 4);
    // All states have expired, and replicas go on.
    for after in (2 * SECOND..300 * SECOND).step_by(400_000) {
        assert_eq!(beat(&mut fleet, after, 1, first, reported).epoch.id, first);
    }
    assert_eq!(fleet.ask(301 * SECOND, first, 4).epoch.id, first);
    fleet.lose_everything();
    let second = fleet.renew(302 * SECOND, first);
    let reported = Reported { memory: second, epoch: second };
    assert_eq!(beat(&mut fleet, 302 * SECOND + 100_000, 1, second, reported).epoch.id, second);
    assert_eq!(fleet.ask(303 * SECOND, second, 1).epoch.id, second);
}

#[test]
fn a_run_that_the_caller_cannot_know_is_found_out() {
    let mut fleet = new_fleet();
    fleet.run = "?";
    let first = fleet.begin(0);
    assert_eq!(fleet.ask(SECOND, first, 1).epoch.id, first);
    fleet.run = "another";
    assert!(fleet.ask(SECOND, first, 1).epoch.id > first);
}

#[test]
fn numbers_grow_also_where_the_clock_is_set_back() {
    let mut fleet = new_fleet();
    let first = fleet.begin(8 * SECOND);
    let before = fleet.ask(9 * SECOND, first, 30);
    halve(&mut fleet);
    let halved = fleet.ask(9 * SECOND + 100_000, first, 0);
    assert!(generation(&halved) > generation(&before));
    let pause = PauseByHand { lasting: Micros(30 * SECOND), ago: Micros::ZERO, replica: 1 };
    let limiter_ref = fleet.limiter_ref.clone();
    fleet.store.pause(&fleet.context(9 * SECOND + 200_000), &limiter_ref, &pause);
    // A caller that knows nothing comes while the clock shows an earlier instant.
    let set_back = fleet.ask(SECOND, 0, 0);
    assert!(set_back.epoch.id > first);
    assert!(generation(&set_back) > generation(&halved));
    // A pause from an instant ahead is another clock's.
    let epoch = fleet.hear(SECOND, set_back.epoch.id);
    assert_eq!(fleet.ask(2 * SECOND, epoch, 0).paused, [Micros::ZERO]);
}

/// The first of three members was heard until 2.4 s, the second until `last`, and the third has left. Then nobody is heard for a while.
fn silence(fleet: &mut Fleet, last: u64, first: u64) -> HeartbeatAnswer {
    let reported = Reported { memory: first, epoch: first };
    for after in [800_000, 1_200_000, 1_400_000, 1_600_000, 2_000_000, 2_400_000] {
        beat(fleet, after, 1, first, reported);
        if after <= 1_200_000 {
            beat(fleet, after.min(last), 2, first, reported);
        }
    }
    beat(fleet, last, 2, first, reported);
    let leaving = Heartbeat { leaves: true, ..heartbeat(2_400_000, 3, first, reported) };
    fleet.send(2_400_000, &leaving);
    let begun = beat(fleet, 4 * SECOND, 1, first, reported).epoch;
    assert!(begun.id > first && begun.memory == first, "a silence is no loss of memory");
    fleet.hear(4 * SECOND, begun.id);
    beat(fleet, 4 * SECOND, 1, begun.id, Reported { memory: first, epoch: begun.id })
}

#[test]
fn a_member_cut_off_before_a_silence_owes_no_report_of_it() {
    // Twice the time that a new epoch takes to open.
    for (last, owes) in [(1_399_999, Reports::Complete), (1_400_000, Reports::Awaited)] {
        let mut fleet = new_fleet();
        let first = fleet.begin(0);
        let answer = silence(&mut fleet, last, first);
        assert_eq!(answer.reports, owes, "{last}");
        // A counted one may have been granted its share until now, and one that has left has not.
        let millis = |member: &Member| (member.replica, member.matters_for.0 / 1000);
        let members: Vec<_> = answer.members.iter().map(millis).collect();
        assert_eq!(members, [(1, 60_000), (2, 60_000), (3, 58_400)]);
    }
}

#[test]
fn a_member_counted_no_more_was_granted_nothing_in_a_silence() {
    let mut fleet = new_fleet();
    let first = fleet.begin(0);
    let reported = Reported { memory: first, epoch: first };
    beat(&mut fleet, 100_000, 2, first, reported);
    let end = 100_000 + Micros::from(MEMBERSHIP_TTL).0 + SECOND;
    for after in (100_000..end).step_by(400_000) {
        beat(&mut fleet, after, 1, first, reported);
        beat(&mut fleet, after, 3, first, reported);
    }
    let answer = beat(&mut fleet, end + SECOND, 1, first, reported);
    assert!(answer.epoch.id > first);
    let of = |replica| answer.members.iter().find(|member| member.replica == replica).unwrap();
    assert_eq!(of(2).matters_for, Micros(60 * SECOND + 100_000 - end - SECOND));
    assert_eq!(of(3).matters_for, Micros(60 * SECOND));
}
