//! A line begins anew where the store has lost it, and where a reload changes by which costs it finds its requests.

use super::*;
use crate::limiter::model::Waiting;

/// Returns how many requests of each want a call says to be known, and how many are others.
fn known(call: &Call) -> Vec<(u64, u64)> {
    let wants = &call.line.as_ref().unwrap().wants;
    let counts = wants.iter().map(|want| {
        let (known, new) = want.waiting.split_at(usize::from(want.begins_with_known));
        let count = |groups: &[Waiting]| groups.iter().map(|group| group.count).sum();
        (count(known), count(new))
    });
    counts.collect()
}

#[test]
fn requests_that_a_lost_line_had_taken_are_told_of_as_known_ones() {
    let mut core = Driven(LineCore::new(limits(OnStoreFailure::Local, 10), SECOND, START));
    let first = core.on(START, (0..8).map(|request| arrival(request, "etl", START)).collect());
    assert_eq!(known(call(&first).unwrap()), [(0, 8)]);
    core.on(after(1), vec![answered(after(1), 7, &[], None)]);
    let lost = [Event::Linked(Link::Up { epoch: 9 }), arrival(8, "etl", after(50))];
    let anew = core.on(after(50), lost.into());
    let anew = call(&anew).unwrap();
    assert_eq!(known(anew), [(8, 1)]);
    // Eight of ten places of the class are theirs: two more may wait.
    assert_eq!(anew.line.as_ref().unwrap().places[1], 2);
    // The memory of this replica knows none of them either.
    let away = core.on(after(60), vec![Event::Linked(Link::Away { outage: 1 })]);
    let locally = away.iter().find_map(|action| match action {
        Action::BookLocally(call) => Some(known(call)),
        _ => None,
    });
    assert_eq!(locally, Some(vec![(8, 1)]), "the last one was in a call without an answer");
}

#[test]
fn a_line_that_has_forgotten_the_replica_is_told_of_all_that_the_call_did_not_tell_of() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, "etl", START), arrival(1, "web", START)]);
    core.on(after(1), vec![answered(after(1), 7, &[], None)]);
    let next = core.on(after(100), vec![arrival(2, "cron", after(100)), arrival(3, "cron", after(100))]);
    assert_eq!(told(call(&next).unwrap()), [(flow("cron").id, 2)]);
    let mut forgotten = answer(after(101), 8, &[("cron", after(110))], None);
    forgotten.line.as_mut().unwrap().has_forgotten = true;
    let forgotten = Event::Answered { answer: Box::new(forgotten), refusal_budget: 0, sent: after(101) };
    let anew = core.on(after(101), vec![forgotten]);
    let anew = call(&anew).unwrap();
    let mut flows = told(anew);
    flows.sort_unstable();
    let mut others = [(flow("etl").id, 1), (flow("web").id, 1)];
    others.sort_unstable();
    assert_eq!((flows, known(anew)), (others.into(), vec![(1, 0); 2]), "known ones, which nobody refuses");
    assert!(!anew.line.as_ref().unwrap().begins, "the line knows of the others by the call before");
    assert!(call(&core.on(after(102), vec![answered(after(102), 9, &[], None)])).is_none());
}

/// Two limits for all, and one that bounds the second class.
fn with_ceiling(members: &[&str]) -> Limits {
    let mut limits = limits(OnStoreFailure::Local, 100);
    let limiter = tests::limiter(10, Duration::from_secs(1), Duration::from_secs(1));
    let bound = Bound { name: "ceiling rest".into(), ppm: 500_000, classes: vec![1] };
    limits.refs.push(LimiterRef::ceiling(&limiter, None, &bound, SHOWN));
    let shared = limits.shared.as_mut().unwrap();
    shared.ceilings = vec![bound.classes];
    let member = |name: &&str| (Flow::member_of(name), ClassMember { class: 0, weight: 1 });
    shared.share.members = Arc::new(members.iter().map(member).collect());
    limits
}

#[test]
fn a_caller_that_a_reload_relieves_of_a_ceiling_leaves_nothing_behind_it() {
    let mut core = Driven(LineCore::new(with_ceiling(&[]), SECOND, START));
    core.on(START, vec![arrival(0, "etl", START), arrival(1, "etl", START)]);
    core.on(after(1), vec![answered(after(1), 7, &[], None)]);
    core.on(after(2), vec![arrival(2, "web", after(2))]);
    // The call for the last one is under way.
    let relieved = Event::Reconfigured(Box::new(with_ceiling(&["etl"])));
    assert!(call(&core.on(after(3), vec![relieved])).is_none());
    let next = core.on(after(4), vec![answered(after(4), 8, &[], None)]);
    let next = call(&next).unwrap_or_else(|| panic!("{next:?}")).line.clone().unwrap();
    let costs = |name| next.wants.iter().find(|want| want.flow == flow(name).id).unwrap().costs.clone();
    assert!(next.begins, "else its requests of the earlier class stay in the line");
    assert_eq!((costs("etl"), costs("web")), (vec![1, 0], vec![1, 1]));
}

#[test]
fn a_slot_for_a_caller_that_has_left_is_given_back_as_it_was_dealt() {
    let mut core = Driven(LineCore::new(with_ceiling(&["web"]), SECOND, START));
    core.on(START, vec![arrival(0, "web", START)]);
    core.on(after(1), vec![Event::Left(vec![RequestId(0)])]);
    let mut late = answer(after(2), 7, &[("web", after(50))], None);
    let dealt = &mut late.line.as_mut().unwrap().dealt[0];
    (dealt.class, dealt.costs) = (0, vec![1, 0]);
    let sent = Event::Answered { answer: Box::new(late), refusal_budget: 0, sent: after(2) };
    // It tells of nobody, and its answer still has the slot.
    let actions = core.on(after(2), vec![sent]);
    let unused = &call(&actions).unwrap().line.as_ref().unwrap().unused;
    assert_eq!((unused[0].class, &unused[0].costs), (0, &vec![1, 0]));
}

/// Fewer may wait since a reload, and the store cannot be asked. Who has a place keeps it.
#[test]
fn only_requests_that_no_call_has_told_of_are_refused_where_more_wait_than_may() {
    let mut core = Driven(LineCore::new(limits(OnStoreFailure::Local, 10), SECOND, START));
    core.on(START, (0..3).map(|request| arrival(request, "etl", START)).collect());
    core.on(after(1), vec![answered(after(1), 7, &[], None)]);
    let fewer = Event::Reconfigured(Box::new(limits(OnStoreFailure::Local, 2)));
    let held = Event::Linked(Link::Held { epoch: 0, until: after(500) });
    let refused = |actions: Vec<Action>| -> Vec<Asker> {
        let of = |action| if let Action::Refuse(asker, ..) = action { Some(asker) } else { None };
        actions.into_iter().filter_map(of).collect()
    };
    assert_eq!(refused(core.on(after(2), vec![fewer, held.clone()])), []);
    let newcomers = vec![arrival(3, "etl", after(3)), arrival(4, "etl", after(3)), held];
    let last = [4, 3].map(|request| Asker::Request(RequestId(request)));
    assert_eq!(refused(core.on(after(3), newcomers)), last);
}
