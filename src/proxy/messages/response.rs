//! Turns errors into the responses that weir makes itself, and reads the status codes of others.
//!
//! The only file of the proxy with status codes. Sends nothing, and knows nothing of logs and metrics.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::form::{Names, Reader, Words};
use super::limit_headers::{RATELIMIT, RATELIMIT_POLICY, policies, state};
use crate::clock::{Micros, millis};
use crate::config::model::Errors;
use crate::limiter::Refusal;
use crate::limiter::model::{Limiter, LimiterName};
use crate::proxy::error::ProxyError;
use crate::telemetry::Outcome;

/// The status, in metrics and logs, of a request whose client left before the response.
pub(crate) const CLIENT_LEFT: u16 = 499;
/// The status of a response that switches the connection to another protocol.
pub(crate) const SWITCHING_PROTOCOLS: StatusCode = StatusCode::SWITCHING_PROTOCOLS;

/// The status by which Anthropic says that it is overloaded.
const OVERLOADED: u16 = 529;

const WEIR_ERROR: HeaderName = HeaderName::from_static("weir-error");
const WEIR_WAIT_MS: HeaderName = HeaderName::from_static("weir-wait-ms");
const WEIR_CLASS: HeaderName = HeaderName::from_static("weir-class");
const WEIR_QUEUE_POSITION: HeaderName = HeaderName::from_static("weir-queue-position");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The problem type of every 429, from draft-ietf-httpapi-ratelimit-headers-10.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The title of [`QUOTA_EXCEEDED`] in the same draft.
const QUOTA_EXCEEDED_TITLE: &str = "Request cannot be satisfied as assigned quota has been exceeded";
/// The time after which a request comes back for which there was no memory. Nobody knows when there is some again.
const MEMORY_RETRY: Micros = Micros::from_millis(1000);
/// The `WWW-Authenticate` of a 401.
const CHALLENGE: &str = "Bearer realm=\"weir\"";

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
    /// The time until a retry is worthwhile, if that is known.
    retry_after: Option<Micros>,
    quota: Option<SpentQuota<'a>>,
}

/// The additional parts of a 429.
struct SpentQuota<'a> {
    name: &'a LimiterName,
    limiter: Option<&'a Limiter>,
    /// The policy that refused, such as `github:900/1m`.
    violated: Option<String>,
    /// The permits that it has left: too few for the request.
    available: u64,
}

/// Makes the response to a request that was not forwarded.
pub(crate) fn refuse(error: &ProxyError, reader: Reader, errors: Errors) -> Refused {
    let verdict = verdict(error);
    let mut response = respond(&verdict, reader, errors);
    let headers = response.headers_mut();
    headers.insert(WEIR_ERROR, HeaderValue::from_static(verdict.code));
    if let ProxyError::Refused { class, .. } = error {
        add_class(headers, class.as_deref());
    }
    if matches!(error, ProxyError::BadFraming(_)) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(delay) = verdict.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds_up(delay)));
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(delay.millis_up()));
    }
    if let Some(quota) = &verdict.quota {
        quota.describe(headers, verdict.retry_after.unwrap_or_default());
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

/// Returns the status of an error, its `weir-error`, and its words for the client.
pub(crate) fn outline(error: &ProxyError) -> (u16, &'static str, String) {
    let verdict = verdict(error);
    (verdict.status.as_u16(), verdict.code, verdict.detail)
}

/// Writes `weir-wait-ms` if the request waited, `weir-class` if callers share the quota, and `weir-queue-position` if the place is known.
pub(crate) fn add_wait(
    headers: &mut HeaderMap,
    (waited, place): (Duration, Option<u64>),
    class: impl FnOnce() -> Option<Arc<str>>,
) {
    if !waited.is_zero() {
        headers.insert(WEIR_WAIT_MS, HeaderValue::from(millis(waited)));
        add_class(headers, class().as_deref());
        add_position(headers, place);
    }
}

/// Writes `weir-queue-position`, if the place of the request in the queue when it entered is known.
pub(crate) fn add_position(headers: &mut HeaderMap, place: Option<u64>) {
    headers.extend(place.map(|place| (WEIR_QUEUE_POSITION, HeaderValue::from(place))));
}

/// Writes `weir-class`. The name of a class is a valid value.
fn add_class(headers: &mut HeaderMap, class: Option<&str>) {
    let value = class.and_then(|class| HeaderValue::from_str(class).ok());
    headers.extend(value.map(|value| (WEIR_CLASS, value)));
}

/// Returns the `Content-Length` of a 304, which has no body (RFC 9110, 15.4.5).
pub(crate) fn length_unsent(status: StatusCode, headers: &HeaderMap) -> Option<u64> {
    if status != StatusCode::NOT_MODIFIED {
        return None;
    }
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Returns whether a response says that the upstream has done nothing of what was asked.
pub(crate) fn is_before_any_work(status: StatusCode) -> bool {
    status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE || status.as_u16() == OVERLOADED
}

/// Returns whether an upstream's response says that its quota is spent.
pub(crate) fn is_rejection(status: StatusCode, headers: &HeaderMap) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS
        || (status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key(RETRY_AFTER))
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
        ProxyError::Refused { refusal, limiter, wait, .. } => {
            return refused(refusal, limiter.as_deref(), wait.as_deref());
        }
        ProxyError::BadRequest(_)
        | ProxyError::BadFraming(_)
        | ProxyError::BadCost { .. }
        | ProxyError::Ambiguous { .. } => (StatusCode::BAD_REQUEST, "bad_request", Refused),
        ProxyError::MethodNotAllowed(_) => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", Refused),
        ProxyError::UnknownClient => (StatusCode::UNAUTHORIZED, "unknown_client", Refused),
        ProxyError::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden", Refused),
        ProxyError::NoRoute => (StatusCode::NOT_FOUND, "no_route", Refused),
        ProxyError::Loop => (StatusCode::LOOP_DETECTED, "loop", Refused),
        ProxyError::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining", Refused),
        ProxyError::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout", Failed),
        ProxyError::ClientGone => (StatusCode::BAD_REQUEST, "bad_request", Cancelled),
        ProxyError::NoBodyMemory => (StatusCode::TOO_MANY_REQUESTS, "queue_full", Refused),
        ProxyError::UpstreamUnavailable { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "upstream_unavailable", Refused)
        }
        ProxyError::UpstreamConnect(_) => (StatusCode::BAD_GATEWAY, "upstream_connect", Failed),
        ProxyError::UpstreamClosed
        | ProxyError::UpstreamProtocol(_)
        | ProxyError::UpstreamCoding
        | ProxyError::UpgradeUnasked => (StatusCode::BAD_GATEWAY, "upstream_protocol", Failed),
        ProxyError::UpstreamTimeout => (StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", Failed),
    };
    // The cause is for the log alone, because it may name addresses.
    let detail = match error {
        ProxyError::UpstreamConnect(_) => "the upstream could not be reached".to_owned(),
        ProxyError::UpstreamProtocol(_) => "the upstream's answer was not understood".to_owned(),
        other => other.to_string(),
    };
    let retry_after = match error {
        ProxyError::UpstreamUnavailable { retry_after } => Some(Micros::from(*retry_after)),
        ProxyError::NoBodyMemory => Some(MEMORY_RETRY),
        _ => None,
    };
    Verdict { status, code, outcome, detail, retry_after, quota: None }
}

fn refused<'a>(refusal: &'a Refusal, limiter: Option<&'a Limiter>, wait: Option<&str>) -> Verdict<'a> {
    let name = refusal.limiter();
    let wait = wait.map_or_else(|| "the wait".to_owned(), |wait| ["the wait of ", wait].concat());
    let quota = |limit: usize, available: u64| {
        let violated = limiter.and_then(|limiter| limiter.limits.get(limit));
        let violated = violated.map(|limit| [name.as_str(), ":", &limit.label].concat());
        Some(SpentQuota { name, limiter, violated, available })
    };
    let retry_after = match refusal {
        Refusal::RateLimited { retry_after, .. }
        | Refusal::Paused { retry_after, .. }
        | Refusal::QueueFull { retry_after, .. } => Some(*retry_after),
        Refusal::StoreUnavailable { .. } | Refusal::CostExceedsLimit { .. } | Refusal::Closed { .. } => None,
    };
    let (status, code, detail, quota) = match refusal {
        Refusal::RateLimited { limit, available, .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limited",
            ["limiter ", name.as_str(), " has no permit within ", &wait].concat(),
            quota(*limit, *available),
        ),
        Refusal::Paused { .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "paused",
            ["limiter ", name.as_str(), " is paused for longer than ", &wait].concat(),
            Some(SpentQuota { name, limiter, violated: None, available: 0 }),
        ),
        Refusal::QueueFull { limit, available, .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "queue_full",
            ["the queue of limiter ", name.as_str(), " is full"].concat(),
            quota(*limit, *available),
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
    Verdict { status, code, outcome: Outcome::Refused, detail, retry_after, quota }
}

/// Makes the response in the form that its reader understands.
fn respond(verdict: &Verdict<'_>, reader: Reader, errors: Errors) -> Response<Bytes> {
    let quota = verdict.quota.as_ref();
    let message = verdict.message();
    let words = Words {
        status: verdict.status.as_u16(),
        names: names(verdict.status),
        code: verdict.code,
        problem_type: quota.map_or("about:blank", |_| QUOTA_EXCEEDED),
        title: quota.map_or(verdict.status.canonical_reason().unwrap_or_default(), |_| QUOTA_EXCEEDED_TITLE),
        detail: &verdict.detail,
        message: &message,
        limiter: quota.map(|quota| quota.name.as_str()),
        violated: quota.and_then(|quota| quota.violated.as_deref()),
        retry_after: verdict.retry_after,
    };
    let written = words.write(reader, errors);
    let mut response = Response::new(written.body.into());
    *response.headers_mut() = written.headers;
    if written.has_status {
        *response.status_mut() = verdict.status;
    }
    if let Some(length) = written.length {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// Returns the vendors' names for an error. To AWS and Notion, none says that an object does not exist, because programs take that for
/// a result. Clients of gRPC try again after 14 (UNAVAILABLE), so what will never pass has another code; what may pass later has it.
fn names(status: StatusCode) -> Names {
    let (kind, google, grpc, aws, notion) = match status {
        StatusCode::TOO_MANY_REQUESTS => {
            ("rate_limit_error", "RESOURCE_EXHAUSTED", 8, "ThrottlingException", "rate_limited")
        }
        StatusCode::UNAUTHORIZED => {
            ("authentication_error", "UNAUTHENTICATED", 16, "AccessDeniedException", "unauthorized")
        }
        StatusCode::FORBIDDEN => {
            ("permission_error", "PERMISSION_DENIED", 7, "AccessDeniedException", "restricted_resource")
        }
        StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => {
            ("invalid_request_error", "INVALID_ARGUMENT", 3, "ValidationException", "invalid_request")
        }
        StatusCode::NOT_FOUND => {
            ("not_found_error", "UNIMPLEMENTED", 12, "NoRouteException", "invalid_request_url")
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => {
            ("timeout_error", "DEADLINE_EXCEEDED", 14, "RequestTimeoutException", "gateway_timeout")
        }
        StatusCode::LOOP_DETECTED => {
            ("api_error", "INTERNAL", 13, "InternalFailureException", "internal_server_error")
        }
        _ => ("api_error", "UNAVAILABLE", 14, "ServiceUnavailableException", "service_unavailable"),
    };
    Names { kind, google, grpc, aws, notion }
}

impl Verdict<'_> {
    /// Returns one sentence that says who refused, why, and when to come back: what a developer sees in the exception of an SDK.
    fn message(&self) -> String {
        let refused = if self.outcome == Outcome::Refused { "refused this request" } else { "has no answer" };
        let when = self.retry_after.map_or_else(String::new, |delay| match delay.millis_up() {
            millis @ ..10_000 => format!("; try again in {millis} ms"),
            millis => format!("; try again in {} s", millis.div_ceil(1000)),
        });
        format!("weir, the proxy in front of this API, {refused}: {}{when}", self.detail)
    }
}

impl SpentQuota<'_> {
    /// Writes `RateLimit-Policy` and `RateLimit`.
    fn describe(&self, headers: &mut HeaderMap, retry_after: Micros) {
        let policies = self.limiter.map(policies).filter(|policies| !policies.is_empty());
        if let Some(Ok(policies)) = policies.map(HeaderValue::try_from) {
            headers.insert(RATELIMIT_POLICY, policies);
        }
        let limit = self.violated.as_deref().map(|policy| state(policy, self.available, retry_after));
        if let Some(Ok(limit)) = limit.map(HeaderValue::try_from) {
            headers.insert(RATELIMIT, limit);
        }
    }
}

/// Returns a delay in whole seconds, rounded up: no client asks again too early.
fn seconds_up(delay: Micros) -> u64 {
    delay.0.div_ceil(1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use regex::Regex;

    use super::*;
    use crate::limiter::model::{Algorithm, CalendarWindows, Limit, Period, Permits};

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
        let refusal = Refusal::RateLimited {
            limiter: limiter.name.clone(),
            limit: 1,
            available: 7,
            retry_after: Micros(1),
        };
        let verdict = refused(&refusal, Some(&limiter), None);
        let mut headers = HeaderMap::new();
        let retry_after = verdict.retry_after.unwrap();
        verdict.quota.unwrap().describe(&mut headers, retry_after);
        let policies = headers[RATELIMIT_POLICY].to_str().unwrap();
        let expected = "\"a.b_c-d:10/1500ms\";q=10, \"a.b_c-d:10/1m token_bucket\";q=10;w=60, \
                        \"a.b_c-d:10/1d Europe/Berlin\";q=10;w=86400, \"a.b_c-d:10/1w\";q=10;w=604800, \
                        \"a.b_c-d:10/1mo\";q=10, \"a.b_c-d:10/2s\";q=10;w=2";
        // A warm-up reports the rate of a warm limit, and no warm-up.
        assert_eq!(policies, expected);
        // A list of strings with integer parameters (RFC 9651).
        let item = r#""[ !\x23-\x5b\x5d-\x7e]*"(;[a-z]+=-?[0-9]{1,15})*"#;
        assert!(Regex::new(&format!("^{item}(, {item})*$")).unwrap().is_match(policies));
        assert_eq!(headers[RATELIMIT], "\"a.b_c-d:10/1m token_bucket\";r=7;t=1");
    }

    #[test]
    fn a_removed_limiter_is_still_named() {
        let name = LimiterName::parse("gone").unwrap();
        let refusal = Refusal::RateLimited { limiter: name, limit: 0, available: 0, retry_after: Micros(1) };
        let verdict = refused(&refusal, None, None);
        assert_eq!((verdict.status, verdict.code), (StatusCode::TOO_MANY_REQUESTS, "rate_limited"));
        let mut headers = HeaderMap::new();
        let retry_after = verdict.retry_after.unwrap();
        verdict.quota.unwrap().describe(&mut headers, retry_after);
        assert!(headers.is_empty());
    }
}
