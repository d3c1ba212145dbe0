//! The forms of an answer: text, JSON, a problem document (RFC 9457), a stream.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde::Serialize;
use serde_json::{Value, json};

/// An answer. All but streams are complete before they are sent.
pub(super) type Response = http::Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Returns a complete answer. No answer may be cached, and browsers must not guess its type.
pub(super) fn of(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = stream(content_type, Full::new(body.into()));
    *response.status_mut() = status;
    response
}

/// Returns an answer, 200, with a streaming body.
pub(super) fn stream(
    content_type: &'static str,
    body: impl Body<Data = Bytes, Error = Infallible> + Send + 'static,
) -> Response {
    let mut response = Response::new(body.boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns a line of text.
pub(super) fn line(status: StatusCode, text: &str) -> Response {
    of(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

/// Returns a JSON document, 200, with its members in the order of the type's fields.
pub(super) fn document<T: Serialize>(value: &T) -> Response {
    match serde_json::to_string_pretty(value) {
        Ok(text) => of(StatusCode::OK, "application/json", text + "\n"),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Returns a problem document.
pub(super) fn problem(status: StatusCode, detail: &str) -> Response {
    problem_with(status, detail, json!({}))
}

/// Returns a problem document with further members. `members` must be an object.
pub(super) fn problem_with(status: StatusCode, detail: &str, mut members: Value) -> Response {
    members["type"] = "about:blank".into();
    members["title"] = status.canonical_reason().into();
    members["status"] = status.as_u16().into();
    members["detail"] = detail.into();
    of(status, "application/problem+json", format!("{members:#}\n"))
}
