//! Changes that move the bookings of some limiters of a queue.

use super::*;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{Generation, NO_GENERATION, Partition};

fn two_limiters() -> Limits {
    let one = limits(10, 5, OnStoreFailure::Local);
    Limits {
        refs: [one.refs.clone(), one.refs.clone()].concat(),
        policies: [one.policies.clone(), one.policies.clone()].concat(),
        ..one
    }
}

/// Returns an answer after the first limiter's bookings have moved.
fn moved(now: Moment, rescheduled: Option<Micros>) -> Event {
    let first = Generation { number: 7, void_from: shown(after(500)), before: 0 };
    let rescheduled = rescheduled.into_iter().map(|at| (1, Some(at))).collect();
    let generations = vec![first, Generation::default()];
    let answer = Answer { now: shown(now), generations, rescheduled, ..Answer::default() };
    Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now }
}

fn call(actions: &[Action]) -> Option<&Call> {
    actions.iter().find_map(|action| if let Action::Book(call) = action { Some(&**call) } else { None })
}

#[test]
fn void_slots_make_room_in_the_limiters_that_have_not_moved_before_they_are_rescheduled() {
    let mut core = Driven(BookedCore::new(two_limiters(), SECOND, START));
    core.on(START, vec![arrival(0, START, 5000)]);
    let slot = shown(after(900));
    let first = Answer {
        now: shown(after(1)),
        generations: vec![Generation::default(); 2],
        outcomes: vec![(1, Outcome::Booked(slot))],
        ..Answer::default()
    };
    core.on(after(1), vec![Event::Answered { answer: Box::new(first), refusal_budget: 0, sent: after(1) }]);
    let actions = core.on(after(2), vec![Event::Moved]);
    assert!(call(&actions).is_some(), "{actions:?}");

    let actions = core.on(after(3), vec![moved(after(3), None)]);
    let released = call(&actions).expect("a call at once");
    assert_eq!(released.generations, [NO_GENERATION, 0]);
    assert_eq!(
        (released.give_back.len(), released.give_back[0].slot, released.reschedule.len()),
        (1, slot, 0)
    );

    // The other replicas hear of the change within a heartbeat.
    let actions = core.on(after(4), vec![moved(after(4), None)]);
    assert_eq!(call(&actions), None);
    let heartbeat = Terms::new(Micros::from_millis(500), Micros::from_millis(100)).heartbeat;
    assert_eq!(core.wakes_at(after(4)), after(3) + heartbeat);
    let actions = core.on(after(3) + heartbeat, Vec::new());
    let reschedules = call(&actions).expect("a call behind the heartbeat");
    assert_eq!(reschedules.generations, [0, NO_GENERATION]);
    assert_eq!((reschedules.give_back.len(), reschedules.reschedule[0].slot), (0, slot));

    let now = after(4) + heartbeat;
    core.on(now, vec![moved(now, Some(shown(after(3900))))]);
    assert_eq!(core.0.cost_queues[&Permits::ONE].next_slot().map(|slot| slot.at), Some(shown(after(3900))));
}

/// Returns an answer after the bookings of both limiters have moved, if `number` is not zero.
fn both_moved(now: Moment, number: u64, paused: [Micros; 2], outcomes: Vec<(u64, Outcome)>) -> Event {
    let generation = Generation { number, void_from: shown(after(500)), before: 0 };
    let generations = vec![if number == 0 { Generation::default() } else { generation }; 2];
    let answer =
        Answer { now: shown(now), generations, outcomes, paused: paused.into(), ..Answer::default() };
    Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now }
}

/// Returns the first call after the bookings of both limiters have moved, which end their pauses at some instants, and the core behind it.
fn call_after_both_moved(limits: Limits, paused: [Micros; 2]) -> (Call, Driven) {
    let mut core = Driven(BookedCore::new(limits, SECOND, START));
    core.on(START, vec![arrival(0, START, 5000)]);
    let booked = vec![(1, Outcome::Booked(shown(after(900))))];
    core.on(after(1), vec![both_moved(after(1), 0, [Micros::ZERO; 2], booked)]);
    core.on(after(2), vec![Event::Moved]);
    let actions = core.on(after(3), vec![both_moved(after(3), 7, paused, Vec::new())]);
    (call(&actions).expect("a call at once").clone(), core)
}

/// The limiters of a queue have the bookings of the same requests, which the store moves to the same places.
#[test]
fn void_slots_are_rescheduled_at_once_in_all_limiters_that_have_moved_together() {
    let (call, _) = call_after_both_moved(two_limiters(), [Micros::ZERO; 2]);
    assert_eq!((&call.generations[..], call.reschedule.len(), call.give_back.len()), (&[0, 0][..], 1, 0));
}

/// Returns limits of which the second one is those of a partition, so that others have bookings in the first one.
fn with_partition() -> Limits {
    let mut two = two_limiters();
    two.refs[1].partition = Some(Partition::of([Some(&b"a tenant"[..])]));
    two
}

/// The places of two limiters differ. Those of the slower one count; the first one has a tenth of its rate here.
#[test]
fn void_slots_are_rescheduled_in_the_slowest_limiter_that_has_moved() {
    let mut two = with_partition();
    two.refs[0].rules = two.refs[0].rules.iter().map(|rule| Rule { rate: 1, ..rule.clone() }).collect();
    let (released, mut core) = call_after_both_moved(two, [Micros::ZERO; 2]);
    assert_eq!((&released.generations[..], released.give_back.len()), (&[NO_GENERATION, 0][..], 1));
    core.on(after(4), vec![both_moved(after(4), 7, [Micros::ZERO; 2], Vec::new())]);
    let actions = core.on(core.wakes_at(after(4)), Vec::new());
    let reschedules = call(&actions).expect("a call behind the heartbeat");
    assert_eq!((&reschedules.generations[..], reschedules.reschedule.len()), (&[0, NO_GENERATION][..], 1));
}

/// The pauses of two limiters of one rate end apart. Before the later end the other one has places that nobody can use.
#[test]
fn void_slots_are_rescheduled_in_the_limiter_that_is_paused_for_longest() {
    for (paused, claimed) in [([3900, 3950], 1), ([3950, 3900], 0)] {
        let (released, _) = call_after_both_moved(with_partition(), paused.map(|at| shown(after(at))));
        let alone = |place: usize| released.generations[place] == NO_GENERATION;
        assert!(alone(claimed) && !alone(1 - claimed), "{released:?}");
    }
}

/// A script that has done enough leaves some of the void slots.
#[test]
fn void_slots_that_an_answer_leaves_go_with_the_next_call() {
    let mut core = Driven(BookedCore::new(limits(10, 5, OnStoreFailure::Local), SECOND, START));
    core.on(START, vec![arrival(0, START, 5000), arrival(1, START, 5000)]);
    let (first, second) = (shown(after(900)), shown(after(950)));
    let answer = |now: Moment, number: u64, rescheduled: &[Micros], outcomes| {
        let generation = Generation { number, void_from: shown(after(500)), before: 0 };
        let generations = vec![if number == 0 { Generation::default() } else { generation }];
        let rescheduled = rescheduled.iter().map(|at| (1, Some(*at))).collect();
        let answer = Answer { now: shown(now), generations, rescheduled, outcomes, ..Answer::default() };
        Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now }
    };
    let booked = vec![(1, Outcome::Booked(first)), (1, Outcome::Booked(second))];
    core.on(after(1), vec![answer(after(1), 0, &[], booked)]);
    core.on(after(2), vec![Event::Moved]);
    let actions = core.on(after(3), vec![answer(after(3), 7, &[], Vec::new())]);
    assert_eq!(call(&actions).expect("a call at once").reschedule.len(), 2);
    let actions = core.on(after(4), vec![answer(after(4), 7, &[shown(after(3900))], Vec::new())]);
    let next = call(&actions).expect("a call for the other one");
    assert_eq!(next.reschedule.iter().map(|holding| holding.slot).collect::<Vec<_>>(), [second]);
    core.on(after(5), vec![answer(after(5), 7, &[shown(after(3950))], Vec::new())]);
    let slots = &core.0.cost_queues[&Permits::ONE];
    assert_eq!(slots.next_slot().map(|slot| slot.at), Some(shown(after(3900))));
    assert_eq!(slots.last_stored().map(|slot| slot.at), Some(shown(after(3950))));
}

#[test]
fn a_request_whose_wait_ends_while_its_moved_slot_waits_for_others_is_told_of_the_limit() {
    let mut core = Driven(BookedCore::new(two_limiters(), SECOND, START));
    core.on(START, vec![arrival(0, START, 550)]);
    let first = Answer {
        now: shown(after(1)),
        generations: vec![Generation::default(); 2],
        outcomes: vec![(1, Outcome::Booked(shown(after(540))))],
        ..Answer::default()
    };
    core.on(after(1), vec![Event::Answered { answer: Box::new(first), refusal_budget: 0, sent: after(1) }]);
    core.on(after(500), vec![Event::Moved]);
    core.on(after(501), vec![moved(after(501), None)]);
    core.on(after(502), vec![moved(after(502), None)]);
    let ends = core.wakes_at(after(502));
    assert!(ends < after(700), "the next call is due behind its wait: {ends:?}");
    let actions = core.on(ends, Vec::new());
    assert!(matches!(refusal(&actions), Some(Refusal::RateLimited { .. })), "{actions:?}");
}

/// A call takes in all that was used since the one before.
#[test]
fn behind_many_slots_a_call_is_made_though_heartbeats_spare_it() {
    for (passed, is_called) in [(500, false), (512, true)] {
        let mut core = Driven(BookedCore::new(limits(1000, 5, OnStoreFailure::Local), SECOND, START));
        let slot = |number| shown(after(if number < passed { 100 } else { 900 }));
        let mut actions = core.on(START, (0..600).map(|number| arrival(number, START, 5000)).collect());
        let mut asked = 0;
        while let Some(call) = call(&actions) {
            let count: u64 = call.runs.iter().map(|run| run.count).sum();
            let slots: Vec<Micros> = (asked..asked + count).map(slot).collect();
            asked += count;
            actions = core.on(after(1), vec![booked(after(1), &slots)]);
        }
        (0..5).for_each(|_| assert!(!is_booking(&core.on(after(101), Vec::new()))));
        let actions = core.on(after(300), vec![Event::Unmoved(Some(after(299)))]);
        assert_eq!((core.0.waiting() as u64, is_booking(&actions)), (600 - passed, is_called), "{passed}");
    }
}

/// By the answer to its call it is due 0.12 s later, as far as the clocks may have drifted apart by then.
#[test]
fn a_slot_far_ahead_is_due_when_the_store_says_as_long_as_heartbeats_are_heard() {
    let mut core = Driven(BookedCore::new(limits(1, 900, OnStoreFailure::Local), SECOND, START));
    core.on(START, vec![arrival(0, START, 700_000)]);
    let slot = after(600_000);
    core.on(after(1), vec![booked(after(1), &[shown(slot)])]);
    let near = after(599_990);
    core.on(near, vec![Event::Unmoved(Some(near))]);
    let wakes = core.wakes_at(near);
    assert!(wakes <= slot + Micros::from_millis(1), "{:?} late", wakes - slot);
    let actions = core.on(wakes, vec![Event::Unmoved(Some(near))]);
    assert!(is_granted(&actions), "{actions:?}");
}

/// A pause moves a waiting request beyond its wait. It is told so, and not to come back at once.
#[test]
fn a_request_that_a_pause_pushes_out_of_its_wait_is_told_of_the_pause() {
    let limits = limits(10, 5, OnStoreFailure::Local);
    let limiter = limits.refs[0].name.clone();
    let mut core = Driven(BookedCore::new(limits, SECOND, START));
    core.on(START, vec![arrival(0, START, 5000)]);
    core.on(after(1), vec![booked(after(1), &[shown(after(900))])]);
    let pause = Paused { limiter, from: after(2), until: after(60_000) };
    core.on(after(2), vec![Event::Paused(Some(pause)), Event::Moved]);
    let answer = |now, rescheduled| {
        let generations = vec![Generation { number: 7, void_from: shown(after(500)), before: 0 }];
        let answer = Answer { now: shown(now), generations, rescheduled, ..Answer::default() };
        Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now }
    };
    let actions = core.on(after(3), vec![answer(after(3), Vec::new())]);
    assert_eq!(call(&actions).map(|call| call.reschedule.len()), Some(1), "{actions:?}");
    let actions = core.on(after(4), vec![answer(after(4), vec![(1, None)])]);
    let Some(Refusal::Paused { retry_after, .. }) = refusal(&actions) else { panic!("{actions:?}") };
    assert_eq!(*retry_after, after(60_000) - after(4));
}
