//! A reload puts a core of the other kind in the place of one.

use super::*;
use crate::limiter::model::{Generation, Holding, Outcome, UNKNOWN_GENERATION};
use crate::limiter::queue::worker::cores::Core;

/// Its slots were booked in the present epoch, which the new core hears of only now. Dropped, they lay booked for nobody in front of all who
/// wait.
#[test]
fn a_core_of_the_other_kind_gives_back_what_was_held_in_the_same_epoch() {
    let line_limits = limits(OnStoreFailure::Local, 100);
    let booked_limits = Limits { shared: None, ..line_limits.clone() };
    for (ours, others) in [(&booked_limits, &line_limits), (&line_limits, &booked_limits)] {
        for (epoch, is_same) in [(5, true), (6, false)] {
            let mut core = Core::new(ours.clone(), SECOND, START);
            let on = |core: &mut Core, now, events: Vec<Event>| {
                let mut out = Vec::new();
                core.on(events, &context(now), &mut out);
                out
            };
            on(&mut core, START, vec![Event::Linked(Link::Up { epoch: 5 }), arrival(0, "etl", START)]);
            let Event::Answered { answer, .. } = answered(after(1), 7, &[("etl", after(200))], None) else {
                panic!()
            };
            let outcomes = vec![(1, Outcome::Booked(shown(after(200))))];
            let generations = vec![Generation { number: 9, ..Generation::default() }];
            let answer = Box::new(Answer { outcomes, generations, ..*answer });
            on(&mut core, after(1), vec![Event::Answered { answer, refusal_budget: 0, sent: after(1) }]);
            core.replace(others.clone(), after(2));
            let actions = on(&mut core, after(2), vec![Event::Linked(Link::Up { epoch })]);
            let call = call(&actions).expect("a call");
            let of_line = call.line.iter().flat_map(|line| &line.unused).map(|unused| unused.slot);
            let given_back: Vec<_> =
                call.give_back.iter().map(|holding| holding.slot).chain(of_line).collect();
            assert_eq!(given_back, if is_same { vec![shown(after(200))] } else { vec![] }, "{call:?}");
            assert_eq!(call.generations, if is_same { [9] } else { [UNKNOWN_GENERATION] });
        }
    }
}

#[test]
fn late_bookings_of_the_core_before_are_given_back() {
    let mut core = Driven::new(OnStoreFailure::Local);
    core.on(START, vec![arrival(0, "etl", START)]);
    core.on(after(1), vec![answered(after(1), 7, &[("etl", after(200))], None)]);
    let holding = Holding { slot: shown(after(300)), cost: 2, count: 3 };
    let late = Event::Unneeded(vec![holding], std::iter::once(9).collect());
    let actions = core.on(after(2), vec![late]);
    let unused = &call(&actions).unwrap().line.as_ref().unwrap().unused;
    assert_eq!(unused.len(), 1);
    assert_eq!((unused[0].slot, unused[0].count, &unused[0].costs[..]), (shown(after(300)), 3, &[2][..]));
}
