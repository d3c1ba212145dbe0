//! `routes`: names, limiters and clients of each; its other sections have files of their own.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::Arc;

use super::body::{body_max, can_be_read};
use super::breaker::breaker;
use super::check::{Check, NAME_EXPECTED};
use super::cost::{Written, cost, settle};
use super::headers::{Purpose, header_names, headers};
use super::limiter::Keyed;
use super::matches::{matches, strip_prefix};
use super::place::{At, Given, all, key};
use super::retry::retry;
use super::share::By;
use super::upstream::upstream;
use crate::config::model::{Charge, Cost, Errors, KeyPart, Patience, Route, Settle};
use crate::config::problem::quoted;
use crate::config::schema::{self, Form, OffOr};
use crate::limiter::model::limit::{Limiter, LimiterName, Scope};

/// The most limiters of one route. Each call to the store covers all of them.
const LIMITERS_MAX: usize = 8;

/// The names that a route may refer to, and the defaults that it may replace.
pub(super) struct Names<'a> {
    /// The valid limiters.
    pub(super) limiters: &'a [Keyed],
    /// All limiters of the file. A reference to one that is not valid is no unknown name.
    pub(super) limiter_names: Vec<&'a str>,
    pub(super) client_names: Vec<&'a str>,
    /// True if each group of limiters has its own slot of a Redis Cluster, so that no call can book in two groups.
    pub(super) has_groups_apart: bool,
    /// `server.body_memory`, if it is valid.
    pub(super) body_memory: Option<u64>,
    /// The form of weir's own responses where a route names none.
    pub(super) errors: Errors,
}

/// Checks every route and returns the valid ones, in the order of the file.
pub(super) fn routes(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Vec<schema::Route>>>,
    names: &Names<'_>,
) -> Vec<Route> {
    let at = &given.at;
    if !at.is_given() {
        check.problem(at, "the key `routes` is missing");
    } else if at.length() == 0 && !at.is_faulty() {
        check.problem(at, "needs at least one route");
    }
    let mut first_of: HashMap<&str, String> = HashMap::new();
    let mut routes = Vec::new();
    for route in given.items() {
        let name = key!(route.name);
        if let Some(first) = first_of.get(name.value.as_str()) {
            check.problem(&name.at, format!("{first} already has this name"));
        }
        first_of.entry(name.value).or_insert_with(|| route.at.path.clone());
        routes.extend(one(check, &route, names));
    }
    routes
}

fn one(check: &mut Check<'_>, route: &Given<'_, schema::Route>, names: &Names<'_>) -> Option<Route> {
    let written = route.value;
    if LimiterName::parse(&written.name).is_none() {
        check.problem(&key!(route.name).at, NAME_EXPECTED);
    }
    let conditions = route.part(&written.matches, "match");
    let body_bytes_max = body_max(check, &key!(route.body));
    let matches = matches(check, &conditions, body_bytes_max);
    let upstream = upstream(check, &key!(route.upstream));
    let strip_prefix = key!(route.strip_prefix).checked(|prefix| strip_prefix(check, &prefix, &conditions));
    let set_headers = headers(check, &key!(route.set_headers), Purpose::Set);
    let remove_headers = header_names(check, &key!(route.remove_headers));
    let listed = limiters(check, route, names);
    let limiters: Vec<&Keyed> = listed.iter().map(|listed| listed.limiter).collect();
    let by_default: Vec<&Keyed> =
        listed.iter().filter(|listed| listed.cost.is_none()).map(|listed| listed.limiter).collect();
    let cost = cost(check, &key!(route.cost), &by_default);
    let settle = settle(check, &key!(route.cost));
    let charges = charges(check, &listed, (cost.as_ref(), settle.as_ref()));
    let retry = retry(check, &key!(route.retry));
    let breaker = breaker(check, &key!(route.breaker));
    let clients = clients(check, &key!(route.clients), names);
    let keyed = limiters.iter().map(|(limiter, reading)| (limiter.name.clone(), Arc::clone(&reading.key)));
    let mut patience: Vec<Patience> = Vec::new();
    for told in limiters.iter().filter_map(|(_, reading)| reading.patience.as_ref()) {
        if !patience.contains(told) {
            patience.push(told.clone());
        }
    }
    let (matches, cost, charges, body_bytes_max) = (matches?, cost?, charges?, body_bytes_max?);
    let sizes = (body_bytes_max, names.body_memory);
    let costs: Vec<&Cost> = iter::once(&cost).chain(charges.iter().map(|charge| &charge.cost)).collect();
    if !can_be_read(check, &key!(route.body).at, sizes, (&matches, &limiters, &costs)) {
        return None;
    }
    Some(Route {
        name: written.name.as_str().into(),
        matches,
        upstream: upstream?,
        strip_prefix: strip_prefix?,
        set_headers: set_headers?,
        remove_headers: remove_headers?,
        preserve_host: written.preserve_host.unwrap_or(false),
        forwarded_headers: written.forwarded_headers.unwrap_or(false),
        rewrite_links: written.rewrite_links.unwrap_or(true),
        errors: written.errors.unwrap_or(names.errors),
        limiters: keyed.collect(),
        pause_rules: limiters.iter().map(|(_, reading)| Arc::clone(&reading.pause_rules)).collect(),
        patience,
        flow: flow(&written.name, &limiters),
        body_bytes_max,
        cost,
        settle: settle?,
        charges,
        limit_headers: match written.limit_headers {
            Some(OffOr::On(form)) => Some(form),
            None | Some(OffOr::Off) => None,
        },
        retry: retry?,
        breaker: breaker?,
        clients,
    })
}

/// Returns what names the callers that share the quota of a route's limiters.
fn flow(route: &str, limiters: &[&Keyed]) -> Arc<[KeyPart]> {
    let by = limiters.iter().find_map(|(_, reading)| reading.flow.as_ref());
    let part = |by: &By| match by {
        By::Part(part) => part.clone(),
        By::Route => KeyPart::Route(route.into()),
    };
    by.into_iter().flat_map(|by| by.iter().map(part)).collect()
}

/// A limiter of a route.
struct Listed<'a, 'b> {
    limiter: &'a Keyed,
    /// The cost of its own, if it has one.
    cost: Option<Given<'b, Written>>,
}

/// Checks what a request costs at each of a route's limiters. Empty where all have the route's own cost.
fn charges(
    check: &mut Check<'_>,
    listed: &[Listed<'_, '_>],
    (of_route, settles): (Option<&Cost>, Option<&Option<Settle>>),
) -> Option<Vec<Charge>> {
    if listed.iter().all(|listed| listed.cost.is_none()) {
        return Some(Vec::new());
    }
    let charges = all(listed.iter().map(|Listed { limiter, cost: own }| match own {
        None => Some(Charge { cost: of_route?.clone(), settle: settles?.clone() }),
        Some(own) => {
            let (cost, settle) = (cost(check, own, &[limiter]), settle(check, own));
            Some(Charge { cost: cost?, settle: settle? })
        }
    }))?;
    let is_default = |charge: &Charge| of_route == Some(&charge.cost) && settles == Some(&charge.settle);
    Some(if charges.iter().all(is_default) { Vec::new() } else { charges })
}

/// Checks the limiters of a route and returns those that exist and are valid.
fn limiters<'a, 'b>(
    check: &mut Check<'_>,
    route: &Given<'b, schema::Route>,
    names: &Names<'a>,
) -> Vec<Listed<'a, 'b>> {
    let (single, list) = (key!(route.limiter), key!(route.limiters));
    if single.at.is_given() && list.at.is_given() {
        check.problem_of_key(&list.at, "`limiter` and `limiters` exclude each other");
    }
    match (list.value, list.at.length()) {
        (None | Some(OffOr::Off), _) | (_, 1..=LIMITERS_MAX) => {}
        (_, 0) => check.problem(&list.at, "names no limiter; `limiters: off` says that none is meant"),
        _ => check.problem(&list.at, format!("names more than {LIMITERS_MAX} limiters")),
    }
    let mut earlier = HashSet::new();
    let mut limiters: Vec<Listed<'a, 'b>> = Vec::new();
    let listed = list.on().into_iter().flat_map(|list| list.items()).map(entry);
    for (name, cost) in single.get().map(|name| (name, None)).into_iter().chain(listed) {
        check.reference("limiter", &name, &names.limiter_names);
        if !earlier.insert(name.value) {
            check.problem(&name.at, "this limiter is given twice");
            continue;
        }
        let found = names.limiters.iter().find(|(limiter, _)| limiter.name.as_str() == name.value);
        let Some(limiter) = found else { continue };
        let fits = |first: &Listed<'_, '_>| fit(check, names, (&first.limiter.0, &limiter.0), &name.at);
        if limiters.first().is_none_or(fits) {
            limiters.push(Listed { limiter, cost });
        }
    }
    limiters
}

/// Returns the name of a limiter, and its cost where it has one of its own.
fn entry<'a>(
    entry: Given<'a, Form<String, schema::RouteLimiter>>,
) -> (Given<'a, String>, Option<Given<'a, Written>>) {
    match entry.value {
        Form::Short(name) => (Given::new(name, entry.at), None),
        Form::Long(long) => {
            let limiter = Given::new(long, entry.at);
            let cost = key!(limiter.cost);
            (key!(limiter.name), cost.at.is_given().then_some(cost))
        }
    }
}

/// Returns whether one call can take permits from both limiters, all or nothing; reports a problem if not.
fn fit(check: &mut Check<'_>, names: &Names<'_>, (first, other): (&Limiter, &Limiter), at: &At<'_>) -> bool {
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
    if names.has_groups_apart && first.scope == Scope::Overall && first.group != other.group {
        let message = format!(
            "on a Redis Cluster the limiters of one route need the same `group`: {one} is in {}, {two} is in {}",
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

fn clients(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Vec<String>>>,
    names: &Names<'_>,
) -> Option<HashSet<Arc<str>>> {
    let clients = given.value.as_ref()?;
    if given.at.length() == 0 {
        check.problem(&given.at, "names no client; leave the key out for all of them");
    }
    for name in given.items() {
        check.reference("client", &name, &names.client_names);
    }
    Some(clients.iter().map(|name| name.as_str().into()).collect())
}
