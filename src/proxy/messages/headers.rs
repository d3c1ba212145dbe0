//! What may cross from one connection to the other, and what ends here. Pure: knows nothing of sockets.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use bytes::BytesMut;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, Entry, FORWARDED, HOST, LOCATION,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};

use crate::config::model::{Cost, Route as Rule, Settle};
use crate::limiter::model::limit::{Permits, RATE_MAX};
use crate::proxy::error::ProxyError;
use crate::proxy::route::path;
use crate::proxy::route::router::{normalize_host, strip};

/// How weir calls itself in `Via`. All replicas go by one name: a loop through a load balancer seldom comes
/// back to the same replica.
const PSEUDONYM: &str = "weir";
/// A request shortens its wait with it.
const WEIR_TIMEOUT: &str = "weir-timeout";
/// What begins so is between the client and weir.
const OWN_PREFIX: &str = "weir-";

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// The addresses that a request came through.
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What ends with a connection whether or not `Connection` names it (RFC 9110, 7.6.1), beside `Connection`, `TE`,
/// `Transfer-Encoding` and `Upgrade`. `Trailer` is not among them: it announces what comes behind the body, and that
/// passes.
const OTHER_HOP_BY_HOP: [HeaderName; 4] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION];

/// Which of the headers that mean something to a proxy a message has, found in one pass over their names: most have hardly
/// any, and each question to a map of headers hashes a name.
#[derive(Clone, Copy)]
pub(crate) struct Seen(u16);

impl Seen {
    const CONNECTION: Seen = Seen(1);
    const TE: Seen = Seen(1 << 1);
    const TRANSFER_ENCODING: Seen = Seen(1 << 2);
    const UPGRADE: Seen = Seen(1 << 3);
    /// Any of [`OTHER_HOP_BY_HOP`].
    const OTHER_HOP_BY_HOP: Seen = Seen(1 << 4);
    const VIA: Seen = Seen(1 << 5);
    /// The others that tell about the client's network.
    const FORWARDED: Seen = Seen(1 << 6);
    /// `weir-*`.
    const OWN: Seen = Seen(1 << 7);
    const EXPECT: Seen = Seen(1 << 8);
    const CONTENT_TYPE: Seen = Seen(1 << 9);
    const LOCATION: Seen = Seen(1 << 10);

    /// Looks at all names.
    pub(crate) fn of(headers: &HeaderMap) -> Seen {
        let marks = headers.keys().map(|name| Seen::mark(name.as_str()).0);
        Seen(marks.fold(0, |seen, mark| seen | mark))
    }

    fn mark(name: &str) -> Seen {
        match name {
            "connection" => Seen::CONNECTION,
            "te" => Seen::TE,
            "transfer-encoding" => Seen::TRANSFER_ENCODING,
            "upgrade" => Seen::UPGRADE,
            "keep-alive" | "proxy-connection" | "proxy-authenticate" | "proxy-authorization" => {
                Seen::OTHER_HOP_BY_HOP
            }
            "via" => Seen::VIA,
            "forwarded" | "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" => Seen::FORWARDED,
            "expect" => Seen::EXPECT,
            "content-type" => Seen::CONTENT_TYPE,
            "location" => Seen::LOCATION,
            _ if name.starts_with(OWN_PREFIX) => Seen::OWN,
            _ => Seen(0),
        }
    }

    fn has(self, one: Seen) -> bool {
        self.0 & one.0 != 0
    }
}

/// Refuses what a reverse proxy does not forward, before anything else is looked at.
pub(crate) fn check<B>(request: &Request<B>, seen: Seen) -> Result<(), ProxyError> {
    let asterisk = request.method() == Method::OPTIONS && request.uri().path() == "*";
    if asterisk || [Method::CONNECT, Method::TRACE].contains(request.method()) {
        return Err(ProxyError::MethodNotAllowed);
    }
    if !request.uri().path().starts_with('/') {
        return Err(ProxyError::BadRequest("the path does not begin with a slash"));
    }
    if seen.has(Seen::TRANSFER_ENCODING) {
        let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
        let is_chunked =
            codings.next().is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if !is_chunked || codings.next().is_some() {
            return Err(ProxyError::BadFraming("no transfer coding but chunked is understood"));
        }
    }
    if !seen.has(Seen::VIA) {
        return Ok(());
    }
    let vias = request.headers().get_all(VIA).iter().filter_map(|value| value.to_str().ok());
    let names = vias.flat_map(|value| value.split(',')).filter_map(|hop| hop.split_whitespace().nth(1));
    if names.into_iter().any(|name| name.eq_ignore_ascii_case(PSEUDONYM)) {
        return Err(ProxyError::Loop);
    }
    Ok(())
}

/// The authority that a request is for: of its target if it has one (RFC 9112, 3.2.2), else of `Host`.
/// `None` only for HTTP/1.0, which need not say.
pub(crate) fn authority<B>(request: &Request<B>) -> Result<Option<Authority>, ProxyError> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(ProxyError::BadRequest("more than one host"));
    }
    let host = match host.map(|host| Authority::try_from(host.as_bytes())) {
        None => None,
        Some(Ok(host)) if names_a_host(&host) => Some(host),
        Some(_) => return Err(ProxyError::BadRequest("the host is not valid")),
    };
    let target = request.uri().authority();
    if target.is_some_and(|target| !names_a_host(target)) {
        return Err(ProxyError::BadRequest("the host is not valid"));
    }
    match (target, host, request.version()) {
        (None, None, Version::HTTP_10) => Ok(None),
        (None, None, _) => Err(ProxyError::BadRequest("the host is missing")),
        (Some(_), None, Version::HTTP_11) => Err(ProxyError::BadRequest("the host is missing")),
        (Some(target), Some(host), _) if *target != host => {
            Err(ProxyError::BadRequest("two different hosts"))
        }
        (Some(target), _, _) => Ok(Some(target.clone())),
        (None, host, _) => Ok(host),
    }
}

/// Whether an authority is a host and perhaps a port: no user, no port without a host, no port that is none, and one host.
fn names_a_host(authority: &Authority) -> bool {
    let (text, host) = (authority.as_str(), authority.host());
    let port = text.strip_prefix(host).unwrap_or_default();
    let is_port = matches!(port, "" | ":") || authority.port_u16().is_some();
    !host.is_empty() && is_port && !text.contains(['@', ','])
}

/// The host of an authority, as routes are matched.
pub(crate) fn host(authority: Option<&Authority>) -> Cow<'_, str> {
    authority.map_or(Cow::Borrowed(""), |authority| normalize_host(authority.host()))
}

/// The wait that the request asked for with `weir-timeout`.
pub(crate) fn wait_max(headers: &HeaderMap, seen: Seen) -> Result<Option<Duration>, ProxyError> {
    if !seen.has(Seen::OWN) {
        return Ok(None);
    }
    let mut values = headers.get_all(WEIR_TIMEOUT).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wait = value.to_str().ok().and_then(parse_wait).filter(|_| values.next().is_none());
    wait.map(Some).ok_or(ProxyError::BadRequest("weir-timeout must be a duration such as 500ms or 2s"))
}

/// What the request costs.
pub(crate) fn cost(headers: &HeaderMap, rule: &Cost) -> Result<Permits, ProxyError> {
    let (name, default, max) = match rule {
        Cost::Fixed(cost) => return Ok(*cost),
        Cost::Header { name, default, max } => (name, *default, *max),
    };
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else { return Ok(default) };
    let cost = line.to_str().ok().filter(|_| lines.next().is_none()).and_then(parse_cost);
    let cost = cost.filter(|cost| *cost <= max);
    cost.ok_or_else(|| ProxyError::BadCost { header: name.clone(), max })
}

/// What a request has cost as its response tells it; `None` if that says nothing that can be understood.
pub(crate) fn cost_settled(status: StatusCode, headers: &HeaderMap, settle: &Settle) -> Option<u64> {
    if settle.free.contains(&status.as_u16()) {
        return Some(0);
    }
    let mut lines = headers.get_all(settle.header.as_ref()?).iter();
    let line = lines.next()?.to_str().ok().filter(|_| lines.next().is_none())?;
    let cost: u64 = line.parse().ok().filter(|_| line.bytes().all(|byte| byte.is_ascii_digit()))?;
    (cost <= u64::from(RATE_MAX)).then_some(cost)
}

/// Digits alone: Rust would also read a sign.
fn parse_cost(text: &str) -> Option<Permits> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).and_then(Permits::new)
}

/// A whole number with a unit, as in the configuration.
fn parse_wait(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|character: char| character.is_ascii_digit()).len();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit_ms).map(Duration::from_millis)
}

/// Whether the client waits for `100 Continue` before it sends its body.
pub(crate) fn expects_continue(headers: &HeaderMap, seen: Seen) -> bool {
    let expected = headers.get(EXPECT).filter(|_| seen.has(Seen::EXPECT));
    expected.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Whether the call is gRPC, whose clients understand `grpc-status` and nothing else.
pub(crate) fn is_grpc(headers: &HeaderMap, seen: Seen) -> bool {
    if !seen.has(Seen::CONTENT_TYPE) {
        return false;
    }
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let rest = kind.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| b"+;".contains(byte)))
}

/// The protocol that the client wants to change to; only HTTP/1.1 can. To another HTTP it cannot: over a connection of its own
/// it would send requests that no route and no limiter sees.
pub(crate) fn upgrade<B>(request: &Request<B>, seen: Seen) -> Option<HeaderValue> {
    let headers = request.headers();
    if !seen.has(Seen::UPGRADE) {
        return None;
    }
    let asked = request.version() == Version::HTTP_11 && lists(headers, &CONNECTION, "upgrade");
    let mut wanted = headers.get_all(UPGRADE).iter();
    let protocol = wanted.next().filter(|_| asked && wanted.next().is_none())?;
    let is_http = |protocol: &str| {
        let name = protocol.split('/').next().unwrap_or_default().trim();
        ["h2c", "h2", "h3", "http", "tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
    };
    let is_other = protocol.to_str().is_ok_and(|list| !list.split(',').any(is_http));
    is_other.then(|| protocol.clone())
}

/// Where a request comes from.
pub(crate) struct Origin<'a> {
    /// The address at the other end of the connection: what comes before it, the request says itself.
    pub(crate) peer: IpAddr,
    /// Whether it came inside TLS.
    pub(crate) secure: bool,
    /// What the client called the host.
    pub(crate) authority: Option<&'a Authority>,
    /// The protocol to change to, if it may.
    pub(crate) upgrade: Option<&'a HeaderValue>,
    /// Of the client's request.
    pub(crate) version: Version,
    /// What its headers are.
    pub(crate) seen: Seen,
}

/// Makes the headers of a client's request those of the request that goes upstream. What belongs to this
/// connection goes first, so that `Connection` cannot name a credential that the route sets.
///
/// `host` is the upstream's.
pub(crate) fn to_upstream(headers: &mut HeaderMap, rule: &Rule, host: &HeaderValue, origin: &Origin<'_>) {
    let seen = origin.seen;
    let trailers = seen.has(Seen::TE) && lists(headers, &TE, "trailers");
    if seen.has(Seen::TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers, seen);
    remove_own(headers, seen);
    forwarded(headers, rule.forwarded_headers, origin);
    match origin.authority.filter(|_| rule.preserve_host).map(|asked| HeaderValue::from_str(asked.as_str())) {
        Some(Ok(asked)) => headers.insert(HOST, asked),
        Some(Err(_)) => headers.remove(HOST),
        None => headers.insert(HOST, host.clone()),
    };
    for name in &rule.remove_headers {
        headers.remove(name);
    }
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

/// A third party learns nothing of the client's network unless the route asks for it; what the client itself
/// claims about it goes no further in either case, but for the addresses before it.
fn forwarded(headers: &mut HeaderMap, wanted: bool, origin: &Origin<'_>) {
    if origin.seen.has(Seen::FORWARDED) {
        headers.remove(FORWARDED);
        headers.remove(X_FORWARDED_PROTO);
        headers.remove(X_FORWARDED_HOST);
        if !wanted {
            headers.remove(X_FORWARDED_FOR);
        }
    }
    if !wanted {
        if origin.seen.has(Seen::VIA) {
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
    let scheme = if origin.secure { "https" } else { "http" };
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    if let Some(host) = origin.authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

/// Adds an element to a list, in one line.
fn append(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let before = headers.get_all(&name).iter().filter_map(|value| value.to_str().ok());
    let line = before.chain(std::iter::once(element)).collect::<Vec<_>>().join(", ");
    if let Ok(line) = HeaderValue::from_str(&line) {
        headers.insert(name, line);
    }
}

/// Removes what ends with this connection, and all that `Connection` names.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap, seen: Seen) {
    if seen.has(Seen::CONNECTION) {
        let lines = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        let named: Vec<HeaderName> = lines
            .flat_map(|line| line.split(',').map(str::trim))
            // What nearly all say, and no header.
            .filter(|name| !name.eq_ignore_ascii_case("keep-alive") && !name.eq_ignore_ascii_case("close"))
            .filter_map(|name| HeaderName::try_from(name).ok())
            .collect();
        named.iter().for_each(|name| drop(headers.remove(name)));
        headers.remove(CONNECTION);
    }
    let rest = [
        (Seen::TE, &[TE][..]),
        (Seen::TRANSFER_ENCODING, &[TRANSFER_ENCODING]),
        (Seen::UPGRADE, &[UPGRADE]),
        (Seen::OTHER_HOP_BY_HOP, &OTHER_HOP_BY_HOP),
    ];
    for name in rest.into_iter().filter(|(mark, _)| seen.has(*mark)).flat_map(|(_, names)| names) {
        headers.remove(name);
    }
}

/// Removes what means nothing behind a body, or something else than in front of it: what frames, routes, authenticates or modifies a
/// message, or describes its content (RFC 9110, 6.5.1). A receiver that merges trailers into the headers would be deceived.
pub(crate) fn remove_misplaced(trailers: &mut HeaderMap) {
    while let Some(name) = trailers.keys().find(|name| is_misplaced(name.as_str())).cloned() {
        trailers.remove(name);
    }
}

fn is_misplaced(name: &str) -> bool {
    let describes_content =
        matches!(name, "content-length" | "content-type" | "content-encoding" | "content-range");
    let routes =
        matches!(name, "host" | "trailer" | "via" | "location" | "retry-after" | "max-forwards" | "expect");
    let authenticates = matches!(name, "authorization" | "www-authenticate" | "cookie" | "set-cookie")
        || name.starts_with("proxy-");
    let caches = matches!(name, "cache-control" | "pragma" | "age" | "expires" | "date" | "vary" | "range");
    describes_content || routes || authenticates || caches || name.starts_with("if-")
}

/// Removes `weir-*`: what the client says to weir, and what an upstream has no business to say.
pub(crate) fn remove_own(headers: &mut HeaderMap, seen: Seen) {
    if !seen.has(Seen::OWN) {
        return;
    }
    while let Some(name) = headers.keys().find(|name| name.as_str().starts_with(OWN_PREFIX)).cloned() {
        headers.remove(name);
    }
}

/// Whether a list of tokens, over all its lines, has this one.
fn lists(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|element| {
        let element = element.split(';').next().unwrap_or_default();
        element.trim().eq_ignore_ascii_case(token)
    })
}

/// The path and query that go upstream: byte for byte as sent, less `strip_prefix`, behind the base path.
pub(crate) fn target(uri: &Uri, rule: &Rule) -> Result<PathAndQuery, ProxyError> {
    let prefix = rule.strip_prefix.as_deref().unwrap_or_default();
    let base = &*rule.upstream.base_path;
    if prefix.is_empty() && base.is_empty() {
        return Ok(uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    // A path that does not begin with the prefix goes out whole: a route may take more than it strips.
    let rest = strip(uri.path(), prefix).unwrap_or(uri.path());
    if path::climbs(rest) {
        return Err(ProxyError::BadRequest("the path leads out of the route"));
    }
    let slash = if rest.starts_with('/') { "" } else { "/" };
    let (mark, query) = uri.query().map_or(("", ""), |query| ("?", query));
    PathAndQuery::try_from(format!("{base}{slash}{rest}{mark}{query}"))
        .map_err(|_| ProxyError::BadRequest("the path is not valid"))
}

/// The form in which HTTP/1.1 sends a request: path and `Host`. Does nothing if it has that form.
pub(crate) fn to_http1<B>(request: &mut Request<B>) {
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
}

/// The form in which HTTP/2 sends a request: a whole URI and no `Host`. Does nothing if it has that form.
pub(crate) fn to_http2<B>(request: &mut Request<B>, scheme: Scheme) {
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(CONNECTION);
    request.headers_mut().remove(UPGRADE);
    let host = request.headers_mut().remove(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    if let Some(authority) = host {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(scheme);
        parts.authority = Some(authority);
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    }
}

/// Copies what the request keeps out of the buffer that its head was read into. That buffer is far larger than
/// the head, and a request that waits would hold it all the time.
pub(crate) fn compact<B>(request: &mut Request<B>) {
    let length = request.headers().values().map(HeaderValue::len).sum();
    let mut copies = BytesMut::with_capacity(length);
    for value in request.headers_mut().values_mut() {
        copies.extend_from_slice(value.as_bytes());
        // What was a value before is one again.
        if let Ok(mut copy) = HeaderValue::from_maybe_shared(copies.split().freeze()) {
            copy.set_sensitive(value.is_sensitive());
            *value = copy;
        }
    }
    if let Ok(copy) = Uri::try_from(request.uri().to_string()) {
        *request.uri_mut() = copy;
    }
}

/// HTTP/2 may send cookies in several fields, HTTP/1.1 must not (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let pieces: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Makes the headers of an upstream's response those of the response that goes to the client. `host` is the
/// `Host` that went upstream.
pub(crate) fn to_client(headers: &mut HeaderMap, rule: &Rule, host: Option<&str>) {
    let seen = Seen::of(headers);
    if seen.has(Seen::TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers, seen);
    remove_own(headers, seen);
    if !seen.has(Seen::LOCATION) {
        return;
    }
    if let Entry::Occupied(mut location) = headers.entry(LOCATION) {
        let back = location.get().to_str().ok().and_then(|location| relocate(location, rule, host));
        if let Some(back) = back.and_then(|back| HeaderValue::try_from(back).ok()) {
            location.insert(back);
        }
    }
}

/// Where a redirect to the upstream leads when it is followed through weir; `None` if it may stay as it is.
fn relocate(location: &str, rule: &Rule, host: Option<&str>) -> Option<String> {
    let upstream = &rule.upstream;
    let path = match location.split_once("://") {
        Some((scheme, rest)) if ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at_checked(end)?;
            let with_port = format!("{}:{}", upstream.host, upstream.port);
            let known = [&*upstream.authority, &with_port, host.unwrap_or_default()];
            known.iter().any(|known| authority.eq_ignore_ascii_case(known)).then_some(path)?
        }
        _ if location.starts_with('/') && !location.starts_with("//") => location,
        _ => return None,
    };
    let (path, rest) = path.split_at_checked(path.find(['?', '#']).unwrap_or(path.len()))?;
    let path = if path.is_empty() { "/" } else { path };
    let inside = strip(path, &upstream.base_path)?;
    let prefix = rule.strip_prefix.as_deref().unwrap_or_default().trim_end_matches('/');
    let slash = if inside.starts_with('/') || (inside.is_empty() && !prefix.is_empty()) { "" } else { "/" };
    Some(format!("{prefix}{slash}{inside}{rest}"))
}
