//! `routes.match` and `routes.strip_prefix`: the requests of a route, by path, host, method and headers.

use http::Method;
use regex::Regex;
use url::Host;

use super::body::json_match;
use super::check::Check;
use super::headers::{Purpose, headers};
use super::pattern::regex;
use super::place::{Given, all, key};
use super::reach::begins_with;
use crate::config::model::{HostMatch, Match, PathMatch};
use crate::config::schema;

/// Checks the conditions of a route.
pub(super) fn matches(
    check: &mut Check<'_>,
    matches: &Given<'_, schema::Match>,
    body_max: Option<u64>,
) -> Option<Match> {
    let path = path(check, matches);
    let host = key!(matches.host).checked(|text| host(check, &text));
    let methods = methods(check, &key!(matches.methods));
    let headers = headers(check, &key!(matches.headers), Purpose::Match);
    let json = key!(matches.json).checked(|json| json_match(check, &json, body_max));
    Some(Match { path: path?, host: host?, methods: methods?, headers: headers?, json: json? })
}

fn path(check: &mut Check<'_>, matches: &Given<'_, schema::Match>) -> Option<PathMatch> {
    let (path, exact_path) = (key!(matches.path).get(), key!(matches.exact_path).get());
    match (path, exact_path, key!(matches.path_regex).get()) {
        (None, None, None) => Some(PathMatch::Any),
        (Some(prefix), None, None) => {
            let prefix = plain_path(check, &prefix)?;
            Some(match prefix.trim_end_matches('/') {
                "" => PathMatch::Any,
                prefix => PathMatch::Prefix(prefix.to_owned()),
            })
        }
        (None, Some(path), None) => plain_path(check, &path).map(|path| PathMatch::Exact(path.to_owned())),
        (None, None, Some(pattern)) => path_regex(check, &pattern).map(PathMatch::Pattern),
        _ => check.refuse(&matches.at, "`path`, `exact_path` and `path_regex` exclude each other"),
    }
}

/// Checks that a path is the same in all of its forms. The router compares paths that are decoded, merged and freed of
/// dot segments; any other could never match.
fn plain_path<'a>(check: &mut Check<'_>, given: &Given<'a, String>) -> Option<&'a str> {
    let path = given.value;
    let fault = if !path.starts_with('/') {
        "must begin with `/`"
    } else if path.bytes().any(|byte| !byte.is_ascii_graphic() || b"?#%\\".contains(&byte)) {
        "must be visible ASCII without `?`, `#`, `%` and `\\`"
    } else if path.contains("//") || path.split('/').any(|segment| matches!(segment, "." | "..")) {
        "must not hold `//`, `/./` or `/../`: they are removed from requests before they are matched"
    } else {
        return Some(path);
    };
    check.refuse(&given.at, fault)
}

/// Compiles a pattern that is anchored at both ends.
fn path_regex(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<Regex> {
    regex(check, given, |pattern| format!(r"\A(?:{pattern})\z"))
}

fn host(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<HostMatch> {
    let (wildcard, name) = match given.value.strip_prefix("*.") {
        Some(rest) => (true, rest),
        None => (false, given.value.as_str()),
    };
    // Requests are compared without the dot that ends a whole name.
    let name = name.strip_suffix('.').unwrap_or(name);
    let parsed = Host::parse(name).ok().filter(|host| !wildcard || matches!(host, Host::Domain(_)));
    match parsed.map(|host| host.to_string()) {
        Some(name) if !name.contains('*') && !name.is_empty() => {
            Some(if wildcard { HostMatch::Suffix(format!(".{name}")) } else { HostMatch::Exact(name) })
        }
        _ => {
            let message = "expected a host without a port, such as api.example.com or *.example.com";
            check.refuse(&given.at, message)
        }
    }
}

fn methods(check: &mut Check<'_>, given: &Given<'_, Option<Vec<String>>>) -> Option<Vec<Method>> {
    let methods = all(given.items().map(|name| {
        let fault = match Method::from_bytes(name.value.as_bytes()) {
            Ok(Method::CONNECT | Method::TRACE) => "weir answers CONNECT and TRACE itself, with 405",
            Ok(_) if name.value.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                "methods are written in capitals, such as GET"
            }
            Ok(method) => return Some(method),
            Err(_) => "expected a method, such as GET",
        };
        check.refuse(&name.at, fault)
    }));
    if given.value.is_some() && given.at.length() == 0 {
        return check
            .refuse(&given.at, "matches nothing; name a method, or leave the key out for all of them");
    }
    methods
}

/// Checks that the prefix to strip is part of every path that the route matches.
pub(super) fn strip_prefix(
    check: &mut Check<'_>,
    given: &Given<'_, String>,
    matches: &Given<'_, schema::Match>,
) -> Option<String> {
    let prefix = plain_path(check, given)?.trim_end_matches('/');
    let (path, exact_path, path_regex) =
        (key!(matches.path), key!(matches.exact_path), key!(matches.path_regex));
    let is_faulty = [&path.at, &exact_path.at, &path_regex.at].iter().any(|at| at.is_faulty());
    let literal = path.value.as_deref().or(exact_path.value.as_deref());
    let fault = match (literal, path_regex.value.as_deref()) {
        _ if prefix.is_empty() => "strips nothing; leave the key out",
        (None, None) if is_faulty => return None,
        (Some(path), _)
            if path.strip_prefix(prefix).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('/')) =>
        {
            "is not the beginning of the matched path, on a segment border"
        }
        // One that cannot be parsed is reported there.
        (None, Some(pattern)) if regex_syntax::parse(pattern).is_err() => return None,
        (None, Some(pattern)) if begins_with(pattern, prefix) => return Some(prefix.to_owned()),
        (None, _) => {
            "needs `match.path`, `match.exact_path` or a `match.path_regex` that begins with it, so that every path does"
        }
        (Some(_), _) => return Some(prefix.to_owned()),
    };
    check.refuse(&given.at, fault)
}
