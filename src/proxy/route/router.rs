//! Which route a request takes: an immutable table, made once from a configuration and swapped whole.
//!
//! The first route that matches wins. So that ten thousand routes cost about as much as ten, they are found by
//! their host and by the prefixes of the path that end at a segment border; only routes of any path and of
//! patterns are tried one by one. Knows nothing of what happens to a request after that.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, Method};

use crate::config::model::{Clients, Config, HostMatch, Match, PathMatch, Route as Rule, Server};
use crate::limiter::LimiterSet;
use crate::proxy::error::ProxyError;
use crate::proxy::listen::tls::Acceptor;
use crate::proxy::route::path::{self, Forms};
use crate::proxy::upstream::upstream::Upstream;
use crate::telemetry::RouteMetrics;

/// Names the requests that match no route, in metrics and logs: empty, because no route can be called so.
pub(crate) const NO_ROUTE: &str = "";

/// A route with everything that its requests need, resolved.
pub(crate) struct Route {
    /// As configured.
    pub(crate) rule: Rule,
    /// Where it goes.
    pub(crate) upstream: Arc<Upstream>,
    /// Where its requests get their permits; without one they go at once.
    pub(crate) gate: Option<LimiterSet>,
    /// Its series.
    pub(crate) metrics: RouteMetrics,
}

/// What a request shows to the router.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// In lower case, without port and trailing dot; empty where the request names none.
    pub(crate) host: &'a str,
    /// As sent.
    pub(crate) path: &'a str,
    /// Its method.
    pub(crate) method: &'a Method,
    /// Its headers.
    pub(crate) headers: &'a HeaderMap,
}

/// All routes of one configuration.
pub(crate) struct Table {
    routes: Vec<Arc<Route>>,
    index: Index,
    no_route: (Arc<str>, RouteMetrics),
    server: Arc<Server>,
    clients: Option<Arc<Clients>>,
    tls: Option<Acceptor>,
    access_log: bool,
}

impl Table {
    /// Compiles the routes; their order is their rank.
    pub(crate) fn new(
        routes: Vec<Arc<Route>>,
        no_route: RouteMetrics,
        config: &Config,
        tls: Option<Acceptor>,
    ) -> Table {
        let index = Index::new(routes.iter().map(|route| &route.rule.matches));
        let (server, clients) = (Arc::new(config.server.clone()), config.clients.clone());
        let no_route = (NO_ROUTE.into(), no_route);
        Table { routes, index, no_route, server, clients, tls, access_log: config.log.access }
    }

    /// The route of a request. Every form of its path must agree on it.
    pub(crate) fn route(&self, target: Target<'_>) -> Result<&Arc<Route>, ProxyError> {
        let forms = path::forms(target.path).map_err(|bad| match bad {
            path::BadPath::Nul => ProxyError::BadRequest("the path holds a NUL"),
            path::BadPath::Encoding => ProxyError::BadRequest("the path is encoded too often"),
        })?;
        let found = match forms {
            Forms::One(path) => self.find(path, target),
            Forms::Many(forms) => {
                let mut found = forms.iter().map(|form| self.find(form, target));
                let as_sent = found.next().flatten();
                if !found.all(|other| other == as_sent) {
                    return Err(ProxyError::BadRequest("the path can be read in more than one way"));
                }
                as_sent
            }
        };
        found.and_then(|rank| self.routes.get(rank as usize)).ok_or(ProxyError::NoRoute)
    }

    fn find(&self, path: &str, target: Target<'_>) -> Option<u32> {
        self.index.find(target.host, path, |rank| {
            self.routes.get(rank as usize).is_some_and(|route| matches(&route.rule.matches, path, target))
        })
    }

    /// Shows the series of all routes in `/metrics`.
    pub(crate) fn publish_metrics(&self) {
        self.routes.iter().for_each(|route| route.metrics.publish());
        self.no_route.1.publish();
    }

    /// Returns the names of all routes.
    pub(crate) fn route_names(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().map(|route| &*route.rule.name)
    }

    /// The name and the series of requests that match no route.
    pub(crate) fn no_route(&self) -> &(Arc<str>, RouteMetrics) {
        &self.no_route
    }

    /// How connections of clients are treated.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Who may call; everyone if absent.
    pub(crate) fn clients(&self) -> Option<&Clients> {
        self.clients.as_deref()
    }

    /// How new connections begin; in the clear if absent.
    pub(crate) fn tls(&self) -> Option<&Acceptor> {
        self.tls.as_ref()
    }

    /// Whether each request is logged.
    pub(crate) fn access_log(&self) -> bool {
        self.access_log
    }
}

/// Everything that is given must hold.
fn matches(rule: &Match, path: &str, target: Target<'_>) -> bool {
    let path_holds = match &rule.path {
        PathMatch::Any => true,
        PathMatch::Prefix(prefix) => strip(path, prefix).is_some(),
        PathMatch::Exact(exact) => path == exact,
        PathMatch::Pattern(pattern) => pattern.is_match(path),
    };
    path_holds
        && match &rule.host {
            None => true,
            Some(HostMatch::Exact(host)) => target.host == host,
            Some(HostMatch::Suffix(suffix)) => {
                target.host.len() > suffix.len() && target.host.ends_with(suffix)
            }
        }
        && (rule.methods.is_empty() || rule.methods.contains(target.method))
        && rule.headers.iter().all(|(name, value)| target.headers.get_all(name).iter().any(|is| is == value))
}

/// What is left of a path after a prefix that ends on a segment border.
pub(crate) fn strip<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/') || prefix.ends_with('/') || prefix.is_empty()).then_some(rest)
}

/// Host in lower case, without port and trailing dot.
pub(crate) fn normalize_host(authority_host: &str) -> Cow<'_, str> {
    let host = authority_host.strip_suffix('.').unwrap_or(authority_host);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(host.to_ascii_lowercase());
    }
    Cow::Borrowed(host)
}

/// Ranks of routes, by what a request can be looked up by.
#[derive(Default)]
struct Index {
    any_host: Paths,
    /// Exact hosts, and suffixes, which begin with a dot and therefore are no host.
    hosts: HashMap<Box<str>, Paths>,
    /// The length of the longest host: nothing longer is looked up.
    host_len_max: usize,
}

/// Ranks of routes for one host, each list ascending.
#[derive(Default)]
struct Paths {
    /// By an exact path, or by a prefix without its trailing slash.
    by_prefix: HashMap<Box<str>, Vec<u32>>,
    /// The length of the longest of them: nothing longer is looked up.
    prefix_len_max: usize,
    /// Of any path, and of patterns.
    rest: Vec<u32>,
}

impl Index {
    fn new<'a>(rules: impl Iterator<Item = &'a Match>) -> Index {
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

    /// The lowest rank that holds.
    fn find(&self, host: &str, path: &str, holds: impl Fn(u32) -> bool) -> Option<u32> {
        let mut best = None;
        self.any_host.find(path, &holds, &mut best);
        if self.hosts.is_empty() {
            return best;
        }
        let suffixes = host.match_indices('.').filter_map(|(dot, _)| host.get(dot..));
        let names = std::iter::once(host).chain(suffixes);
        for name in names.filter(|name| name.len() <= self.host_len_max) {
            if let Some(paths) = self.hosts.get(name) {
                paths.find(path, &holds, &mut best);
            }
        }
        best
    }
}

impl Paths {
    fn find(&self, path: &str, holds: &impl Fn(u32) -> bool, best: &mut Option<u32>) {
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

/// Takes the first rank that holds, if it is lower than the best so far.
fn improve(ranks: &[u32], holds: &impl Fn(u32) -> bool, best: &mut Option<u32>) {
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

    use super::{Index, Target, matches, normalize_host, strip};
    use crate::config::model::{HostMatch, Match, PathMatch};

    fn prefix(path: &str) -> Match {
        Match { path: PathMatch::Prefix(path.into()), ..Match::default() }
    }

    fn find(rules: &[Match], host: &str, path: &str) -> Option<u32> {
        let headers = HeaderMap::new();
        let target = Target { host, path, method: &Method::GET, headers: &headers };
        Index::new(rules.iter()).find(host, path, |rank| matches(&rules[rank as usize], path, target))
    }

    #[test]
    fn a_prefix_ends_on_a_segment_border() {
        let rules = [prefix("/a"), prefix("/b/"), prefix("/")];
        assert_eq!(find(&rules, "", "/a"), Some(0));
        assert_eq!(find(&rules, "", "/a/b"), Some(0));
        assert_eq!(find(&rules, "", "/ab"), Some(2));
        assert_eq!(find(&rules, "", "/b/c"), Some(1));
        assert_eq!(find(&rules, "", "/b"), Some(2));
        assert_eq!(strip("/a/b", "/a"), Some("/b"));
        assert_eq!(strip("/ab", "/a"), None);
    }

    #[test]
    fn the_first_match_wins_whatever_the_index_says() {
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
            matches(&rule, "/a", Target { host: "", path: "/a", method, headers })
        };
        assert!(!holds(&Method::POST, &headers));
        headers.insert(tenant.0, tenant.1);
        assert!(holds(&Method::POST, &headers));
        assert!(!holds(&Method::GET, &headers));
    }

    #[test]
    fn ten_thousand_routes_are_looked_up_not_walked() {
        let rules: Vec<Match> = (0..10_000).map(|number| prefix(&format!("/api/r{number}"))).collect();
        let index = Index::new(rules.iter());
        let tried = std::cell::Cell::new(0);
        let found = index.find("", "/api/r9999/x", |rank| {
            tried.set(tried.get() + 1);
            rank == 9_999
        });
        assert_eq!((found, tried.get()), (Some(9_999), 1));
    }

    #[test]
    fn a_host_is_compared_without_case_and_trailing_dot() {
        assert_eq!(normalize_host("API.Example.com."), "api.example.com");
        assert_eq!(normalize_host("[::1]"), "[::1]");
    }
}
