//! A slot that comes too late, and its request.

use super::{
    Action, BookedCore, Context, Driven, Event, Limits, Link, OnStoreFailure, Refusal, RequestId,
    ReturnReason, SECOND, START, Unusable, after, arrival, booked, booked_locally, context, is_booking,
    is_granted, limits, locally_booked, refusal, shown,
};
use crate::clock::{Micros, Moment};
use crate::limiter::model::{Call, Flow, Permits};
use crate::limiter::queue::cost_queue::DEADLINE_SLACK;
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::request::{Asker, Holder};
use crate::limiter::queue::slot::{Slot, Source};

#[test]
fn a_late_slot_of_a_share_lets_nobody_wait_for_a_slot_beyond_its_wait() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![Event::Linked(Link::Away { outage: 1 })]);
    let waits = [1000, 1000, 5000];
    core.on(START, (0..).zip(waits).map(|(request, wait)| arrival(request, START, wait)).collect());
    // Between the second and the third slot the share is used up.
    core.on(START, vec![booked_locally(START, &[900, 950, 4000].map(|at| shown(after(at))))]);
    // The first slot is found too late, and the share has no room for its request now: each request moves one slot back.
    assert!(is_booking(&core.on(after(925), Vec::new())));
    let actions = core.on(after(926), vec![Event::Failed { is_unsent: false }]);
    assert_eq!(locally_booked(&actions), Some(3), "{actions:?}");
    let slots = [950, 4000, 4100].map(|at| shown(after(at)));
    let actions = core.on(after(926), vec![booked_locally(after(926), &slots)]);
    let Some(Action::Refuse(Asker::Request(RequestId(1)), _, Refusal::RateLimited { retry_after, .. })) =
        actions.iter().find(|action| matches!(action, Action::Refuse(..)))
    else {
        panic!("{actions:?}")
    };
    assert_eq!(retry_after.0 / 1000, 4000 - 926);
    assert!(is_granted(&core.on(after(951), Vec::new())));
    assert!(is_granted(&core.on(after(4001), Vec::new())), "the third request has moved up");
}

#[test]
fn a_late_slot_of_a_share_is_room_again_at_once() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![Event::Linked(Link::Away { outage: 1 })]);
    core.on(START, (0..3).map(|request| arrival(request, START, 5000)).collect());
    let slots = [900, 1900, 2900].map(|at| shown(after(at)));
    core.on(START, vec![booked_locally(START, &slots)]);
    // The store was asked lately, so it is not asked again before the share.
    core.on(after(880), Vec::new());
    core.on(after(881), vec![Event::Failed { is_unsent: false }]);
    let actions = core.on(after(925), Vec::new());
    let returned: Vec<_> = actions
        .iter()
        .filter_map(|action| if let Action::ReturnLocally(holdings) = action { Some(holdings) } else { None })
        .flatten()
        .map(|(slot, _)| *slot)
        .collect();
    assert_eq!(returned, slots, "{actions:?}");
    assert_eq!(locally_booked(&actions), Some(3), "{actions:?}");
    let slots = [925, 1925, 2925].map(|at| shown(after(at)));
    let actions = core.on(after(925), vec![booked_locally(after(925), &slots)]);
    assert!(is_granted(&actions), "{actions:?}");
    assert!(is_granted(&core.on(after(1926), Vec::new())), "nobody has moved back by a slot");
}

#[test]
fn a_request_whose_slot_came_too_late_waits_no_longer_for_the_store_than_any_other() {
    for link in [Link::Up { epoch: 0 }, Link::Away { outage: 1 }] {
        let mut core = Driven::new(OnStoreFailure::Local);
        core.on(START, vec![Event::Linked(link)]);
        core.on(START, vec![arrival(0, START, 1000), arrival(1, START, 5000)]);
        let slots = [990, 4000].map(|at| shown(after(at)));
        if let Link::Up { .. } = link {
            core.on(START, vec![booked(START, &slots)]);
            // The answer at a heartbeat keeps the slots usable.
            assert!(is_booking(&core.on(after(600), Vec::new())));
            core.on(after(601), vec![booked(after(601), &[])]);
        } else {
            core.on(START, vec![booked_locally(START, &slots)]);
        }
        let actions = core.on(after(991), Vec::new());
        let Some(Action::Grant(request, slot, cost, holder)) =
            actions.iter().find(|action| matches!(action, Action::Grant(..)))
        else {
            panic!("{link:?}: {actions:?}")
        };
        // The store is asked for another slot, and does not answer.
        let reason = ReturnReason::Exchanged(*request, *holder, Unusable::Late);
        let mut now = after(1010);
        let mut actions = core.on(now, vec![Event::Returned(*slot, cost.clone(), reason)]);
        while refusal(&actions).is_none() {
            assert!(now < after(2000), "{link:?}: nobody is refused");
            now = core.wakes_at(now).max(now + Micros::ONE);
            actions = core.on(now, Vec::new());
        }
        assert_eq!(now, after(1010) + DEADLINE_SLACK + Micros::from_millis(2), "{link:?}");
    }
}

#[test]
fn a_slot_in_place_of_one_whose_answer_was_lost_is_not_booked_beyond_the_end_of_its_request() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, START, 300)]);
    // By its answer the store takes 450 ms, and the request waits for 615 ms in all.
    let context = Context { latency: Micros::from_millis(450), ..context(after(450)) };
    let mut actions = Vec::new();
    core.0.on(vec![booked(after(450), &[shown(START)])], &context, &mut actions);
    let Some(Action::Book(call)) = actions.iter().find(|action| matches!(action, Action::Book(_))) else {
        panic!("{actions:?}")
    };
    let wait_max = Micros::from_millis(615 - 2 - 450);
    assert_eq!((call.lead, call.runs[0].wait_max), (Micros::ZERO, wait_max));
}

#[test]
fn a_request_whose_slots_come_too_late_falls_back_by_one_slack_alone() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![Event::Linked(Link::Away { outage: 1 })]);
    core.on(START, vec![arrival(0, START, 1000), arrival(1, after(1), 5000)]);
    core.on(START, vec![booked_locally(START, &[1060, 4000].map(|at| shown(after(at))))]);
    let actions = core.on(after(1061), Vec::new());
    let Some(Action::Grant(request, slot, cost, holder)) =
        actions.iter().find(|action| matches!(action, Action::Grant(..)))
    else {
        panic!("{actions:?}")
    };
    // Its connection takes 30 ms, and the next slot lies 75 ms behind its wait and that.
    core.on(after(1080), Vec::new());
    core.on(after(1081), vec![Event::Failed { is_unsent: false }]);
    let reason = ReturnReason::Exchanged(*request, *holder, Unusable::Late);
    let actions = core.on(after(1090), vec![Event::Returned(*slot, cost.clone(), reason)]);
    assert_eq!(locally_booked(&actions), Some(2), "{actions:?}");
    let slots = [1104, 4000].map(|at| shown(after(at)));
    let mut other = Driven(core.0.clone());
    let booked = core.on(after(1090), vec![booked_locally(after(1090), &slots)]);
    assert_eq!(refusal(&booked), None, "{booked:?}");
    // Two milliseconds later is too late.
    let slots = [1106, 4000].map(|at| shown(after(at)));
    let actions = other.on(after(1090), vec![booked_locally(after(1090), &slots)]);
    assert!(matches!(refusal(&actions), Some(Refusal::RateLimited { .. })), "{actions:?}");
}

#[test]
fn a_request_that_comes_back_displaces_the_last_that_came() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.0.limits.max_waiting = 1;
    core.on(START, vec![arrival(0, START, 5000)]);
    core.on(START, vec![booked(START, &[shown(START)])]);
    core.on(after(1), vec![arrival(1, after(1), 5000)]);
    let actions = core.on(after(2), vec![booked(after(2), &[shown(after(1000))])]);
    assert!(actions.contains(&Action::Wait(RequestId(1), None)), "{actions:?}");
    // The first one finds its slot too late.
    let holder = Holder { arrived: START, deadline: after(5000), late: 1, flow: Flow::default() };
    let slot = Slot { at: shown(START), due: START, source: Source::Store(0) };
    let reason = ReturnReason::Exchanged(RequestId(0), holder, Unusable::Late);
    let actions = core.on(after(50), vec![Event::Returned(slot, Permits::ONE.into(), reason)]);
    let full = actions.iter().find_map(|action| match action {
        Action::Refuse(Asker::Request(request), _, Refusal::QueueFull { .. }) => Some(*request),
        _ => None,
    });
    assert_eq!(full, Some(RequestId(1)), "{actions:?}");
    assert_eq!(core.0.waiting(), 1);
}

/// Returns the call that is made, if any.
fn call_of(actions: &[Action]) -> Option<&Call> {
    actions.iter().find_map(|action| if let Action::Book(call) = action { Some(&**call) } else { None })
}

#[test]
fn a_late_slot_books_no_more_of_a_long_queue_anew_than_a_call_may_move() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let mut actions = core.on(START, (0..400).map(|request| arrival(request, START, 90_000)).collect());
    let mut slot = 1000;
    while let Some(call) = call_of(&actions) {
        let count = usize::try_from(call.runs.iter().map(|run| run.count).sum::<u64>()).unwrap();
        let slots: Vec<_> = (0..count as u64).map(|index| shown(after(slot + 100 * index))).collect();
        slot += 100 * count as u64;
        actions = core.on(START, vec![booked(START, &slots)]);
    }
    assert_eq!(slot, 1000 + 400 * 100);
    // The answer at a heartbeat keeps the slots usable.
    core.on(after(960), Vec::new());
    core.on(after(961), vec![booked(after(961), &[])]);
    let actions = core.on(after(1040), Vec::new());
    let call = call_of(&actions).unwrap();
    let wanted: u64 = call.runs.iter().map(|run| run.count).sum();
    assert_eq!((call.give_back.len(), wanted), (120, 120), "{call:?}");
    assert!(call.give_back.is_sorted_by_key(|holding| holding.slot));
    assert_eq!(call.give_back[0].slot, shown(after(1000)));
}

/// Drives a worker whose requests may not wait, of a store that answers after so long.
fn without_a_queue(latency: Micros) -> impl FnMut(Moment, Vec<Event>) -> Vec<Action> {
    let limits = Limits { max_waiting: 0, ..limits(10, 0, OnStoreFailure::Local) };
    let mut core = BookedCore::new(limits, SECOND, START);
    move |now, events| {
        let mut out = Vec::new();
        core.on(events, &Context { latency, ..context(now) }, &mut out);
        out
    }
}

#[test]
fn a_request_without_a_queue_is_booked_ahead_where_a_slot_would_be_late_when_the_answer_comes() {
    let mut on = without_a_queue(Micros::from_millis(54));
    assert!(is_booking(&on(START, vec![arrival(0, START, 0)])));
    let actions = on(after(54), vec![booked(after(27), &[shown(after(27))])]);
    let call =
        actions.iter().find_map(|action| if let Action::Book(call) = action { Some(call) } else { None });
    let Some(Call { lead, runs, .. }) = call.map(|call| &**call) else { panic!("{actions:?}") };
    assert!(*lead == Micros::from_millis(54) && runs[0].wait_max >= *lead, "{actions:?}");
    // It is carried out 27 ms later.
    let actions = on(after(108), vec![booked(after(81), &[shown(after(81 + 54))])]);
    assert_eq!(refusal(&actions), None);
    assert!(is_granted(&on(after(136), Vec::new())));
}

#[test]
fn no_slot_is_booked_where_the_request_of_a_late_one_would_be_refused_for_it() {
    let mut on = without_a_queue(Micros::from_millis(20));
    // On a busy machine the call is carried out 60 ms after the request has come, and its head is written 60 ms after its slot.
    let holder = Holder { arrived: START, deadline: START, late: 0, flow: Flow::default() };
    let slot = Slot { at: shown(after(60)), due: after(60), source: Source::Store(0) };
    let reason = ReturnReason::Exchanged(RequestId(0), holder, Unusable::Late);
    let actions = on(after(120), vec![Event::Returned(slot, Permits::ONE.into(), reason)]);
    let Some(Call { lead, runs, .. }) = call_of(&actions) else { panic!("{actions:?}") };
    assert!(*lead <= runs[0].wait_max, "{actions:?}");
    assert!(runs[0].wait_max <= Micros::from_millis(15), "it has used 60 of the 75 ms: {actions:?}");
    // That call is carried out at once.
    let booked_at = shown(after(120) + *lead);
    let actions = on(after(125), vec![booked(after(120), &[booked_at])]);
    assert_eq!(refusal(&actions), None, "{actions:?}");
}

#[test]
fn no_more_wait_for_the_end_of_a_pause_than_may_though_their_slots_were_there_at_once() {
    let mut limits = limits(10, 5, OnStoreFailure::Reject);
    limits.max_waiting = 2;
    let pause = Paused { limiter: limits.refs[0].name.clone(), from: START, until: after(500) };
    let mut core = Driven(BookedCore::new(limits, SECOND, START));
    core.on(START, (0..5).map(|request| arrival(request, START, 5000)).collect());
    let slots = [shown(after(1)); 5];
    let actions = core.on(after(2), vec![Event::Paused(Some(pause)), booked(after(2), &slots)]);
    let refused: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Refuse(Asker::Request(request), _, Refusal::QueueFull { retry_after, .. }) => {
                Some((request.0, retry_after.0 / 1000))
            }
            _ => None,
        })
        .collect();
    assert_eq!(refused, [(4, 498), (3, 498), (2, 498)], "{actions:?}");
    let waiting = actions.iter().filter(|action| matches!(action, Action::Wait(..))).count();
    assert_eq!(waiting, 2, "{actions:?}");
}

#[test]
fn a_request_whose_slot_goes_to_the_request_of_a_late_one_is_not_refused_for_that() {
    let mut on = without_a_queue(Micros::from_millis(150));
    on(START, vec![arrival(0, START, 0)]);
    // The store stood still: the slot has passed, and another request has come.
    let events = vec![booked(START, &[shown(START)]), arrival(1, after(150), 0)];
    let actions = on(after(150), events);
    let Some(Call { lead, runs, .. }) = call_of(&actions) else { panic!("{actions:?}") };
    assert_eq!((lead.0 / 1000, runs.len()), (150, 2), "{actions:?}");
    let actions = on(after(155), vec![booked(after(152), &[shown(after(302)), shown(after(152))])]);
    assert_eq!(refusal(&actions), None, "{actions:?}");
    let granted = |actions: &[Action], of: u32| {
        actions.iter().any(|action| matches!(action, Action::Grant(RequestId(request), ..) if *request == of))
    };
    assert!(granted(&actions, 0), "{actions:?}");
    assert!(granted(&on(after(303), Vec::new()), 1));
}

#[test]
fn a_late_slot_pushes_no_request_past_its_deadline_in_memory() {
    let limits = limits(10, 1, OnStoreFailure::Local);
    let terms = limits.terms.without_failures();
    let mut core = Driven(BookedCore::new(Limits { terms, ..limits }, SECOND, START));
    core.on(START, vec![arrival(0, START, 5000), arrival(1, START, 1000)]);
    core.on(after(1), vec![booked(after(1), &[shown(after(100)), shown(after(200))])]);
    // The first slot is late, and the next ones that are free lie beyond the wait of the second request.
    assert!(is_booking(&core.on(after(150), Vec::new())));
    let actions = core.on(after(151), vec![booked(after(151), &[shown(after(2000)), shown(after(2100))])]);
    assert!(matches!(refusal(&actions), Some(Refusal::RateLimited { .. })), "{actions:?}");
}
