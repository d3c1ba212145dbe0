//! `routes`: what they match, how they change a request, and which limiter they take.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};
use regex::{Regex, RegexBuilder};
use url::Host;

use super::Check;
use super::limiter::Keyed;
use super::place::At;
use super::retry::retry;
use super::server::NAME_EXPECTED;
use super::upstream::upstream;
use crate::config::model::{Cost, HostMatch, Match, PathMatch, Route, Settle};
use crate::config::problem::{quoted, unknown};
use crate::config::schema::forms::Named;
use crate::config::schema::{self, Form};
use crate::limiter::model::limit::{Limiter, LimiterName, Mode, Permits, RATE_MAX, Scope};

/// The most limiters of one route: each call looks at all of them.
const LIMITERS_MAX: usize = 8;
/// The largest compiled `path_regex`, in bytes.
const REGEX_BYTES_MAX: usize = 1024 * 1024;

/// Headers that weir sets itself, because they say how the message is framed and where it goes.
const OWN_HEADERS: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The names that a route may refer to.
pub(super) struct Known<'a> {
    /// The valid limiters.
    pub(super) limiters: &'a [Keyed],
    /// All limiters of the file: one that is not valid is not unknown.
    pub(super) limiter_names: Vec<&'a str>,
    pub(super) client_names: Vec<&'a str>,
    /// Whether each group of limiters lives in a place of its own, so that nothing can book in two groups at once.
    pub(super) has_groups_apart: bool,
}

/// Every valid route, in the order of the file.
pub(super) fn routes(
    check: &mut Check<'_>,
    given: Option<&[schema::Route]>,
    known: &Known<'_>,
    at: &At<'_>,
) -> Vec<Route> {
    if !at.is_given() {
        check.problem(at, "the key `routes` is missing");
    } else if at.length() == 0 && !at.is_faulty() {
        check.problem(at, "needs at least one route");
    }
    let mut first_of: HashMap<&str, String> = HashMap::new();
    let mut routes = Vec::new();
    for (index, route) in given.unwrap_or_default().iter().enumerate() {
        let at = at.index(index);
        if let Some(first) = first_of.get(route.name.as_str()) {
            check.problem(&at.key("name"), format!("{first} already has this name"));
        }
        first_of.entry(&route.name).or_insert_with(|| at.path.clone());
        routes.extend(one(check, route, known, &at));
    }
    routes
}

fn one(check: &mut Check<'_>, given: &schema::Route, known: &Known<'_>, at: &At<'_>) -> Option<Route> {
    if LimiterName::parse(&given.name).is_none() {
        check.problem(&at.key("name"), NAME_EXPECTED);
    }
    let matches = matches(check, &given.matches, &at.key("match"));
    let upstream = upstream(check, &given.upstream, &at.key("upstream"));
    let prefix = given.strip_prefix.as_deref();
    let (at_match, at_prefix) = (at.key("match"), at.key("strip_prefix"));
    let strip_prefix =
        prefix.map(|prefix| strip_prefix(check, prefix, &given.matches, &at_match, &at_prefix));
    let set_headers = headers(check, given.set_headers.as_ref(), &at.key("set_headers"), Use::Set);
    let remove_headers = header_names(check, given.remove_headers.as_deref(), &at.key("remove_headers"));
    let limiters = limiters(check, given, known, at);
    let cost = cost(check, given.cost.as_ref(), &limiters, &at.key("cost"));
    let settle = settle(check, given.cost.as_ref(), &at.key("cost"));
    let retry = retry(check, given.retry.as_ref(), &at.key("retry"));
    let clients = clients(check, given.clients.as_deref(), known, &at.key("clients"));
    let strip_prefix = match strip_prefix {
        Some(prefix) => Some(prefix?),
        None => None,
    };
    Some(Route {
        name: given.name.as_str().into(),
        matches: matches?,
        upstream: upstream?,
        strip_prefix,
        set_headers: set_headers?,
        remove_headers: remove_headers?,
        preserve_host: given.preserve_host.unwrap_or(false),
        forwarded_headers: given.forwarded_headers.unwrap_or(false),
        limiters: limiters
            .into_iter()
            .map(|(limiter, key)| (limiter.name.clone(), Arc::clone(key)))
            .collect(),
        cost: cost?,
        settle: settle?,
        retry: retry?,
        clients,
    })
}

fn matches(check: &mut Check<'_>, given: &schema::Match, at: &At<'_>) -> Option<Match> {
    let path = path(check, given, at);
    let host = given.host.as_deref().map(|text| host(check, text, &at.key("host")));
    let methods = methods(check, given.methods.as_deref(), &at.key("methods"));
    let headers = headers(check, given.headers.as_ref(), &at.key("headers"), Use::Match);
    let host = match host {
        Some(host) => Some(host?),
        None => None,
    };
    Some(Match { path: path?, host, methods: methods?, headers: headers? })
}

fn path(check: &mut Check<'_>, given: &schema::Match, at: &At<'_>) -> Option<PathMatch> {
    match (&given.path, &given.exact_path, &given.path_regex) {
        (None, None, None) => Some(PathMatch::Any),
        (Some(prefix), None, None) => {
            let prefix = plain_path(check, prefix, &at.key("path"))?;
            Some(match prefix.trim_end_matches('/') {
                "" => PathMatch::Any,
                prefix => PathMatch::Prefix(prefix.to_owned()),
            })
        }
        (None, Some(path), None) => {
            plain_path(check, path, &at.key("exact_path")).map(|path| PathMatch::Exact(path.to_owned()))
        }
        (None, None, Some(pattern)) => {
            path_regex(check, pattern, &at.key("path_regex")).map(PathMatch::Pattern)
        }
        _ => {
            check.problem(at, "`path`, `exact_path` and `path_regex` exclude each other");
            None
        }
    }
}

/// A path that a request can have in each of its forms. The router compares decoded, merged and dot-resolved forms, so
/// any other could never match.
fn plain_path<'a>(check: &mut Check<'_>, given: &'a str, at: &At<'_>) -> Option<&'a str> {
    let fault = if !given.starts_with('/') {
        "must begin with `/`"
    } else if given.bytes().any(|byte| !byte.is_ascii_graphic() || b"?#%\\".contains(&byte)) {
        "must be visible ASCII without `?`, `#`, `%` and `\\`"
    } else if given.contains("//") || given.split('/').any(|segment| matches!(segment, "." | "..")) {
        "must not hold `//`, `/./` or `/../`, which requests are freed of before they are matched"
    } else {
        return Some(given);
    };
    check.problem(at, fault);
    None
}

/// Compiled twice: by itself, so that its groups balance, and then anchored.
fn path_regex(check: &mut Check<'_>, pattern: &str, at: &At<'_>) -> Option<Regex> {
    let compile = |pattern: &str| RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build();
    match compile(pattern).and_then(|_| compile(&format!(r"\A(?:{pattern})\z"))) {
        Ok(regex) => Some(regex),
        // Such an error quotes the pattern and spans lines; its last line says what is wrong.
        Err(error) => {
            let text = error.to_string();
            let reason =
                text.lines().next_back().unwrap_or_default().trim_start_matches("error: ").to_owned();
            check.problem(at, format!("not a valid regular expression: {reason}"));
            None
        }
    }
}

fn host(check: &mut Check<'_>, given: &str, at: &At<'_>) -> Option<HostMatch> {
    let (wildcard, name) = match given.strip_prefix("*.") {
        Some(rest) => (true, rest),
        None => (false, given),
    };
    let parsed = Host::parse(name).ok().filter(|host| !wildcard || matches!(host, Host::Domain(_)));
    match parsed.map(|host| host.to_string()) {
        Some(name) if !name.contains('*') && !name.is_empty() => {
            Some(if wildcard { HostMatch::Suffix(format!(".{name}")) } else { HostMatch::Exact(name) })
        }
        _ => {
            check.problem(at, "expected a host without a port, such as api.example.com or *.example.com");
            None
        }
    }
}

fn methods(check: &mut Check<'_>, given: Option<&[String]>, at: &At<'_>) -> Option<Vec<Method>> {
    let methods: Vec<Option<Method>> = given
        .unwrap_or_default()
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let fault = match Method::from_bytes(name.as_bytes()) {
                Ok(Method::CONNECT | Method::TRACE) => "weir answers CONNECT and TRACE itself, with 405",
                Ok(_) if name.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                    "methods are written in capitals, such as GET"
                }
                Ok(method) => return Some(method),
                Err(_) => "expected a method, such as GET",
            };
            check.problem(&at.index(index), fault);
            None
        })
        .collect();
    if given.is_some() && at.length() == 0 {
        check.problem(at, "matches nothing; name a method, or leave the key out for all of them");
        return None;
    }
    methods.into_iter().collect()
}

/// What headers are listed for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Match,
    Set,
}

fn headers(
    check: &mut Check<'_>,
    given: Option<&Named<String>>,
    at: &At<'_>,
    purpose: Use,
) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut seen = Vec::new();
    let headers: Vec<Option<(HeaderName, HeaderValue)>> = given
        .into_iter()
        .flat_map(Named::iter)
        .map(|(name, value)| {
            let at = at.key(name);
            let name = header_name(check, name, &at)?;
            if seen.contains(&name) {
                check.problem_of_key(&at, "this header is given twice");
            }
            seen.push(name.clone());
            if purpose == Use::Set && !may_be_changed(check, &name, &at) {
                return None;
            }
            let Ok(mut value) = HeaderValue::from_str(value) else {
                check.problem(
                    &at,
                    "the value holds characters that a header cannot carry, such as a line break",
                );
                return None;
            };
            value.set_sensitive(purpose == Use::Set);
            Some((name, value))
        })
        .collect();
    headers.into_iter().collect()
}

fn header_names(check: &mut Check<'_>, given: Option<&[String]>, at: &At<'_>) -> Option<Vec<HeaderName>> {
    let names: Vec<Option<HeaderName>> = given
        .unwrap_or_default()
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let at = at.index(index);
            header_name(check, name, &at).filter(|name| may_be_changed(check, name, &at))
        })
        .collect();
    names.into_iter().collect()
}

fn header_name(check: &mut Check<'_>, given: &str, at: &At<'_>) -> Option<HeaderName> {
    let name = HeaderName::try_from(given).ok();
    if name.is_none() {
        check.problem_of_key(at, "expected the name of a header, such as x-api-key");
    }
    name
}

fn may_be_changed(check: &mut Check<'_>, name: &HeaderName, at: &At<'_>) -> bool {
    let own = OWN_HEADERS.contains(&name.as_str());
    if name == http::header::HOST {
        check.problem_of_key(at, "weir sets `host` itself; see `preserve_host`");
    } else if own {
        check.problem_of_key(at, format!("weir sets `{name}` itself"));
    }
    !own
}

/// It must be a part of every path that the route matches.
fn strip_prefix(
    check: &mut Check<'_>,
    given: &str,
    matches: &schema::Match,
    at_match: &At<'_>,
    at: &At<'_>,
) -> Option<String> {
    let prefix = plain_path(check, given, at)?.trim_end_matches('/');
    let matched = matches.path.as_deref().or(matches.exact_path.as_deref());
    let fault = match matched {
        _ if prefix.is_empty() => "strips nothing; leave the key out",
        None if at_match.key("path").is_faulty() || at_match.key("exact_path").is_faulty() => return None,
        None => "needs `match.path` or `match.exact_path`, so that every path begins with it",
        Some(path)
            if path.strip_prefix(prefix).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('/')) =>
        {
            "is not the beginning of the matched path, on a segment border"
        }
        Some(_) => return Some(prefix.to_owned()),
    };
    check.problem(at, fault);
    None
}

/// The route's limiters, as far as they are known and valid.
fn limiters<'a>(
    check: &mut Check<'_>,
    given: &schema::Route,
    known: &Known<'a>,
    at: &At<'_>,
) -> Vec<&'a Keyed> {
    let at_list = at.key("limiters");
    if at.key("limiter").is_given() && at_list.is_given() {
        check.problem_of_key(&at_list, "`limiter` and `limiters` exclude each other");
    }
    match (&given.limiters, at_list.length()) {
        (None, _) | (_, 1..=LIMITERS_MAX) => {}
        (_, 0) => check.problem(&at_list, "names no limiter; leave the key out"),
        _ => check.problem(&at_list, format!("names more than {LIMITERS_MAX} limiters")),
    }
    let listed = given.limiters.iter().flatten().enumerate();
    let named = listed.map(|(index, name)| (name, at_list.index(index)));
    let all: Vec<_> = given.limiter.iter().map(|name| (name, at.key("limiter"))).chain(named).collect();
    let mut limiters: Vec<&Keyed> = Vec::new();
    for (index, (name, at)) in all.iter().enumerate() {
        is_known(check, "limiter", name, &known.limiter_names, at);
        if all[..index].iter().any(|(earlier, _)| earlier == name) {
            check.problem(at, "this limiter is given twice");
            continue;
        }
        let Some(limiter) = known.limiters.iter().find(|(limiter, _)| limiter.name.as_str() == *name) else {
            continue;
        };
        if limiters.first().is_none_or(|first| fit(check, known, (&first.0, &limiter.0), at)) {
            limiters.push(limiter);
        }
    }
    limiters
}

/// Whether one call can take both limiters, all or nothing.
fn fit(check: &mut Check<'_>, known: &Known<'_>, (first, other): (&Limiter, &Limiter), at: &At<'_>) -> bool {
    let (one, two) = (quoted(first.name.as_str()), quoted(other.name.as_str()));
    if first.scope != other.scope {
        let message = format!(
            "limiters of one route need the same `scope`: {one} is {}, {two} is {}",
            scope_name(first.scope),
            scope_name(other.scope)
        );
        check.problem(at, message);
        return false;
    }
    if known.has_groups_apart && first.scope == Scope::Overall && first.group != other.group {
        let message = format!(
            "on a Redis Cluster the limiters of one route need the same `group`: {one} is of {}, {two} is of {}",
            quoted(&first.group),
            quoted(&other.group)
        );
        check.problem(at, message);
        return false;
    }
    true
}

fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::Overall => "overall",
        Scope::PerReplica => "per_replica",
    }
}

fn cost(
    check: &mut Check<'_>,
    given: Option<&Form<schema::Cost, schema::CostHeader>>,
    limiters: &[&Keyed],
    at: &At<'_>,
) -> Option<Cost> {
    match given {
        None => Some(Cost::Fixed(Permits::ONE)),
        Some(Form::Short(schema::Cost(cost))) => {
            let cost = permits(check, Some(*cost), at)?;
            can_be_held(check, cost, limiters, at).then_some(Cost::Fixed(cost))
        }
        Some(Form::Long(header)) => cost_header(check, header, limiters, at),
    }
}

/// A cost that some limiter can never grant would refuse every request.
fn can_be_held(check: &mut Check<'_>, cost: Permits, limiters: &[&Keyed], at: &At<'_>) -> bool {
    let Some((limiter, _)) = limiters.iter().find(|(limiter, _)| cost > limiter.cost_max()) else {
        return true;
    };
    let tightest = limiter.limits.iter().min_by_key(|limit| limit.cost_max());
    let message = format!(
        "larger than limiter {} can ever grant: {} at once ({})",
        quoted(limiter.name.as_str()),
        limiter.cost_max(),
        tightest.map(|limit| &*limit.label).unwrap_or_default(),
    );
    check.problem(at, message);
    false
}

/// The outer `None` is a problem, the inner one nothing that a response could tell.
fn settle(
    check: &mut Check<'_>,
    given: Option<&Form<schema::Cost, schema::CostHeader>>,
    at_cost: &At<'_>,
) -> Option<Option<Settle>> {
    let Some(Form::Long(schema::CostHeader { settle: Some(given), .. })) = given else { return Some(None) };
    let at = at_cost.key("settle");
    if given.header.is_none() && given.free.is_none() {
        check.problem(&at, "needs `header` or `free`");
        return None;
    }
    let name = given.header.as_deref();
    let header = name.map(|name| header_value_name(check, name, &at.key("header")));
    let free = given.free.as_deref().unwrap_or_default().iter().enumerate();
    let free: Option<Vec<u16>> = free
        .map(|(index, status)| {
            let code = u16::try_from(*status).ok().filter(|code| (200..600).contains(code));
            if code.is_none() {
                check.problem(&at.key("free").index(index), "expected a status from 200 to 599, such as 304");
            }
            code
        })
        .collect();
    let header = match header {
        None => None,
        Some(name) => Some(name?),
    };
    Some(Some(Settle { header, free: free? }))
}

/// The name of a header that is a value here.
fn header_value_name(check: &mut Check<'_>, given: &str, at: &At<'_>) -> Option<HeaderName> {
    let name = HeaderName::try_from(given).ok();
    if name.is_none() {
        check.problem(at, "expected the name of a header, such as x-cost");
    }
    name
}

fn cost_header(
    check: &mut Check<'_>,
    given: &schema::CostHeader,
    limiters: &[&Keyed],
    at: &At<'_>,
) -> Option<Cost> {
    let Some(name) = &given.header else {
        if given.settle.is_none() {
            check.problem(at, "needs `header`, or `settle`");
            return None;
        }
        if given.max.is_some() {
            check.problem_of_key(&at.key("max"), "is for a cost that a `header` names");
            return None;
        }
        let default = permits(check, Some(given.default.unwrap_or(1)), &at.key("default"))?;
        return can_be_held(check, default, limiters, &at.key("default")).then_some(Cost::Fixed(default));
    };
    let name = HeaderName::try_from(name.as_str()).ok();
    if name.is_none() {
        check.problem(&at.key("header"), "expected the name of a header, such as weir-cost");
    } else if name.as_ref().is_some_and(|name| OWN_HEADERS.contains(&name.as_str())) {
        check.problem(&at.key("header"), "this header says how the message is framed; choose another");
    }
    // A limiter that never refuses holds nobody to its limits.
    let enforced = limiters.iter().filter(|(limiter, _)| limiter.mode == Mode::Enforce);
    let held = enforced.map(|(limiter, _)| limiter.cost_max()).min();
    let default = permits(check, given.default, &at.key("default"));
    let max = match given.max {
        None => held.or_else(|| Permits::new(RATE_MAX.into())),
        Some(max) => permits(check, Some(max), &at.key("max")),
    };
    let (default, max) = (default?, max?);
    let at_default = if given.default.is_some() { at.key("default") } else { at.key("max") };
    if given.max.is_some() && default > max {
        check.problem(&at_default, "`default` must not be larger than `max`");
        return None;
    }
    let held = can_be_held(check, default, limiters, &at_default);
    held.then_some(Cost::Header { name: name?, default, max })
}

fn permits(check: &mut Check<'_>, given: Option<i64>, at: &At<'_>) -> Option<Permits> {
    check.count(given, 1, 1..=RATE_MAX, at).and_then(|count| Permits::new(count.into()))
}

fn clients(
    check: &mut Check<'_>,
    given: Option<&[String]>,
    known: &Known<'_>,
    at: &At<'_>,
) -> Option<HashSet<Arc<str>>> {
    let given = given?;
    if at.length() == 0 {
        check.problem(at, "names no client; leave the key out for all of them");
    }
    for (index, name) in given.iter().enumerate() {
        is_known(check, "client", name, &known.client_names, &at.index(index));
    }
    Some(given.iter().map(|name| name.as_str().into()).collect())
}

/// Reports a name that nothing has. One out of the environment is not repeated.
fn is_known(check: &mut Check<'_>, what: &str, name: &str, known: &[&str], at: &At<'_>) {
    if !known.contains(&name) {
        let shown = if at.is_interpolated() { "***" } else { name };
        check.problem(at, unknown(what, shown, known.iter().copied()));
    }
}
