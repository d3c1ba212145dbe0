//! The heartbeat script on a real Redis: who the members are, what they owe, and which bookings were moved.

use crate::clock::Micros;
use crate::limiter::MEMBERSHIP_TTL;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::heartbeat::{Heartbeat, HeartbeatAnswer, Member, Reported, Reports};
use crate::limiter::model::pause::{ActionByHand, PauseByHand, PauseStretch};
use crate::redis::arguments;
use crate::redis::tests::START;
use crate::redis::tests::fleet::{self, Fleet, SECOND};
use crate::telemetry::StoreOp;

pub(super) fn new_fleet() -> Fleet {
    Fleet::new(Kind::SlidingWindow(SlidingWindow))
}

/// Returns the heartbeat of a replica that has reported all.
pub(super) fn heartbeat(after: u64, replica: u64, epoch: u64) -> Heartbeat {
    fleet::heartbeat(after, replica, epoch, Reported { memory: epoch, epoch })
}

/// Returns the members: the replica, for how long its permits matter in milliseconds, and whether it is counted.
fn members(answer: &HeartbeatAnswer) -> Vec<(u64, u64, bool)> {
    let of = |member: &Member| (member.replica, member.matters_for.0 / 1000, member.is_counted);
    answer.members.iter().map(of).collect()
}

pub(super) fn ttl() -> u64 {
    Micros::from(MEMBERSHIP_TTL).0
}

/// Lets an answer pass that knows the members' version.
fn informed(heartbeat: Heartbeat, answer: &HeartbeatAnswer) -> Heartbeat {
    Heartbeat { version: answer.version, ..heartbeat }
}

#[test]
fn members_are_counted_once_they_are_heard_and_all_learn_of_each_other() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    // One that has heard nothing yet, and whose permits do not matter, is a member, and not counted.
    let silent = Heartbeat { heard: Micros::ZERO, matters_for: Micros::ZERO, ..heartbeat(100_000, 1, epoch) };
    let answer = fleet.send(100_000, &silent);
    assert_eq!(members(&answer), [(1, 0, false)]);
    let alone = fleet.send(200_000, &heartbeat(200_000, 1, epoch));
    assert_eq!(members(&alone), [(1, 10_000, true)]);
    assert!(alone.version > answer.version);
    assert!(!alone.is_known_to_all, "the only member does not know yet that it is counted");
    let again = fleet.send(300_000, &informed(heartbeat(300_000, 1, epoch), &alone));
    assert_eq!((again.version, again.is_known_to_all), (alone.version, true));

    let two = fleet.send(300_000, &heartbeat(300_000, 2, epoch));
    assert_eq!(members(&two), [(1, 10_000, true), (2, 10_000, true)]);
    assert_eq!((two.version, two.is_known_to_all), (alone.version + 1, false));
    let first = fleet.send(400_000, &informed(heartbeat(400_000, 1, epoch), &two));
    assert!(!first.is_known_to_all, "the second does not know it");
    let second = fleet.send(400_000, &informed(heartbeat(400_000, 2, epoch), &two));
    assert_eq!((second.version, second.is_known_to_all), (two.version, true));

    // One that ends is counted no more, and its permits matter still; nobody waits for it.
    let leaving = Heartbeat { leaves: true, ..informed(heartbeat(500_000, 2, epoch), &two) };
    let left = fleet.send(500_000, &leaving);
    assert_eq!(members(&left), [(1, 9_900, true), (2, 10_000, false)]);
    assert_eq!(left.version, two.version + 1);
    let alone = fleet.send(500_000, &informed(heartbeat(500_000, 1, epoch), &left));
    assert_eq!((alone.version, alone.is_known_to_all), (left.version, true));
    // Until they matter no more.
    fleet.keep_alive(500_000, 10 * SECOND + 300_000, epoch);
    let last = fleet.send(10 * SECOND + 499_999, &heartbeat(10 * SECOND + 499_999, 1, epoch));
    assert_eq!(members(&last), [(1, 10_000, true), (2, 0, false)]);
    let gone = fleet.send(10 * SECOND + 500_000, &heartbeat(10 * SECOND + 500_000, 1, epoch));
    assert_eq!(members(&gone), [(1, 10_000, true)]);
    // One that leaves with nothing that matters is not there at all.
    let nothing =
        Heartbeat { leaves: true, matters_for: Micros::ZERO, ..heartbeat(10 * SECOND + 500_000, 3, epoch) };
    assert_eq!(members(&fleet.send(10 * SECOND + 500_000, &nothing)), [(1, 10_000, true)]);
}

#[test]
fn a_silent_member_is_counted_for_a_while_and_a_probe_changes_nothing() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    let long = Heartbeat { matters_for: Micros(3 * ttl()), ..heartbeat(100_000, 2, epoch) };
    fleet.send(100_000, &long);
    // A shorter time does not take back what has been said of its permits.
    let shorter = fleet.send(100_000, &heartbeat(100_000, 2, epoch));
    assert_eq!(members(&shorter), [(2, 3 * ttl() / 1000, true)]);
    fleet.keep_alive(100_000, 100_000 + ttl() - 1, epoch);
    let still = fleet.send(100_000 + ttl() - 1, &heartbeat(100_000 + ttl() - 1, 1, epoch));
    assert_eq!(still.members.iter().map(|member| member.is_counted).collect::<Vec<_>>(), [true, true]);
    // Nobody's probe leaves the members as they are, however late it is.
    let probe = fleet.send(100_000 + ttl(), &Heartbeat { known_epoch: epoch, ..Heartbeat::default() });
    assert_eq!(probe.members.iter().map(|member| member.is_counted).collect::<Vec<_>>(), [true, true]);
    assert_eq!(probe.version, still.version);
    assert!(probe.awaited.is_empty() && probe.copies.is_empty());
    let silent = fleet.send(100_000 + ttl(), &heartbeat(100_000 + ttl(), 1, epoch));
    let counted = silent.members.iter().filter(|member| member.is_counted).map(|member| member.replica);
    assert_eq!(counted.collect::<Vec<_>>(), [1]);
    assert_eq!(silent.version, still.version + 1);
}

#[test]
fn the_reported_instant_of_the_last_answer_is_clamped() {
    for heard in [START + 50 * SECOND, 1] {
        let mut fleet = new_fleet();
        let epoch = fleet.begin(0);
        fleet.send(100_000, &heartbeat(100_000, 1, epoch));
        fleet.send(100_000, &heartbeat(100_000, 2, epoch));
        // Another clock is ahead; an old answer comes late.
        let odd = Heartbeat { heard: Micros(heard), ..heartbeat(200_000, 2, epoch) };
        fleet.send(200_000, &odd);
        let since = if heard == 1 { 100_000 } else { 200_000 };
        fleet.keep_alive(200_000, since + ttl() - 1, epoch);
        let counted =
            |answer: HeartbeatAnswer| answer.members.iter().filter(|member| member.is_counted).count();
        let before = since + ttl() - 1;
        assert_eq!(counted(fleet.send(before, &heartbeat(before, 1, epoch))), 2, "{heard}");
        assert_eq!(counted(fleet.send(before + 1, &heartbeat(before + 1, 1, epoch))), 1, "{heard}");
    }
}

#[test]
fn a_server_without_memory_learns_of_members_whose_permits_matter() {
    let mut fleet = new_fleet();
    let first = fleet.begin(0);
    fleet.send(100_000, &heartbeat(100_000, 1, first));
    fleet.lose_everything();
    let member =
        |replica, millis: u64, is_counted| Member { replica, matters_for: Micros(1000 * millis), is_counted };
    let told = Heartbeat {
        members: vec![member(2, 5000, true), member(3, 0, true), member(4, 4000, false)],
        ..heartbeat(200_000, 1, first)
    };
    let answer = fleet.send(200_000, &told);
    assert!(answer.epoch.id > first);
    // Those who are counted are so anew for a whole while.
    assert_eq!(members(&answer), [(2, 5000, true), (4, 4000, false), (1, 10_000, true)]);
    assert_eq!(answer.awaited, [2, 4], "what they were granted is not known");
    let epoch = fleet.hear(200_000, answer.epoch.id);
    // Another one knows longer times. Only of who has ended, and only while it knows an earlier epoch.
    let told = |known, millis| Heartbeat {
        members: vec![member(2, millis, true), member(4, millis, false)],
        reported: Reported { memory: first, epoch: first },
        ..heartbeat(300_000, 5, known)
    };
    let shorter = fleet.send(300_000, &told(first, 1000));
    assert_eq!(members(&shorter)[..2], [(2, 4900, true), (4, 3900, false)]);
    let known = fleet.send(300_000, &told(epoch, 9000));
    assert_eq!(members(&known)[..2], [(2, 4900, true), (4, 3900, false)]);
    let longer = fleet.send(300_000, &told(first, 9000));
    assert_eq!(members(&longer)[..2], [(2, 4900, true), (4, 9000, false)]);
    assert_eq!(longer.awaited, [2, 4, 1], "the caller does not wait for itself");
    assert_eq!(fleet.send(300_000, &heartbeat(300_000, 1, epoch)).awaited, [2, 4, 5]);
}

/// Each end of a replica closed new limiters and partitions for as long as its permits might have mattered.
#[test]
fn a_member_that_left_without_permits_that_matter_is_not_awaited() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    fleet.send(100_000, &heartbeat(100_000, 1, epoch));
    let both = fleet.send(200_000, &heartbeat(200_000, 2, epoch));
    let known = Heartbeat { members: both.members.clone(), ..informed(heartbeat(300_000, 2, epoch), &both) };
    let leaves = Heartbeat { leaves: true, matters_for: Micros::ZERO, ..heartbeat(300_000, 1, epoch) };
    fleet.send(300_000, &leaves);
    let answer = fleet.send(300_000, &known);
    assert_eq!((members(&answer), answer.reports), (vec![(2, 10_000, true)], Reports::Complete));
    assert!(answer.awaited.is_empty(), "{:?}", answer.awaited);
}

#[test]
fn a_member_is_told_apart_from_very_many() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    let reported = Reported { memory: epoch - 1, epoch };
    fleet.send(100_000, &Heartbeat { reported, ..heartbeat(100_000, 1, epoch) });
    let ended = |replica| Member { replica, matters_for: Micros(5 * SECOND), is_counted: false };
    let many = Heartbeat { members: (2..=300).map(ended).collect(), ..heartbeat(200_000, 1, epoch) };
    let answer = fleet.send(200_000, &many);
    // 256 of them, and one for all others.
    let replicas: Vec<u64> = answer.members.iter().map(|member| member.replica).collect();
    assert_eq!(replicas, (1..=256).chain([0]).collect::<Vec<_>>());
    assert!(answer.members.iter().all(|member| member.is_counted == (member.replica == 1)));
    // A known one stays known.
    let again = fleet.send(300_000, &heartbeat(300_000, 1, epoch));
    assert_eq!(members(&again)[0], (1, 10_000, true));
    assert_eq!(again.members.len(), 257);
    // Of those that have ended, one more counts among the others when a further one joins.
    let joined = fleet.send(300_000, &heartbeat(300_000, 1000, epoch));
    let replicas: Vec<u64> = joined.members.iter().map(|member| member.replica).collect();
    assert_eq!(replicas, [1].into_iter().chain(3..=256).chain([0, 1000]).collect::<Vec<_>>());
    assert_eq!(members(&joined)[255], (0, 4900, false));
    assert_eq!(joined.reports, Reports::Awaited, "nobody reports for the others");
    // Only where so many are there at once none can join.
    for replica in 1001..1255 {
        fleet.send(300_000, &heartbeat(300_000, replica, epoch));
    }
    let arguments = arguments::heartbeat(&fleet.context(300_000), &heartbeat(300_000, 2000, epoch));
    let refused = fleet.store.call(StoreOp::Heartbeat, &arguments);
    let reason = refused.unwrap_err().to_string();
    assert!(reason.contains("256 replicas share this server already"), "{reason}");
}

/// A limit of a month outlives many replicas.
#[test]
fn replicas_join_however_many_have_ended_that_matter_still() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    let matters_for = Micros(1000 * SECOND);
    for replica in 1..=400 {
        fleet.send(100_000, &Heartbeat { matters_for, ..heartbeat(100_000, replica, epoch) });
        let leaves = Heartbeat {
            matters_for: Micros(replica * SECOND),
            leaves: true,
            ..heartbeat(100_000, replica, epoch)
        };
        fleet.send(100_000, &leaves);
    }
    let answer = fleet.send(200_000, &heartbeat(200_000, 500, epoch));
    let kept: Vec<u64> = answer.members.iter().map(|member| member.replica).filter(|id| *id != 0).collect();
    assert_eq!((kept.len(), kept[0], kept[255]), (256, 146, 500), "those that matter longest: {kept:?}");
    // They have reported all that they were granted to this memory.
    assert_eq!(answer.reports, Reports::Complete);
    fleet.lose_everything();
    let second = fleet.renew(400_000, epoch);
    let told = Heartbeat { members: answer.members, ..heartbeat(400_000, 500, second) };
    assert_eq!(fleet.send(400_000, &told).reports, Reports::Awaited);
}

#[test]
fn all_is_reported_when_nobody_owes_what_it_was_granted_or_granted_by_itself() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    let heard = Reported { memory: epoch, epoch };
    for (reported, owes) in [
        (heard, Reports::Complete),
        (Reported { memory: epoch - 1, epoch }, Reports::Awaited),
        (Reported { memory: epoch, epoch: epoch - 1 }, Reports::Awaited),
        (heard, Reports::Complete),
        // A new replica has nothing to report.
        (Reported { memory: 0, epoch: 0 }, Reports::Complete),
    ] {
        let other = Heartbeat { reported, ..heartbeat(100_000, 2, epoch) };
        assert_eq!(fleet.send(100_000, &other).reports, owes, "{reported:?}");
        assert_eq!(fleet.send(100_000, &heartbeat(100_000, 1, epoch)).reports, owes, "{reported:?}");
    }
    // Nobody waits for one that has ended to say what it granted by itself.
    let reported = Reported { memory: epoch, epoch: epoch - 1 };
    let ends = Heartbeat { leaves: true, reported, ..heartbeat(100_000, 2, epoch) };
    assert_eq!(fleet.send(100_000, &ends).reports, Reports::Complete);
}

/// Returns the limiters that have moved since an instant, by their names; `None` where the caller has to look itself.
fn moved(fleet: &mut Fleet, after: u64, followed: u64, known_epoch: u64) -> Option<Vec<String>> {
    let followed = Micros(if followed == 0 { 0 } else { START + followed });
    let answer = fleet.send(after, &Heartbeat { followed, ..heartbeat(after, 1, known_epoch) });
    answer.moved.map(|moved| moved.iter().map(|(name, _)| name.to_string()).collect())
}

#[test]
fn a_heartbeat_answer_names_all_that_has_moved_since_the_last() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    fleet.beat(100_000, 1, epoch, Reported { memory: epoch, epoch });
    assert_eq!(moved(&mut fleet, 200_000, 0, epoch), None, "who begins has to look");
    assert_eq!(moved(&mut fleet, 200_000, 100_000, epoch), Some(vec![]));
    assert_eq!(moved(&mut fleet, 200_000, 100_000, epoch - 1), None, "another epoch voids all");
    let note = |fleet: &mut Fleet, name: &str, after: u64| {
        let mut command = redis::cmd("ZADD");
        command.arg("p:moved").arg(START + after).arg(format!("p:{{g}}:v2:limiter:{name}"));
        command.exec(&mut fleet.store.connection).unwrap();
    };
    note(&mut fleet, "moved", 300_000);
    fleet.reset(310_000).unwrap();
    let pause = PauseByHand { lasting: Micros(SECOND), ago: Micros::ZERO, replica: 1 };
    let limiter_ref = fleet.limiter_ref.clone();
    fleet.store.pause(&fleet.context(320_000), &limiter_ref, &pause);
    assert_eq!(
        moved(&mut fleet, 400_000, 300_000, epoch),
        Some(vec!["moved".into(), "a".into(), "a".into()])
    );
    assert_eq!(moved(&mut fleet, 400_000, 310_000, epoch), Some(vec!["a".into(), "a".into()]));
    assert_eq!(moved(&mut fleet, 400_000, 320_000, epoch), Some(vec!["a".into()]));
    assert_eq!(moved(&mut fleet, 400_000, 320_001, epoch), Some(vec![]));
    // For ten seconds.
    fleet.keep_alive(400_000, 10 * SECOND + 300_000 - 1, epoch);
    assert!(
        moved(&mut fleet, 10 * SECOND + 299_999, 300_000, epoch).is_some_and(|moved| moved[0] == "moved")
    );
    assert_eq!(moved(&mut fleet, 10 * SECOND + 300_000, 300_000, epoch), None);
    // Older ones are forgotten, and so is the note of a state that is gone.
    assert_eq!(moved(&mut fleet, 10 * SECOND + 300_000, 299_999, epoch), None);
    let size = |fleet: &mut Fleet, key: &str| -> u64 {
        redis::cmd("ZCARD").arg(key).query(&mut fleet.store.connection).unwrap()
    };
    assert_eq!(size(&mut fleet, "p:moved"), 1, "the set's own member");
    // Very many are not told one by one.
    let now = 10 * SECOND + 400_000;
    for name in 0..999 {
        note(&mut fleet, &format!("m{name}"), now);
    }
    assert_eq!(moved(&mut fleet, now, now, epoch).map(|moved| moved.len()), Some(999));
    note(&mut fleet, "last", now);
    assert_eq!(moved(&mut fleet, now, now, epoch), None);
    redis::cmd("ZADD").arg("p:live").arg(START).arg("gone").exec(&mut fleet.store.connection).unwrap();
    let before = size(&mut fleet, "p:live");
    fleet.beat(now, 1, epoch, Reported { memory: epoch, epoch });
    assert_eq!(size(&mut fleet, "p:live"), before - 1);
}

/// Returns whether a replica is told all that has moved since an instant.
fn is_told_all(fleet: &mut Fleet, after: u64, (replica, followed): (u64, u64), epoch: u64) -> bool {
    let followed = Micros(START + followed);
    fleet.send(after, &Heartbeat { followed, ..heartbeat(after, replica, epoch) }).moved.is_some()
}

#[test]
fn each_replica_is_told_that_moves_were_lost() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    for replica in [1, 2] {
        fleet.beat(100_000, replica, epoch, Reported { memory: epoch, epoch });
    }
    fleet.ask(150_000, epoch, 30);
    fleet.limiter_ref.rules =
        fleet.limiter_ref.rules.iter().map(|rule| Rule { rate: rule.rate / 2, ..rule.clone() }).collect();
    fleet.ask(200_000, epoch, 0);
    redis::cmd("DEL").arg("p:moved").exec(&mut fleet.store.connection).unwrap();
    // A further move makes the set again, but does not know of the one before.
    let _: u64 = redis::cmd("ZADD")
        .arg("p:moved")
        .arg(START + 250_000)
        .arg("p:{b}:v2:limiter:b")
        .query(&mut fleet.store.connection)
        .unwrap();
    assert!(!is_told_all(&mut fleet, 300_000, (1, 100_000), epoch));
    assert!(!is_told_all(&mut fleet, 400_000, (2, 299_999), epoch));
    assert!(is_told_all(&mut fleet, 400_000, (2, 300_000), epoch));
    assert!(is_told_all(&mut fleet, 500_000, (1, 300_000), epoch));
    // As long as heartbeats go on.
    fleet.keep_alive(500_000, 70 * SECOND, epoch);
    assert!(is_told_all(&mut fleet, 70 * SECOND, (1, 69 * SECOND), epoch));
    let lives_for: u64 = redis::cmd("PTTL").arg("p:moved").query(&mut fleet.store.connection).unwrap();
    assert!((59_000..=60_000).contains(&lives_for), "{lives_for} ms");
    // The clock of another server had made it later.
    let made: u64 = 4_000_000_000_000_000 + START + 80 * SECOND;
    redis::cmd("ZADD").arg("p:moved").arg(made).arg("").exec(&mut fleet.store.connection).unwrap();
    assert!(!is_told_all(&mut fleet, 70 * SECOND, (1, 69 * SECOND), epoch));
    assert!(is_told_all(&mut fleet, 70 * SECOND, (1, 70 * SECOND), epoch));
}

#[test]
fn a_heartbeat_answer_tells_of_the_last_actions_by_hand() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    let limiter_ref = fleet.limiter_ref.clone();
    for (after, lasting) in [(100_000, 10 * SECOND), (200_000, 0)] {
        let pause = PauseByHand { lasting: Micros(lasting), ago: Micros::ZERO, replica: 7 };
        fleet.store.pause(&fleet.context(after), &limiter_ref, &pause);
        let told = fleet.beat(after + 50_000, 1, epoch, Reported { memory: epoch, epoch }).by_hand;
        let until = if lasting > 0 { START + after + lasting } else { 0 };
        let stretch = PauseStretch { from: Micros(START + after), until: Micros(until) };
        let (name, partition) = (limiter_ref.name.clone(), None);
        assert_eq!(told, [ActionByHand { name, partition, stretch, replica: 7 }]);
    }
}
