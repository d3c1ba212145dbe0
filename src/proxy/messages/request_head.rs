//! Reads the head of a client's request: what must not be forwarded, the authority, and what the request asks weir for.
//!
//! Changes no header but `Host`, and knows nothing of routes and sockets.

use std::borrow::Cow;
use std::fmt::Display;

use http::header::{ACCEPT, CONNECTION, CONTENT_TYPE, EXPECT, HOST, UPGRADE, VIA};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};

use super::body_facts::Body;
use super::end_to_end::{EndToEnd, contradicts_length, elements, is_chunked};
use super::header_flags::HeaderFlags;
use crate::config::model::{Cost, Estimate, Route};
use crate::config::units;
use crate::limiter::model::{Costs, Permits};
use crate::proxy::error::ProxyError;
use crate::proxy::messages::estimate::{Bounds, estimate};

/// The name of weir in `Via`. All replicas share it, because a loop through a load balancer seldom returns to the same
/// replica.
pub(crate) const PSEUDONYM: &str = "weir";

/// The answer to a client that has weir as its proxy for `https://`.
const NO_TUNNEL: &str = "CONNECT is not forwarded, because no limiter sees what is inside a tunnel; set weir's address as the base URL \
                         (or endpoint) of the client, in place of a proxy for https";

/// Refuses requests that a reverse proxy must not forward: CONNECT, TRACE, `OPTIONS *`, an unknown transfer coding, and a
/// request that has passed weir before.
pub(crate) fn check<B>(request: &Request<B>, flags: HeaderFlags) -> Result<(), ProxyError> {
    // Not all servers heed the case of a method.
    let is = |method: Method| request.method().as_str().eq_ignore_ascii_case(method.as_str());
    let asterisk = request.uri().path() == "*" && is(Method::OPTIONS);
    if is(Method::CONNECT) {
        return Err(ProxyError::MethodNotAllowed(NO_TUNNEL));
    }
    if asterisk || is(Method::TRACE) {
        return Err(ProxyError::MethodNotAllowed("this method is not forwarded"));
    }
    if !request.uri().path().starts_with('/') {
        return Err(ProxyError::BadRequest("the path does not begin with a slash"));
    }
    if flags.has(HeaderFlags::TRANSFER_ENCODING) && !is_chunked(request.headers()) {
        return Err(ProxyError::BadFraming("no transfer coding but chunked is understood"));
    }
    if contradicts_length(request.headers(), flags) {
        return Err(ProxyError::BadFraming("two different lengths of the body"));
    }
    if flags.has(HeaderFlags::VIA) && has_passed(request.headers()) {
        return Err(ProxyError::Loop);
    }
    Ok(())
}

fn has_passed(headers: &HeaderMap) -> bool {
    let vias = headers.get_all(VIA).iter().filter_map(|value| value.to_str().ok());
    let mut names = vias.flat_map(|value| value.split(',')).filter_map(|hop| hop.split_whitespace().nth(1));
    names.any(|name| name.eq_ignore_ascii_case(PSEUDONYM))
}

/// Replaces `Host` by the authority of the target, if that has one (RFC 9112, 3.2.2).
///
/// It comes before all else, so that routes, keys and the upstream have one authority, whichever of the two they read. What is no valid
/// host stays, and [`authority`] refuses it; so does another host over HTTP/2, where nobody may send one (RFC 9113, 8.3.1).
pub(crate) fn unify_host<B>(request: &mut Request<B>) {
    let Some(target) = request.uri().authority().filter(|target| names_a_host(target)) else { return };
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return };
    if host == target.as_str() {
        return;
    }
    let Some(host) = Authority::try_from(host.as_bytes()).ok().filter(names_a_host) else { return };
    let may_differ = request.version() < Version::HTTP_2;
    if (may_differ || is_same(target, &host, request.uri().scheme()))
        && let Ok(target) = HeaderValue::from_str(target.as_str())
    {
        request.headers_mut().insert(HOST, target);
    }
}

/// Returns the authority of a request: of its target if that has one, else of `Host`.
///
/// `None` occurs only in HTTP/1.0, where both may be absent.
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
        (Some(target), Some(host), _) if !is_same(target, &host, request.uri().scheme()) => {
            Err(ProxyError::BadRequest("two different hosts"))
        }
        (Some(target), _, _) => Ok(Some(target.clone())),
        (None, host, _) => Ok(host),
    }
}

/// Returns whether two authorities are one; a port that is not there is that of the scheme.
fn is_same(one: &Authority, other: &Authority, scheme: Option<&Scheme>) -> bool {
    let default = if scheme == Some(&Scheme::HTTPS) { 443 } else { 80 };
    let parts = |authority| {
        let (host, port) = host_and_rest(authority);
        (host, port.strip_prefix(':').and_then(|port| port.parse().ok()).unwrap_or(default))
    };
    let ((host, port), (other_host, other_port)) = (parts(one), parts(other));
    host.eq_ignore_ascii_case(other_host) && port == other_port
}

/// Returns whether an authority is one host with an optional valid port, and has no user.
pub(crate) fn names_a_host(authority: &Authority) -> bool {
    let (host, rest) = host_and_rest(authority);
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    let is_bare = !authority.as_str().bytes().any(|byte| matches!(byte, b'@' | b','));
    is_bare && !host.is_empty() && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

/// Returns the host of an authority that has no user, and what follows it: nothing, or a colon and the port.
///
/// One pass over the bytes, because every request is asked: `Authority::host` looks for a user and for UTF-8 first.
fn host_and_rest(authority: &Authority) -> (&str, &str) {
    let text = authority.as_str();
    let end = if text.starts_with('[') {
        text.bytes().position(|byte| byte == b']').map(|bracket| bracket + 1)
    } else {
        text.bytes().position(|byte| byte == b':')
    };
    end.and_then(|end| text.split_at_checked(end)).unwrap_or((text, ""))
}

/// Returns the host of an authority as routes compare it: in lower case, without port and trailing dot.
pub(crate) fn host(authority: Option<&Authority>) -> Cow<'_, str> {
    authority.map_or(Cow::Borrowed(""), |authority| normalize_host(host_and_rest(authority).0))
}

fn normalize_host(authority_host: &str) -> Cow<'_, str> {
    let host = authority_host.strip_suffix('.').unwrap_or(authority_host);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(host.to_ascii_lowercase());
    }
    Cow::Borrowed(host)
}

/// Returns what a request takes of each of a route's limiters, in their order. `bounds` tells those of an estimate, by the place of the
/// limiter.
pub(crate) fn costs(
    headers: &EndToEnd<'_>,
    body: Body<'_>,
    rule: &Route,
    bounds: impl Fn(usize, &Estimate) -> Bounds,
) -> Result<Costs, ProxyError> {
    let cost = |place: usize, rule: &Cost| cost(headers, body, rule, |estimate| bounds(place, estimate));
    if rule.charges.is_empty() {
        return Ok(cost(0, &rule.cost)?.into());
    }
    let charges = rule.charges.iter().enumerate();
    let costs = charges.map(|(place, charge)| cost(place, &charge.cost).map(Permits::get));
    let costs = costs.collect::<Result<Vec<_>, _>>()?;
    Ok(Costs::each(costs).unwrap_or(Permits::ONE.into()))
}

/// Returns the cost of a request by a rule.
pub(crate) fn cost(
    headers: &EndToEnd<'_>,
    body: Body<'_>,
    rule: &Cost,
    bounds: impl FnOnce(&Estimate) -> Bounds,
) -> Result<Permits, ProxyError> {
    let (named, name, default, max): (_, &dyn Display, _, _) = match rule {
        Cost::Fixed(cost) => return Ok(*cost),
        Cost::Estimate(rule) => return estimate(body, rule, bounds(rule)),
        Cost::Header { name, default, max } => (headers.one(name)?, name, *default, *max),
        Cost::Json { path, default, max } => {
            (body.useful(path)?.map(|value| Cow::Borrowed(value.as_bytes())), path, *default, *max)
        }
    };
    let Some(named) = named else { return Ok(default) };
    let cost = std::str::from_utf8(&named).ok().and_then(units::number);
    let cost = cost.and_then(Permits::new).filter(|cost| *cost <= max);
    cost.ok_or_else(|| ProxyError::BadCost { name: name.to_string().into(), max })
}

/// Returns whether the client waits for `100 Continue` before it sends its body.
pub(crate) fn expects_continue(headers: &HeaderMap, flags: HeaderFlags) -> bool {
    let is_expected = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    flags.has(HeaderFlags::EXPECT) && headers.get(EXPECT).is_some_and(is_expected)
}

/// Returns whether the request is a gRPC call, whose client understands errors only as `grpc-status`.
pub(crate) fn is_grpc(headers: &HeaderMap, flags: HeaderFlags) -> bool {
    if !flags.has(HeaderFlags::CONTENT_TYPE) {
        return false;
    }
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let rest = kind.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| b"+;".contains(byte)))
}

/// Returns the protocol that an HTTP/1.1 client wants to switch to, unless that is another version of HTTP: requests over
/// such a connection would pass every route and limiter unseen.
pub(crate) fn upgrade<B>(request: &Request<B>, flags: HeaderFlags) -> Option<HeaderValue> {
    let headers = request.headers();
    if !flags.has(HeaderFlags::UPGRADE) {
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

/// Returns whether a comma-separated header has this token on any of its lines.
pub(crate) fn lists(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    elements(headers, name).any(|element| {
        let element = element.split(|byte| *byte == b';').next().unwrap_or_default();
        element.trim_ascii().eq_ignore_ascii_case(token.as_bytes())
    })
}

/// Returns whether `Accept` may name a media type with a suffix, such as `+json`. That of most requests does not, and is not taken apart.
pub(crate) fn accepts_suffix(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|line| line.as_bytes().contains(&b'+'))
}

/// Returns whether `Accept` names a media type, and not to refuse it (RFC 9110, 12.4.2).
pub(crate) fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    elements(headers, &ACCEPT).any(|element| {
        let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(media_type.as_bytes()));
        is_named && !parts.any(is_weight_zero)
    })
}

/// Returns whether a parameter is `q=0`, however many zeros it has.
fn is_weight_zero(parameter: &[u8]) -> bool {
    let weight = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="));
    weight
        .is_some_and(|weight| weight.first() == Some(&b'0') && weight.iter().all(|byte| b"0.".contains(byte)))
}

#[cfg(test)]
mod tests {
    use http::header::HOST;
    use http::uri::Authority;
    use http::{Request, Version};

    use super::{authority, names_a_host, normalize_host, unify_host};

    /// Returns the authority of a request and the `Host` that is left of it; `None` if it is refused.
    fn unified(version: Version, target: &str, hosts: &[&str]) -> Option<(String, String)> {
        let mut request = Request::builder().version(version).uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let mut request = request.body(()).unwrap();
        unify_host(&mut request);
        let authority = authority(&request).ok()?.unwrap().to_string();
        Some((authority, request.headers().get(HOST).map_or("", |host| host.to_str().unwrap()).to_owned()))
    }

    #[test]
    fn over_http1_the_authority_of_the_target_is_the_host() {
        for (target, hosts, expected) in [
            ("/x", &["a:1"][..], Some("a:1")),
            ("http://a/x", &["a"], Some("a")),
            ("http://a:80/x", &["a"], Some("a:80")),
            ("http://a/x", &["A:80"], Some("a")),
            ("http://a/x", &["b"], Some("a")),
            ("http://a:8080/x", &["127.0.0.1:9"], Some("a:8080")),
            ("http://a/x", &["a", "a"], None),
            ("http://a/x", &["a", "b"], None),
            ("http://a/x", &["u@a"], None),
            ("http://a/x", &[""], None),
            ("http://a/x", &[], None),
            ("http://u@a/x", &["a"], None),
            ("http://a:99999/x", &["a"], None),
        ] {
            let expected = expected.map(|host| (host.to_owned(), host.to_owned()));
            assert_eq!(unified(Version::HTTP_11, target, hosts), expected, "{target} {hosts:?}");
        }
    }

    #[test]
    fn over_http2_a_host_is_that_of_the_target() {
        for (target, host, is_one) in [
            ("http://a/x", "a", true),
            ("http://a:80/x", "A", true),
            ("https://a/x", "a:443", true),
            ("https://a:/x", "a", true),
            ("https://a/x", "a:80", false),
            ("http://a/x", "a:443", false),
            ("http://a/x", "a:8080", false),
            ("http://a/x", "a.", false),
            ("http://a/x", "b", false),
            ("http://[::1]:80/x", "[::1]", true),
        ] {
            let authority = target.split('/').nth(2).unwrap().to_owned();
            let expected = is_one.then(|| (authority.clone(), authority));
            assert_eq!(unified(Version::HTTP_2, target, &[host]), expected, "{target} {host}");
        }
    }

    #[test]
    fn an_authority_is_a_host_and_perhaps_a_port() {
        for (authority, is_host) in [
            ("api.example.com", true),
            ("api.example.com:", true),
            ("api.example.com:8080", true),
            ("api.example.com:65536", false),
            ("[::1]", true),
            ("[::1]:8080", true),
            ("[::1]8080", false),
            (":8080", false),
            ("user@api.example.com", false),
            ("user:1@api.example.com", false),
            ("a.example.com,b.example.com", false),
        ] {
            let parsed = authority.parse::<Authority>();
            assert_eq!(parsed.is_ok_and(|parsed| names_a_host(&parsed)), is_host, "{authority}");
        }
    }

    #[test]
    fn a_host_is_compared_without_case_and_trailing_dot() {
        assert_eq!(normalize_host("API.Example.com."), "api.example.com");
        assert_eq!(normalize_host("[::1]"), "[::1]");
    }
}
