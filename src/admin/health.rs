//! `/healthz` and `/readyz`, for orchestrators and load balancers.

use http::StatusCode;

use super::response::{self, Response};

/// Answers 200 while the process lives.
pub(super) fn alive() -> Response {
    response::line(StatusCode::OK, "alive")
}

/// Answers 200 when requests can be served by their limiters' policies. During an outage of the store that is so unless
/// a limiter has `on_store_failure: reject`.
pub(super) fn ready(draining: bool, limiters_ready: bool) -> Response {
    if draining {
        response::line(StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else if !limiters_ready {
        response::line(
            StatusCode::SERVICE_UNAVAILABLE,
            "the store is away, and a limiter has on_store_failure: reject",
        )
    } else {
        response::line(StatusCode::OK, "ready")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_unless_draining_or_without_a_needed_store() {
        assert_eq!(ready(false, true).status(), StatusCode::OK);
        assert_eq!(ready(true, true).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ready(false, false).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
