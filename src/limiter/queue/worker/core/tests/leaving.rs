//! Requests that leave before they have a place.

use super::*;
use crate::limiter::queue::worker::events::Carryover;

/// Returns the requests that a core before this one has left.
fn taken_over() -> Driven {
    let mut core = Driven::new(OnStoreFailure::Reject);
    let arrivals = (0..3).map(|request| match arrival(request, START, 1000) {
        Event::Arrived(arrival) => arrival,
        other => panic!("{other:?}"),
    });
    core.0.take_over(Carryover { arrivals: arrivals.collect(), ..Carryover::default() });
    core
}

fn cancelled(actions: &[Action]) -> usize {
    let counts = actions.iter().map(|action| match action {
        Action::CountCancelled(_, _, count) => *count,
        _ => 0,
    });
    counts.sum()
}

fn granted(actions: &[Action]) -> Vec<u32> {
    let granted = actions.iter().filter_map(|action| match action {
        Action::Grant(RequestId(request), ..) => Some(*request),
        _ => None,
    });
    granted.collect()
}

/// The next request gets its number, and would get its slot and its cost.
#[test]
fn a_request_of_the_core_before_that_leaves_has_no_place_here() {
    let mut core = taken_over();
    let actions = core.on(after(1), vec![Event::Left(vec![RequestId(1)])]);
    let asked: Vec<u64> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Book(call) => Some(call.runs.iter().map(|run| run.count).sum()),
            _ => None,
        })
        .collect();
    assert_eq!((cancelled(&actions), asked), (1, vec![2]));
    // One that a call has asked for.
    assert_eq!(cancelled(&core.on(after(2), vec![Event::Left(vec![RequestId(0)])])), 1);
    let actions = core.on(after(3), vec![booked(after(3), &[shown(after(3)), shown(after(3))])]);
    assert_eq!(granted(&actions), [2]);
}
