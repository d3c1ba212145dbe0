//! An outage in which nobody has heard how much of a limit is left.

use super::*;
use crate::limiter::model::{NotTaken, Outcome, RetryDelay};

#[test]
fn a_delay_that_nobody_knows_is_not_told() {
    let day = Micros::from_millis(86_400_000);
    for (known_within, is_told) in [(Micros::from_millis(6000), false), (Micros(u64::MAX), true)] {
        let mut core = Driven::new(OnStoreFailure::Local);
        core.on(START, vec![Event::Linked(Link::Away { outage: 1 }), arrival(0, "etl", START)]);
        let away = RetryDelay { delay: day, advised: day, ..RetryDelay::default() };
        let not_taken = NotTaken { want: 0, group: 0, count: 1, outcome: Outcome::TooFar(away) };
        let mut answer = answer(after(1), 3, &[], None);
        answer.line.as_mut().unwrap().not_taken = vec![not_taken];
        let local = LocalAnswer { answer, costs_max: vec![10], known_within };
        let actions = core.on(after(1), vec![Event::AnsweredLocally(Box::new(local))]);
        let refusal = actions.iter().find_map(|action| match action {
            Action::Refuse(_, _, refusal) => Some(refusal),
            _ => None,
        });
        match refusal {
            Some(Refusal::RateLimited { retry_after, .. }) => assert!(is_told && *retry_after == day),
            Some(Refusal::StoreUnavailable { .. }) => assert!(!is_told),
            _ => panic!("{actions:?}"),
        }
    }
}
