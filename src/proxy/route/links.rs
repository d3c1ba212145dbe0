//! Rewrites the links of responses: those that lead to the upstream, past weir, lead through weir instead.
//!
//! Reads headers alone, never bodies.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{CONTENT_LOCATION, Entry, LINK, LOCATION};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::caller;
use super::path::{self, strip};
use crate::config::model::{Route as Rule, Server};
use crate::proxy::listen::client::{Client, Sender};
use crate::proxy::messages::header_flags::HeaderFlags;
use crate::proxy::messages::headers::{X_FORWARDED_HOST, X_FORWARDED_PROTO};
use crate::proxy::messages::request_head::names_a_host;

/// The most targets of one `Link` header that are looked at. The prefix of a route makes each of them longer.
const TARGETS_MAX: usize = 256;

/// Returns the scheme and authority at which the caller reaches weir, if they are not those of its request: `public_url`, or what a
/// trusted proxy says.
///
/// The last value counts, because the proxy next to weir wrote it; those before may come from anyone.
pub(crate) fn origin(
    server: &Server,
    sender: Sender<'_>,
    authority: Option<&Authority>,
    headers: &HeaderMap,
    flags: HeaderFlags,
) -> Option<Arc<str>> {
    if let Some(url) = &server.public_url {
        return Some(Arc::clone(url));
    }
    if !flags.has(HeaderFlags::FORWARDED) || !caller::is_trusted(server, sender.peer) {
        return None;
    }
    let scheme = last(headers, &X_FORWARDED_PROTO);
    let scheme =
        ["http", "https"].into_iter().find(|known| scheme.is_some_and(|it| it.eq_ignore_ascii_case(known)));
    let host = last(headers, &X_FORWARDED_HOST).and_then(|host| host.parse::<Authority>().ok());
    let host = host.filter(names_a_host);
    if scheme.is_none() && host.is_none() {
        return None;
    }
    let scheme = scheme.unwrap_or(own_scheme(sender.secure));
    Some([scheme, "://", host.as_ref().or(authority)?.as_str()].concat().into())
}

/// Returns the last element of a list.
fn last<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let line = headers.get_all(name).iter().next_back()?.to_str().ok()?;
    line.rsplit(',').next().map(str::trim)
}

fn own_scheme(secure: bool) -> &'static str {
    if secure { "https" } else { "http" }
}

/// The rule by which links are rewritten: the route, and both ends of its way.
pub(crate) struct Links<'a> {
    rule: &'a Rule,
    /// The `Host` of the request that went upstream, where it is not the configured one.
    host_asked: Option<&'a str>,
    /// Such as `https://weir.internal`; `None` if the caller named no host. Absolute links then become paths.
    origin: Option<String>,
}

impl<'a> Links<'a> {
    /// Returns the links of a route as a caller sees them. `origin` comes from [`origin`]; `authority` is what the request asked for.
    pub(crate) fn new(
        rule: &'a Rule,
        client: &Client,
        origin: Option<&str>,
        authority: Option<&'a Authority>,
    ) -> Links<'a> {
        let authority = authority.map(Authority::as_str);
        let asked = || authority.map(|host| [own_scheme(client.secure), "://", host].concat());
        Links {
            rule,
            host_asked: authority.filter(|_| rule.preserve_host),
            origin: origin.map(str::to_owned).or_else(asked),
        }
    }

    /// Rewrites the links of a response.
    pub(crate) fn rewrite(&self, status: StatusCode, headers: &mut HeaderMap) {
        let is_left = |target: &str| status.is_redirection() && self.asks_for_tls(target);
        change(headers, LOCATION, |target| self.relocate(target).filter(|_| !is_left(target)));
        change(headers, CONTENT_LOCATION, |target| self.relocate(target));
        change(headers, LINK, |list| Some(self.relocate_targets(list)));
    }

    /// Rewrites the target of each link in a list (RFC 8288, 3): the text between `<` and `>` outside of quotes.
    fn relocate_targets(&self, list: &str) -> String {
        let (mut written, mut rest) = (String::with_capacity(list.len() + 64), list);
        for _ in 0..TARGETS_MAX {
            let Some((before, target, after)) = next_target(rest) else { break };
            written.push_str(before);
            match self.relocate(target) {
                Some(here) => written.push_str(&here),
                None => written.push_str(target),
            }
            rest = after;
        }
        written.push_str(rest);
        written
    }

    /// Returns the link through weir for a link to the upstream; `None` if the link may stay as it is.
    fn relocate(&self, target: &str) -> Option<String> {
        let origin = self.origin.as_deref().unwrap_or_default();
        let (origin, path) = match target.split_once("://") {
            Some((scheme, rest))
                if ["http", "https"].iter().any(|http| scheme.eq_ignore_ascii_case(http)) =>
            {
                (origin, self.path_at_upstream(rest)?)
            }
            _ if target.starts_with("//") => {
                let network = origin.split_once(':').map_or("", |(_, network)| network);
                (network, self.path_at_upstream(target.strip_prefix("//")?)?)
            }
            _ if target.starts_with('/') => ("", target),
            _ => return None,
        };
        let (path, rest) = path.split_at_checked(path.find(['?', '#']).unwrap_or(path.len()))?;
        let path = if path.is_empty() { Cow::Borrowed("/") } else { path::as_resolved(path) };
        let inside = strip(&path, &self.rule.upstream.base_path)?;
        let prefix = self.rule.strip_prefix.as_deref().unwrap_or_default().trim_end_matches('/');
        let slash =
            if inside.starts_with('/') || (inside.is_empty() && !prefix.is_empty()) { "" } else { "/" };
        let path = [prefix, slash, inside, rest].concat();
        // By itself it would name another host.
        let origin =
            if origin.is_empty() && path.starts_with("//") { self.origin.as_deref()? } else { origin };
        Some([origin, &path].concat())
    }

    /// Returns whether a redirect leads from `http` to `https` at the upstream. Through weir it would lead back to `http`, and around for
    /// ever. An upstream that was told of `https`, or asked for another host, does not ask for it.
    fn asks_for_tls(&self, target: &str) -> bool {
        let is_https = |url: &str| url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
        let is_told = self.rule.forwarded_headers && self.origin.as_deref().is_some_and(is_https);
        is_https(target) && !self.rule.upstream.tls && !is_told && self.host_asked.is_none()
    }

    /// Returns what follows the authority, if that is the upstream's.
    fn path_at_upstream<'t>(&self, rest: &'t str) -> Option<&'t str> {
        let upstream = &self.rule.upstream;
        let (authority, path) = rest.split_at_checked(rest.find(['/', '?', '#']).unwrap_or(rest.len()))?;
        let with_port = format!("{}:{}", upstream.host, upstream.port);
        let names = [&*upstream.authority, &with_port, self.host_asked.unwrap_or_default()];
        names.iter().any(|name| authority.eq_ignore_ascii_case(name)).then_some(path)
    }
}

/// Splits a list of links around the first target; the brackets are no part of it.
fn next_target(list: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let at = from + list.get(from..)?.find(['<', '"'])?;
        let inside = at + 1;
        let rest = list.get(inside..)?;
        if list.as_bytes().get(at) == Some(&b'<') {
            let end = inside + rest.find('>')?;
            return Some((list.get(..inside)?, list.get(inside..end)?, list.get(end..)?));
        }
        from = inside + end_of_quotes(rest)?;
    }
}

/// Returns the place behind the quote that ends a quoted text (RFC 9110, 5.6.4).
fn end_of_quotes(quoted: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = quoted.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map(|end| end + 1)
}

/// Replaces each value of a header for which `to` returns another one.
fn change(headers: &mut HeaderMap, name: HeaderName, to: impl Fn(&str) -> Option<String>) {
    let Entry::Occupied(mut values) = headers.entry(name) else { return };
    for value in values.iter_mut() {
        let other = std::str::from_utf8(value.as_bytes()).ok().and_then(&to);
        if let Some(Ok(other)) = other.map(HeaderValue::try_from) {
            *value = other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::next_target;

    #[test]
    fn targets_are_found_outside_of_quotes() {
        assert_eq!(next_target("<a>; rel=next"), Some(("<", "a", ">; rel=next")));
        assert_eq!(
            next_target(r#">; title="<\"x>, \\"; a=1, <b>"#),
            Some((r#">; title="<\"x>, \\"; a=1, <"#, "b", ">"))
        );
        for without in ["", "a", "<a", r#"; title="<a>"#, r#""\"#, r#""<a>\""#] {
            assert_eq!(next_target(without), None, "{without}");
        }
    }
}
