//! `/healthz` and `/readyz`, for orchestrators and load balancers.

use http::StatusCode;
use serde_json::{Value, json};
use url::form_urlencoded;

use super::response::{self, Response};
use super::state::AdminState;
use crate::config::model::Route;
use crate::config::unknown as unknown_name;
use crate::limiter::model::LimiterName;

/// Answers 200 while the process lives.
pub(super) fn alive() -> Response {
    response::line(StatusCode::OK, "alive")
}

/// Answers 200 while the replica takes requests and can serve some route by its limiters' policies. `?limiter=NAME` asks for
/// one limiter; several may be named.
pub(super) fn ready(state: &AdminState, query: Option<&str>) -> Response {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let asked: Vec<_> = pairs.filter(|(key, _)| key == "limiter").map(|(_, name)| name).collect();
    let limiters = state.limiters.readiness();
    if let Some(unknown) =
        asked.iter().find(|name| limiters.iter().all(|(known, _)| *known.as_str() != ***name))
    {
        let known = limiters.iter().map(|(name, _)| name.as_str());
        return response::problem(StatusCode::NOT_FOUND, &unknown_name("limiter", unknown, known));
    }
    let unready: Vec<_> =
        limiters.into_iter().filter(|(_, can_serve)| !can_serve).map(|(name, _)| name).collect();
    let can_serve = match asked.as_slice() {
        [] => serves_some_route(&state.config.config().routes, &unready),
        asked => !unready.iter().any(|name| asked.iter().any(|asked| **asked == *name.as_str())),
    };
    report(*state.draining.borrow(), can_serve, &unready)
}

/// Returns whether some route needs no limiter that cannot serve.
fn serves_some_route(routes: &[Route], unready: &[LimiterName]) -> bool {
    let is_served = |route: &Route| route.limiters.iter().all(|(name, _)| !unready.contains(name));
    routes.is_empty() || routes.iter().any(is_served)
}

fn report(draining: bool, can_serve: bool, unready: &[LimiterName]) -> Response {
    let ready = can_serve && !draining;
    let because = |name: &LimiterName| json!({ "limiter": name.as_str(), "because": "store_unavailable" });
    let cannot_serve: Vec<Value> = unready.iter().map(because).collect();
    let document = json!({ "ready": ready, "draining": draining, "cannot_serve": cannot_serve });
    let mut response = response::document(&document);
    if !ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_unless_draining_or_without_a_needed_store() {
        assert_eq!(report(false, true, &[]).status(), StatusCode::OK);
        assert_eq!(report(true, true, &[]).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(report(false, false, &[]).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
