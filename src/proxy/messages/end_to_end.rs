//! The headers of a client's request as the upstream reads them, for what selects a route, a partition or a cost.
//!
//! Such a header is given once and in one form, or the request is refused. Otherwise one value would be counted and another one
//! used. Changes no header, and knows nothing of routes and limiters.

use std::borrow::Cow;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::header_flags::HeaderFlags;
use crate::proxy::error::ProxyError;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers that end with a connection even if `Connection` does not name them (RFC 9110, 7.6.1), beside `Connection`, `TE`,
/// `Transfer-Encoding` and `Upgrade`. `Trailer` passes, because trailers do.
pub(crate) const OTHER_HOP_BY_HOP: [HeaderName; 4] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION];

/// A client's headers without those that end with its connection.
pub(crate) struct EndToEnd<'a> {
    headers: &'a HeaderMap,
    /// The headers that `Connection` names.
    nominated: Vec<HeaderName>,
    /// True if the request asks for another protocol, so that `Upgrade` passes.
    upgrades: bool,
}

impl<'a> EndToEnd<'a> {
    /// Creates the view. `upgrades` is true if `Upgrade` is passed on.
    pub(crate) fn new(headers: &'a HeaderMap, flags: HeaderFlags, upgrades: bool) -> EndToEnd<'a> {
        let nominated = if flags.has(HeaderFlags::CONNECTION) { nominated(headers) } else { Vec::new() };
        EndToEnd { headers, nominated, upgrades }
    }

    /// Returns the value of a header; `None` without it.
    ///
    /// # Errors
    /// If it is there more than once, in a form that some servers take for the same (`x_tenant` for `x-tenant`), or declared as a
    /// trailer, which a server may merge into the headers.
    pub(crate) fn one(&self, name: &HeaderName) -> Result<Option<Cow<'a, [u8]>>, ProxyError> {
        let ambiguous = || ProxyError::Ambiguous { kind: "header", name: name.as_str().into() };
        // The upstream sees another form whatever `Connection` says of this one.
        let is_read_as = |other: &HeaderName| {
            other != name && is_same_variable(other.as_str(), name) && !self.ends_here(other)
        };
        if self.headers.keys().any(is_read_as) {
            return Err(ambiguous());
        }
        if self.ends_here(name) {
            return Ok(None);
        }
        let lines: Vec<_> = self.headers.get_all(name).into_iter().map(HeaderValue::as_bytes).collect();
        let value = match lines.as_slice() {
            [] => None,
            [line] => Some(Cow::Borrowed(*line)),
            // HTTP/2 may split a cookie, and it goes on as one line (RFC 9113, 8.2.3).
            pieces => Some(Cow::Owned(pieces.join(&b"; "[..]))),
        };
        let is_doubled = lines.len() > 1 && *name != COOKIE;
        if is_doubled || self.is_trailer(name) { Err(ambiguous()) } else { Ok(value) }
    }

    /// Returns whether the upstream sees a header.
    pub(crate) fn has(&self, name: &HeaderName) -> bool {
        !self.ends_here(name) && self.headers.contains_key(name)
    }

    /// Returns the elements of a comma-separated header, on all its lines; none if the upstream does not see it.
    pub(crate) fn elements(&self, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let headers = Some(self.headers).filter(|_| self.has(name));
        let name = name.clone();
        headers.into_iter().flat_map(move |headers| elements(headers, &name))
    }

    fn ends_here(&self, name: &HeaderName) -> bool {
        if *name == UPGRADE {
            return !self.upgrades;
        }
        [CONNECTION, TE, TRANSFER_ENCODING].contains(name)
            || OTHER_HOP_BY_HOP.contains(name)
            || self.nominated.contains(name)
    }

    fn is_trailer(&self, name: &HeaderName) -> bool {
        elements(self.headers, &TRAILER).any(|declared| {
            std::str::from_utf8(declared).is_ok_and(|declared| is_same_variable(declared, name))
        })
    }
}

/// Returns whether servers that turn headers into variables (CGI, WSGI, PHP) may read two names as one.
pub(crate) fn is_same_variable(one: &str, other: &HeaderName) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let other = other.as_str();
    one.len() == other.len() && one.bytes().map(folded).eq(other.bytes().map(folded))
}

/// Returns the headers that `Connection` names.
pub(crate) fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    // The common values name no header.
    let is_common =
        |value: &[u8]| value.eq_ignore_ascii_case(b"keep-alive") || value.eq_ignore_ascii_case(b"close");
    let lines = headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes);
    let names = lines.filter(|line| !is_common(line)).flat_map(split).filter(|name| !is_common(name));
    names.filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

/// Returns whether a message has the transfer coding `chunked` and no other.
pub(crate) fn is_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = codings.next().is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    is_chunked && codings.next().is_none()
}

/// Returns whether a message gives two different lengths.
pub(crate) fn contradicts_length(headers: &HeaderMap, flags: HeaderFlags) -> bool {
    if !flags.has(HeaderFlags::CONTENT_LENGTH) {
        return false;
    }
    let mut lengths = elements(headers, &CONTENT_LENGTH);
    let first = lengths.next();
    lengths.any(|length| Some(length) != first)
}

/// Returns the elements of a comma-separated header, on all its lines. An element that is no text hides no other one.
pub(crate) fn elements<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    headers.get_all(name).into_iter().flat_map(|line| split(line.as_bytes()))
}

fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::{EndToEnd, HeaderFlags};

    const TENANT: HeaderName = HeaderName::from_static("x-tenant");

    /// Returns the tenant that a request with these headers names; an error if it can be read in more than one way.
    fn tenant(lines: &[(&'static str, &[u8])]) -> Result<Option<String>, ()> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let read = EndToEnd::new(&headers, HeaderFlags::of(&headers), false);
        let value = read.one(&TENANT).map_err(|_| ())?;
        Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
    }

    #[test]
    fn a_header_has_one_value_or_is_ambiguous() {
        let a = ("x-tenant", &b"a"[..]);
        for (lines, expected) in [
            (&[][..], Ok(None)),
            (&[a], Ok(Some("a"))),
            (&[("x-tenant", b"")], Ok(Some(""))),
            (&[a, ("x-other", b"b")], Ok(Some("a"))),
            (&[a, ("x-tenant", b"a")], Err(())),
            (&[a, ("x_tenant", b"b")], Err(())),
            (&[("x_tenant", b"b")], Err(())),
            (&[a, ("trailer", b"X-Tenant")], Err(())),
            (&[a, ("trailer", b"x-checksum, x_tenant")], Err(())),
            (&[a, ("trailer", b"\xff, x-tenant")], Err(())),
            (&[a, ("trailer", b"x-checksum")], Ok(Some("a"))),
            (&[a, ("connection", b"keep-alive")], Ok(Some("a"))),
            (&[a, ("connection", b"X-Tenant")], Ok(None)),
            (&[a, ("connection", b"\xff, x-tenant")], Ok(None)),
            (&[a, ("x_tenant", b"b"), ("connection", b"x-tenant")], Err(())),
            (&[("x_tenant", b"b"), ("connection", b"x-tenant")], Err(())),
            (&[a, ("x_tenant", b"b"), ("connection", b"x_tenant")], Ok(Some("a"))),
            (&[a, ("x_tenant", b"b"), ("connection", b"x-tenant, x_tenant")], Ok(None)),
            (&[a, ("connection", b"x-other"), ("connection", b"close,\tx-tenant ,")], Ok(None)),
        ] {
            let expected = expected.map(|value| value.map(str::to_owned));
            assert_eq!(tenant(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_header_that_ends_with_the_connection_has_no_value() {
        let mut headers = HeaderMap::new();
        let ended = ["keep-alive", "te", "proxy-authorization", "upgrade"].map(HeaderName::from_static);
        for name in &ended {
            headers.insert(name, HeaderValue::from_static("a"));
        }
        let flags = HeaderFlags::of(&headers);
        let read = EndToEnd::new(&headers, flags, false);
        assert!(ended.iter().all(|name| matches!(read.one(name), Ok(None))));
        let upgrading = EndToEnd::new(&headers, flags, true);
        assert!(matches!(upgrading.one(&http::header::UPGRADE), Ok(Some(_))));
    }
}
