//! `/api/limiters`: the live state of all limiters, or of one; and what may be done to one by hand.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use url::form_urlencoded;

use super::response::{self, Response};
use crate::limiter::limit::{Algorithm, LimiterName, OnStoreFailure};
use crate::limiter::{Chosen, LimiterState, Limiters, NotFound, Partition};

#[derive(Serialize)]
struct Listing<'state> {
    store_up: bool,
    limiters: Vec<LimiterView<'state>>,
}

#[derive(Serialize)]
struct LimiterView<'state> {
    name: &'state str,
    limits: Vec<LimitView<'state>>,
    waiting: u32,
    granted: u64,
    refused: u64,
    /// No upstream can ask for a pause yet.
    paused_until: Option<u64>,
    queue: Option<QueueView>,
    guard_us: u64,
    on_store_failure: &'static str,
}

#[derive(Serialize)]
struct LimitView<'state> {
    limit: &'state str,
    rate: u64,
    /// Null for a month, which has no one length.
    per_ms: Option<u64>,
    algorithm: &'static str,
    /// Null where the store could not be asked.
    available: Option<u64>,
}

#[derive(Serialize)]
struct QueueView {
    timeout_ms: u64,
    max_waiting: u32,
}

/// All limiters, in the order of the configuration.
pub(super) async fn all(limiters: &Limiters) -> Response {
    let states = limiters.inspect().await;
    let views = states.iter().map(LimiterView::of).collect();
    response::document(&Listing { store_up: limiters.store_up(), limiters: views })
}

/// One limiter, or one of its partitions: `partition=VALUE`, once for each part of its key.
pub(super) async fn one(limiters: &Limiters, name: &str, query: Option<&str>) -> Response {
    match choose(limiters, name, query) {
        Ok(chosen) => shown(&chosen).await,
        Err(reason) => not_found(reason),
    }
}

/// Forgets what was used of one limiter, or of one of its partitions, on all replicas; the state afterwards.
pub(super) async fn reset(limiters: &Limiters, name: &str, query: Option<&str>) -> Response {
    let chosen = match choose(limiters, name, query) {
        Ok(chosen) => chosen,
        Err(reason) => return not_found(reason),
    };
    match chosen.reset().await {
        Ok(()) => shown(&chosen).await,
        Err(error) => {
            response::problem(StatusCode::SERVICE_UNAVAILABLE, &format!("nothing was reset: {error}"))
        }
    }
}

async fn shown(chosen: &Chosen) -> Response {
    response::document(&LimiterView::of(&chosen.inspect().await))
}

/// What a path and a query mean.
fn choose(limiters: &Limiters, name: &str, query: Option<&str>) -> Result<Chosen, NotFound> {
    let name = LimiterName::parse(name).ok_or(NotFound::Limiter)?;
    limiters.choose(&name, query.and_then(partition_of))
}

fn not_found(reason: NotFound) -> Response {
    let status = match reason {
        NotFound::Limiter => StatusCode::NOT_FOUND,
        NotFound::Partition => StatusCode::BAD_REQUEST,
    };
    response::problem(status, &reason.to_string())
}

fn partition_of(query: &str) -> Option<Partition> {
    let pairs = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "partition");
    let values: Vec<_> = pairs.map(|(_, value)| value).collect();
    let parts = values.iter().map(|value| Some(value.as_bytes()));
    (!values.is_empty()).then(|| Partition::of(parts))
}

impl LimiterView<'_> {
    fn of(state: &LimiterState) -> LimiterView<'_> {
        let limiter = &state.limiter;
        let available = |index: usize| state.available.as_ref()?.get(index).copied();
        let limits = limiter.limits.iter().enumerate().map(|(index, limit)| LimitView {
            limit: &limit.label,
            rate: limit.rate.get(),
            per_ms: match &limit.algorithm {
                Algorithm::FixedWindow { windows } => windows.nominal().map(millis),
                _ => Some(millis(limit.per)),
            },
            algorithm: limit.algorithm.as_str(),
            available: available(index),
        });
        let queue = limiter.queue.as_ref();
        LimiterView {
            name: limiter.name.as_str(),
            limits: limits.collect(),
            waiting: state.waiting,
            granted: state.granted,
            refused: state.refused,
            paused_until: None,
            queue: queue
                .map(|queue| QueueView { timeout_ms: millis(queue.timeout), max_waiting: queue.max_waiting }),
            guard_us: u64::try_from(limiter.guard.as_micros()).unwrap_or(u64::MAX),
            on_store_failure: match limiter.on_store_failure {
                OnStoreFailure::Local => "local",
                OnStoreFailure::Reject => "reject",
                OnStoreFailure::Allow => "allow",
            },
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::limiter::limit::{Limit, Limiter, Permits, QueueLimits};

    fn state(available: Option<Vec<u64>>) -> LimiterState {
        let limit = Limit {
            rate: Permits::new(900).unwrap(),
            per: Duration::from_secs(60),
            algorithm: Algorithm::SlidingWindow { precision: 256.try_into().unwrap() },
            label: "900/1m".into(),
        };
        let limiter = Limiter {
            guard: Duration::from_micros(1500),
            queue: Some(QueueLimits { timeout: Duration::from_secs(10), max_waiting: 1000 }),
            on_store_failure: OnStoreFailure::Reject,
            ..Limiter::new(LimiterName::parse("github").unwrap(), vec![limit])
        };
        LimiterState {
            limiter: Arc::new(limiter),
            waiting: 3,
            granted: 40,
            refused: 2,
            available,
            paused_for: Duration::ZERO,
        }
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
        assert_eq!(json!(LimiterView::of(&state(Some(vec![860])))), expected);
    }

    #[test]
    fn a_partition_is_named_by_the_parts_of_its_key() {
        let of = |parts: &[&str]| Some(Partition::of(parts.iter().map(|part| Some(part.as_bytes()))));
        assert_eq!(partition_of("partition=a%20b"), of(&["a b"]));
        // As a query's value is read where it is a part of a key.
        assert_eq!(partition_of("partition=a+b"), of(&["a b"]));
        assert_eq!(partition_of("partition=a&other=c&partition=b"), of(&["a", "b"]));
        assert_eq!(partition_of("other=c"), None);
    }

    #[test]
    fn what_the_store_could_not_say_is_null() {
        assert!(json!(LimiterView::of(&state(None)))["limits"][0]["available"].is_null());
    }
}
