//! The forms in which the admin listener answers: text, JSON, a problem document (RFC 9457), a stream.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde::Serialize;
use serde_json::{Value, json};

/// An answer; all of them are whole before they are sent, but for a stream.
pub(super) type Response = http::Response<UnsyncBoxBody<Bytes, Infallible>>;

/// An answer of any kind. Live state must not be kept by a cache, nor be taken for something it is not.
pub(super) fn of(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = stream(content_type, Full::new(body.into()));
    *response.status_mut() = status;
    response
}

/// An answer, 200, whose body comes bit by bit.
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
