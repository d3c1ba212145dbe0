//! A change of the limits refuses requests that cost too much, and those behind them move up.

use std::sync::Arc;

use super::*;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::reserve;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;

/// The store of one limiter, which answers at once.
#[derive(Default)]
struct Store {
    state: LimiterState,
    order: QueueOrder,
}

impl Store {
    fn answer(&mut self, now: Moment, rules: &Arc<[Rule]>, actions: &[Action]) -> Option<Event> {
        let call =
            actions.iter().find_map(|it| if let Action::Book(call) = it { Some(call) } else { None })?;
        let lease = Micros::from_millis(500);
        let mut states = [(&mut self.state, rules.clone())];
        let answer = reserve(shown(now), lease, &mut states, &mut self.order, call);
        Some(Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now })
    }
}

/// Returns an arrival that waits for eight seconds.
fn costly(request: u32, cost: u64) -> Event {
    let Event::Arrived(mut arrival) = arrival(request, START, 8000) else { panic!("an arrival") };
    arrival.costs = Permits::new(cost).unwrap().into();
    Event::Arrived(arrival)
}

#[test]
fn requests_behind_those_that_a_change_refuses_move_up() {
    let [before, changed] = [20, 5].map(|rate| limits(rate, 8, OnStoreFailure::Reject));
    let (mut rules, changed_rules) = (before.refs[0].rules.clone(), changed.refs[0].rules.clone());
    let mut core = Driven(BookedCore::new(before, SECOND, START));
    let mut store = Store::default();
    let costs = [20, 20, 20, 1, 1, 1, 1, 1, 1];
    let mut events: Vec<_> = (0..).zip(costs).map(|(request, cost)| costly(request, cost)).collect();
    let (mut granted, mut refused) = (0, 0);
    for millis in 0..2500 {
        if millis == 100 {
            rules = changed_rules.clone();
            events.push(Event::Reconfigured(Box::new(changed.clone())));
        }
        let actions = core.on(after(millis), std::mem::take(&mut events));
        for action in &actions {
            match action {
                Action::Grant(..) => granted += 1,
                Action::Refuse(_, _, Refusal::CostExceedsLimit { .. }) => refused += 1,
                Action::Refuse(_, _, refusal) => panic!("{refusal:?} at {millis} ms"),
                _ => {}
            }
        }
        events.extend(store.answer(after(millis), &rules, &actions));
    }
    assert_eq!((refused, granted), (2, 7), "all who may wait are sent as the new limit has room");
}
