//! The core of a worker whose callers share the quota, event by event.

mod anew;
mod refunds;
mod replaced;
mod unheard;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::LineCore;
use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{
    Answer, Bound, Call, Class, ClassMember, Dealt, Flow, Last, LineAnswer, OnStoreFailure, Permits,
    QueueLimits, QuotaShare, Refusal, Unused, Want,
};
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::request::{Arrival, Asker, RequestId, Unusable};
use crate::limiter::queue::shared_quota::SharedQuota;
use crate::limiter::queue::slot::Source;
use crate::limiter::queue::worker::events::{Action, Context, Event, LocalAnswer, ReturnReason};
use crate::limiter::queue::worker::limits::Limits;
use crate::limiter::recovery::link::{Link, Terms};
use crate::limiter::store::clock::StoreClock;
use crate::limiter::tests;

const START: Moment = Moment(10_000_000);
const SECOND: Micros = Micros(1_000_000);
const SHOWN: Micros = Micros(1_800_000_000_000_000);

fn after(millis: u64) -> Moment {
    START + Micros::from_millis(millis)
}

fn shown(moment: Moment) -> Micros {
    SHOWN + (moment - START)
}

fn flow(name: &str) -> Flow {
    Flow::of(&[Some(name.as_bytes())])
}

/// Two classes, of which the caller `web` is in the first.
fn share(max_waiting: u32) -> QuotaShare {
    let queue = QueueLimits { timeout: Duration::from_secs(1), max_waiting };
    let class = |name: &str| Class { name: name.into(), floor_ppm: 0, ceiling_ppm: None, queue };
    let members = HashMap::from([(Flow::member_of("web"), ClassMember { class: 0, weight: 1 })]);
    QuotaShare {
        classes: [class("first"), class("rest")].into(),
        members: Arc::new(members),
        names: Arc::default(),
        ahead: Duration::from_millis(250),
    }
}

fn limits(policy: OnStoreFailure, max_waiting: u32) -> Limits {
    let limiter = tests::limiter(10, Duration::from_secs(1), Duration::from_secs(1));
    Limits {
        refs: vec![LimiterRef::new(&limiter, None, SHOWN)],
        policies: vec![policy],
        guard: Micros::from_millis(10),
        costs_max: vec![Permits::new(10).unwrap()],
        too_costly: Refusal::CostExceedsLimit { limiter: limiter.name.clone(), cost_max: Permits::ONE },
        max_waiting,
        terms: Terms::new(Micros::from_millis(500), Micros::from_millis(100)),
        shared: Some(SharedQuota {
            share: share(max_waiting),
            place: 0,
            ceilings: Vec::new(),
            since: Moment::default(),
        }),
    }
}

struct Driven(LineCore);

impl Driven {
    fn new(policy: OnStoreFailure) -> Driven {
        Driven(LineCore::new(limits(policy, 100), SECOND, START))
    }

    /// Its store is this replica's own memory, which cannot fail.
    fn of_own_memory() -> Driven {
        let limits = limits(OnStoreFailure::Local, 100);
        let terms = limits.terms.without_failures();
        Driven(LineCore::new(Limits { terms, ..limits }, SECOND, START))
    }

    fn on(&mut self, now: Moment, events: Vec<Event>) -> Vec<Action> {
        let mut out = Vec::new();
        self.0.on(events, &context(now), &mut out);
        out
    }
}

fn context(now: Moment) -> Context {
    let clock = StoreClock::new(now, now, shown(now));
    Context { now, clock, wall: shown(now), latency: Micros::ZERO, memory: 0, in_flight_left: 128 }
}

fn arrival(request: u32, name: &str, now: Moment) -> Event {
    Event::Arrived(Arrival {
        asker: Asker::Request(RequestId(request)),
        costs: Permits::ONE.into(),
        arrived: now,
        deadline: now + SECOND,
        flow: flow(name),
    })
}

/// Returns the answer by which slots are dealt, and that calls for another call at a moment.
fn answer(now: Moment, deal: u64, slots: &[(&str, Moment)], again: Option<Moment>) -> Answer {
    let dealt = slots.iter().map(|(name, at)| Dealt {
        flow: flow(name).id,
        class: 0,
        slot: shown(*at),
        count: 1,
        costs: vec![1],
    });
    let line = LineAnswer {
        deal,
        again: again.map(shown).unwrap_or_default(),
        dealt: dealt.collect(),
        lasts: vec![Some(Last::default()); 8],
        ..LineAnswer::default()
    };
    Answer { now: shown(now), line: Some(Box::new(line)), ..Answer::default() }
}

fn answered(now: Moment, deal: u64, slots: &[(&str, Moment)], again: Option<Moment>) -> Event {
    Event::Answered { answer: Box::new(answer(now, deal, slots, again)), refusal_budget: 0, sent: now }
}

fn call(actions: &[Action]) -> Option<&Call> {
    actions.iter().find_map(|action| if let Action::Book(call) = action { Some(&**call) } else { None })
}

/// Returns how many requests without a slot a call tells of, by flow.
fn told(call: &Call) -> Vec<(u64, u64)> {
    let wants = &call.line.as_ref().unwrap().wants;
    let count = |want: &Want| want.waiting.iter().map(|group| group.count).sum();
    wants.iter().map(|want| (want.flow, count(want))).collect()
}

fn granted(actions: &[Action]) -> Vec<u32> {
    let granted = actions.iter().filter_map(|action| match action {
        Action::Grant(RequestId(request), ..) => Some(*request),
        _ => None,
    });
    granted.collect()
}

fn refused(actions: &[Action]) -> Vec<u32> {
    let refused = actions.iter().filter_map(|action| match action {
        Action::Refuse(Asker::Request(RequestId(request)), ..) => Some(*request),
        _ => None,
    });
    refused.collect()
}

#[test]
fn a_cost_above_a_ceiling_is_refused_with_what_the_class_can_hold() {
    let mut limits = limits(OnStoreFailure::Local, 100);
    let limiter = tests::limiter(10, Duration::from_secs(1), Duration::from_secs(1));
    let bound = Bound { name: "ceiling rest".into(), ppm: 300_000, classes: vec![1] };
    limits.refs.push(LimiterRef::ceiling(&limiter, None, &bound, SHOWN));
    limits.shared.as_mut().unwrap().ceilings = vec![bound.classes];
    let mut core = Driven(LineCore::new(limits, SECOND, START));
    let mut refused = |request, name, cost| {
        let Event::Arrived(arrival) = arrival(request, name, START) else { panic!() };
        let costs = Permits::new(cost).unwrap().into();
        let actions = core.on(START, vec![Event::Arrived(Arrival { costs, ..arrival })]);
        actions.iter().find_map(|action| match action {
            Action::Refuse(_, _, Refusal::CostExceedsLimit { cost_max, .. }) => Some(cost_max.get()),
            _ => None,
        })
    };
    assert_eq!([refused(0, "web", 4), refused(1, "etl", 3), refused(2, "etl", 4)], [None, None, Some(3)]);
}

#[test]
fn the_first_request_of_a_flow_is_told_of_at_once_and_those_behind_it_together() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let actions = core.on(START, vec![arrival(0, "web", START)]);
    let first = call(&actions).unwrap();
    assert_eq!(told(first), [(flow("web").id, 1)]);
    let line = first.line.as_ref().unwrap();
    assert!(line.begins && line.wants[0].class == 0 && line.ahead == Micros::from_millis(250));
    core.on(after(1), vec![answered(after(1), 7, &[], Some(after(100)))]);
    assert!(call(&core.on(after(2), vec![arrival(1, "web", after(2))])).is_none());
    let actions = core.on(after(3), vec![arrival(2, "web", after(3)), arrival(3, "etl", after(3))]);
    // A flow of which nobody waits presses, and takes the others along.
    let second = call(&actions).unwrap();
    let mut all = [(flow("web").id, 3), (flow("etl").id, 1)];
    all.sort_unstable();
    let mut told = told(second);
    told.sort_unstable();
    assert_eq!(told, all);
    assert_eq!((second.line.as_ref().unwrap().begins, second.line.as_ref().unwrap().known), (false, 7));
}

#[test]
fn slots_go_to_the_requests_of_their_flow_in_order_and_what_is_left_goes_back() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let arrivals = vec![arrival(0, "etl", START), arrival(1, "web", START), arrival(2, "etl", START)];
    core.on(START, arrivals);
    let slots = [("web", after(5)), ("etl", after(9)), ("etl", after(9))];
    let actions = core.on(after(1), vec![answered(after(1), 7, &slots, None)]);
    assert!(actions.contains(&Action::Wait(RequestId(0), Some(1))), "{actions:?}");
    assert_eq!(granted(&core.on(after(6), Vec::new())), [1]);
    // One leaves: the other takes the first slot, and the second one is given back.
    let actions = core.on(after(7), vec![Event::Left(vec![RequestId(0)])]);
    let unused = &call(&actions).unwrap().line.as_ref().unwrap().unused;
    assert_eq!((unused.len(), unused[0].flow, unused[0].count), (1, flow("etl").id, 1));
    assert_eq!(granted(&core.on(after(10), Vec::new())), [2]);
}

#[test]
fn a_call_gives_back_so_many_slots_and_the_next_one_the_others() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let requests: Vec<u32> = (0..150).collect();
    core.on(START, requests.iter().map(|request| arrival(*request, "etl", START)).collect());
    let slots: Vec<(&str, Moment)> =
        requests.iter().map(|request| ("etl", after(100 + u64::from(*request)))).collect();
    core.on(after(1), vec![answered(after(1), 7, &slots, None)]);
    let left = Event::Left(requests.iter().map(|request| RequestId(*request)).collect());
    let given_back = |actions: &[Action]| call(actions).unwrap().line.as_ref().unwrap().unused.len();
    let first = core.on(after(2), vec![left]);
    let next = core.on(after(3), vec![answered(after(3), 8, &[], None)]);
    assert_eq!((given_back(&first), given_back(&next)), (100, 50));
}

#[test]
fn a_request_whose_slot_came_too_late_waits_again_in_its_old_place() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, "etl", START), arrival(1, "etl", START)]);
    core.on(after(1), vec![answered(after(1), 7, &[("etl", after(5))], Some(after(100)))]);
    let actions = core.on(after(30), Vec::new());
    assert!(granted(&actions).is_empty());
    let again = call(&actions).unwrap();
    assert_eq!(told(again), [(flow("etl").id, 2)]);
    assert_eq!(again.line.as_ref().unwrap().unused.len(), 1);
    core.on(after(31), vec![answered(after(31), 8, &[("etl", after(31))], Some(after(131)))]);
    // The answer came in time for it.
    let waiting = core.0.waiting();
    assert_eq!(waiting, 1, "the first has gone");
}

#[test]
fn slots_that_are_found_late_at_once_are_one_and_none_of_them_is_used() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, (0..40).map(|request| arrival(request, "etl", START)).collect());
    let slots: Vec<(&str, Moment)> = (0..20).map(|place| ("etl", after(5 + place))).collect();
    core.on(after(1), vec![answered(after(1), 7, &slots, Some(after(100)))]);
    for (deal, millis) in [(8, 300), (9, 600)] {
        let now = after(millis);
        let event = answered(now, deal, &[], Some(now + Micros::from_millis(100)));
        assert!(granted(&core.on(now, vec![event])).is_empty(), "at {millis} ms");
        let now = after(millis + 1);
        let slots: Vec<(&str, Moment)> = (0..20).map(|place| ("etl", after(millis + 5 + place))).collect();
        core.on(now, vec![answered(now, deal + 10, &slots, Some(now + Micros::from_millis(100)))]);
    }
}

#[test]
fn a_lost_store_voids_dealt_slots_and_is_told_of_every_request() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, "etl", START), arrival(1, "etl", START)]);
    core.on(after(1), vec![answered(after(1), 7, &[("etl", after(200))], Some(after(100)))]);
    let actions = core.on(after(50), vec![Event::Linked(Link::Up { epoch: 9 })]);
    let anew = call(&actions).unwrap();
    assert_eq!(told(anew), [(flow("etl").id, 2)]);
    let line = anew.line.as_ref().unwrap();
    assert!(
        line.begins && line.unused.is_empty() && line.wants[0].waiting[0].oldest == Micros::from_millis(50)
    );
    // An answer from before does not bring the slot back.
    assert!(granted(&core.on(after(201), Vec::new())).is_empty());
}

#[test]
fn the_policy_decides_while_the_store_is_away() {
    let mut core = Driven::new(OnStoreFailure::Reject);
    core.on(START, vec![arrival(0, "etl", START)]);
    assert_eq!(refused(&core.on(after(1), vec![Event::Linked(Link::Away { outage: 1 })])), [0]);

    let mut core = Driven::new(OnStoreFailure::Allow);
    core.on(START, vec![arrival(0, "etl", START)]);
    assert_eq!(granted(&core.on(after(1), vec![Event::Linked(Link::Away { outage: 1 })])), [0]);

    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, "etl", START), arrival(1, "web", START)]);
    let actions = core.on(after(1), vec![Event::Linked(Link::Away { outage: 1 })]);
    let asked = actions.iter().find_map(|action| match action {
        Action::BookLocally(call) => call.line.as_ref(),
        _ => None,
    });
    let classes: Vec<usize> = asked.unwrap().wants.iter().map(|want| want.class).collect();
    assert!(classes.contains(&0) && classes.contains(&1), "{classes:?}");
    let local = LocalAnswer {
        answer: answer(after(1), 3, &[("web", after(1))], None),
        costs_max: vec![10],
        known_within: Micros(u64::MAX),
    };
    let actions = core.on(after(1), vec![Event::AnsweredLocally(Box::new(local))]);
    assert_eq!(granted(&actions), [1]);
    // The store is back: all are told of, and the share is used no more.
    let actions = core.on(after(9), vec![Event::Linked(Link::Up { epoch: 9 })]);
    assert_eq!(told(call(&actions).unwrap()), [(flow("etl").id, 1)]);
}

/// Else the worker would wake at once, and again, for as long as it stays.
#[test]
fn a_share_that_was_to_be_asked_again_is_not_where_a_reload_rejects() {
    for policy in [OnStoreFailure::Reject, OnStoreFailure::Allow] {
        let mut core = Driven::new(OnStoreFailure::Local);
        core.on(START, vec![Event::Linked(Link::Away { outage: 1 }), arrival(1, "web", START)]);
        let local = LocalAnswer {
            answer: answer(after(1), 3, &[], Some(after(50))),
            costs_max: vec![10],
            known_within: Micros(u64::MAX),
        };
        core.on(after(1), vec![Event::AnsweredLocally(Box::new(local))]);
        core.on(after(2), vec![Event::Reconfigured(Box::new(limits(policy, 100)))]);
        core.on(after(60), Vec::new());
        assert!(core.0.wakes_at(&context(after(60))) > after(60), "{policy:?}");
    }
}

#[test]
fn an_unlimited_slot_held_by_a_pause_is_void_when_the_store_returns() {
    let mut core = Driven::new(OnStoreFailure::Allow);
    let limiter = limits(OnStoreFailure::Allow, 10).refs[0].name.clone();
    let pause = Paused { limiter, from: START, until: after(500) };
    core.on(START, vec![Event::Paused(Some(pause)), Event::Linked(Link::Away { outage: 1 })]);
    assert!(granted(&core.on(after(2), vec![arrival(0, "etl", after(2))])).is_empty());
    let actions = core.on(after(100), vec![Event::Linked(Link::Up { epoch: 0 })]);
    assert_eq!(told(call(&actions).unwrap()), [(flow("etl").id, 1)]);
    assert!(granted(&core.on(after(501), Vec::new())).is_empty());
}

#[test]
fn a_pause_without_the_store_refuses_at_once_who_waits_less_long() {
    let mut core = Driven::new(OnStoreFailure::Allow);
    let limiter = limits(OnStoreFailure::Allow, 10).refs[0].name.clone();
    let pause = Paused { limiter, from: START, until: after(60_000) };
    core.on(START, vec![arrival(0, "a", START), Event::Linked(Link::Held { epoch: 1, until: after(595) })]);
    let away = Event::Linked(Link::Away { outage: 1 });
    let actions = core.on(after(2), vec![Event::Paused(Some(pause)), away, arrival(1, "b", after(2))]);
    assert_eq!(refused(&actions), [0, 1]);
    let is_paused = |action: &Action| matches!(action, Action::Refuse(_, _, Refusal::Paused { .. }));
    assert!(actions.iter().any(is_paused), "{actions:?}");
}

#[test]
fn no_more_of_a_class_wait_than_may_while_the_store_cannot_be_asked() {
    let mut core = Driven(LineCore::new(limits(OnStoreFailure::Local, 2), SECOND, START));
    core.on(START, vec![Event::Reporting(true)]);
    let arrivals = (0..4).map(|request| arrival(request, "etl", START)).chain([arrival(9, "web", START)]);
    let actions = core.on(START, arrivals.collect());
    assert_eq!(refused(&actions), [3, 2]);
}

#[test]
fn a_request_that_waits_is_refused_at_its_end_whatever_the_state_is() {
    for state in [Vec::new(), vec![Event::Linked(Link::Settling { epoch: 2, opens: after(900) })]] {
        let mut core = Driven::new(OnStoreFailure::Local);
        core.on(START, vec![arrival(0, "etl", START)]);
        core.on(after(1), vec![answered(after(1), 7, &[], Some(after(5000)))]);
        core.on(after(2), state.clone());
        assert!(refused(&core.on(after(999), Vec::new())).is_empty(), "{state:?}");
        assert_eq!(refused(&core.on(after(1003), Vec::new())), [0], "{state:?}");
    }
}

#[test]
fn a_permit_that_comes_back_unused_serves_the_next_of_its_flow() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, "etl", START)]);
    let actions = core.on(after(1), vec![answered(after(1), 7, &[("etl", after(1))], None)]);
    let Some(Action::Grant(_, slot, cost, _)) =
        actions.iter().find(|action| matches!(action, Action::Grant(..)))
    else {
        panic!("{actions:?}")
    };
    assert_eq!(slot.source, Source::Store(0));
    core.on(after(2), vec![arrival(1, "etl", after(2))]);
    let back = Event::Returned(*slot, cost.clone(), ReturnReason::Unused(flow("etl")));
    assert_eq!(granted(&core.on(after(3), vec![back])), [1]);
}

#[test]
fn another_core_takes_over_who_waits_and_what_is_held() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, "etl", START), arrival(1, "web", after(0))]);
    core.on(after(1), vec![answered(after(1), 7, &[("etl", after(200))], Some(after(100)))]);
    let carryover = core.0.into_carryover();
    let slots: Vec<Micros> = carryover.unused.iter().map(|(slot, ..)| *slot).collect();
    assert_eq!((carryover.arrivals.len(), slots), (2, vec![shown(after(200))]));
    let mut other = Driven::new(OnStoreFailure::Local);
    other.0.take_over(carryover, after(2));
    let actions = other.on(after(2), Vec::new());
    let call = call(&actions).unwrap();
    assert_eq!((told(call).len(), call.line.as_ref().unwrap().unused.len()), (2, 1));
}

#[test]
fn a_line_that_leaves_newcomers_is_not_asked_again_at_once_about_those_behind_them() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let now = after(300);
    // Their waits end too far apart for one group, and a call tells of so many groups at most.
    let arrivals = (0..130).map(|request| arrival(request, "etl", after(2 * u64::from(request)))).collect();
    let actions = core.on(now, arrivals);
    let told_of: u64 = call(&actions).map(told).into_iter().flatten().map(|(_, count)| count).sum();
    assert_eq!(told_of, 128, "{actions:?}");
    let answered_at = after(301);
    let actions = core.on(answered_at, vec![answered(answered_at, 1, &[], Some(answered_at))]);
    assert_eq!(call(&actions), None);
    assert_eq!(call(&core.on(after(302), Vec::new())).map(told), Some(vec![(flow("etl").id, 128)]));
}

#[test]
fn a_request_that_lost_its_slot_waits_for_others_no_longer_than_a_slack_behind_its_wait() {
    let mut core = Driven::of_own_memory();
    core.on(START, vec![arrival(0, "etl", START)]);
    let actions = core.on(after(1), vec![answered(after(1), 1, &[("etl", after(1))], None)]);
    let Some(Action::Grant(request, slot, costs, holder)) =
        actions.iter().find(|action| matches!(action, Action::Grant(..)))
    else {
        panic!("{actions:?}")
    };
    let reason = ReturnReason::Exchanged(*request, *holder, Unusable::Late);
    core.on(after(31), vec![Event::Returned(*slot, costs.clone(), reason)]);
    core.on(after(32), vec![answered(after(32), 2, &[], Some(after(5000)))]);
    // The time for its connection does not count.
    assert!(refused(&core.on(after(1030), Vec::new())).is_empty());
    assert_eq!(refused(&core.on(after(1106), Vec::new())), [0]);
}

/// Nothing else would wake the worker for it.
#[test]
fn a_request_whose_answer_comes_behind_its_wait_is_refused_with_it() {
    let mut core = Driven::of_own_memory();
    core.on(START, vec![arrival(0, "etl", START)]);
    assert!(refused(&core.on(after(1050), Vec::new())).is_empty());
    assert_eq!(refused(&core.on(after(1051), vec![answered(after(1051), 1, &[], Some(after(5000)))])), [0]);
}

#[test]
fn a_request_is_notified_half_a_second_before_its_slot() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, "etl", START), arrival(1, "etl", START)]);
    let slots = [("etl", after(600)), ("etl", after(700))];
    core.on(after(1), vec![answered(after(1), 7, &slots, None)]);
    let mut notified = |millis| {
        let actions = core.on(after(millis), Vec::new());
        let is_notified = |request| actions.contains(&Action::Approach(RequestId(request)));
        [is_notified(0), is_notified(1)]
    };
    assert_eq!([notified(100), notified(101), notified(201)], [[false, false], [true, false], [false, true]]);
}

/// A permit that is given back twice is another's.
#[test]
fn slots_are_given_back_once_whatever_becomes_of_the_call() {
    let up = Event::Linked(Link::Up { epoch: 0 });
    let given_back = |ends: Vec<Event>| {
        let mut core = Driven::new(OnStoreFailure::Local);
        core.on(START, vec![up.clone(), arrival(0, "etl", START), arrival(1, "etl", START)]);
        core.on(after(1), vec![answered(after(1), 7, &[("etl", after(400)), ("etl", after(500))], None)]);
        let actions = core.on(after(2), vec![Event::Left(vec![RequestId(0)])]);
        assert_eq!(call(&actions).unwrap().line.as_ref().unwrap().unused.len(), 1);
        let (last, others) = ends.split_last().unwrap();
        others.iter().for_each(|event| drop(core.on(after(3), vec![event.clone()])));
        let actions = core.on(after(250), vec![last.clone(), arrival(2, "web", after(250))]);
        call(&actions).unwrap().line.as_ref().unwrap().unused.len()
    };
    let unsent = Event::Failed { is_unsent: true };
    assert_eq!(given_back(vec![unsent]), 1);
    assert_eq!(given_back(vec![Event::PutBack { is_unsent: true }]), 1);
    assert_eq!(given_back(vec![Event::Failed { is_unsent: false }]), 0);
    assert_eq!(given_back(vec![Event::PutBack { is_unsent: false }]), 0);
    // The other slot is used by nobody in the outage.
    assert_eq!(given_back(vec![Event::Linked(Link::Away { outage: 1 }), up.clone()]), 1);
    let begins = Event::Linked(Link::Up { epoch: 1 });
    assert_eq!(given_back(vec![begins.clone(), Event::PutBack { is_unsent: true }]), 0);
    // The call was given up in the outage, and was not made.
    let slot = shown(after(500));
    let unused = Unused { flow: flow("etl").id, class: 1, slot, count: 1, costs: vec![1] };
    let away = Event::Linked(Link::Away { outage: 1 });
    let unmade = |unused: &Unused| Event::UnneededOfLine(vec![unused.clone()]);
    assert_eq!(given_back(vec![away.clone(), unmade(&unused), up.clone()]), 2);
    assert_eq!(given_back(vec![away.clone(), unmade(&unused), unmade(&unused), up.clone()]), 2);
    let other = Unused { slot: shown(after(300)), ..unused.clone() };
    assert_eq!(given_back(vec![away.clone(), unmade(&other), up.clone()]), 1, "of an earlier call");
    let settling = Event::Linked(Link::Settling { epoch: 1, opens: after(500) });
    assert_eq!(given_back(vec![away, settling, unmade(&unused), begins]), 0);
}
