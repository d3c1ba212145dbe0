//! Turns errors into the responses that weir makes itself, and reads the status codes of others.
//!
//! The only file of the proxy with status codes. Sends nothing, and knows nothing of logs and metrics.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;

use super::header_flags::HeaderFlags;
use super::request_head::is_grpc;
use crate::clock::Micros;
use crate::limiter::Refusal;
use crate::limiter::model::{Limit, Limiter, LimiterName};
use crate::proxy::error::ProxyError;
use crate::telemetry::Outcome;

/// The status, in metrics and logs, of a request whose client left before the response.
pub(crate) const CLIENT_LEFT: u16 = 499;
/// The status of a response that switches the connection to another protocol.
pub(crate) const SWITCHING_PROTOCOLS: StatusCode = StatusCode::SWITCHING_PROTOCOLS;

const WEIR_ERROR: HeaderName = HeaderName::from_static("weir-error");
const WEIR_WAIT_MS: HeaderName = HeaderName::from_static("weir-wait-ms");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The problem type of every 429, from draft-ietf-httpapi-ratelimit-headers-10.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The title of [`QUOTA_EXCEEDED`] in the same draft.
const QUOTA_EXCEEDED_TITLE: &str = "Request cannot be satisfied as assigned quota has been exceeded";
/// The usual size of a problem document, to allocate once.
const PROBLEM_BYTES: usize = 512;
/// The usual size of a policy in `RateLimit-Policy`, to allocate once.
const POLICY_BYTES: usize = 48;
/// The `WWW-Authenticate` of a 401.
const CHALLENGE: &str = "Bearer realm=\"weir\"";
/// The codes of gRPC. Its clients try again after RESOURCE_EXHAUSTED and UNAVAILABLE, and not after PERMISSION_DENIED and
/// UNAUTHENTICATED.
const GRPC_RESOURCE_EXHAUSTED: &str = "8";
const GRPC_UNAVAILABLE: &str = "14";
const GRPC_PERMISSION_DENIED: &str = "7";
const GRPC_UNAUTHENTICATED: &str = "16";
/// The characters that gRPC percent-encodes in a message, beside everything but ASCII.
const GRPC_ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// The form in which a client understands a refusal.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    /// A problem document.
    Problem,
    /// The head of one: the answer to HEAD.
    ProblemHead,
    /// gRPC's headers.
    Grpc,
}

impl Form {
    /// Returns the form for a request.
    pub(crate) fn of<B>(request: &Request<B>, flags: HeaderFlags) -> Form {
        if is_grpc(request.headers(), flags) {
            Form::Grpc
        } else if request.method() == Method::HEAD {
            Form::ProblemHead
        } else {
            Form::Problem
        }
    }
}

/// A response that weir made itself, and how its request is recorded.
pub(crate) struct Refused {
    /// The response.
    pub(crate) response: Response<Bytes>,
    /// The outcome of the request.
    pub(crate) outcome: Outcome,
    /// The value of `weir-error`.
    pub(crate) code: &'static str,
    /// The reason for the log. It may name addresses that the client does not learn.
    pub(crate) reason: String,
}

/// The parts of a refusal, before they take a form.
struct Verdict<'a> {
    status: StatusCode,
    code: &'static str,
    outcome: Outcome,
    detail: String,
    quota: Option<SpentQuota<'a>>,
}

/// The additional parts of a 429.
struct SpentQuota<'a> {
    name: &'a LimiterName,
    limiter: Option<&'a Limiter>,
    /// The policy that refused, such as `github:900/1m`.
    violated: Option<String>,
    retry_after: Micros,
}

/// A problem document (RFC 9457).
#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limiter: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

/// Makes the response to a request that was not forwarded.
pub(crate) fn refuse(error: &ProxyError, form: Form) -> Refused {
    let verdict = verdict(error);
    let mut response = match form {
        Form::Problem => problem(&verdict, false),
        Form::ProblemHead => problem(&verdict, true),
        Form::Grpc => grpc(&verdict),
    };
    let headers = response.headers_mut();
    headers.insert(WEIR_ERROR, HeaderValue::from_static(verdict.code));
    if matches!(error, ProxyError::BadFraming(_)) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(quota) = &verdict.quota {
        quota.describe(headers);
    }
    if verdict.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
    }
    let reason = match error {
        ProxyError::UpstreamConnect(_) | ProxyError::UpstreamProtocol(_) => error.to_string(),
        _ => verdict.detail,
    };
    Refused { response, outcome: verdict.outcome, code: verdict.code, reason }
}

/// Writes `weir-wait-ms` if the request waited.
pub(crate) fn add_wait(headers: &mut HeaderMap, waited: Duration) {
    if !waited.is_zero() {
        headers.insert(WEIR_WAIT_MS, HeaderValue::from(millis(waited)));
    }
}

/// Returns whole milliseconds, saturating.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the `Content-Length` of a 304, which has no body (RFC 9110, 15.4.5).
pub(crate) fn length_unsent(status: StatusCode, headers: &HeaderMap) -> Option<u64> {
    let length = headers.get(CONTENT_LENGTH).filter(|_| status == StatusCode::NOT_MODIFIED)?;
    length.to_str().ok()?.parse().ok()
}

/// Returns whether an upstream's response says that its quota is spent.
pub(crate) fn is_rejection(status: StatusCode, headers: &HeaderMap) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS
        || (status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key(RETRY_AFTER))
}

/// Returns whether an upstream rejection asks for a pause. A 503 without an instant comes from a server that is merely down.
pub(crate) fn asks_for_pause(status: StatusCode, names_instant: bool) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || names_instant
}

/// Returns the `weir-error` of an error.
pub(crate) fn code_of(error: &ProxyError) -> &'static str {
    verdict(error).code
}

/// Returns the status that a client gets for an error.
pub(crate) fn status_of(error: &ProxyError) -> StatusCode {
    verdict(error).status
}

/// Returns whether a status is interim, so that another response follows.
pub(crate) fn is_interim(status: u16) -> bool {
    (100..200).contains(&status) && status != SWITCHING_PROTOCOLS.as_u16()
}

/// Returns advice for the operator if an outbound proxy that answers CONNECT with this status opened no tunnel.
pub(crate) fn no_tunnel(status: u16) -> Option<&'static str> {
    match status {
        200..=299 => None,
        407 => Some("set the user and password that it wants in `upstream.proxy`"),
        400..=499 => Some("it does not allow this upstream; ask its operator, or check `upstream.url`"),
        500..=599 => Some("it does not reach the upstream; see its own log"),
        _ => Some("it opens no tunnels; check that `upstream.proxy` is an HTTP proxy"),
    }
}

fn verdict(error: &ProxyError) -> Verdict<'_> {
    use Outcome::{Cancelled, Failed, Refused};
    let (status, code, outcome) = match error {
        ProxyError::Refused { refusal, limiter } => return refused(refusal, limiter.as_deref()),
        ProxyError::BadRequest(_) | ProxyError::BadFraming(_) | ProxyError::BadCost { .. } => {
            (StatusCode::BAD_REQUEST, "bad_request", Refused)
        }
        ProxyError::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", Refused),
        ProxyError::UnknownClient => (StatusCode::UNAUTHORIZED, "unknown_client", Refused),
        ProxyError::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden", Refused),
        ProxyError::NoRoute => (StatusCode::NOT_FOUND, "no_route", Refused),
        ProxyError::Loop => (StatusCode::LOOP_DETECTED, "loop", Refused),
        ProxyError::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining", Refused),
        ProxyError::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout", Failed),
        ProxyError::ClientGone => (StatusCode::BAD_REQUEST, "bad_request", Cancelled),
        ProxyError::UpstreamConnect(_) => (StatusCode::BAD_GATEWAY, "upstream_connect", Failed),
        ProxyError::UpstreamProtocol(_) | ProxyError::UpgradeUnasked => {
            (StatusCode::BAD_GATEWAY, "upstream_protocol", Failed)
        }
        ProxyError::UpstreamTimeout => (StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", Failed),
    };
    // The cause is for the log alone, because it may name addresses.
    let detail = match error {
        ProxyError::UpstreamConnect(_) => "the upstream could not be reached".to_owned(),
        ProxyError::UpstreamProtocol(_) => "the upstream's answer was not understood".to_owned(),
        other => other.to_string(),
    };
    Verdict { status, code, outcome, detail, quota: None }
}

fn refused<'a>(refusal: &'a Refusal, limiter: Option<&'a Limiter>) -> Verdict<'a> {
    let name = refusal.limiter();
    let quota = |limit: usize, retry_after: Micros| {
        let violated = limiter.and_then(|limiter| limiter.limits.get(limit));
        let violated = violated.map(|limit| [name.as_str(), ":", &limit.label].concat());
        Some(SpentQuota { name, limiter, violated, retry_after })
    };
    let (status, code, detail, quota) = match refusal {
        Refusal::RateLimited { limit, retry_after, .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limited",
            ["limiter ", name.as_str(), " has no permit within the wait"].concat(),
            quota(*limit, *retry_after),
        ),
        Refusal::Paused { retry_after, .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "paused",
            ["limiter ", name.as_str(), " is paused for longer than the wait"].concat(),
            Some(SpentQuota { name, limiter, violated: None, retry_after: *retry_after }),
        ),
        Refusal::QueueFull { limit, retry_after, .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "queue_full",
            ["the queue of limiter ", name.as_str(), " is full"].concat(),
            quota(*limit, *retry_after),
        ),
        Refusal::StoreUnavailable { .. } => (
            StatusCode::SERVICE_UNAVAILABLE,
            "store_unavailable",
            format!("the store of limiter {name} is away"),
            None,
        ),
        Refusal::CostExceedsLimit { cost_max, .. } => (
            StatusCode::BAD_REQUEST,
            "cost_exceeds_limit",
            format!("limiter {name} never holds more than {cost_max} permits at once"),
            None,
        ),
        Refusal::Closed { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "draining", "shutting down".to_owned(), None)
        }
    };
    Verdict { status, code, outcome: Outcome::Refused, detail, quota }
}

/// Makes a problem document; a HEAD gets its length alone.
fn problem(verdict: &Verdict<'_>, head_only: bool) -> Response<Bytes> {
    let quota = verdict.quota.as_ref();
    let problem = Problem {
        r#type: quota.map_or("about:blank", |_| QUOTA_EXCEEDED),
        title: quota.map_or(verdict.status.canonical_reason().unwrap_or_default(), |_| QUOTA_EXCEEDED_TITLE),
        status: verdict.status.as_u16(),
        detail: &verdict.detail,
        code: verdict.code,
        limiter: quota.map(|quota| quota.name.as_str()),
        retry_after_ms: quota.map(|quota| quota.retry_after.millis_up()),
        violated_policies: quota.into_iter().filter_map(|quota| quota.violated.as_deref()).collect(),
    };
    // Writing strings and numbers to memory does not fail.
    let mut document = Vec::with_capacity(PROBLEM_BYTES);
    let _ = serde_json::to_writer(&mut document, &problem);
    // A line end, for readers in a terminal.
    document.push(b'\n');
    let length = document.len();
    let body = if head_only { Bytes::new() } else { document.into() };
    let mut response = Response::new(body);
    *response.status_mut() = verdict.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// Makes gRPC's trailers-only response.
fn grpc(verdict: &Verdict<'_>) -> Response<Bytes> {
    let status = match verdict.status {
        StatusCode::TOO_MANY_REQUESTS => GRPC_RESOURCE_EXHAUSTED,
        StatusCode::UNAUTHORIZED => GRPC_UNAUTHENTICATED,
        StatusCode::FORBIDDEN => GRPC_PERMISSION_DENIED,
        _ => GRPC_UNAVAILABLE,
    };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from_static(status));
    let message = utf8_percent_encode(&verdict.detail, GRPC_ENCODED).to_string();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

impl SpentQuota<'_> {
    /// Writes `Retry-After`, `RateLimit-Policy` and `RateLimit`.
    fn describe(&self, headers: &mut HeaderMap) {
        let seconds = self.retry_after.0.div_ceil(1_000_000).max(1);
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        let policies = Some(self.policies()).filter(|policies| !policies.is_empty());
        if let Some(Ok(policies)) = policies.map(HeaderValue::try_from) {
            headers.insert(RATELIMIT_POLICY, policies);
        }
        let limit = self.violated.as_deref();
        let limit = limit.map(|policy| ["\"", policy, "\";r=0;t=", &seconds.to_string()].concat());
        if let Some(Ok(limit)) = limit.map(HeaderValue::try_from) {
            headers.insert(RATELIMIT, limit);
        }
    }

    /// Returns the policies of the limiter as a list. Names and labels hold nothing that a quoted string must escape.
    fn policies(&self) -> String {
        let limits = self.limiter.map(|limiter| &*limiter.limits).unwrap_or_default();
        let mut policies = String::with_capacity(limits.len() * POLICY_BYTES);
        for limit in limits {
            let comma = if policies.is_empty() { "" } else { ", " };
            let rate = limit.rate.get().to_string();
            let pieces = [comma, "\"", self.name.as_str(), ":", &limit.label, "\";q=", &rate];
            pieces.into_iter().for_each(|piece| policies.push_str(piece));
            if let Some(seconds) = window_seconds(limit) {
                policies.push_str(";w=");
                policies.push_str(&seconds.to_string());
            }
        }
        policies
    }
}

/// Returns the length of a limit's window if every window has it and it is whole seconds, the only unit of `w`.
fn window_seconds(limit: &Limit) -> Option<u64> {
    let window = limit.window()?;
    (window.subsec_nanos() == 0).then_some(window.as_secs())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use regex::Regex;

    use super::*;
    use crate::limiter::model::{Algorithm, CalendarWindows, Period, Permits};

    fn limit(label: &str, per: Duration, algorithm: Algorithm) -> Limit {
        Limit { rate: Permits::new(10).unwrap(), per, algorithm, label: label.into() }
    }

    fn fixed(label: &str, period: Period) -> Limit {
        let windows = CalendarWindows::new(period, "Europe/Berlin").unwrap();
        limit(label, windows.longest(), Algorithm::FixedWindow { windows })
    }

    #[test]
    fn the_policies_are_a_valid_structured_field() {
        let day = Duration::from_secs(86_400);
        let burst = Permits::new(20).unwrap();
        let limits = vec![
            limit("10/1500ms", Duration::from_millis(1500), Algorithm::LeakyBucket),
            limit("10/1m token_bucket", Duration::from_secs(60), Algorithm::TokenBucket { burst }),
            fixed("10/1d Europe/Berlin", Period::Span(day)),
            fixed("10/1w", Period::Week),
            fixed("10/1mo", Period::Month),
            limit("10/2s", Duration::from_secs(2), Algorithm::WarmUp { warm_up: day, cold: NonZeroU32::MIN }),
        ];
        let limiter = Limiter::new(LimiterName::parse("a.b_c-d").unwrap(), limits);
        let refusal =
            Refusal::RateLimited { limiter: limiter.name.clone(), limit: 1, retry_after: Micros(1) };
        let verdict = refused(&refusal, Some(&limiter));
        let mut headers = HeaderMap::new();
        verdict.quota.unwrap().describe(&mut headers);
        let policies = headers[RATELIMIT_POLICY].to_str().unwrap();
        let expected = "\"a.b_c-d:10/1500ms\";q=10, \"a.b_c-d:10/1m token_bucket\";q=10;w=60, \
                        \"a.b_c-d:10/1d Europe/Berlin\";q=10;w=86400, \"a.b_c-d:10/1w\";q=10;w=604800, \
                        \"a.b_c-d:10/1mo\";q=10, \"a.b_c-d:10/2s\";q=10;w=2";
        // A warm-up reports the rate of a warm limit, and no warm-up.
        assert_eq!(policies, expected);
        // A list of strings with integer parameters (RFC 9651).
        let item = r#""[ !\x23-\x5b\x5d-\x7e]*"(;[a-z]+=-?[0-9]{1,15})*"#;
        assert!(Regex::new(&format!("^{item}(, {item})*$")).unwrap().is_match(policies));
        assert_eq!(headers[RATELIMIT], "\"a.b_c-d:10/1m token_bucket\";r=0;t=1");
    }

    #[test]
    fn a_removed_limiter_is_still_named() {
        let name = LimiterName::parse("gone").unwrap();
        let refusal = Refusal::RateLimited { limiter: name, limit: 0, retry_after: Micros(1) };
        let verdict = refused(&refusal, None);
        assert_eq!((verdict.status, verdict.code), (StatusCode::TOO_MANY_REQUESTS, "rate_limited"));
        let mut headers = HeaderMap::new();
        verdict.quota.unwrap().describe(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["retry-after"]);
    }
}
