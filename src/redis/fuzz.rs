//! A check of the decoded answer of a script for arbitrary bytes. Left out of the documentation; promises nothing.

use redis::Value;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::{Call, Holding, Run};
use crate::limiter::model::limit::LimiterName;
use crate::redis::answers;

/// Checks that a decoded answer fits its call.
///
/// # Panics
/// If it does not.
pub fn script_reply(bytes: &[u8]) {
    let Some(name) = LimiterName::parse("a") else { return };
    let rule =
        Rule { rate: 10, window: Micros::from_millis(1000), cell: Micros::ONE, kind: SlidingWindow.into() };
    let rules = [rule.clone(), rule].into();
    let limiter_ref = LimiterRef { name, partition: None, group: "a".into(), rules, valid_until: None };
    let call = Call {
        reschedule: vec![Holding { slot: Micros::ONE, cost: 1, count: 2 }],
        runs: vec![Run { cost: 1, wait_max: Micros::ONE, count: 3 }],
        ..Call::default()
    };
    let answer =
        answers::reserve(&Value::BulkString(bytes.to_vec()), std::slice::from_ref(&limiter_ref), &call);
    if let Some(answer) = answer {
        let (rescheduled, outcomes) = (counts(&answer.rescheduled), counts(&answer.outcomes));
        let is_of_call = matches!(rescheduled, Some(0 | 2)) && outcomes.is_some_and(|outcomes| outcomes <= 3);
        assert!(is_of_call || answer.epoch.settles_until.is_some(), "{answer:?}");
        assert_eq!((answer.generations.len(), answer.available.len()), (1, 1));
        assert_eq!(answer.available.first().map(Vec::len), Some(2));
    }
    let _ = answers::epoch(&Value::BulkString(bytes.to_vec()));
}

fn counts<T>(outcomes: &[(u64, T)]) -> Option<u64> {
    outcomes.iter().try_fold(0, |sum: u64, (count, _)| sum.checked_add(*count))
}
