//! Slots that a call gives back are given back once, whatever becomes of the call.

use super::*;
use crate::limiter::model::Holding;

const EPOCH: Link = Link::Up { epoch: 0 };

/// Returns a core whose call under way gives one slot back, the slot, and the generations under which it was booked.
fn giving_back() -> (Driven, Holding, Vec<u64>) {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![Event::Linked(EPOCH), arrival(0, START, 1000), arrival(1, START, 1000)]);
    core.on(after(1), vec![booked(after(1), &[shown(after(400)), shown(after(500))])]);
    let actions = core.on(after(2), vec![Event::Left(vec![RequestId(0)])]);
    let call = call(&actions).unwrap();
    assert_eq!(call.give_back.len(), 1);
    (core, call.give_back[0], call.generations.clone())
}

fn call(actions: &[Action]) -> Option<&Call> {
    actions.iter().find_map(|action| if let Action::Book(call) = action { Some(&**call) } else { None })
}

/// Returns how many slots the call after these events gives back, which come in turns.
fn given_back(mut core: Driven, ends: Vec<Vec<Event>>) -> usize {
    ends.into_iter().for_each(|events| drop(core.on(after(3), events)));
    let actions = core.on(after(250), vec![arrival(2, after(250), 1000)]);
    let sent = core.0.calls.under_way.as_ref().or_else(|| panic!("no call: {actions:?}")).unwrap();
    sent.give_back.len()
}

/// A permit that is given back twice is another's.
#[test]
fn slots_of_a_call_that_was_not_sent_alone_are_given_back_again() {
    let cases = [
        (Event::Failed { is_unsent: true }, 1),
        (Event::PutBack { is_unsent: true }, 1),
        (Event::Failed { is_unsent: false }, 0),
        (Event::PutBack { is_unsent: false }, 0),
    ];
    for (end, count) in cases {
        assert_eq!(given_back(giving_back().0, vec![vec![end.clone()]]), count, "{end:?}");
    }
}

#[test]
fn a_new_epoch_voids_the_slots_that_a_call_which_was_not_sent_was_to_give_back() {
    let begins = Event::Linked(Link::Up { epoch: 1 });
    for end in [Event::PutBack { is_unsent: true }, Event::Failed { is_unsent: true }] {
        assert_eq!(
            given_back(giving_back().0, vec![vec![begins.clone()], vec![end.clone()]]),
            0,
            "before {end:?}"
        );
        assert_eq!(given_back(giving_back().0, vec![vec![end.clone(), begins.clone()]]), 0, "behind {end:?}");
    }
}

/// As the worker tells it: the link that has kept the call from being made comes behind its end.
#[test]
fn an_outage_keeps_the_slots_of_a_call_that_was_not_made_for_the_next_one() {
    let away = Event::Linked(Link::Away { outage: 1 });
    let back = Event::Linked(EPOCH);
    // The other slot is used by nobody in the outage.
    let ends = vec![vec![Event::PutBack { is_unsent: true }, away.clone()], vec![back.clone()]];
    assert_eq!(given_back(giving_back().0, ends), 2);
    assert_eq!(given_back(giving_back().0, vec![vec![away.clone()], vec![back.clone()]]), 1);
    // The call was given up in the outage, and turns out later not to have been made.
    let (core, holding, generations) = giving_back();
    let late = Event::Unneeded(vec![holding], generations.into_iter().collect());
    assert_eq!(given_back(core, vec![vec![away], vec![late], vec![back]]), 2);
}
