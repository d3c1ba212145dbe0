//! Warnings: a limiter that no route uses, a route that can never match, or has no limiter, a path that is written as a pattern, or a queue
//! that is of no use.
//!
//! Only of a file without problems, so that each route as written has its route as used.

use std::collections::{HashMap, HashSet};

use super::check::Check;
use super::limiter::Keyed;
use super::place::{Given, key};
use super::reach::{self, EarlierRoutes};
use crate::config::model::Route;
use crate::config::problem::quoted;
use crate::config::schema;
use crate::limiter::model::limit::Limiter;

/// Warns of every valid part that is hardly meant.
pub(super) fn warn(
    check: &mut Check<'_>,
    file: &Given<'_, schema::File>,
    limiters: &[Keyed],
    routes: &[Route],
) {
    unused_limiters(check, file, routes);
    let by_name: HashMap<&str, &Limiter> =
        limiters.iter().map(|(limiter, _)| (limiter.name.as_str(), &**limiter)).collect();
    let mut earlier = EarlierRoutes::default();
    for (index, written) in key!(file.routes).items().enumerate() {
        let Some(route) = routes.get(index) else { return };
        if route.limiters.is_empty() && !key!(written.limiters).at.is_given() {
            let message =
                "has no limiter, so its requests go out unlimited; `limiters: off` says that this is meant";
            check.warn(&written.at, message);
        }
        unused_queues(check, file, &by_name, (&written, route));
        let matches = written.part(&written.value.matches, "match");
        patterns_in_paths(check, &matches);
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

/// Warns of the patterns of other routers in paths that are compared letter by letter.
fn patterns_in_paths(check: &mut Check<'_>, matches: &Given<'_, schema::Match>) {
    for given in [key!(matches.path), key!(matches.exact_path)] {
        let segments = given.value.iter().flat_map(|path| path.split('/'));
        for segment in segments.filter(|segment| is_pattern(segment)).take(1) {
            let message = if segment.contains('*') {
                "`*` stands for itself here; a prefix needs none (`/api`), and a pattern is `path_regex`"
                    .to_owned()
            } else {
                format!("{} stands for itself here; a pattern is `path_regex`", quoted(segment))
            };
            check.warn(&given.at, message);
        }
    }
}

/// Returns whether a segment is a pattern to other routers: `*`, `{name}` or `:name`.
fn is_pattern(segment: &str) -> bool {
    segment.contains('*')
        || (segment.starts_with('{') && segment.ends_with('}'))
        || (segment.len() > 1 && segment.starts_with(':'))
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

/// Warns of a route on which nothing waits because one of its limiters has no queue, although another one has. A limiter whose `queue` is
/// `off` says that this is meant, and one that only counts never holds a request.
fn unused_queues(
    check: &mut Check<'_>,
    file: &Given<'_, schema::File>,
    by_name: &HashMap<&str, &Limiter>,
    (written, route): (&Given<'_, schema::Route>, &Route),
) {
    let of_route = route.limiters.iter().filter_map(|(name, _)| by_name.get(name.as_str()));
    let (waiting, without): (Vec<&Limiter>, Vec<&Limiter>) =
        of_route.filter(|limiter| !limiter.is_shadow()).partition(|limiter| limiter.queue.is_some());
    let is_meant =
        |limiter: &Limiter| key!(file.limiters).at.key(limiter.name.as_str()).key("queue").is_given();
    if waiting.is_empty() || without.is_empty() || without.iter().any(|limiter| is_meant(limiter)) {
        return;
    }
    let names = |limiters: &[&Limiter]| {
        let names: Vec<String> = limiters.iter().map(|limiter| quoted(limiter.name.as_str())).collect();
        names.join(" and ")
    };
    let subject = if without.len() == 1 { "limiter" } else { "limiters" };
    let verb = if without.len() == 1 { "has" } else { "have" };
    let (without, waiting) = (names(&without), names(&waiting));
    let message = format!(
        "the {subject} {without} {verb} no `queue`, so no request of this route waits, and the queue of {waiting} is not used here; \
         give {without} a queue too, or say by `queue: off` that this is meant"
    );
    check.warn(&key!(written.limiters).at, message);
}
