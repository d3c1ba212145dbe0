//! `routes.retry`: when a request is sent once more.

use super::Check;
use super::place::At;
use crate::config::model::Retry;
use crate::config::schema::{self, OffOr, RetryOn};
use crate::config::units::Size;

/// What is kept of a body unless `max_body` says otherwise, and the most that it may say: each request that is under way may
/// hold as much.
const BODY_BYTES: Size = Size(64 * 1024);
const BODY_BYTES_MAX: Size = Size(16 * 1024 * 1024);

/// The outer `None` is a problem, the inner one no retries.
pub(super) fn retry(
    check: &mut Check<'_>,
    given: Option<&OffOr<schema::Retry>>,
    at: &At<'_>,
) -> Option<Option<Retry>> {
    let given = match given {
        None | Some(OffOr::Off) => return Some(None),
        Some(OffOr::On(given)) => given,
    };
    let attempts = check.count(given.attempts, 2, 2..=10, &at.key("attempts"));
    let at_on = at.key("on");
    let usual = [RetryOn::Connect, RetryOn::Status(429), RetryOn::Status(502), RetryOn::Status(503)];
    let on = given.on.as_deref().unwrap_or(&usual);
    if given.on.is_some() && at_on.length() == 0 {
        check.problem(&at_on, "names nothing to try again after; `retry: off` does that");
        return None;
    }
    let mut statuses = Vec::new();
    for (index, end) in on.iter().enumerate() {
        match end {
            RetryOn::Connect => {}
            RetryOn::Status(status) => match u16::try_from(*status) {
                Ok(status @ (429 | 502 | 503 | 504)) => statuses.push(status),
                _ => check.problem(&at_on.index(index), "must be connect, 429, 502, 503 or 504"),
            },
        }
    }
    let max_body = check.size(given.max_body, BODY_BYTES, Size(0)..=BODY_BYTES_MAX, &at.key("max_body"));
    let body_bytes_max = usize::try_from(max_body?.0).unwrap_or(usize::MAX);
    let on_connect = on.contains(&RetryOn::Connect);
    Some(Some(Retry { attempts: attempts?, on_connect, on_status: statuses, body_bytes_max }))
}
