//! Translates headers between the client's connection and the upstream's: what passes, what ends at weir, what weir adds.
//!
//! Knows nothing of paths, sockets and the version of HTTP on either side.

use std::net::IpAddr;

use http::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING, UPGRADE, VIA};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use super::end_to_end::{self, OTHER_HOP_BY_HOP};
use super::header_flags::{HeaderFlags, OWN_PREFIX, is_forwarded};
use super::request_head::{PSEUDONYM, lists};
use crate::config::model::Route as Rule;

/// The addresses of the proxies and the client that a request has passed.
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The scheme that a proxy was called by.
pub(crate) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The host that a proxy was asked for.
pub(crate) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The client's side of a request, for the headers that describe it.
pub(crate) struct Origin<'a> {
    /// The address at the other end of the connection. Earlier addresses are in `X-Forwarded-For`.
    pub(crate) peer: IpAddr,
    /// True if the request came over TLS.
    pub(crate) secure: bool,
    /// The authority that the client asked for.
    pub(crate) authority: Option<&'a Authority>,
    /// The scheme and authority at which the caller reaches weir, if they are not those of its request.
    pub(crate) reached_at: Option<&'a str>,
    /// The protocol to switch to, if the client wants that and the upstream can.
    pub(crate) upgrade: Option<&'a HeaderValue>,
    /// The version of the client's request.
    pub(crate) version: Version,
    /// The flags of the client's headers.
    pub(crate) flags: HeaderFlags,
}

/// Turns the headers of a client's request into those for the upstream, whose `Host` is `host`.
///
/// Hop-by-hop headers go first, so that `Connection` cannot name a credential that the route sets.
pub(crate) fn to_upstream(headers: &mut HeaderMap, rule: &Rule, host: &HeaderValue, origin: &Origin<'_>) {
    let flags = origin.flags;
    let trailers = flags.has(HeaderFlags::TE) && lists(headers, &TE, "trailers");
    remove_connection_bound(headers, flags);
    forwarded(headers, rule.forwarded_headers, origin);
    match origin.authority.filter(|_| rule.preserve_host).map(|asked| HeaderValue::from_str(asked.as_str())) {
        Some(Ok(asked)) => headers.insert(HOST, asked),
        Some(Err(_)) => headers.remove(HOST),
        None => headers.insert(HOST, host.clone()),
    };
    if rule.settles().any(|settle| settle.reads_bodies()) {
        // So that the body can be looked into.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    remove_replaced(headers, rule);
    for (name, value) in &rule.set_headers {
        headers.insert(name, value.clone());
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = origin.upgrade {
        headers.insert(UPGRADE, protocol.clone());
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Removes the headers that the route sets or removes, also in a form that some servers take for the same.
fn remove_replaced(headers: &mut HeaderMap, rule: &Rule) {
    let set = rule.set_headers.iter().map(|(name, _)| name);
    let replaced = || rule.remove_headers.iter().chain(set.clone());
    let has_forms = |name: &HeaderName| name.as_str().contains('_');
    if replaced().any(has_forms) || (replaced().next().is_some() && headers.keys().any(has_forms)) {
        remove_variables(headers, replaced);
    } else {
        rule.remove_headers.iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// Turns the headers of an upstream's response into those for the client. `Location` is left to
/// [`crate::proxy::route::rewrite`].
pub(crate) fn to_client(headers: &mut HeaderMap, flags: HeaderFlags) {
    remove_connection_bound(headers, flags);
}

/// Removes what concerns one connection or weir alone, and a length beside a transfer coding (RFC 9112, 6.3).
fn remove_connection_bound(headers: &mut HeaderMap, flags: HeaderFlags) {
    if flags.has(HeaderFlags::TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    } else if flags.has(HeaderFlags::CONTENT_LENGTH) {
        unite_lengths(headers);
    }
    remove_hop_by_hop(headers, flags);
    remove_own(headers, flags);
}

/// Writes a length that is given several times once, and none that contradicts itself (RFC 9110, 8.6).
fn unite_lengths(headers: &mut HeaderMap) {
    let mut lengths = end_to_end::elements(headers, &CONTENT_LENGTH);
    let (Some(first), Some(second)) = (lengths.next(), lengths.next()) else { return };
    let is_one = first == second && lengths.all(|length| length == first);
    let length = HeaderValue::from_bytes(first).ok().filter(|_| is_one);
    drop(lengths);
    match length {
        Some(length) => headers.insert(CONTENT_LENGTH, length),
        None => headers.remove(CONTENT_LENGTH),
    };
}

/// Writes or removes the headers about the client's network.
///
/// A third party learns nothing of that network unless the route says so. Of the client's own claims only the earlier
/// addresses of `X-Forwarded-For` and the earlier hops of `Via` pass, and only then.
fn forwarded(headers: &mut HeaderMap, wanted: bool, origin: &Origin<'_>) {
    if origin.flags.has(HeaderFlags::FORWARDED) {
        remove_all(headers, |name| is_forwarded(name.as_str()) && !(wanted && *name == X_FORWARDED_FOR));
    }
    if !wanted {
        if origin.flags.has(HeaderFlags::VIA) {
            headers.remove(VIA);
        }
        return;
    }
    append(headers, X_FORWARDED_FOR, &origin.peer.to_canonical().to_string());
    append(
        headers,
        VIA,
        &format!("{} {PSEUDONYM}", if origin.version == Version::HTTP_2 { "2.0" } else { "1.1" }),
    );
    let own = if origin.secure { "https" } else { "http" };
    // The word of a trusted proxy about the caller is true behind weir as well: an application that wants TLS would redirect for ever.
    let (scheme, host) = match origin.reached_at.and_then(|url| url.split_once("://")) {
        Some((scheme, host)) => (scheme, Some(host)),
        None => (own, origin.authority.map(Authority::as_str)),
    };
    headers.insert(
        X_FORWARDED_PROTO,
        HeaderValue::from_static(if scheme == "https" { "https" } else { "http" }),
    );
    if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

/// Adds an element to a list and writes the list on one line.
fn append(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let before = headers.get_all(&name).iter().filter_map(|value| value.to_str().ok());
    let line = before.chain(std::iter::once(element)).collect::<Vec<_>>().join(", ");
    if let Ok(line) = HeaderValue::from_str(&line) {
        headers.insert(name, line);
    }
}

/// Removes the hop-by-hop headers and every header that `Connection` names.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap, flags: HeaderFlags) {
    if flags.has(HeaderFlags::CONNECTION) {
        end_to_end::nominated(headers).iter().for_each(|name| drop(headers.remove(name)));
        headers.remove(CONNECTION);
    }
    if flags.has(HeaderFlags::TE) {
        headers.remove(TE);
    }
    if flags.has(HeaderFlags::TRANSFER_ENCODING) {
        headers.remove(TRANSFER_ENCODING);
    }
    if flags.has(HeaderFlags::UPGRADE) {
        headers.remove(UPGRADE);
    }
    if flags.has(HeaderFlags::OTHER_HOP_BY_HOP) {
        OTHER_HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// Removes `weir-*`: the client's requests to weir, and an upstream's attempts to speak as weir.
pub(crate) fn remove_own(headers: &mut HeaderMap, flags: HeaderFlags) {
    if !flags.has(HeaderFlags::OWN) {
        return;
    }
    remove_all(headers, |name| name.as_str().starts_with(OWN_PREFIX));
}

/// Removes trailers that must not be trailers: those that frame, route, authenticate or modify a message, or describe its
/// content (RFC 9110, 6.5.1). They would deceive a receiver that merges trailers into the headers.
pub(crate) fn remove_misplaced(trailers: &mut HeaderMap) {
    remove_all(trailers, |name| is_misplaced(name.as_str()));
}

/// Removes the headers or trailers of these names, also in a form that some servers take for the same.
pub(crate) fn remove_variables<'n, N: Iterator<Item = &'n HeaderName>>(
    headers: &mut HeaderMap,
    names: impl Fn() -> N,
) {
    remove_all(headers, |header| names().any(|name| end_to_end::is_same_variable(header.as_str(), name)));
}

/// Removes the headers whose names satisfy a condition.
fn remove_all(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    // In one pass: how many names there are a client chooses.
    let removed: Vec<HeaderName> = headers.keys().filter(|name| is_removed(name)).cloned().collect();
    for name in removed {
        headers.remove(name);
    }
}

fn is_misplaced(name: &str) -> bool {
    let describes_content =
        matches!(name, "content-length" | "content-type" | "content-encoding" | "content-range");
    let routes = is_forwarded(name)
        || matches!(
            name,
            "host" | "trailer" | "via" | "location" | "retry-after" | "max-forwards" | "expect"
        );
    let authenticates = matches!(name, "authorization" | "www-authenticate" | "cookie" | "set-cookie")
        || name.starts_with("proxy-");
    let caches = matches!(name, "cache-control" | "pragma" | "age" | "expires" | "date" | "vary" | "range");
    describes_content || routes || authenticates || caches || name.starts_with("if-")
}
