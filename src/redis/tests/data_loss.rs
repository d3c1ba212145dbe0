//! The scripts on a real Redis that has lost its data, instant by instant.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::algorithm::warm_up::WarmUp;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::call::{Call, Holding, Outcome, Run};
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::heartbeat::Reported;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::pause::PauseRequest;
use crate::limiter::model::upstream_report::UpstreamReport;
use crate::limiter::model::write_back::{Unknown, WriteBack};
use crate::redis::arguments;
use crate::redis::tests::fleet::{Fleet, SECOND, granted, lost, slots};
use crate::redis::tests::{LEASE, START};
use crate::telemetry::StoreOp;

#[test]
fn grants_written_back_are_charged_once_at_their_instants() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    assert_eq!(granted(&fleet.ask(SECOND, first, 4)), (4, None));
    fleet.lose_everything();
    // A second later both replicas write back, one of them twice.
    let second = fleet.renew(2 * SECOND, first);
    assert!(second > first);
    for (replica, entries) in
        [(1, &[(1_000_000, 4)][..]), (2, &[(1_500_000, 2), (0, 1)]), (1, &[(1_100_000, 4)])]
    {
        let epoch = fleet.write_back(2 * SECOND + 100_000, &lost(replica, second, entries));
        assert_eq!((epoch.id, epoch.settles_until), (second, Some(Micros(START + 2 * SECOND) + LEASE)));
    }
    // Four, two and one of ten are in use; the earliest of them were used 1.5 s before they were written back.
    assert_eq!(granted(&fleet.ask(3 * SECOND, second, 4)), (3, Some(10 * SECOND + 600_000)));
}

#[test]
fn a_lost_bucket_counts_as_empty_before_what_is_known() {
    let mut fleet = Fleet::new(Kind::Bucket(Bucket { burst: 10 }));
    let first = fleet.begin(0);
    assert_eq!(granted(&fleet.ask(SECOND, first, 10)), (10, None));
    fleet.lose_everything();
    let second = fleet.renew(2 * SECOND, first);
    fleet.write_back(2 * SECOND, &lost(1, second, &[(1_000_000, 10)]));
    // Nobody knows how full it was before, so it is full no earlier than at the opening, less the ten. One a second flows in since.
    assert_eq!(granted(&fleet.ask(4 * SECOND, second, 4)), (1, Some(4 * SECOND + 500_000)));
}

/// A limit of a day beside the bucket keeps what was granted in cells of minutes.
#[test]
fn a_lost_bucket_makes_up_for_no_more_than_it_holds() {
    for burst in [10, 1] {
        let mut fleet = Fleet::new(Kind::Bucket(Bucket { burst }));
        let first = fleet.begin(0);
        fleet.keep_alive(400_000, 20 * SECOND, first);
        fleet.lose_everything();
        let second = fleet.renew(20 * SECOND, first);
        fleet.write_back(20 * SECOND, &lost(1, second, &[(12_000_000, 140)]));
        fleet.keep_alive(20_400_000, 31 * SECOND, second);
        assert_eq!(granted(&fleet.ask(31 * SECOND, second, burst)).0, burst);
    }
}

#[test]
fn a_bucket_that_was_in_full_use_before_a_loss_is_not_full_after() {
    let mut fleet = Fleet::new(Kind::Bucket(Bucket { burst: 10 }));
    let first = fleet.begin(0);
    assert_eq!(granted(&fleet.ask(SECOND, first, 10)).0, 10);
    // Then one by one as they flow in, for longer than a replica keeps its grants.
    let mut used = Vec::new();
    for second in 2..40 {
        fleet.keep_alive(second * SECOND - 1, second * SECOND, first);
        assert_eq!(granted(&fleet.ask(second * SECOND, first, 1)).0, 1, "{second}");
        used.push(second * SECOND);
    }
    fleet.lose_everything();
    let now = 40 * SECOND;
    let epoch = fleet.renew(now, first);
    let known = used.iter().filter(|at| **at + 10 * SECOND > now);
    let entries: Vec<_> = known.map(|at| (i64::try_from(now - at).unwrap(), 1)).collect();
    fleet.write_back(now, &lost(1, epoch, &entries));
    // The bucket was empty at 39 s, so no more than one has flowed in.
    assert!(granted(&fleet.ask(now + 500_000, epoch, 10)).0 <= 1);
}

/// A request of several permits is granted as soon as one is. What it lacks then is more than the limit grants at one instant.
#[test]
fn a_lost_limit_that_spaces_permits_is_closed_behind_a_request_of_several() {
    let warm_up = WarmUp { warm_up: Micros(10 * SECOND), cold: 3 };
    for kind in [Kind::Bucket(Bucket { burst: 1 }), Kind::WarmUp(warm_up)] {
        for is_reversed in [false, true] {
            let mut fleet = Fleet::new(kind.clone());
            let first = fleet.begin(0);
            fleet.lose_everything();
            let second = fleet.renew(SECOND, first);
            // One was granted a permit, a second earlier than the other five.
            let mut writes = [lost(1, second, &[(1_500_000, 1)]), lost(2, second, &[(500_000, 5)])];
            writes.rotate_left(usize::from(is_reversed));
            for write in &writes {
                fleet.write_back(SECOND, write);
            }
            let (count, next) = granted(&fleet.ask(2 * SECOND, second, 1));
            assert_eq!(count, 0, "{kind:?}");
            // A slot may be early by its cell, a microsecond.
            assert!(next >= Some(5 * SECOND + 499_999), "{kind:?}: {next:?}");
        }
    }
}

#[test]
fn a_lost_warm_up_is_as_careful_after_the_write_back() {
    // One permit a second when it is warm, one in three seconds when it is cold.
    let kind = Kind::WarmUp(WarmUp { warm_up: Micros(10 * SECOND), cold: 3 });
    // Cold after the first requests; warm; cooled by idle time; and all of it. Each step: when requests come, and how many.
    let histories: [&[(u64, u64)]; 4] = [
        &[(1, 2)],
        &[(1, 5), (11, 9), (21, 10)],
        &[(1, 5), (11, 9), (26, 2)],
        &[(1, 4), (9, 6), (19, 10), (35, 3), (50, 4)],
    ];
    for history in histories {
        for is_reversed in [false, true] {
            let [mut kept, mut losing] = [Fleet::new(kind.clone()), Fleet::new(kind.clone())];
            let (first, other) = (losing.begin(0), kept.begin(0));
            let mut used = Vec::new();
            for (after, count) in history {
                let granted = slots(&losing.ask(after * SECOND, first, *count));
                assert_eq!(slots(&kept.ask(after * SECOND, other, *count)), granted);
                used.extend(granted);
            }
            let now = used.last().unwrap() + 100_000;
            losing.lose_everything();
            let second = losing.renew(now, first);
            // Two replicas have used the permits by turns.
            let mut replicas = [(1, 0), (2, 1)];
            replicas.rotate_left(usize::from(is_reversed));
            for (replica, turn) in replicas {
                let own = used.iter().skip(turn).step_by(2);
                let entries: Vec<_> = own.map(|at| (i64::try_from(now - at).unwrap(), 1)).collect();
                losing.write_back(now, &lost(replica, second, &entries));
            }
            // The first slot shows the next free instant, the distances behind it the stored permits.
            let ask = |fleet: &mut Fleet, epoch| {
                let runs = vec![Run { cost: 1, wait_max: Micros(100 * SECOND), count: 8 }];
                let call = Call { epoch, generations: vec![0], runs, queue_slots_left: 8, ..Call::default() };
                slots(&fleet.call(now + SECOND, &call))
            };
            let (expected, granted) = (ask(&mut kept, other), ask(&mut losing, second));
            assert_eq!((expected.len(), granted.len()), (8, 8));
            for (slot, expected) in granted.iter().zip(&expected) {
                assert!(slot >= expected, "{history:?}: {granted:?} before {expected:?}");
            }
            used.extend(granted);
            // A slot may be early by its cell, a microsecond.
            assert!(used.windows(2).all(|pair| pair[1] - pair[0] >= SECOND - 1), "{history:?}: {used:?}");
        }
    }
}

#[test]
fn a_lost_warm_up_without_a_write_back_begins_cold() {
    let mut fleet = Fleet::new(Kind::WarmUp(WarmUp { warm_up: Micros(10 * SECOND), cold: 3 }));
    let first = fleet.begin(0);
    let cold = slots(&fleet.ask(SECOND, first, 3));
    fleet.ask(11 * SECOND, first, 9);
    fleet.lose_everything();
    let second = fleet.renew(21 * SECOND, first);
    let again = slots(&fleet.ask(22 * SECOND, second, 3));
    assert_eq!(again, cold.iter().map(|slot| slot + 21 * SECOND).collect::<Vec<_>>());
}

#[test]
fn another_run_of_the_server_is_another_memory() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    assert_eq!(granted(&fleet.ask(SECOND, first, 4)), (4, None));
    // The server returns with all or some of its data: no replica can know which.
    fleet.run = "two";
    let second = fleet.ask(2 * SECOND, first, 1).epoch;
    assert!(second.id > first && second.memory == second.id);
    fleet.hear(2 * SECOND, second.id);
    fleet.write_back(2 * SECOND + 100_000, &lost(1, second.id, &[(1_100_000, 3)]));
    // Without members nobody else can have been granted anything.
    let answer = fleet.ask(3 * SECOND, second.id, 8);
    assert_eq!(granted(&answer), (7, Some(11 * SECOND)));
    // A caller that does not know the run begins no epoch.
    fleet.run = "";
    let expected = Epoch { now: answer.now + Micros(SECOND), settles_until: None, ..second };
    assert_eq!(fleet.ask(4 * SECOND, second.id, 1).epoch, expected);
}

#[test]
fn grants_written_late_are_charged_at_their_instants() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let epoch = fleet.begin(0);
    // Sent at 1 s: two were used a second before, eight will be a second later. The server stands still until 1.7 s.
    let sent = Micros(START + SECOND);
    let away =
        WriteBack { unknown: Unknown::Away, sent, ..lost(1, epoch, &[(1_000_000, 2), (-1_000_000, 8)]) };
    fleet.write_back(1_700_000, &away);
    fleet.write_back(1_800_000, &away);
    let answer = fleet.ask(3 * SECOND, epoch, 3);
    // The window is full until the first two leave it, and the eight leave it together.
    let slots: Vec<_> = answer.outcomes.iter().map(|(count, outcome)| (*count, *outcome)).collect();
    let booked = |at| Outcome::Booked(Micros(START + at));
    assert_eq!(slots, [(2, booked(10 * SECOND)), (1, booked(12 * SECOND))]);
    // A grant from another clock is charged when its write-back arrives.
    let strange = WriteBack { sent: Micros(START + 3600 * SECOND), ..lost(2, epoch, &[(0, 1)]) };
    assert_eq!(fleet.write_back(4 * SECOND, &strange).id, epoch);
    assert_eq!(granted(&fleet.ask(13_500_000, epoch, 10)).1, Some(14 * SECOND));
}

#[test]
fn an_epoch_never_goes_back() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(100 * SECOND);
    // Lost, and the clock was set back.
    fleet.lose_everything();
    let second = fleet.ask(50 * SECOND, first, 1).epoch;
    assert_eq!((second.id, second.settles_until), (first + 1, Some(Micros(START + 50 * SECOND) + LEASE)));
    fleet.hear(50 * SECOND, second.id);
    assert_eq!(fleet.ask(51 * SECOND, second.id, 1).epoch.id, second.id);
    // Set back again, with all that is stored.
    let third = fleet.ask(0, second.id, 1).epoch;
    assert_eq!((third.id, third.settles_until), (second.id + 1, Some(Micros(START) + LEASE)));
    fleet.hear(0, third.id);
    assert_eq!(fleet.ask(SECOND, third.id, 1).epoch.settles_until, None);
}

#[test]
fn a_missing_key_begins_an_epoch() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    let answer = fleet.ask(SECOND, first, 4);
    assert_eq!(granted(&answer).0, 4);
    let key = crate::redis::keys::limiter("p", &fleet.limiter_ref, true);
    redis::cmd("DEL").arg(&key).exec(&mut fleet.store.connection).unwrap();
    // For every caller, even one that asks for the first time.
    let answer = fleet.ask(2 * SECOND, first, 1);
    assert_eq!(answer.epoch.settles_until, Some(Micros(START + 2 * SECOND) + LEASE));
    assert!(answer.epoch.id > first && answer.outcomes.is_empty());
    // It is there again, and begins no further epoch; nor does one that has expired.
    let second = answer.epoch.id;
    assert_eq!(fleet.ask(3 * SECOND, second, 1).epoch.id, second);
    assert_eq!(fleet.ask(60 * SECOND, second, 1).epoch.id, second);
}

#[test]
fn a_missing_key_begins_an_epoch_though_the_call_that_finds_it_ends_early() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    let (context, refs) = (fleet.context(SECOND), [fleet.limiter_ref.clone()]);
    let runs = vec![Run { cost: 1, wait_max: Micros(10 * SECOND), count: 4 }];
    let call = Call {
        replica: 1,
        epoch: first,
        generations: vec![0],
        runs,
        queue_slots_left: 100,
        ..Call::default()
    };
    let answer = fleet.store.reserve_numbered(&context, &refs, &call, 1);
    let key = crate::redis::keys::limiter("p", &fleet.limiter_ref, true);
    redis::cmd("DEL").arg(&key).exec(&mut fleet.store.connection).unwrap();
    // The answer was lost, and the call comes again.
    assert_eq!(fleet.store.reserve_numbered(&context, &refs, &call, 1), answer);
    let second = fleet.ask(SECOND, first, 1).epoch;
    assert!(second.id > first && second.settles_until.is_some(), "{second:?}");
    // Behind it comes a state that cannot be read.
    let strange = LimiterRef { name: LimiterName::parse("b").unwrap(), ..fleet.limiter_ref.clone() };
    let second = fleet.hear(SECOND, second.id);
    assert_eq!(granted(&fleet.ask(2 * SECOND, second, 4)).0, 4);
    redis::cmd("DEL").arg(&key).exec(&mut fleet.store.connection).unwrap();
    let other = crate::redis::keys::limiter("p", &strange, true);
    redis::cmd("SET").arg(other).arg("strange").exec(&mut fleet.store.connection).unwrap();
    let call = Call { epoch: second, generations: vec![0, 0], ..call };
    let arguments =
        arguments::reserve(&fleet.context(3 * SECOND), &[fleet.limiter_ref.clone(), strange], &call, 0);
    let result = fleet.store.call(StoreOp::Reserve, &arguments);
    assert!(result.is_err_and(|error| error.to_string().contains("UNREADABLE")));
    assert!(fleet.ask(3 * SECOND, second, 1).epoch.id > second);
}

#[test]
fn a_clock_set_back_within_an_epoch_begins_none() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    fleet.ask(2 * SECOND, first, 1);
    fleet.ask(2 * SECOND - 5000, first, 1);
    assert_eq!(fleet.ask(2 * SECOND + 1000, first, 1).epoch.id, first);
}

#[test]
fn a_reset_survives_write_backs_and_new_epochs() {
    for (kind, at_once) in
        [(Kind::SlidingWindow(SlidingWindow), 10), (Kind::Bucket(Bucket { burst: 10 }), 10)]
    {
        let mut fleet = Fleet::new(kind);
        let epoch = fleet.begin(0);
        assert_eq!(granted(&fleet.ask(SECOND, epoch, 10)).0, 10);
        assert_eq!(fleet.reset(2 * SECOND).unwrap().reset_at, Micros(START + 2 * SECOND));
        // A replica that missed the reset writes back grants from before and after it.
        fleet.ask(2_100_000, epoch, 1);
        let away = WriteBack { unknown: Unknown::Away, ..lost(2, epoch, &[(1_000_000, 5), (100_000, 2)]) };
        assert_eq!(fleet.write_back(2_200_000, &away).reset_at, Micros(START + 2 * SECOND));
        assert_eq!(granted(&fleet.ask(3 * SECOND, epoch, 10)).0, at_once - 3);
        // The reset holds in the epoch of another run, too.
        fleet.run = "two";
        let second = fleet.ask(4 * SECOND, epoch, 1).epoch;
        assert_eq!((second.id > epoch, second.reset_at), (true, Micros(START + 2 * SECOND)));
    }
}

/// It is told with each new epoch, and a bucket counted as full since then, whatever was taken from it later.
#[test]
fn a_reset_of_long_ago_fills_no_bucket_when_memory_is_lost() {
    // Each second one permit flows in, and one is taken. The last nine are written back.
    let each_second: Vec<(i64, u64)> = (1..10).rev().map(|second| (second * 1_000_000, 1)).collect();
    for (reset_at, taken, left) in [(2, each_second, 0..=2), (39, vec![(500_000, 1)], 8..=10)] {
        let mut fleet = Fleet::new(Kind::Bucket(Bucket { burst: 10 }));
        let epoch = fleet.begin(0);
        fleet.reset(reset_at * SECOND).unwrap();
        fleet.ask(reset_at * SECOND + 100_000, epoch, 1);
        fleet.run = "two";
        let second = fleet.renew(40 * SECOND, epoch);
        fleet.write_back(40_100_000, &lost(1, second, &taken));
        fleet.beat(40_200_000, 1, second, Reported { memory: second, epoch: second });
        fleet.keep_alive(40_200_000, 41 * SECOND, second);
        let at_once = granted(&fleet.ask(41 * SECOND, second, 10)).0;
        assert!(left.contains(&at_once), "{at_once} with a reset at {reset_at} s");
    }
}

#[test]
fn a_reset_takes_nothing_away_that_was_used_before_the_clock_was_set_back() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    fleet.reset(2 * SECOND).unwrap();
    assert_eq!(granted(&fleet.ask(5 * SECOND, first, 4)).0, 4);
    // The clock is set back by three and a half seconds: by it, the permits were used at 1.5 s.
    let now = 2_500_000;
    let demanded = fleet.ask(now, first + 1, 1).epoch;
    assert_eq!((demanded.id > first, demanded.reset_at), (true, Micros::ZERO));
    fleet.write_back(now, &lost(1, demanded.id, &[(1_000_000, 4)]));
    fleet.ask(now + LEASE.0, demanded.id, 1);
    assert_eq!(granted(&fleet.ask(now + 2 * LEASE.0, demanded.id, 10)).0, 5);
}

#[test]
fn waiting_permits_move_up_after_a_reset() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let epoch = fleet.begin(0);
    // Ten at once, and ten that wait for ten seconds.
    let before = fleet.ask(SECOND, epoch, 20);
    fleet.reset(2 * SECOND).unwrap();
    let refused = fleet.ask(2_100_000, epoch, 1);
    let (then, now) = (before.generations[0], refused.generations[0]);
    assert_eq!((now.before, now.void_from), (then.number, Micros(START + 2_100_000) + LEASE));
    // Ten waiting permits take the first places that are not void, so a new caller would wait for longer than a window.
    let reschedule = vec![Holding { slot: Micros(START + 11 * SECOND), cost: 1, count: 10 }];
    let call = Call {
        replica: 1,
        epoch,
        generations: vec![then.number],
        reschedule,
        reschedule_wait: Micros(10 * SECOND),
        ..Call::default()
    };
    let answer = fleet.call(2_200_000, &call);
    assert_eq!(answer.rescheduled, [(10, Some(now.void_from))]);
    assert!(
        matches!(refused.outcomes[..], [(1, Outcome::TooFar(away))] if away.delay == Micros(10 * SECOND) + LEASE)
    );
}

/// Permits from before a reset come back behind it, and what was booked since stands in the cell where they were.
#[test]
fn what_a_reset_has_forgotten_is_not_given_back() {
    let mut fleet = Fleet::with_cells();
    let epoch = fleet.begin(0);
    let before = fleet.ask(600_000, epoch, 6);
    assert_eq!(granted(&before).0, 6);
    fleet.reset(700_000).unwrap();
    let since = fleet.ask(800_000, epoch, 7);
    assert_eq!(granted(&since).0, 7);
    let back = |slot, count| Call {
        replica: 1,
        epoch,
        generations: vec![since.generations[0].number],
        give_back: vec![Holding { slot: Micros(START + slot), cost: 1, count }],
        ..Call::default()
    };
    fleet.call(900_000, &back(600_000, 6));
    assert_eq!(fleet.available(900_000), 3, "the reset has forgotten them");
    fleet.call(900_000, &back(800_000, 2));
    assert_eq!(fleet.available(900_000), 5);
}

#[test]
fn resets_are_limited_in_number() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    fleet.begin(0);
    let partition = |index: usize| Some(crate::limiter::Partition::of([Some(index.to_string().as_bytes())]));
    for index in 0..64 {
        fleet.limiter_ref.partition = partition(index);
        fleet.reset(SECOND).unwrap();
    }
    fleet.limiter_ref.partition = partition(64);
    let refused = fleet.reset(SECOND).unwrap_err();
    assert!(refused.to_string().contains("64 resets"), "{refused}");
    // A reset of the whole limiter replaces those of its partitions.
    fleet.limiter_ref.partition = None;
    fleet.reset(SECOND).unwrap();
    fleet.limiter_ref.partition = partition(64);
    fleet.reset(2 * SECOND).unwrap();
}

#[test]
fn a_pause_lasts_no_longer_because_the_clock_was_set_back() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(20 * SECOND);
    let pause =
        PauseRequest { wait: Some(Micros(3 * SECOND)), max: Micros(10 * SECOND), ..PauseRequest::default() };
    let report =
        UpstreamReport { replica: 1, known_epoch: first, pause: Some(pause), ..UpstreamReport::default() };
    let context = fleet.context(22 * SECOND);
    let asked = fleet.store.report_upstream(&context, &fleet.limiter_ref, &report);
    assert_eq!(asked.paused_until, Micros(START + 25 * SECOND));
    // A second later the clock shows 15 s less. What is left of the pause is not known any more, but how long it was to last.
    let second = fleet.renew(8 * SECOND, first);
    let now = 9 * SECOND;
    assert_eq!(granted(&fleet.ask(now, second, 1)), (0, Some(11 * SECOND)));
}
