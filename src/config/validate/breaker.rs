//! `routes.breaker`: when an upstream that cannot be reached is left alone.

use std::time::Duration;

use super::check::{Check, HOUR, MILLISECOND};
use super::place::{Given, key};
use crate::config::model::Breaker;
use crate::config::schema::{self, OffOr};

/// The default of `failures`: more than a burst loses when an upstream restarts.
const FAILURES: u32 = 10;
/// The default of `for`, and its minimum: a probe costs the upstream a connection.
const LASTING: Duration = Duration::from_secs(5);
const LASTING_MIN: Duration = MILLISECOND.saturating_mul(10);

/// Checks the breaker of a route. The outer `None` is a problem, the inner one no breaker.
pub(super) fn breaker(
    check: &mut Check<'_>,
    given: &Given<'_, Option<OffOr<schema::Breaker>>>,
) -> Option<Option<Breaker>> {
    let Some(breaker) = given.on() else { return Some(None) };
    let failures = check.count(&key!(breaker.failures), FAILURES, 1..=1000);
    let lasting = check.bounded(&breaker.part(&breaker.value.lasting, "for"), LASTING, LASTING_MIN..=HOUR);
    Some(Some(Breaker { failures: failures?, lasting: lasting? }))
}
