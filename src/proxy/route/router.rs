//! Finds the route of a request among the matches of one configuration.
//!
//! The first route that matches wins. So that ten thousand routes cost about as much as ten, an index finds them by host and by
//! the prefixes of the path that end at a segment border. Only routes of any path and of patterns are tried one by one. Knows
//! nothing of upstreams and limiters.

use std::collections::HashMap;

use http::{HeaderName, HeaderValue, Method};

use super::path::{self, Forms, strip};
use crate::config::model::{HostMatch, JsonMatch, JsonPath, Match, PathMatch};
use crate::proxy::error::ProxyError;
use crate::proxy::messages::body_facts::BodyFacts;
use crate::proxy::messages::end_to_end::EndToEnd;

/// The parts of a request that the router looks at.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// The host, in lower case, without port and trailing dot; empty if the request names no host.
    pub(crate) host: &'a str,
    /// The path as sent.
    pub(crate) path: &'a str,
    /// The method.
    pub(crate) method: &'a Method,
    /// The headers that the client sent, without those that end with its connection.
    pub(crate) headers: &'a EndToEnd<'a>,
    /// The facts of the body.
    pub(crate) body: &'a BodyFacts,
}

/// The condition of a match that a request does not satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch<'a> {
    Path,
    Host,
    Method,
    Header(&'a HeaderName),
    /// The value at a path of the body.
    Json(&'a JsonPath),
    /// A value of a body that was not read.
    Unread(&'a JsonMatch),
}

/// Returns the first condition that a request does not satisfy. What can be read in more than one way satisfies its condition here, so
/// that [`check_ambiguous`] refuses the request instead of a later match taking it.
pub(crate) fn mismatch<'a>(rule: &'a Match, path: &str, target: Target<'_>) -> Option<Mismatch<'a>> {
    let path_holds = match &rule.path {
        PathMatch::Any => true,
        PathMatch::Prefix(prefix) => strip(path, prefix).is_some(),
        PathMatch::Exact(exact) => path == exact,
        PathMatch::Pattern(pattern) => pattern.is_match(path),
    };
    let host_holds = || match &rule.host {
        None => true,
        Some(HostMatch::Exact(host)) => target.host == host,
        Some(HostMatch::Suffix(suffix)) => target.host.len() > suffix.len() && target.host.ends_with(suffix),
    };
    if !path_holds {
        return Some(Mismatch::Path);
    }
    if !host_holds() {
        return Some(Mismatch::Host);
    }
    if !rule.methods.is_empty() && !rule.methods.iter().any(|method| is_read_as(target.method, method)) {
        return Some(Mismatch::Method);
    }
    let differs = |(name, value): &&(HeaderName, HeaderValue)| match target.headers.one(name) {
        Ok(is) => is.is_none_or(|is| *is != *value.as_bytes()),
        Err(_) => false,
    };
    if let Some((name, _)) = rule.headers.iter().find(differs) {
        return Some(Mismatch::Header(name));
    }
    rule.json.as_deref().and_then(|json| mismatch_in_body(json, target.body))
}

fn mismatch_in_body<'a>(json: &'a JsonMatch, body: &BodyFacts) -> Option<Mismatch<'a>> {
    if body.is_unread() {
        return Some(Mismatch::Unread(json));
    }
    let body = body.up_to(json.body_bytes_max);
    let differs = |(path, value): &&(JsonPath, String)| match body.vital(path) {
        Ok(is) => is != Some(value),
        Err(_) => false,
    };
    json.values.iter().find(differs).map(|(path, _)| Mismatch::Json(path))
}

/// Returns whether some server takes a method for another one. The case counts in a method (RFC 9110, 9.1), but not to all servers: a
/// `post` that they treat as POST must not pass the limits of POST.
fn is_read_as(method: &Method, other: &Method) -> bool {
    method == other || method.as_str().eq_ignore_ascii_case(other.as_str())
}

/// Checks that each header and each value of the body that a match names can be read in one way only.
fn check_ambiguous(rule: &Match, target: Target<'_>) -> Result<(), ProxyError> {
    rule.headers.iter().try_for_each(|(name, _)| target.headers.one(name).map(drop))?;
    rule.json.iter().try_for_each(|json| {
        let body = target.body.up_to(json.body_bytes_max);
        json.values.iter().try_for_each(|(path, _)| body.vital(path).map(drop))
    })
}

/// The ranks of all routes, by host and path.
#[derive(Default)]
pub(crate) struct Index {
    any_host: Paths,
    /// The paths of each host: an exact host, or a suffix, which begins with a dot.
    hosts: HashMap<Box<str>, Paths>,
    /// The length of the longest host; longer ones are not looked up.
    host_len_max: usize,
}

/// The ranks of the routes of one host; each list ascends.
#[derive(Default)]
struct Paths {
    /// The ranks by an exact path, or by a prefix without its trailing slash.
    by_prefix: HashMap<Box<str>, Vec<u32>>,
    /// The length of the longest prefix; longer ones are not looked up.
    prefix_len_max: usize,
    /// Routes of any path and of patterns.
    rest: Vec<u32>,
}

impl Index {
    /// Builds the index; the order of the matches is their rank.
    pub(crate) fn new<'a>(rules: impl Iterator<Item = &'a Match>) -> Index {
        let mut index = Index::default();
        for (rank, rule) in (0..).zip(rules) {
            let paths = match &rule.host {
                None => &mut index.any_host,
                Some(HostMatch::Exact(host) | HostMatch::Suffix(host)) => {
                    index.host_len_max = index.host_len_max.max(host.len());
                    index.hosts.entry(host.as_str().into()).or_default()
                }
            };
            let ranks = match &rule.path {
                PathMatch::Any | PathMatch::Pattern(_) => &mut paths.rest,
                PathMatch::Prefix(path) | PathMatch::Exact(path) => {
                    let key = path.strip_suffix('/').unwrap_or(path);
                    paths.prefix_len_max = paths.prefix_len_max.max(key.len());
                    paths.by_prefix.entry(key.into()).or_default()
                }
            };
            ranks.push(rank);
        }
        index
    }

    /// Returns the rank of a request's route, on which every form of its path must agree. `rule` returns the match of a rank. A match
    /// that needs a body which was not read does not hold, and asks for it where it comes before the route.
    pub(crate) fn route<'a>(
        &self,
        target: Target<'_>,
        rule: impl Fn(u32) -> Option<&'a Match>,
    ) -> Result<u32, ProxyError> {
        let find = |path: &str| {
            let mut unread = Vec::new();
            let found = self.find(target.host, path, |rank| {
                let Some(rule) = rule(rank) else { return false };
                let mismatch = mismatch(rule, path, target);
                if let Some(Mismatch::Unread(json)) = mismatch {
                    unread.push((rank, json.body_bytes_max));
                }
                mismatch.is_none()
            });
            // Ranks are not tried in their order, so those behind the route are known only now.
            for (rank, bytes_max) in unread {
                if found.is_none_or(|found| rank < found) {
                    target.body.ask_for_match(rank, bytes_max);
                }
            }
            found
        };
        let forms = path::forms(target.path).map_err(|bad| match bad {
            path::BadPath::Nul => ProxyError::BadRequest("the path holds a NUL"),
            path::BadPath::Encoding => ProxyError::BadRequest("the path is encoded too often"),
        })?;
        let found = match forms {
            Forms::One(path) => find(path),
            Forms::Many(forms) => {
                let mut found = forms.iter().map(|form| find(form));
                let as_sent = found.next().flatten();
                if !found.all(|other| other == as_sent) {
                    return Err(ProxyError::BadRequest("the path can be read in more than one way"));
                }
                as_sent
            }
        };
        let found = found.ok_or(ProxyError::NoRoute)?;
        rule(found).map_or(Ok(()), |rule| check_ambiguous(rule, target))?;
        Ok(found)
    }

    /// Returns the lowest rank for which `holds` is true.
    fn find(&self, host: &str, path: &str, mut holds: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut best = None;
        self.any_host.find(path, &mut holds, &mut best);
        if self.hosts.is_empty() {
            return best;
        }
        let suffixes = host.match_indices('.').filter_map(|(dot, _)| host.get(dot..));
        let names = std::iter::once(host).chain(suffixes);
        for name in names.filter(|name| name.len() <= self.host_len_max) {
            if let Some(paths) = self.hosts.get(name) {
                paths.find(path, &mut holds, &mut best);
            }
        }
        best
    }
}

impl Paths {
    fn find(&self, path: &str, holds: &mut impl FnMut(u32) -> bool, best: &mut Option<u32>) {
        improve(&self.rest, holds, best);
        if self.by_prefix.is_empty() {
            return;
        }
        let borders = path.match_indices('/').map(|(slash, _)| slash);
        let ends = borders.chain(std::iter::once(path.len()));
        for end in ends.take_while(|end| *end <= self.prefix_len_max) {
            if let Some(ranks) = path.get(..end).and_then(|prefix| self.by_prefix.get(prefix)) {
                improve(ranks, holds, best);
            }
        }
    }
}

/// Replaces `best` by the first of `ranks` for which `holds` is true, if that is lower.
fn improve(ranks: &[u32], holds: &mut impl FnMut(u32) -> bool, best: &mut Option<u32>) {
    let better =
        ranks.iter().take_while(|rank| best.is_none_or(|best| **rank < best)).find(|rank| holds(**rank));
    if better.is_some() {
        *best = better.copied();
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, Method};
    use regex::Regex;

    use super::{BodyFacts, EndToEnd, Index, Target, mismatch};
    use crate::config::model::{HostMatch, JsonMatch, JsonPath, Match, PathMatch};
    use crate::proxy::messages::body_facts::BodyNeed;
    use crate::proxy::messages::header_flags::HeaderFlags;

    fn prefix(path: &str) -> Match {
        Match { path: PathMatch::Prefix(path.into()), ..Match::default() }
    }

    fn find(rules: &[Match], host: &str, path: &str) -> Option<u32> {
        let headers = HeaderMap::new();
        let headers = EndToEnd::new(&headers, HeaderFlags::of(&headers), false);
        let body = &BodyFacts::nothing();
        let target = Target { host, path, method: &Method::GET, headers: &headers, body };
        let holds = |rank| mismatch(&rules[rank as usize], path, target).is_none();
        Index::new(rules.iter()).find(host, path, holds)
    }

    #[test]
    fn a_prefix_ends_on_a_segment_border() {
        let rules = [prefix("/a"), prefix("/b/"), prefix("/")];
        assert_eq!(find(&rules, "", "/a"), Some(0));
        assert_eq!(find(&rules, "", "/a/b"), Some(0));
        assert_eq!(find(&rules, "", "/ab"), Some(2));
        assert_eq!(find(&rules, "", "/b/c"), Some(1));
        assert_eq!(find(&rules, "", "/b"), Some(2));
    }

    #[test]
    fn the_first_match_wins_over_a_longer_prefix_or_host() {
        let pattern = PathMatch::Pattern(Regex::new("^(?:/a/[0-9]+)$").unwrap());
        let rules = [
            Match { host: Some(HostMatch::Suffix(".example.com".into())), ..prefix("/a/b") },
            prefix("/a/b/c"),
            Match { path: pattern, ..Match::default() },
            prefix("/a"),
            Match { host: Some(HostMatch::Exact("api.example.com".into())), ..Match::default() },
            Match::default(),
        ];
        assert_eq!(find(&rules, "api.example.com", "/a/b/c"), Some(0));
        assert_eq!(find(&rules, "example.com", "/a/b/c"), Some(1));
        assert_eq!(find(&rules, "example.com", "/a/17"), Some(2));
        assert_eq!(find(&rules, "example.com", "/a/17/x"), Some(3));
        assert_eq!(find(&rules, "api.example.com", "/x"), Some(4));
        assert_eq!(find(&rules, "v2.api.example.com", "/x"), Some(5));
        assert_eq!(find(&rules[..5], "other", "/x"), None);
    }

    #[test]
    fn methods_and_headers_must_hold_too() {
        let tenant = (HeaderName::from_static("x-tenant"), HeaderValue::from_static("a"));
        let rule = Match { methods: vec![Method::POST], headers: vec![tenant.clone()], ..prefix("/a") };
        let mut headers = HeaderMap::new();
        let holds = |method: &Method, headers: &HeaderMap| {
            let headers = &EndToEnd::new(headers, HeaderFlags::of(headers), false);
            let body = &BodyFacts::nothing();
            mismatch(&rule, "/a", Target { host: "", path: "/a", method, headers, body }).is_none()
        };
        assert!(!holds(&Method::POST, &headers));
        headers.insert(tenant.0, tenant.1);
        assert!(holds(&Method::POST, &headers));
        assert!(!holds(&Method::GET, &headers));
    }

    fn json(body_bytes_max: u64, rule: Match) -> Match {
        let values = vec![(JsonPath::parse("model").unwrap(), "a".to_owned())];
        Match { json: Some(Box::new(JsonMatch { values, body_bytes_max })), ..rule }
    }

    fn of_host(host: &str, rule: Match) -> Match {
        Match { host: Some(HostMatch::Exact(host.into())), ..rule }
    }

    /// Returns the rank of the route of `POST /a/b` to `host` with a body that was not read, and the need of that body.
    fn route_unread(rules: &[Match]) -> (Option<u32>, Option<(u32, u64)>) {
        let headers = HeaderMap::new();
        let headers = &EndToEnd::new(&headers, HeaderFlags::of(&headers), false);
        let body = &BodyFacts::unread();
        let target = Target { host: "host", path: "/a/b", method: &Method::POST, headers, body };
        let found = Index::new(rules.iter()).route(target, |rank| rules.get(rank as usize));
        let need = body.need().map(|BodyNeed { rank, bytes_max, .. }| (rank.unwrap(), bytes_max));
        (found.ok(), need)
    }

    #[test]
    fn only_a_match_before_the_route_asks_for_the_body() {
        let any = Match::default;
        for (rules, expected) in [
            ([prefix("/a"), json(5, any())], (Some(0), None)),
            ([of_host("host", any()), json(5, any())], (Some(0), None)),
            ([prefix("/a/b"), json(5, prefix("/a"))], (Some(0), None)),
            ([json(5, any()), prefix("/a")], (Some(1), Some((0, 5)))),
            ([json(5, any()), json(7, prefix("/a"))], (None, Some((0, 7)))),
            ([json(5, of_host("host", any())), json(7, any())], (None, Some((0, 7)))),
            ([json(5, of_host("host", any())), of_host("host", prefix("/a"))], (Some(1), Some((0, 5)))),
        ] {
            assert_eq!(route_unread(&rules), expected, "{rules:?}");
        }
    }

    #[test]
    fn one_of_ten_thousand_routes_is_found_in_one_try() {
        let rules: Vec<Match> = (0..10_000).map(|number| prefix(&format!("/api/r{number}"))).collect();
        let index = Index::new(rules.iter());
        let tried = std::cell::Cell::new(0);
        let found = index.find("", "/api/r9999/x", |rank| {
            tried.set(tried.get() + 1);
            rank == 9_999
        });
        assert_eq!((found, tried.get()), (Some(9_999), 1));
    }
}
