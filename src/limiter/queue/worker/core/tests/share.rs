//! Service while the store is away: pauses, and changed limits.

use super::*;
use crate::limiter::model::RetryDelay;

#[test]
fn no_more_wait_for_the_end_of_a_pause_than_may_where_the_share_has_room() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let limits = Limits { max_waiting: 2, ..limits(10, 1, OnStoreFailure::Local) };
    let pause = Paused { limiter: limits.refs[0].name.clone(), from: START, until: after(900) };
    let away = Event::Linked(Link::Away { outage: 1 });
    core.on(after(1), vec![Event::Reconfigured(Box::new(limits)), Event::Paused(Some(pause)), away]);
    let arrivals: Vec<_> = (0..5).map(|request| arrival(request, after(2), 1000)).collect();
    let actions = core.on(after(2), arrivals);
    let asked = actions.iter().find_map(|action| match action {
        Action::BookLocally(call) => Some(call.runs.iter().map(|run| run.count).sum::<u64>()),
        _ => None,
    });
    let refused = actions.iter().filter(|action| matches!(action, Action::Refuse(..))).count();
    assert_eq!((asked, refused), (Some(2), 3), "{actions:?}");
}

#[test]
fn a_pause_without_the_store_refuses_at_once_who_waits_less_long() {
    for policy in [OnStoreFailure::Reject, OnStoreFailure::Allow, OnStoreFailure::Local] {
        let mut core = Driven::new(policy);
        let pause = Paused { limiter: core.0.limits.refs[0].name.clone(), from: START, until: after(5000) };
        core.on(after(1), vec![Event::Paused(Some(pause)), Event::Linked(Link::Away { outage: 1 })]);
        let actions = core.on(after(2), vec![arrival(0, after(2), 1000), arrival(1, after(2), 6000)]);
        let refused: Vec<_> = actions.iter().filter(|action| matches!(action, Action::Refuse(..))).collect();
        match (policy, &refused[..]) {
            (OnStoreFailure::Reject, [_, _]) => {
                assert!(matches!(refusal(&actions), Some(Refusal::StoreUnavailable { .. })));
            }
            (_, [Action::Refuse(_, _, Refusal::Paused { retry_after, .. })]) => {
                assert_eq!(*retry_after, Micros::from_millis(4998));
            }
            _ => panic!("{policy:?}: {actions:?}"),
        }
    }
}

/// Returns the answer of this replica's own memory that refuses so many requests for a day, because it has not heard how much is left.
fn unheard_of(now: Moment, requests: u64) -> Event {
    let day = Micros::from_millis(86_400_000);
    let away = RetryDelay { delay: day, advised: day, ..RetryDelay::default() };
    let answer =
        Answer { now: shown(now), outcomes: vec![(requests, Outcome::TooFar(away))], ..Answer::default() };
    answered_locally(answer, Micros::from_millis(6000))
}

#[test]
fn requests_wait_for_the_store_where_it_alone_knows_how_much_is_left() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(after(1), vec![Event::Linked(Link::Away { outage: 1 })]);
    let asked = core.on(after(2), vec![arrival(0, after(2), 0), arrival(1, after(2), 1000)]);
    assert_eq!(locally_booked(&asked), Some(2));
    let answered = core.on(after(2), vec![unheard_of(after(2), 2)]);
    assert!(answered.contains(&Action::Wait(RequestId(1), None)), "{answered:?}");
    let refused = |actions: &[Action]| -> Vec<(Asker, Refusal)> {
        let refused = actions.iter().filter_map(|action| match action {
            Action::Refuse(asker, _, refusal) => Some((*asker, refusal.clone())),
            _ => None,
        });
        refused.collect()
    };
    let unavailable = limits(10, 1, OnStoreFailure::Local).store_unavailable();
    assert_eq!(refused(&answered), [(Asker::Request(RequestId(0)), unavailable.clone())]);
    // Meanwhile newcomers are told the same without another look.
    let newcomers = core.on(after(50), vec![arrival(2, after(50), 0), arrival(3, after(50), 2000)]);
    assert_eq!(refused(&newcomers), [(Asker::Request(RequestId(2)), unavailable.clone())]);
    assert_eq!(locally_booked(&newcomers), None);
    // The store is asked for both that wait, and then this replica's memory again.
    assert!(is_booking(&core.on(core.wakes_at(after(50)), Vec::new())));
    let failed = core.on(after(203), vec![Event::Failed { is_unsent: true }]);
    assert_eq!(locally_booked(&failed), Some(2));
    core.on(after(203), vec![unheard_of(after(203), 2)]);
    let ended = core.on(after(1079), Vec::new());
    assert_eq!(refused(&ended), [(Asker::Request(RequestId(1)), unavailable)]);
    // The store is back.
    core.on(after(1100), vec![Event::Failed { is_unsent: true }, Event::Linked(Link::Up { epoch: 0 })]);
    core.on(core.wakes_at(after(1100)), Vec::new());
    assert!(is_granted(&core.on(after(1301), vec![booked(after(1301), &[shown(after(1301))])])));
}

#[test]
fn no_more_wait_for_the_store_than_may() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let limits = Limits { max_waiting: 2, ..limits(10, 1, OnStoreFailure::Local) };
    core.on(after(1), vec![Event::Reconfigured(Box::new(limits))]);
    core.on(after(1), vec![Event::Linked(Link::Away { outage: 1 })]);
    core.on(after(2), vec![arrival(0, after(2), 1000)]);
    core.on(after(2), vec![unheard_of(after(2), 1)]);
    let actions = core.on(after(3), vec![arrival(1, after(3), 1000), arrival(2, after(3), 1000)]);
    assert!(matches!(refusal(&actions), Some(Refusal::QueueFull { .. })), "{actions:?}");
    assert_eq!(core.0.waiting(), 2);
}

#[test]
fn slots_of_the_share_are_void_where_the_limits_change() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(after(1), vec![Event::Linked(Link::Away { outage: 1 }), arrival(0, after(1), 2000)]);
    core.on(after(2), vec![booked_locally(after(2), &[shown(after(500))])]);
    let same = Event::Reconfigured(Box::new(limits(10, 1, OnStoreFailure::Local)));
    let is_local = |action: &Action| matches!(action, Action::ReturnLocally(_) | Action::BookLocally(_));
    assert!(!core.on(after(3), vec![same]).iter().any(is_local));
    let others = Event::Reconfigured(Box::new(limits(20, 1, OnStoreFailure::Local)));
    let actions = core.on(after(4), vec![others]);
    let local: Vec<&Action> = actions.iter().filter(|action| is_local(action)).collect();
    assert!(
        matches!(local[..], [Action::ReturnLocally(void), Action::BookLocally(_)] if void.len() == 1),
        "{actions:?}"
    );
}

#[test]
fn slots_of_the_share_go_back_where_a_pause_begins_or_ends() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let limiter = limits(10, 1, OnStoreFailure::Local).refs[0].name.clone();
    let until = |until| Event::Paused(Some(Paused { limiter: limiter.clone(), from: START, until }));
    let is_booked_anew = |actions: &[Action], slot: Moment| {
        let goes_back =
            |action: &Action| matches!(action, Action::ReturnLocally(back) if back[0].0 == shown(slot));
        actions.iter().any(goes_back) && locally_booked(actions) == Some(1)
    };
    core.on(after(1), vec![Event::Linked(Link::Away { outage: 1 }), arrival(0, after(1), 2000)]);
    core.on(after(2), vec![booked_locally(after(2), &[shown(after(500))])]);
    assert!(is_booked_anew(&core.on(after(3), vec![until(after(1000))]), after(500)));
    core.on(after(3), vec![booked_locally(after(3), &[shown(after(1000))])]);
    assert!(is_booked_anew(&core.on(after(200), vec![until(after(300))]), after(1000)));
    core.on(after(200), vec![booked_locally(after(200), &[shown(after(300))])]);
    assert!(is_granted(&core.on(after(301), Vec::new())));
}
