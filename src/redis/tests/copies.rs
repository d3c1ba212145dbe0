//! The heartbeat script on a real Redis: copies of what others were granted.

use std::slice::from_ref;

use crate::clock::Micros;
use crate::limiter::model::grant_copy::{CopyExchange, GrantCopy};
use crate::limiter::model::heartbeat::{Heartbeat, Member};
use crate::redis::tests::START;
use crate::redis::tests::fleet::{Fleet, SECOND, granted};
use crate::redis::tests::heartbeats::{heartbeat, new_fleet, ttl};

fn copy(replica: u64, number: u64, is_final: bool, text: &str) -> GrantCopy {
    let written = Micros(START + 90_000 + number);
    GrantCopy { replica, number, is_final, shift: 3, written, text: text.into() }
}

/// Makes the heartbeat of a replica that follows the others, has these copies, and tells others.
fn exchange(
    fleet: &mut Fleet,
    (after, replica, epoch): (u64, u64, u64),
    known: &[(u64, u64)],
    told: &[GrantCopy],
) -> Vec<GrantCopy> {
    let copies = CopyExchange { follows: true, known: known.to_vec(), told: told.to_vec() };
    fleet.send(after, &Heartbeat { copies, ..heartbeat(after, replica, epoch) }).copies
}

#[test]
fn copies_go_from_each_member_to_all_others_once() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    let (at, first, second) = (100_000, copy(1, 1, false, "\na 1:2"), copy(2, 5, true, "\na 7:1"));
    assert!(exchange(&mut fleet, (at, 1, epoch), &[], from_ref(&first)).is_empty(), "one's own");
    assert_eq!(exchange(&mut fleet, (at, 2, epoch), &[], from_ref(&second)), from_ref(&first));
    assert_eq!(exchange(&mut fleet, (at, 1, epoch), &[], &[]), from_ref(&second));
    assert_eq!(exchange(&mut fleet, (at, 3, epoch), &[(2, 4)], &[]), [first.clone(), second.clone()]);
    assert_eq!(exchange(&mut fleet, (at, 3, epoch), &[(9, 9), (2, 5)], &[]), from_ref(&first));
    // A later copy takes the place of an earlier one, and no copy that of a later one.
    let newer = copy(1, 3, false, "\na 1:4");
    exchange(&mut fleet, (at, 1, epoch), &[], from_ref(&newer));
    exchange(&mut fleet, (at, 1, epoch), &[], &[copy(1, 3, true, "same"), copy(1, 2, true, "older")]);
    assert_eq!(exchange(&mut fleet, (at, 2, epoch), &[(1, 2)], &[]), from_ref(&newer));
    // One that does not follow is told none, and nobody is told of those whose permits do not matter any more.
    assert!(fleet.send(at, &heartbeat(at, 2, epoch)).copies.is_empty());
    let probe = CopyExchange { follows: true, ..CopyExchange::default() };
    let probe = Heartbeat { known_epoch: epoch, copies: probe, ..Heartbeat::default() };
    assert!(fleet.send(at, &probe).copies.is_empty());
    fleet.keep_alive(at, at + 10 * SECOND - 1, epoch);
    let last = exchange(&mut fleet, (at + 10 * SECOND - 1, 3, epoch), &[], &[]);
    assert_eq!(last.iter().map(|copy| copy.replica).collect::<Vec<_>>(), [1, 2]);
    assert!(
        exchange(&mut fleet, (at + 10 * SECOND, 3, epoch), &[], &[]).iter().all(|copy| copy.replica == 1)
    );
    // A copy of somebody else that the server knows already is not taken as one to be restored.
    let at = at + 10 * SECOND;
    exchange(&mut fleet, (at, 2, epoch), &[], &[copy(3, 9, false, "\na 1:9"), copy(77, 9, false, "\na 1:9")]);
    let told = exchange(&mut fleet, (at, 4, epoch), &[], &[]);
    assert!(told.iter().all(|copy| copy.number != 9), "{told:?}");
}

/// Returns the copies that the third replica hears, of those that it has up to these numbers.
fn heard(fleet: &mut Fleet, (after, epoch): (u64, u64), known: &[(u64, u64)]) -> Vec<u64> {
    exchange(fleet, (after, 3, epoch), known, &[]).iter().map(|copy| copy.number).collect()
}

#[test]
fn the_last_copy_of_a_replica_is_not_read_again() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    exchange(&mut fleet, (100_000, 2, epoch), &[], &[copy(2, 8, false, "\na 1:2")]);
    assert_eq!(heard(&mut fleet, (100_000, epoch), &[(2, 4)]), [8]);
    assert!(
        heard(&mut fleet, (100_000, epoch), &[(2, 5)]).is_empty(),
        "an odd number is that of the last one"
    );
}

/// Five replicas that are silent made each heartbeat of the others read all that they had been granted.
#[test]
fn a_later_copy_of_a_silent_member_is_seldom_looked_for() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    let lasting = Micros(60 * SECOND);
    fleet.send(100_000, &Heartbeat { matters_for: lasting, ..heartbeat(100_000, 2, epoch) });
    fleet.keep_alive(100_000, 100_000 + ttl(), epoch);
    // A first look takes out the silent one; its copy comes late.
    let from = 200_000 + ttl();
    fleet.send(from, &heartbeat(from, 3, epoch));
    let copies = CopyExchange { told: vec![copy(2, 8, false, "\na 1:2")], ..CopyExchange::default() };
    let silent = Heartbeat {
        heard: Micros(START + 100_000),
        copies,
        matters_for: lasting,
        ..heartbeat(from, 2, epoch)
    };
    fleet.send(from, &silent);
    assert_eq!(heard(&mut fleet, (from, epoch), &[]), [8], "who has none reads it at once");
    let mut looks = 0;
    for step in 0..32 {
        fleet.keep_alive(from + step * 200_000, from + step * 200_000, epoch);
        looks += heard(&mut fleet, (from + step * 200_000, epoch), &[(2, 6)]).len();
    }
    assert_eq!(looks, 1, "in 6.4 s");
}

#[test]
fn a_copy_that_cannot_be_read_stops_nobody() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    for spoilt in ["no MessagePack", "\u{1}"] {
        exchange(&mut fleet, (100_000, 2, epoch), &[], &[copy(2, 4, false, "\na 1:2")]);
        redis::cmd("SET").arg("p:epoch:copy:2").arg(spoilt).exec(&mut fleet.store.connection).unwrap();
        assert!(heard(&mut fleet, (100_000, epoch), &[]).is_empty());
        // The next one takes its place.
        exchange(&mut fleet, (100_000, 2, epoch), &[], &[copy(2, 6, false, "\na 1:3")]);
        assert_eq!(heard(&mut fleet, (100_000, epoch), &[]), [6]);
    }
    redis::cmd("DEL").arg("p:epoch:copy:2").exec(&mut fleet.store.connection).unwrap();
    redis::cmd("SADD").arg("p:epoch:copy:2").arg(1).exec(&mut fleet.store.connection).unwrap();
    assert!(heard(&mut fleet, (100_000, epoch), &[]).is_empty(), "a key of another type");
}

#[test]
fn long_copies_come_one_after_the_other() {
    let mut fleet = new_fleet();
    let epoch = fleet.begin(0);
    let long = |replica| copy(replica, 1, false, &"x".repeat(40_000));
    for replica in [1, 2, 3] {
        exchange(&mut fleet, (100_000, replica, epoch), &[], &[long(replica)]);
    }
    // The second one ends behind 64 KiB.
    assert_eq!(exchange(&mut fleet, (100_000, 4, epoch), &[], &[]), [long(1), long(2)]);
    assert_eq!(exchange(&mut fleet, (100_000, 4, epoch), &[(1, 1), (2, 1)], &[]), [long(3)]);
}

/// The server of two members has lost its memory, and the first one has told it of the second. Returns the new epoch.
fn lose_a_copy(fleet: &mut Fleet) -> u64 {
    let first = fleet.begin(0);
    fleet.send(100_000, &heartbeat(100_000, 2, first));
    fleet.send(100_000, &heartbeat(100_000, 1, first));
    fleet.lose_everything();
    let member = Member { replica: 2, matters_for: Micros(20 * SECOND), is_counted: true };
    let told = Heartbeat { members: vec![member], ..heartbeat(200_000, 1, first) };
    let epoch = fleet.send(200_000, &told).epoch.id;
    fleet.hear(200_000, epoch)
}

/// Lets the first replica restore a copy of the second one's grants: these permits a second before the start.
fn restore(fleet: &mut Fleet, after: u64, known_epoch: u64, number: u64, permits: u64) {
    let copy = GrantCopy { shift: 0, ..copy(2, number, false, &format!("\na {}:{permits}", START - SECOND)) };
    let copy = GrantCopy { written: Micros(START + SECOND), ..copy };
    let copies = CopyExchange { told: vec![copy], ..CopyExchange::default() };
    fleet.send(after, &Heartbeat { copies, ..heartbeat(after, 1, known_epoch) });
}

#[test]
fn a_copy_is_restored_while_it_is_needed_and_by_who_knows_the_epoch() {
    // All of the limit is taken by what is not known; what is known to have been used long before ends earlier.
    let next = |restored: &dyn Fn(&mut Fleet, u64)| {
        let mut fleet = new_fleet();
        let epoch = lose_a_copy(&mut fleet);
        restored(&mut fleet, epoch);
        fleet.keep_alive(300_000, SECOND, epoch);
        granted(&fleet.ask(SECOND, epoch, 10))
    };
    // The permits of the copy are free a window behind them, the others a window behind the opening.
    let (opened, of_copy) = (700_000 + 10 * SECOND, 9 * SECOND);
    assert_eq!(next(&|_, _| ()), (0, Some(opened)));
    assert_eq!(next(&|fleet, epoch| restore(fleet, 300_000, epoch, 1, 4)), (0, Some(of_copy)));
    assert_eq!(next(&|fleet, epoch| restore(fleet, 300_000, epoch - 1, 1, 4)), (0, Some(opened)));
    // A later copy is taken, an earlier one is not.
    let twice = |numbers: [u64; 2]| {
        move |fleet: &mut Fleet, epoch| {
            restore(fleet, 300_000, epoch, numbers[0], 0);
            restore(fleet, 310_000, epoch, numbers[1], 4);
        }
    };
    assert_eq!(next(&twice([1, 2])), (0, Some(of_copy)));
    assert_eq!(next(&twice([2, 2])), (0, Some(opened)));
    assert_eq!(next(&twice([3, 2])), (0, Some(opened)));
    // Once the epoch is open, none takes the place of another.
    let late = |fleet: &mut Fleet, epoch| {
        restore(fleet, 300_000, epoch, 1, 0);
        fleet.keep_alive(300_000, 700_000, epoch);
        restore(fleet, 700_000, epoch, 2, 4);
    };
    assert_eq!(next(&late), (0, Some(opened)));
    // A member that has reported all itself needs no copy, and its own takes the place of a restored one.
    let reported = |fleet: &mut Fleet, epoch| {
        fleet.send(300_000, &heartbeat(300_000, 2, epoch));
        restore(fleet, 310_000, epoch, 1, 4);
    };
    assert_eq!(next(&reported), (10, None));
    let own = |fleet: &mut Fleet, epoch| {
        restore(fleet, 300_000, epoch, 9, 4);
        exchange(fleet, (310_000, 2, epoch), &[], &[copy(2, 1, false, "\na 1:9")]);
    };
    assert_eq!(next(&own), (10, None), "what a replica tells of itself is in the states already");
    let both = |fleet: &mut Fleet, epoch| {
        restore(fleet, 300_000, epoch, 1, 4);
        fleet.send(310_000, &heartbeat(310_000, 2, epoch));
    };
    assert_eq!(next(&both), (10, None), "it has reported that it was granted nothing");
}

#[test]
fn of_a_copy_that_is_not_final_only_what_cannot_have_been_given_back_is_charged_where_it_was() {
    let mut fleet = new_fleet();
    let epoch = lose_a_copy(&mut fleet);
    // The clock has been stepped by 2 s since: four permits a second before the start, and three that were a tenth of a second behind it.
    let text = format!("\na {}:4 1100000:3", START - 3 * SECOND);
    let written = Micros(START - SECOND);
    let copy =
        GrantCopy { replica: 2, number: 1, is_final: false, shift: 2_000_000, written, text: text.into() };
    let copies = CopyExchange { told: vec![copy], ..CopyExchange::default() };
    fleet.send(300_000, &Heartbeat { copies, ..heartbeat(300_000, 1, epoch) });
    fleet.keep_alive(300_000, SECOND, epoch);
    assert_eq!(granted(&fleet.ask(SECOND, epoch, 1)), (0, Some(9 * SECOND)));
    fleet.keep_alive(SECOND, 9 * SECOND, epoch);
    // The three are charged with all that is not known, when the epoch opened.
    assert_eq!(granted(&fleet.ask(9 * SECOND, epoch, 4)), (3, Some(10 * SECOND + 700_000)));
}
