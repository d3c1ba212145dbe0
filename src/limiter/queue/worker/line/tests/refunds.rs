//! Parts of used permits are given back across the epochs of one memory.

use super::*;
use crate::limiter::model::{Epoch, Generation};
use crate::limiter::queue::slot::Slot;

/// Takes a core through its first epoch, in which a slot is used, into the second one, in which a part of it comes back. Returns what the calls
/// give back, and under which generation: the first one of the epoch, and the one behind its answer.
fn refunded(memory: u64) -> Vec<Option<(usize, u64)>> {
    let mut core = Driven::new(OnStoreFailure::Local);
    let given_back = |actions: &[Action]| {
        call(actions).map(|call| (call.line.as_ref().unwrap().unused.len(), call.generations[0]))
    };
    let mut on = |now, events, memory| {
        let mut out = Vec::new();
        core.0.on(events, &Context { memory, ..context(now) }, &mut out);
        given_back(&out)
    };
    let answered = |now, epoch, slots: &[(&str, Moment)]| {
        let generations = vec![Generation { number: 100 + epoch, ..Generation::default() }];
        let epoch = Epoch { id: epoch, memory: 1, ..Epoch::default() };
        let answer = Answer { epoch, generations, ..answer(now, 7, slots, None) };
        Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now }
    };
    let up = |epoch| Event::Linked(Link::Up { epoch });
    on(START, vec![up(1), arrival(0, "etl", START)], 1);
    on(after(1), vec![answered(after(1), 1, &[("etl", after(1))])], 1);
    let slot = Slot { at: shown(after(1)), due: after(1), source: Source::Store(1) };
    let refund = Event::Returned(slot, Permits::ONE.into(), ReturnReason::Refund(flow("etl")));
    on(after(10), vec![Event::Linked(Link::Settling { epoch: 2, opens: after(500) }), refund], memory);
    let first = on(after(500), vec![up(2)], memory);
    let second = on(after(501), vec![answered(after(501), 2, &[])], memory);
    vec![first, second]
}

#[test]
fn a_refund_goes_behind_the_first_answer_of_the_next_epoch() {
    assert_eq!(refunded(1), [Some((0, 101)), Some((1, 102))]);
}

/// Others' permits may stand at that instant.
#[test]
fn a_store_that_has_lost_its_memory_is_given_nothing_back() {
    assert_eq!(refunded(2), [None, None]);
}
