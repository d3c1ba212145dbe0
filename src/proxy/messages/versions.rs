//! Writes a request in the form of the HTTP version that carries it, and in a form that takes little memory.
//!
//! Knows nothing of routes and connections.

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use http_body::Body;

/// Gives a request the form of HTTP/1.1: a path, `Host`, and the length of its body. A request that has it already stays as it is.
pub(crate) fn to_http1<B: Body>(request: &mut Request<B>) {
    *request.version_mut() = Version::HTTP_11;
    if let Some(authority) = request.uri().authority() {
        let host = HeaderValue::from_str(authority.as_str());
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
        host.into_iter().for_each(|host| drop(request.headers_mut().insert(HOST, host)));
    }
    let headers = request.headers_mut();
    if headers.contains_key(TE) && !headers.contains_key(CONNECTION) {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    join_cookies(headers);
    frame_body(request);
}

/// Frames a body where hyper does not: it sends no body of unknown length with a GET or a HEAD, and no length with a POST that has no
/// body, which some servers refuse (RFC 9110, 8.6).
fn frame_body<B: Body>(request: &mut Request<B>) {
    let (name, value) = if request.body().is_end_stream() {
        if ![Method::POST, Method::PUT, Method::PATCH].contains(request.method()) {
            return;
        }
        (CONTENT_LENGTH, "0")
    } else if request.body().size_hint().exact().is_none() {
        (TRANSFER_ENCODING, "chunked")
    } else {
        return;
    };
    // Last, because few requests come this far, and a lookup hashes the name.
    if !request.headers().contains_key(CONTENT_LENGTH) {
        request.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}

/// Gives a request the form of HTTP/2: a whole URI, no `Host`, and no transfer coding. A request that has it already stays as it is.
pub(crate) fn to_http2<B>(request: &mut Request<B>, scheme: Scheme) {
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(CONNECTION);
    request.headers_mut().remove(UPGRADE);
    request.headers_mut().remove(TRANSFER_ENCODING);
    let host = request.headers_mut().remove(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    if let Some(authority) = host {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(scheme);
        parts.authority = Some(authority);
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    }
}

/// Copies values and URI out of the read buffer of the head. That buffer is far larger than the head, and a waiting request
/// would hold it all the time.
pub(crate) fn compact<B>(request: &mut Request<B>) {
    let length = request.headers().values().map(HeaderValue::len).sum();
    let mut copies = BytesMut::with_capacity(length);
    for value in request.headers_mut().values_mut() {
        copies.extend_from_slice(value.as_bytes());
        // The copy is always valid: its bytes are those of a header value.
        if let Ok(mut copy) = HeaderValue::from_maybe_shared(copies.split().freeze()) {
            copy.set_sensitive(value.is_sensitive());
            *value = copy;
        }
    }
    if let Ok(copy) = Uri::try_from(request.uri().to_string()) {
        *request.uri_mut() = copy;
    }
}

/// Joins the lines of `Cookie`: HTTP/2 may split them, HTTP/1.1 must not (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let pieces: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}
