//! Decides whether a request is sent once more: where that does no harm (RFC 9110, 9.2.2), as often as the route allows, within the
//! route's budget of retries and the request's wait.
//!
//! Each attempt that is sent takes a permit of its own, in the queue. Sends nothing itself.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Request, StatusCode};
use tokio::time::Instant;

use crate::config::model::{Retry, Route};
use crate::proxy::error::ProxyError;
use crate::proxy::messages::end_to_end::{EndToEnd, is_same_variable};
use crate::proxy::messages::header_flags::HeaderFlags;
use crate::proxy::messages::response;
use crate::proxy::route::retry_budget::RetryBudget;

/// The header by which a client allows a request to arrive twice (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The shortest and the longest pause before another connection is tried, as Envoy has them (`retry_back_off`).
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Returns whether a request, as the client sent it, may arrive twice without harm.
pub(crate) fn is_harmless<B>(request: &Request<B>, flags: HeaderFlags, rule: &Route) -> bool {
    request.method().is_idempotent() || sends_key(request.headers(), flags, rule)
}

/// Returns whether the upstream sees an idempotency key. Without it each attempt may be carried out.
fn sends_key(headers: &HeaderMap, flags: HeaderFlags, rule: &Route) -> bool {
    let is_removed =
        || rule.remove_headers.iter().any(|name| is_same_variable(name.as_str(), &IDEMPOTENCY_KEY));
    rule.set_headers.iter().any(|(name, _)| *name == IDEMPOTENCY_KEY)
        || (EndToEnd::new(headers, flags, false).has(&IDEMPOTENCY_KEY) && !is_removed())
}

/// The further attempts of a request.
pub(crate) struct Retries<'route> {
    rule: &'route Retry,
    budget: &'route RetryBudget,
    /// The end of the wait of all attempts together, if it has one.
    deadline: Option<Instant>,
}

impl<'route> Retries<'route> {
    /// Returns the attempts of a request whose waits may add up to `wait`, if they are bounded.
    pub(crate) fn new(
        rule: &'route Retry,
        budget: &'route RetryBudget,
        wait: Option<Duration>,
    ) -> Retries<'route> {
        let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
        Retries { rule, budget, deadline }
    }

    /// Returns how often the request may be sent once more, by another connection in place of a closed one, too.
    pub(crate) fn repetitions(&self) -> u32 {
        self.rule.attempts - 1
    }

    /// Returns the rest of the wait.
    pub(crate) fn wait(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns how long to wait before an attempt that takes no permit of its own, with so many left: twice as long each time.
    pub(crate) fn pause(&self, left: u32) -> Duration {
        let attempts = self.rule.attempts.saturating_sub(left + 2);
        let pause = PAUSE_MIN.saturating_mul(2_u32.saturating_pow(attempts));
        pause.min(PAUSE_MAX).min(self.wait().max(PAUSE_MIN))
    }

    /// Takes one of the attempts that are left if the result of the last one calls for it and the route's budget has one. Returns the
    /// reason: `connect`, or the status that the client would get.
    pub(crate) fn take(
        &self,
        left: &mut u32,
        end: Result<StatusCode, &ProxyError>,
    ) -> Option<Cow<'static, str>> {
        let rest = left.checked_sub(1)?;
        let reason = self.reason(end).filter(|_| self.rule.budget_ppm.is_none() || self.budget.take())?;
        *left = rest;
        Some(reason)
    }

    fn reason(&self, end: Result<StatusCode, &ProxyError>) -> Option<Cow<'static, str>> {
        let status = match end {
            Err(ProxyError::UpstreamConnect(_)) if self.rule.on_connect => return Some("connect".into()),
            Err(
                error @ (ProxyError::UpstreamClosed
                | ProxyError::UpstreamProtocol(_)
                | ProxyError::UpstreamCoding
                | ProxyError::UpstreamTimeout),
            ) => response::status_of(error),
            Err(_) => return None,
            Ok(status) => status,
        };
        self.rule.on_status.contains(&status.as_u16()).then(|| status.as_u16().to_string().into())
    }
}
