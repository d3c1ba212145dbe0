//! The writing back of grants that the store does not know.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_store_that_has_lost_its_memory_gets_the_grants_back() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant(&a, 4);
    pass(100).await;
    stage.begin(5, 5);
    stage.beats().await.unwrap();
    let (heartbeats, writes) = stage.told();
    assert_eq!(stage.notices(), ["link changed"]);
    let [write] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!((write.replica, write.unknown, write.number, write.epoch), (ME, Unknown::Lost, 5, 5));
    let [(ago, 4)] = write.entries[..] else { panic!("{write:?}") };
    assert!((100_000..101_000).contains(&ago), "{ago}");
    assert_eq!(heartbeats.last().map(|told| told.reported), Some(reported(5, 5)));
    assert_eq!((stage.session.memory(), stage.session.ledger().has_unreported()), (5, false));
}

#[tokio::test(start_paused = true)]
async fn a_report_that_comes_into_another_epoch_is_none() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant(&a, 4);
    stage.begin(5, 5);
    stage.change(|script| script.written_in = Some(Epoch { id: 6, memory: 6, ..Epoch::default() }));
    stage.beats().await.unwrap();
    let (heartbeats, writes) = stage.told();
    assert_eq!((heartbeats.len(), writes.len()), (1, 1));
    assert_eq!((stage.session.epoch(), stage.session.ledger().has_unreported()), (6, true));
    // A key that cannot be read does not stop the others, and there is nothing left to write to it.
    stage.change(|script| (script.written_in, script.is_unreadable) = (None, true));
    stage.begin(6, 6);
    assert!(write_back(&stage.session, &stage.fallback).await.unwrap());
    stage.change(|script| (script.is_unreadable, script.is_away) = (false, true));
    assert!(write_back(&stage.session, &stage.fallback).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn grants_of_an_outage_are_written_before_a_call_for_their_limiter() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant_offline(&a, 2);
    pass(30).await;
    report_offline_grants(&stage.session, std::slice::from_ref(&a), &stage.fallback).await.unwrap();
    let (_, writes) = stage.told();
    let [write] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!((write.unknown, &write.entries[..]), (Unknown::Away, &[(30_000, 2)][..]));
    assert!(!stage.session.ledger().lacks(std::slice::from_ref(&a)));
    // A slot that lies ahead has a negative age.
    let ahead = stage.store.clock.now() + Micros::from_millis(40);
    let share = a.share(Share { parts: 1, place: Some(0), clock_ahead: 0 }).unwrap();
    let part = OwnPart { whole: a.clone(), share, lacking: (ahead, vec![0]) };
    stage.session.ledger().record_offline(stage.store.clock.now(), &[part], &[(ahead, 1)]);
    report_offline_grants(&stage.session, &[a], &stage.fallback).await.unwrap();
    assert_eq!(stage.told().1[0].entries, [(-40_000, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_granted_only_without_the_store_says_so() {
    let (stage, (_, a)) = (Stage::new(), any_limiter());
    stage.grant_offline(&a, 2);
    stage.begin(3, 3);
    stage.beats().await.unwrap();
    let (heartbeats, writes) = stage.told();
    // The store's memory is not new to it: it has something to report.
    assert_eq!((heartbeats[0].reported, writes.len()), (reported(1, 1), 1));
    assert_eq!(heartbeats[1].reported, reported(3, 3));
}
