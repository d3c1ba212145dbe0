//! The session with a store by itself: its link, its epochs and what it tells of them.

use super::*;

const LEASE: Micros = Micros::from_millis(500);

fn at(millis: u64) -> Moment {
    Moment(1_000_000) + Micros::from_millis(millis)
}

fn epoch(id: u64, millis: u64, opens: Option<u64>) -> Epoch {
    let shown = |millis| Micros::from_millis(1_000_000 + millis);
    Epoch { now: shown(millis), id, settles_until: opens.map(shown), ..Epoch::default() }
}

fn session() -> Session {
    Session::new(Terms::new(LEASE, Micros::from_millis(100)))
}

/// Returns the link and the actions after an event.
fn on(session: &mut Session, event: SessionEvent, now: Moment) -> (Link, Vec<SessionAction>) {
    let mut out = Vec::new();
    session.on(event, now, &mut out);
    (session.link, out)
}

fn answer(session: &mut Session, millis: u64, epoch: Epoch) -> (Link, Vec<SessionAction>) {
    on(session, SessionEvent::Answered { sent: at(millis), epoch }, at(millis + 1))
}

#[test]
fn a_store_is_away_a_timeout_and_a_lease_after_the_first_failed_call() {
    let mut session = session();
    assert_eq!(answer(&mut session, 0, epoch(3, 0, None)).0, Link::Up { epoch: 3 });
    let held = Link::Held { epoch: 3, until: at(200 + 595) };
    assert_eq!(on(&mut session, SessionEvent::Failed { sent: at(200) }, at(300)).0, held);
    assert_eq!(on(&mut session, SessionEvent::Failed { sent: at(400) }, at(500)).0, held);
    assert_eq!(on(&mut session, SessionEvent::Tick, at(794)).0, held);
    assert_eq!(on(&mut session, SessionEvent::Tick, at(795)).0, Link::Away { outage: 1 });
    assert_eq!(on(&mut session, SessionEvent::Failed { sent: at(800) }, at(801)).0, Link::Away { outage: 1 });
    assert_eq!(answer(&mut session, 900, epoch(3, 900, None)).0, Link::Up { epoch: 3 });
}

#[test]
fn a_replica_that_stood_still_asks_the_store_before_it_goes_by_its_share() {
    let mut session = session();
    answer(&mut session, 0, epoch(3, 0, None));
    on(&mut session, SessionEvent::Failed { sent: at(200) }, at(300));
    let held = Link::Held { epoch: 3, until: at(3000 + 595) };
    assert_eq!(on(&mut session, SessionEvent::Tick, at(3000)).0, held);
    assert_eq!(on(&mut session, SessionEvent::Tick, at(3595)).0, Link::Away { outage: 1 });
    // It does so as well when it stood still while it went by its share.
    assert_eq!(on(&mut session, SessionEvent::Tick, at(4100)).0, Link::Away { outage: 1 });
    let held = Link::Held { epoch: 3, until: at(5000 + 595) };
    assert_eq!(on(&mut session, SessionEvent::Tick, at(5000)).0, held);
    assert_eq!(on(&mut session, SessionEvent::Tick, at(5500)).0, held);
    assert_eq!(on(&mut session, SessionEvent::Tick, at(5595)).0, Link::Away { outage: 2 });
}

#[test]
fn an_answer_of_the_same_epoch_ends_a_doubt_and_an_older_failure_begins_none() {
    let mut session = session();
    answer(&mut session, 0, epoch(3, 0, None));
    on(&mut session, SessionEvent::Failed { sent: at(200) }, at(300));
    assert_eq!(answer(&mut session, 350, epoch(3, 350, None)), (Link::Up { epoch: 3 }, Vec::new()));
    assert_eq!(on(&mut session, SessionEvent::Failed { sent: at(340) }, at(440)).0, Link::Up { epoch: 3 });
}

#[test]
fn a_new_epoch_settles_and_then_opens() {
    let mut session = session();
    answer(&mut session, 0, epoch(3, 0, None));
    let (link, actions) = answer(&mut session, 100, epoch(4, 100, Some(600)));
    let Link::Settling { epoch: 4, opens } = link else { panic!("{link:?}") };
    assert!(opens >= at(600) && opens < at(603), "{opens:?}");
    assert!(matches!(actions[..], [SessionAction::VoidSlots { .. }]), "{actions:?}");
    // An answer from before the loss comes late.
    assert_eq!(answer(&mut session, 90, epoch(3, 91, None)).0, link);
    assert_eq!(on(&mut session, SessionEvent::Tick, opens).0, Link::Up { epoch: 4 });
}

#[test]
fn a_step_of_the_clock_requires_a_new_epoch() {
    let mut session = session();
    answer(&mut session, 0, epoch(3, 0, None));
    let (link, actions) = answer(&mut session, 100, epoch(3, 5100, None));
    assert_eq!(link, Link::Held { epoch: 4, until: at(101 + 595) });
    assert!(matches!(actions[..], [SessionAction::Step(Step::Forward(_))]), "{actions:?}");
    assert_eq!(session.epoch_least(), 4);
    assert!(matches!(answer(&mut session, 102, epoch(4, 5102, Some(5602))).0, Link::Settling { .. }));
}

#[test]
fn a_step_of_the_clock_requires_a_new_epoch_though_the_memory_is_new_already() {
    let mut session = session();
    let with_memory = |id, millis| Epoch { memory: id, ..epoch(id, millis, None) };
    answer(&mut session, 0, with_memory(3, 0));
    // Another replica has seen a first step, and demanded this memory; the clock has been stepped once more since.
    let (link, _) = answer(&mut session, 100, with_memory(4, 5100));
    assert_eq!(link, Link::Held { epoch: 5, until: at(101 + 595) });
}

#[test]
fn slots_behind_the_last_lease_were_not_used() {
    // The clock may have been stepped meanwhile, and slots with it.
    for stepped_by in [0, 5000] {
        let mut session = session();
        let with_memory = |id, millis| Epoch { memory: id, ..epoch(id, millis, None) };
        answer(&mut session, 0, with_memory(3, 0));
        on(&mut session, SessionEvent::Failed { sent: at(200) }, at(300));
        on(&mut session, SessionEvent::Tick, at(800));
        let (_, actions) = answer(&mut session, 1200, with_memory(4, 1200 + stepped_by));
        let used = actions.iter().filter_map(|action| match action {
            SessionAction::WriteBack { until, .. } | SessionAction::VoidSlots { after: until } => {
                Some(*until)
            }
            _ => None,
        });
        let lease = Micros::from_millis(1_000_000 + 495 + stepped_by);
        let is_close = |until: Micros| until >= lease && until < lease + Micros::from_millis(2);
        assert_eq!(used.map(is_close).collect::<Vec<_>>(), [true, true], "{actions:?}");
    }
}

#[test]
fn a_loss_of_memory_behind_a_clock_that_stood_still_forgets_no_used_slot() {
    let mut session = session();
    let with_memory = |id, millis| Epoch { memory: id, ..epoch(id, millis, None) };
    answer(&mut session, 0, with_memory(3, 0));
    // The store's clock is four milliseconds behind: too little for a step, and a slot may have been used just before.
    answer(&mut session, 100, with_memory(3, 97));
    let (_, actions) = answer(&mut session, 101, with_memory(4, 98));
    let forgotten = actions.iter().find_map(|action| match action {
        SessionAction::WriteBack { until, .. } => Some(*until),
        _ => None,
    });
    // Less what the two clocks may have drifted apart.
    let used = Micros::from_millis(1_000_000 + 100) - Micros(50);
    assert!(forgotten.is_some_and(|until| until >= used), "{actions:?}");
}

#[test]
fn queues_have_followed_an_epoch_from_the_first_heartbeat_that_missed_nothing() {
    let mut session = session();
    answer(&mut session, 0, epoch(3, 0, None));
    let told = |session: &mut Session, id, millis, is_complete| {
        let event = SessionEvent::MovesTold { sent: at(millis), epoch: epoch(id, millis, None), is_complete };
        on(session, event, at(millis + 1));
        session.moves_told.map(|told| (told.from.0 / 1000 - 1_000_000, told.until.0 / 1000 - 1_000_000))
    };
    assert_eq!(session.moves_told, None);
    assert_eq!(told(&mut session, 3, 10, false), Some((10, 10)));
    answer(&mut session, 15, epoch(3, 15, None));
    assert_eq!(told(&mut session, 3, 20, true), Some((10, 20)));
    assert_eq!(session.moves_told.map(|followed| followed.sent), Some(at(20)));
    assert_eq!(told(&mut session, 3, 30, false), Some((30, 30)), "some were missed");
    assert_eq!(told(&mut session, 2, 40, true), Some((30, 30)), "of an epoch that is over");
    answer(&mut session, 50, epoch(4, 50, None));
    assert_eq!(session.moves_told, None, "in another epoch all begins anew");
    assert_eq!(told(&mut session, 4, 60, true), Some((60, 60)));
    answer(&mut session, 70, epoch(4, 5070, None));
    assert_eq!(session.moves_told, None, "the times of before are on another clock");
}

#[test]
fn a_reset_is_announced_once_and_followed_once() {
    let mut session = session();
    let with_reset = |millis, reset| Epoch { reset_at: Micros::from_millis(reset), ..epoch(3, millis, None) };
    assert_eq!(answer(&mut session, 0, with_reset(0, 500)).1, [SessionAction::Reset]);
    assert_eq!(answer(&mut session, 10, with_reset(10, 500)).1, []);
    assert_eq!(answer(&mut session, 20, with_reset(20, 600)).1, [SessionAction::Reset]);
    for (followed, latest) in [(500, 500), (600, 600), (550, 600)] {
        on(&mut session, SessionEvent::ResetsFollowed(Micros::from_millis(followed)), at(30));
        assert_eq!(session.resets.followed, Micros::from_millis(latest));
    }
    // Behind a step of the clock each is at another time.
    answer(&mut session, 40, epoch(3, 5040, None));
    assert_eq!(session.resets, Resets::default());
}

#[test]
fn a_loss_of_memory_is_told_of_once() {
    let mut session = session();
    let with_memory = |id, memory, millis| Epoch { memory, ..epoch(id, millis, None) };
    // Grants of before this replica came are not its own.
    let (_, first) = answer(&mut session, 0, with_memory(3, 3, 0));
    assert!(matches!(first[..], [SessionAction::WriteBack { memory: 3, .. }]), "{first:?}");
    assert_eq!(answer(&mut session, 10, with_memory(3, 3, 10)).1, []);
    let (_, lost) = answer(&mut session, 20, with_memory(4, 4, 20));
    assert!(
        matches!(lost[..], [SessionAction::WriteBack { memory: 4, .. }, SessionAction::VoidSlots { .. }]),
        "{lost:?}"
    );
    assert_eq!(answer(&mut session, 30, with_memory(4, 4, 30)).1, []);
    assert_eq!((session.epoch, session.memory), (4, 4));
}

#[test]
fn an_epoch_that_is_announced_counts_from_then_on() {
    let mut session = session();
    answer(&mut session, 0, epoch(3, 0, None));
    let announced =
        |session: &mut Session, announced| on(session, SessionEvent::Announced(announced), at(20));
    let (link, actions) = announced(&mut session, epoch(4, 10, Some(600)));
    assert!(
        matches!((link, &actions[..]), (Link::Settling { epoch: 4, .. }, [SessionAction::VoidSlots { .. }])),
        "{actions:?}"
    );
    assert_eq!(announced(&mut session, epoch(3, 15, None)), (link, vec![]), "an earlier one is no news");
    assert_eq!(announced(&mut session, epoch(4, 15, None)), (link, vec![]), "nor is the same");
    // Behind a step of the clock a later one is required, which an announcement may be.
    answer(&mut session, 30, epoch(4, 5030, None));
    let held = session.link;
    assert!(matches!(held, Link::Held { epoch: 5, .. }));
    assert_eq!(announced(&mut session, epoch(5, 5040, None)).0, Link::Up { epoch: 5 });
}

#[test]
fn a_failure_of_a_call_that_was_sent_with_the_answered_one_is_a_doubt() {
    let mut session = session();
    answer(&mut session, 100, epoch(3, 100, None));
    assert!(matches!(on(&mut session, SessionEvent::Failed { sent: at(100) }, at(200)).0, Link::Held { .. }));
}

#[test]
fn a_replica_has_stood_still_when_it_has_not_looked_for_as_long_as_an_outage_takes_to_show() {
    let mut session = session();
    answer(&mut session, 0, epoch(3, 0, None));
    on(&mut session, SessionEvent::Failed { sent: at(200) }, at(300));
    let until = |millis| Link::Held { epoch: 3, until: at(millis) };
    // The doubt ends at 795 ms.
    assert_eq!(on(&mut session, SessionEvent::Tick, at(795 + 595)).0, until(795 + 595 + 595));
    let away = at(795 + 595 + 595);
    assert_eq!(on(&mut session, SessionEvent::Tick, away).0, Link::Away { outage: 1 });
    let later = away + Micros::from_millis(594);
    assert_eq!(on(&mut session, SessionEvent::Tick, later).0, Link::Away { outage: 1 });
    let later = later + Micros::from_millis(595);
    assert!(matches!(on(&mut session, SessionEvent::Tick, later).0, Link::Held { .. }));
}
