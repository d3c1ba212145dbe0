//! The forms in which the admin listener answers: text, JSON, a problem document (RFC 9457).

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use serde_json::{Value, json};

/// An answer; all of them are whole before they are sent.
pub(super) type Response = http::Response<Full<Bytes>>;

/// An answer of any kind. Live state must not be kept by a cache, nor be taken for something it is not.
pub(super) fn of(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A line of text.
pub(super) fn line(status: StatusCode, text: &str) -> Response {
    of(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

/// A JSON document, 200; its members in the order of the type.
pub(super) fn document<T: Serialize>(value: &T) -> Response {
    match serde_json::to_string_pretty(value) {
        Ok(text) => of(StatusCode::OK, "application/json", text + "\n"),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// A problem that `detail` explains.
pub(super) fn problem(status: StatusCode, detail: &str) -> Response {
    problem_with(status, detail, json!({}))
}

/// A problem with members beyond the usual ones; `members` is an object.
pub(super) fn problem_with(status: StatusCode, detail: &str, mut members: Value) -> Response {
    members["type"] = "about:blank".into();
    members["title"] = status.canonical_reason().into();
    members["status"] = status.as_u16().into();
    members["detail"] = detail.into();
    of(status, "application/problem+json", format!("{members:#}\n"))
}
