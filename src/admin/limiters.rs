//! `/api/limiters`: the live state of all limiters, or of one. Read-only.

use http::StatusCode;
use serde_json::{Value, json};

use super::response::{self, Response};
use crate::limiter::limit::{Algorithm, Limit, LimiterName, OnStoreFailure};
use crate::limiter::{LimiterState, Limiters};

/// All limiters, in the order of the configuration.
pub(super) async fn all(limiters: &Limiters) -> Response {
    let states = limiters.inspect().await;
    let listed: Vec<Value> = states.iter().map(limiter).collect();
    response::document(&json!({ "store_up": limiters.store_up(), "limiters": listed }))
}

/// One limiter.
pub(super) async fn one(limiters: &Limiters, name: &str, query: Option<&str>) -> Response {
    let state = match LimiterName::parse(name) {
        Some(name) => limiters.inspect_one(&name).await,
        None => None,
    };
    let Some(state) = state else {
        return response::problem(StatusCode::NOT_FOUND, "there is no limiter of this name");
    };
    if query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("partition="))) {
        return response::problem(
            StatusCode::BAD_REQUEST,
            "this limiter has no key, so it has no partitions",
        );
    }
    response::document(&limiter(&state))
}

fn limiter(state: &LimiterState) -> Value {
    let limiter = &state.limiter;
    let available = |index: usize| state.available.as_ref().and_then(|available| available.get(index));
    let limits: Vec<Value> =
        limiter.limits.iter().enumerate().map(|(index, each)| limit(each, available(index))).collect();
    let queue = limiter
        .queue
        .as_ref()
        .map(|queue| json!({ "timeout_ms": millis(queue.timeout), "max_waiting": queue.max_waiting }));
    json!({
        "name": limiter.name.as_str(),
        "limits": limits,
        "guard_us": u64::try_from(limiter.guard.as_micros()).unwrap_or(u64::MAX),
        "queue": queue,
        "on_store_failure": on_store_failure(limiter.on_store_failure),
        "waiting": state.waiting,
        "paused_until": null,
        "granted": state.granted,
        "refused": state.refused,
    })
}

/// `available` is null where the store could not be asked.
fn limit(limit: &Limit, available: Option<&u64>) -> Value {
    let algorithm = match limit.algorithm {
        Algorithm::SlidingWindow { .. } => "sliding_window",
    };
    json!({
        "limit": &*limit.label,
        "rate": limit.rate.get(),
        "per_ms": millis(limit.per),
        "algorithm": algorithm,
        "available": available,
    })
}

fn on_store_failure(policy: OnStoreFailure) -> &'static str {
    match policy {
        OnStoreFailure::Local => "local",
        OnStoreFailure::Reject => "reject",
        OnStoreFailure::Allow => "allow",
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::limiter::limit::{Limiter, Permits, QueueLimits};

    fn state(available: Option<Vec<u64>>) -> LimiterState {
        let limit = Limit {
            rate: Permits::new(900).unwrap(),
            per: Duration::from_secs(60),
            algorithm: Algorithm::SlidingWindow { precision: 256.try_into().unwrap() },
            label: "900/1m".into(),
        };
        let limiter = Limiter {
            name: LimiterName::parse("github").unwrap(),
            limits: vec![limit],
            guard: Duration::from_micros(1500),
            queue: Some(QueueLimits { timeout: Duration::from_secs(10), max_waiting: 1000 }),
            group: "github".into(),
            on_store_failure: OnStoreFailure::Reject,
        };
        LimiterState { limiter: Arc::new(limiter), waiting: 3, granted: 40, refused: 2, available }
    }

    #[test]
    fn a_limiter_is_shown_whole() {
        let expected = json!({
            "name": "github",
            "limits": [
                {"limit": "900/1m", "rate": 900, "per_ms": 60000, "algorithm": "sliding_window", "available": 860}
            ],
            "guard_us": 1500,
            "queue": {"timeout_ms": 10000, "max_waiting": 1000},
            "on_store_failure": "reject",
            "waiting": 3,
            "paused_until": null,
            "granted": 40,
            "refused": 2,
        });
        assert_eq!(limiter(&state(Some(vec![860]))), expected);
    }

    #[test]
    fn what_the_store_could_not_say_is_null() {
        assert!(limiter(&state(None))["limits"][0]["available"].is_null());
    }
}
