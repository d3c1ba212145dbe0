//! A worker that closes gives back what it holds, and asks for nothing more.

use super::*;

/// Returns a worker that closes while a call asks for a slot in place of one that an epoch has voided.
fn closing(policy: OnStoreFailure) -> Driven {
    let mut core = Driven::new(policy);
    core.on(START, vec![arrival(0, START, 1000)]);
    core.on(after(1), vec![booked(after(1), &[shown(after(500))])]);
    assert!(is_booking(&core.on(after(2), vec![Event::Linked(Link::Up { epoch: 2 })])));
    let actions = core.on(after(3), vec![Event::Close]);
    assert!(matches!(actions[..], [Action::Refuse(..)]), "{actions:?}");
    core
}

#[test]
fn a_call_that_is_put_back_is_not_made_again_for_requests_that_were_refused() {
    let mut core = closing(OnStoreFailure::Local);
    assert_eq!(core.on(after(4), vec![Event::PutBack { is_unsent: false }]), [Action::End]);
}

#[test]
fn no_permits_are_taken_in_an_outage_for_requests_that_were_refused() {
    for policy in [OnStoreFailure::Local, OnStoreFailure::Allow, OnStoreFailure::Reject] {
        let mut core = closing(policy);
        let actions = core.on(after(4), vec![Event::Linked(Link::Away { outage: 1 })]);
        let expected = [Action::Abandon, Action::Cache(None), Action::BeginOutage, Action::End];
        assert_eq!(actions, expected, "{policy:?}");
    }
}

#[test]
fn a_closing_worker_drops_requests_that_an_answer_left_out() {
    let mut core = closing(OnStoreFailure::Local);
    assert_eq!(core.on(after(4), vec![booked(after(4), &[])]), [Action::End]);
}
