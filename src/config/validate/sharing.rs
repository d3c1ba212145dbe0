//! Checks that the routes of a limiter can use it together: one with a `share`, or with costs of its own. One line serves one set of limiters.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::check::Check;
use super::limiter::Keyed;
use super::place::{Given, key};
use crate::config::model::{Cost, KeyPart, Route};
use crate::config::problem::quoted;
use crate::config::schema;
use crate::limiter::model::limit::{Limiter, LimiterName, OnStoreFailure, Order};

/// Has slots of those limiters dealt of which a route takes a cost of their own, and returns all of them.
pub(super) fn with_orders(limiters: Vec<Keyed>, routes: &[Route]) -> Vec<Arc<Limiter>> {
    let own: HashSet<&LimiterName> =
        routes.iter().flat_map(own_costs).chain(routes.iter().flat_map(estimated)).collect();
    let ordered = |(limiter, _): Keyed| {
        if limiter.order == Order::Booked && own.contains(&limiter.name) {
            Arc::new(Limiter { order: Order::Dealt, ..Limiter::clone(&limiter) })
        } else {
            limiter
        }
    };
    limiters.into_iter().map(ordered).collect()
}

/// Returns the limiters of a route of which requests take another cost than of the others.
fn own_costs(route: &Route) -> impl Iterator<Item = &LimiterName> {
    let charges = route.limiters.iter().zip(&route.charges);
    charges
        .filter(|(_, charge)| charge.cost != route.cost || charge.settle != route.settle)
        .map(|((name, _), _)| name)
}

/// Returns the limiters of a route whose own cost is an estimate, which is another one for nearly each request.
fn estimated(route: &Route) -> impl Iterator<Item = &LimiterName> {
    let is_estimated = matches!(route.cost, Cost::Estimate(_)) && route.charges.is_empty();
    route.limiters.iter().filter(move |_| is_estimated).map(|(name, _)| name)
}

/// Reports routes whose limiters have costs of their own and another policy for a store that is away: a replica's share is of all of them.
pub(super) fn check_policies(
    check: &mut Check<'_>,
    file: &Given<'_, schema::File>,
    limiters: &[Keyed],
    routes: &[Route],
) {
    for route in routes.iter().filter(|route| !route.charges.is_empty()) {
        let of_route = |(limiter, _): &&Keyed| route.limiters.iter().any(|(name, _)| *name == limiter.name);
        let with = |policy: OnStoreFailure| {
            let mut all = limiters.iter().filter(of_route);
            all.find(|(limiter, _)| limiter.on_store_failure == policy).map(|(limiter, _)| limiter)
        };
        let (Some(local), Some(allow)) = (with(OnStoreFailure::Local), with(OnStoreFailure::Allow)) else {
            continue;
        };
        let at = key!(file.limiters).at.key(allow.name.as_str()).key("on_store_failure");
        let (route, local) = (quoted(&route.name), quoted(local.name.as_str()));
        let message = format!(
            "on route {route} limiters have costs of their own, and {local} is `local`: they need one policy"
        );
        check.problem_of_key(&at, message);
    }
}

/// Warns of limiters with costs of their own that routes use in different sets, or beside a limiter of another `key`: each set has a line of
/// its own, and whoever calls first gets the room.
pub(super) fn warn_of_sets(check: &mut Check<'_>, file: &Given<'_, schema::File>, routes: &[Route]) {
    let own: BTreeSet<&LimiterName> =
        routes.iter().flat_map(own_costs).chain(routes.iter().flat_map(estimated)).collect();
    for name in own {
        let at = key!(file.limiters).at.key(name.as_str());
        let has = |route: &&Route| route.limiters.iter().any(|(it, _)| it == name);
        let mut sets = routes.iter().filter(has).map(|route| {
            let mut names: Vec<_> = route.limiters.iter().map(|(name, _)| name).collect();
            names.sort_unstable();
            (names, route)
        });
        let Some((first, route)) = sets.next() else { continue };
        if sets.any(|(names, _)| names != first) {
            check.warn(&at, "requests have costs of their own here, and routes use it in different sets of limiters: their requests do not wait in one order");
        }
        let key = route.limiters.iter().find(|(it, _)| it == name).map(|(_, key)| key);
        if route.limiters.iter().any(|(_, other)| Some(other) != key) {
            check.warn(&at, "requests have costs of their own here, and a limiter beside it has another `key`: those of different values do not wait in one order");
        }
    }
}

/// Reports the sharing limiters that routes use in different sets, or beside a limiter of another `key`: one line serves one set.
pub(super) fn check_routes(
    check: &mut Check<'_>,
    file: &Given<'_, schema::File>,
    limiters: &[Keyed],
    routes: &[Route],
) {
    for (limiter, reading) in limiters.iter().filter(|(limiter, _)| limiter.share().is_some()) {
        let at = key!(file.limiters).at.key(limiter.name.as_str()).key("share");
        let sets = routes.iter().map(|route| &route.limiters);
        let mut sets = sets.filter(|set| set.iter().any(|(name, _)| *name == limiter.name));
        let Some(first) = sets.next() else { continue };
        let names = |set: &[(LimiterName, Arc<[KeyPart]>)]| {
            let mut names: Vec<LimiterName> = set.iter().map(|(name, _)| name.clone()).collect();
            names.sort_unstable();
            names
        };
        if sets.any(|set| names(set) != names(first)) {
            check.problem_of_key(
                &at,
                "routes use this limiter in different sets of limiters, and a share is of one set",
            );
        }
        if let Some((other, _)) = first.iter().find(|(_, key)| *key != reading.key) {
            let other = quoted(other.as_str());
            check.problem_of_key(
                &at,
                format!("the limiter {other} beside it has another `key`, and a share is of one queue"),
            );
        }
        let is_other = |name: &LimiterName| {
            *name != limiter.name && limiters.iter().any(|(it, _)| it.name == *name && it.share().is_some())
        };
        if let Some((other, _)) = first.iter().find(|(name, _)| is_other(name)) {
            let other = quoted(other.as_str());
            check.problem_of_key(&at, format!("the limiter {other} beside it has a `share`, too: one is enough, it is for all limiters of the route"));
        }
    }
}
