//! Whether the routes of a limiter can use it together: one with a `share`, or with costs of its own. One line serves one set of limiters.

use std::collections::HashSet;
use std::sync::Arc;

use super::check::Check;
use super::limiter::Keyed;
use super::place::{Given, key};
use crate::config::model::{KeyPart, Route};
use crate::config::problem::quoted;
use crate::config::schema;
use crate::limiter::model::limit::{Limiter, LimiterName, Order};

/// Has slots of those limiters dealt of which a route takes a cost of their own, and returns all of them.
pub(super) fn with_orders(limiters: Vec<Keyed>, routes: &[Route]) -> Vec<Arc<Limiter>> {
    let own: HashSet<&LimiterName> = routes.iter().flat_map(own_costs).collect();
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
