//! When a request is sent once more: where that does no harm (RFC 9110, 9.2.2), as often as the route says, and within the
//! request's wait.
//!
//! Each attempt takes a permit of its own, in the queue. Sends nothing itself.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use tokio::time::Instant;

use super::error::ProxyError;
use super::router::Route;
use crate::config::model;

/// The header by which a client says that a request may come twice (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The attempts that a request has left.
pub(crate) struct Retries<'route> {
    rule: Option<&'route model::Retry>,
    left: u32,
    /// When the wait of all attempts together is over.
    deadline: Instant,
}

impl<'route> Retries<'route> {
    /// Of a request that may wait for so long in all.
    pub(crate) fn of<B>(
        route: &'route Route,
        request: &Request<B>,
        changes: bool,
        wait: Duration,
    ) -> Retries<'route> {
        let is_harmless = *request.method() != Method::CONNECT
            && (request.method().is_idempotent() || request.headers().contains_key(IDEMPOTENCY_KEY));
        let rule = route.rule.retry.as_ref().filter(|_| is_harmless && !changes);
        let left = rule.map_or(0, |rule| rule.attempts - 1);
        Retries { rule, left, deadline: Instant::now() + wait }
    }

    /// The most bytes of the request's body that are to be kept for another attempt; `None` if there is none.
    pub(crate) fn body_bytes_max(&self) -> Option<usize> {
        self.rule.filter(|_| self.left > 0).map(|rule| rule.body_bytes_max)
    }

    /// What is left of the wait.
    pub(crate) fn wait(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Takes another attempt after one that ended so, if there is to be one; gives the reason.
    pub(crate) fn take(&mut self, end: Result<StatusCode, &ProxyError>) -> Option<&'static str> {
        let rule = self.rule.filter(|_| self.left > 0)?;
        let (code, reason) = match end {
            Err(ProxyError::UpstreamConnect(_)) if rule.on_connect => (None, "connect"),
            // What the client would get.
            Err(ProxyError::UpstreamProtocol(_)) => (Some(502), "502"),
            Err(ProxyError::UpstreamTimeout) => (Some(504), "504"),
            Ok(StatusCode::TOO_MANY_REQUESTS) => (Some(429), "429"),
            Ok(StatusCode::BAD_GATEWAY) => (Some(502), "502"),
            Ok(StatusCode::SERVICE_UNAVAILABLE) => (Some(503), "503"),
            Ok(StatusCode::GATEWAY_TIMEOUT) => (Some(504), "504"),
            Ok(_) | Err(_) => return None,
        };
        if code.is_some_and(|code| !rule.on_status.contains(&code)) {
            return None;
        }
        self.left -= 1;
        Some(reason)
    }
}
