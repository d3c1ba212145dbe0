//! `routes.retry`: the attempts of a request.

use super::check::Check;
use super::place::{Given, key};
use crate::config::model::Retry;
use crate::config::schema::{self, OffOr, RetryOn};
use crate::config::units::{Share, Size};

/// The default of `max_body`, and its maximum. Each request in flight may hold as much.
const BODY_BYTES: Size = Size(64 * 1024);
const BODY_BYTES_MAX: Size = Size(16 * 1024 * 1024);

/// The default of `budget`, and its minimum.
const BUDGET: Share = Share { ppm: 200_000 };
const BUDGET_MIN: Share = Share { ppm: 10_000 };

/// Checks the retries of a route. The outer `None` is a problem, the inner one no retries.
pub(super) fn retry(
    check: &mut Check<'_>,
    given: &Given<'_, Option<OffOr<schema::Retry>>>,
) -> Option<Option<Retry>> {
    let Some(retry) = given.on() else { return Some(None) };
    let attempts = check.count(&key!(retry.attempts), 2, 2..=10);
    let on = key!(retry.on);
    if on.value.is_some() && on.at.length() == 0 {
        return check.refuse(&on.at, "names nothing to try again after; `retry: off` does that");
    }
    let mut statuses = Vec::new();
    for end in on.items() {
        match end.value {
            RetryOn::Connect => {}
            RetryOn::Status(status) => match u16::try_from(*status) {
                Ok(status @ (429 | 502 | 503 | 504)) => statuses.push(status),
                _ => check.problem(&end.at, "must be connect, 429, 502, 503 or 504"),
            },
        }
    }
    let (on_connect, on_status) = match on.value {
        None => (true, vec![429, 502, 503]),
        Some(ends) => (ends.contains(&RetryOn::Connect), statuses),
    };
    let max_body = check.bounded(&key!(retry.max_body), BODY_BYTES, Size(0)..=BODY_BYTES_MAX);
    let body_bytes_max = usize::try_from(max_body?.0).unwrap_or(usize::MAX);
    let given_budget = key!(retry.budget);
    let budget = match given_budget.on() {
        Some(budget) => Some(check.within(&budget, BUDGET_MIN..=Share::WHOLE)?),
        None => given_budget.value.is_none().then_some(BUDGET),
    };
    let budget_ppm = budget.map(|budget| budget.ppm);
    Some(Some(Retry { attempts: attempts?, on_connect, on_status, body_bytes_max, budget_ppm }))
}
