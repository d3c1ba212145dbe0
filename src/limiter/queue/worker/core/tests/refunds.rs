//! Parts of used permits are given back across the epochs of one memory.

use super::*;
use crate::limiter::model::{Generation, Holding};

/// The generation of the limits in an epoch.
fn generation(epoch: u64) -> u64 {
    100 + epoch
}

/// A core, and the first epoch of the memory of its store.
struct Fleet(BookedCore, u64);

impl Fleet {
    fn on(&mut self, now: Moment, events: Vec<Event>) -> Vec<Action> {
        let mut out = Vec::new();
        self.0.on(events, &Context { memory: self.1, ..context(now) }, &mut out);
        out
    }

    /// Takes in the answer to the call under way. Returns what the next one gives back, and under which generation.
    fn answered(&mut self, now: Moment, epoch: u64) -> Option<(Vec<Holding>, u64)> {
        let answer = Answer {
            now: shown(now),
            epoch: Epoch { id: epoch, memory: self.1, ..Epoch::default() },
            generations: vec![Generation { number: generation(epoch), ..Generation::default() }],
            outcomes: vec![(1, Outcome::Booked(shown(now)))],
            ..Answer::default()
        };
        let answered = Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now };
        given_back(&self.on(now, vec![Event::Linked(Link::Up { epoch }), answered]))
    }
}

fn given_back(actions: &[Action]) -> Option<(Vec<Holding>, u64)> {
    actions.iter().find_map(|action| match action {
        Action::Book(call) => Some((call.give_back.clone(), call.generations[0])),
        _ => None,
    })
}

/// Returns a core whose request has been sent in the first epoch, and the refund of a part of its permit.
fn used() -> (Fleet, Event) {
    let limits = limits(10, 1, OnStoreFailure::Local);
    let mut fleet = Fleet(BookedCore::new(limits, SECOND, START), 1);
    fleet.on(START, vec![Event::Linked(Link::Up { epoch: 1 }), arrival(0, START, 0)]);
    assert_eq!(fleet.answered(START, 1), None);
    let slot = Slot { at: shown(START), due: START, source: Source::Store(1) };
    (fleet, Event::Returned(slot, Permits::ONE.into(), ReturnReason::Refund(Flow::default())))
}

fn refund() -> Vec<Holding> {
    vec![Holding { slot: shown(START), cost: 1, count: 1 }]
}

#[test]
fn a_refund_goes_behind_the_first_answer_of_the_next_epoch() {
    let settling = Event::Linked(Link::Settling { epoch: 2, opens: after(500) });
    for is_before in [true, false] {
        let (mut fleet, refund_event) = used();
        let (before, behind) =
            if is_before { (vec![refund_event], Vec::new()) } else { (Vec::new(), vec![refund_event]) };
        fleet.on(after(1), [vec![settling.clone()], before].concat());
        let up = [vec![Event::Linked(Link::Up { epoch: 2 })], behind].concat();
        let asked = given_back(&fleet.on(after(500), up));
        assert_eq!(asked, Some((Vec::new(), generation(1))), "the generations of the epoch are not known");
        assert_eq!(fleet.answered(after(501), 2), Some((refund(), generation(2))));
    }
}

#[test]
fn a_refund_waits_for_a_store_that_is_away() {
    let (mut fleet, refund_event) = used();
    let away = Event::Linked(Link::Away { outage: 1 });
    fleet.on(after(1), vec![away, refund_event]);
    // It is asked, and the circuit is open.
    assert_eq!(given_back(&fleet.on(after(300), Vec::new())), Some((refund(), generation(1))));
    fleet.on(after(301), vec![Event::Failed { is_unsent: true }]);
    fleet.on(after(400), vec![Event::Linked(Link::Up { epoch: 2 })]);
    assert_eq!(given_back(&fleet.on(after(600), Vec::new())), Some((Vec::new(), generation(1))));
    assert_eq!(fleet.answered(after(601), 2), Some((refund(), generation(2))));
}

/// Others' permits may stand at that instant.
#[test]
fn a_store_that_has_lost_its_memory_is_given_nothing_back() {
    let begins = Event::Linked(Link::Up { epoch: 2 });
    let (mut fleet, refund_event) = used();
    fleet.1 = 2;
    assert_eq!(given_back(&fleet.on(after(500), vec![begins.clone(), refund_event])), None);
    let (mut fleet, refund_event) = used();
    fleet.on(after(1), vec![Event::Linked(Link::Away { outage: 1 }), refund_event]);
    fleet.1 = 2;
    assert_eq!(given_back(&fleet.on(after(500), vec![begins])), None);
}

#[test]
fn a_refund_that_may_have_been_carried_out_is_not_given_back_again() {
    let (mut fleet, refund_event) = used();
    assert_eq!(given_back(&fleet.on(after(1), vec![refund_event])), Some((refund(), generation(1))));
    fleet.on(after(2), vec![Event::Failed { is_unsent: false }]);
    let next = given_back(&fleet.on(after(300), vec![arrival(1, after(300), 1000)]));
    assert_eq!(next, Some((Vec::new(), generation(1))));
}
