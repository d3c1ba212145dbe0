//! Warnings: a limiter that no route uses, a route that can never match, a route without a limiter.
//!
//! Only of a file without problems, so that each route as written has its route as used.

use std::collections::HashSet;

use super::check::Check;
use super::place::{Given, key};
use super::reach::{self, Earlier};
use crate::config::model::Route;
use crate::config::problem::quoted;
use crate::config::schema;

/// Warns of every valid part that is hardly meant.
pub(super) fn warn(check: &mut Check<'_>, file: &Given<'_, schema::File>, routes: &[Route]) {
    unused_limiters(check, file, routes);
    let mut earlier = Earlier::default();
    for (index, written) in key!(file.routes).items().enumerate() {
        let Some(route) = routes.get(index) else { return };
        if route.limiters.is_empty() && !key!(written.limiters).at.is_given() {
            let message =
                "has no limiter, so its requests go out unlimited; `limiters: off` says that this is meant";
            check.warn(&written.at, message);
        }
        let matches = written.part(&written.value.matches, "match");
        if let Some(why) = reach::never_by_itself(&route.matches) {
            check.warn(&matches.at, format!("can never match: {why}"));
        } else if let Some(takers) = earlier.taking(&route.matches) {
            let names: Vec<String> = takers.iter().map(|route| quoted(&route.name)).collect();
            let message =
                format!("can never match: {} before it takes each of its requests", names.join(" and "));
            check.warn(&matches.at, message);
        }
        earlier.add(route);
    }
}

fn unused_limiters(check: &mut Check<'_>, file: &Given<'_, schema::File>, routes: &[Route]) {
    let names = routes.iter().flat_map(|route| &route.limiters).map(|(name, _)| name.as_str());
    let used: HashSet<&str> = names.collect();
    for (name, limiter) in key!(file.limiters).entries() {
        if !used.contains(name) {
            check.warn(&limiter.at, "no route uses this limiter");
        }
    }
}
