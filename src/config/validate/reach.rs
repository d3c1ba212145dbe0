//! Routes that no request reaches: because of their own match, or because earlier routes take all of it.
//!
//! Says so only where it is certain. A pattern is compared with the same pattern and with single paths.

use std::collections::HashMap;

use http::header::{CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING};
use http::{HeaderName, Method};
use regex_syntax::hir::literal::Extractor;

use crate::config::model::{HostMatch, JsonMatch, Match, PathMatch, Route};

/// Headers that end with a client's connection, so that no route sees them.
const UNSEEN: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
];

/// Returns the reason why no request at all satisfies a match.
pub(super) fn never_by_itself(matches: &Match) -> Option<String> {
    if let PathMatch::Pattern(pattern) = &matches.path
        && begins_without_slash(pattern.as_str())
    {
        return Some("every path begins with `/`, and this `path_regex` does not".to_owned());
    }
    let unseen = matches.headers.iter().find(|(name, _)| UNSEEN.contains(name));
    unseen.map(|(name, _)| format!("the header `{name}` ends with the client's connection"))
}

/// Returns whether a pattern is certain to begin with something else than a slash.
fn begins_without_slash(pattern: &str) -> bool {
    let elsewhere = |bytes: &[u8], is_whole: bool| bytes.first().map_or(is_whole, |first| *first != b'/');
    all_beginnings(pattern, elsewhere)
}

/// Returns whether each text that a pattern matches is certain to begin with a prefix, on a segment border.
pub(super) fn begins_with(pattern: &str, prefix: &str) -> bool {
    let is_behind_prefix = |bytes: &[u8], is_whole: bool| {
        let rest = bytes.strip_prefix(prefix.as_bytes());
        rest.is_some_and(|rest| rest.first().map_or(is_whole, |first| *first == b'/'))
    };
    all_beginnings(pattern, is_behind_prefix)
}

/// Returns whether a condition holds for each of the texts that a pattern can begin with; not if those are too many to be told. The condition
/// is also told whether the text is the whole of what is matched.
fn all_beginnings(pattern: &str, holds: impl Fn(&[u8], bool) -> bool) -> bool {
    let Ok(pattern) = regex_syntax::parse(pattern) else { return false };
    let beginnings = Extractor::new().extract(&pattern);
    let mut literals = beginnings.literals().into_iter().flatten().peekable();
    literals.peek().is_some() && literals.all(|literal| holds(literal.as_bytes(), literal.is_exact()))
}

/// The most comparisons of two matches for one file. Beyond them no further route is found to be out of reach.
const COMPARISONS_MAX: usize = 2_000_000;

/// The routes before the one that is looked at, by the paths that they can take.
#[derive(Default)]
pub(super) struct EarlierRoutes<'a> {
    by_path: HashMap<&'a str, Vec<&'a Route>>,
    /// Routes of any path and of patterns.
    rest: Vec<&'a Route>,
    comparisons: usize,
}

impl<'a> EarlierRoutes<'a> {
    /// Adds the next route.
    pub(super) fn add(&mut self, route: &'a Route) {
        match &route.matches.path {
            PathMatch::Any | PathMatch::Pattern(_) => self.rest.push(route),
            PathMatch::Prefix(path) | PathMatch::Exact(path) => {
                self.by_path.entry(path).or_default().push(route);
            }
        }
    }

    /// Returns the routes that together take every request of a match: one, or one for each of its methods.
    pub(super) fn taking(&mut self, matches: &Match) -> Option<Vec<&'a Route>> {
        let methods: Vec<Option<&Method>> = match matches.methods.as_slice() {
            [] => vec![None],
            some => some.iter().map(Some).collect(),
        };
        let mut takers: Vec<&Route> = Vec::new();
        for method in methods {
            let taker = self.taker(matches, method)?;
            if !takers.iter().any(|other| other.name == taker.name) {
                takers.push(taker);
            }
        }
        Some(takers)
    }

    fn taker(&mut self, matches: &Match, method: Option<&Method>) -> Option<&'a Route> {
        if self.comparisons > COMPARISONS_MAX {
            return None;
        }
        let path = match &matches.path {
            PathMatch::Prefix(path) | PathMatch::Exact(path) => path.as_str(),
            PathMatch::Any | PathMatch::Pattern(_) => "",
        };
        let borders = path.match_indices('/').map(|(slash, _)| slash).chain([path.len()]);
        let above = borders.filter_map(|end| self.by_path.get(path.get(..end)?)).flatten();
        let mut candidates = above.chain(&self.rest).inspect(|_| self.comparisons += 1);
        candidates.find(|route| takes(&route.matches, matches, method)).copied()
    }
}

/// Returns whether a match takes every request of another one that has this method; `None` stands for any method.
fn takes(earlier: &Match, later: &Match, method: Option<&Method>) -> bool {
    let methods = earlier.methods.is_empty() || method.is_some_and(|method| earlier.methods.contains(method));
    methods
        && takes_host(earlier.host.as_ref(), later.host.as_ref())
        && takes_path(&earlier.path, &later.path)
        && earlier.headers.iter().all(|header| later.headers.contains(header))
        && takes_json(earlier.json.as_deref(), later.json.as_deref())
}

fn takes_json(earlier: Option<&JsonMatch>, later: Option<&JsonMatch>) -> bool {
    match (earlier, later) {
        (None, _) => true,
        (Some(earlier), Some(later)) => {
            earlier.body_bytes_max >= later.body_bytes_max
                && earlier.values.iter().all(|value| later.values.contains(value))
        }
        (Some(_), None) => false,
    }
}

fn takes_host(earlier: Option<&HostMatch>, later: Option<&HostMatch>) -> bool {
    match (earlier, later) {
        (None, _) => true,
        (Some(HostMatch::Suffix(suffix)), Some(HostMatch::Exact(host) | HostMatch::Suffix(host))) => {
            host.ends_with(suffix)
        }
        (Some(HostMatch::Exact(earlier)), Some(HostMatch::Exact(later))) => earlier == later,
        (Some(_), _) => false,
    }
}

fn takes_path(earlier: &PathMatch, later: &PathMatch) -> bool {
    match (earlier, later) {
        (PathMatch::Any, _) => true,
        (PathMatch::Prefix(prefix), PathMatch::Prefix(path) | PathMatch::Exact(path)) => {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        (PathMatch::Exact(earlier), PathMatch::Exact(later)) => earlier == later,
        (PathMatch::Pattern(pattern), PathMatch::Exact(path)) => pattern.is_match(path),
        (PathMatch::Pattern(earlier), PathMatch::Pattern(later)) => earlier.as_str() == later.as_str(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use regex::Regex;

    use super::*;
    use crate::config::model::JsonPath;

    fn path(path: PathMatch) -> Match {
        Match { path, ..Match::default() }
    }

    fn prefix(text: &str) -> PathMatch {
        PathMatch::Prefix(text.into())
    }

    fn pattern(text: &str) -> PathMatch {
        PathMatch::Pattern(Regex::new(&format!(r"\A(?:{text})\z")).unwrap())
    }

    #[test]
    fn an_earlier_path_takes_a_later_one_only_if_it_is_certain() {
        for (earlier, later, taken) in [
            (PathMatch::Any, pattern("/a"), true),
            (prefix("/a"), prefix("/a"), true),
            (prefix("/a"), prefix("/a/b"), true),
            (prefix("/a"), prefix("/ab"), false),
            (prefix("/a/b"), prefix("/a"), false),
            (prefix("/a"), PathMatch::Exact("/a/x".into()), true),
            (prefix("/a"), pattern("/a/x"), false),
            (PathMatch::Exact("/a".into()), prefix("/a"), false),
            (PathMatch::Exact("/a".into()), PathMatch::Exact("/a".into()), true),
            (pattern("/a/[0-9]+"), PathMatch::Exact("/a/17".into()), true),
            (pattern("/a/[0-9]+"), PathMatch::Exact("/a/x".into()), false),
            (pattern("/a.*"), pattern("/a.*"), true),
            (prefix("/a"), PathMatch::Any, false),
        ] {
            assert_eq!(
                takes(&path(earlier.clone()), &path(later.clone()), None),
                taken,
                "{earlier:?} {later:?}"
            );
        }
    }

    #[test]
    fn an_earlier_host_takes_the_names_below_it() {
        let suffix = |text: &str| Some(HostMatch::Suffix(text.into()));
        let exact = |text: &str| Some(HostMatch::Exact(text.into()));
        for (earlier, later, taken) in [
            (None, suffix(".a.com"), true),
            (suffix(".a.com"), exact("x.a.com"), true),
            (suffix(".a.com"), exact("a.com"), false),
            (suffix(".a.com"), suffix(".b.a.com"), true),
            (suffix(".a.com"), None, false),
            (exact("a.com"), suffix(".a.com"), false),
            (exact("a.com"), exact("a.com"), true),
        ] {
            assert_eq!(takes_host(earlier.as_ref(), later.as_ref()), taken, "{earlier:?} {later:?}");
        }
    }

    #[test]
    fn methods_and_headers_narrow_a_match() {
        let header = (HeaderName::from_static("x-tenant"), HeaderValue::from_static("a"));
        let tenant = Match { headers: vec![header], ..Match::default() };
        assert!(takes(&Match::default(), &tenant, None));
        assert!(!takes(&tenant, &Match::default(), None));
        let get = Match { methods: vec![Method::GET], ..Match::default() };
        assert!(!takes(&get, &Match::default(), None));
        assert!(takes(&get, &get, Some(&Method::GET)));
        assert!(!takes(&get, &get, Some(&Method::POST)));
    }

    #[test]
    fn a_body_with_more_conditions_is_taken_by_one_with_fewer() {
        let json = |values: &[(&str, &str)], body_bytes_max| Match {
            json: Some(Box::new(JsonMatch {
                values: values
                    .iter()
                    .map(|(path, value)| (JsonPath::parse(path).unwrap(), (*value).to_owned()))
                    .collect(),
                body_bytes_max,
            })),
            ..Match::default()
        };
        let (some, more) = (json(&[("a", "1")], 10), json(&[("b", "2"), ("a", "1")], 10));
        assert!(takes(&Match::default(), &some, None) && takes(&some, &more, None));
        assert!(!takes(&more, &some, None) && !takes(&some, &Match::default(), None));
        assert!(!takes(&some, &json(&[("a", "1")], 11), None), "larger bodies go on");
    }

    #[test]
    fn a_pattern_that_begins_without_a_slash_matches_nothing() {
        for (text, never) in [
            ("api/.*", true),
            ("(v1|v2)/x", true),
            ("", true),
            ("/api", false),
            (".*", false),
            ("(?:/a|b)", false),
            ("a?/b", false),
            ("[^x]*", false),
        ] {
            assert_eq!(never_by_itself(&path(pattern(text))).is_some(), never, "{text}");
        }
    }

    #[test]
    fn a_pattern_begins_with_a_prefix_on_a_segment_border() {
        for (text, begins) in [
            ("/a/b", true),
            ("/a", true),
            ("/a(/.*)?", true),
            ("/a/[^/]+/b", true),
            ("(/a/x|/a/y)/.*", true),
            ("/a/x|/b", false),
            ("/ab", false),
            ("/a.*", false),
            ("/a?/b", false),
            ("(?i)/a/b", false),
            (".*/a/b", false),
            ("/", false),
            ("", false),
        ] {
            assert_eq!(begins_with(text, "/a"), begins, "{text}");
        }
    }
}
