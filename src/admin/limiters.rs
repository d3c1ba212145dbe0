//! `/api/limiters`: the live state of all limiters or of one, and the actions by hand: pause, resume, reset.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::named_partition::{self, NamedPartition};
use super::partitions;
use super::response::{self, Response};
use crate::clock::{Micros, millis, unix_now};
use crate::config::model::Config;
use crate::config::{units, unknown as unknown_name};
use crate::limiter::model::limit::{LimiterName, OnStoreFailure};
use crate::limiter::model::pause::{PAUSE_MAX, Reason};
use crate::limiter::{
    Applied, Inspection, LimiterStatus, Limiters, NotFound, Partition, PauseState, ShareStatus, replica_name,
};
use crate::usage::{Fleet, FleetLimiter, TopPartitions};

/// Bounds on reading a body.
const BODY_BYTES_MAX: usize = 1024;
const BODY_TIME_MAX: Duration = Duration::from_secs(5);

/// The length of a pause by hand, for messages.
pub const PAUSE_LENGTH: &str = "a duration from 1ms to 1d, such as 30s";

/// The detail of an action by hand that the store did not take; the reason follows.
const LOCAL_ALONE: &str = "done on this replica alone, and on the others when the store answers";

/// Answers with all limiters, in the order of the configuration.
pub(super) async fn all(limiters: &Limiters, fleet: &Fleet) -> Response {
    let listed = listing(limiters, fleet).await;
    response::document(&json!({ "store_up": limiters.store_up(), "limiters": listed }))
}

/// Returns all limiters as JSON.
pub(super) async fn listing(limiters: &Limiters, fleet: &Fleet) -> Vec<Value> {
    let (states, fleet) = (limiters.inspect().await, fleet.limiters());
    let view = |state: &LimiterStatus| {
        let view = view(state, |replica| limiters.host_of(replica));
        let fleet = fleet.iter().find(|limiter| *limiter.name == *state.limiter.name.as_str());
        in_fleet(view, fleet, |top| {
            partitions::view(top, limiters.partition_values(&state.limiter.name), partitions::LISTED)
        })
    };
    states.iter().map(view).collect()
}

/// Adds to a limiter as JSON what the whole fleet uses of it. `top` returns its partitions that matter as JSON.
fn in_fleet(
    mut view: Value,
    fleet: Option<&FleetLimiter>,
    top: impl FnOnce(&TopPartitions) -> Value,
) -> Value {
    let Some(fleet) = fleet else { return view };
    // Null without a key.
    view["top"] = fleet.partitions.as_deref().map(top).into();
    view["fleet"] = json!({
        "granted_per_second": rounded(fleet.granted_per_second),
        "refused_per_second": rounded(fleet.refused_per_second),
        "waiting": fleet.waiting,
        // Of the last minute, in seconds; null without requests.
        "wait_p50": fleet.waits.map(|waits| waits[0]),
        "wait_p95": fleet.waits.map(|waits| waits[1]),
        "wait_p99": fleet.waits.map(|waits| waits[2]),
    });
    for limit in view["limits"].as_array_mut().into_iter().flatten() {
        let forecast = fleet.exhausted_in.iter().find(|(label, _)| limit["limit"] == **label);
        if let Some((_, seconds)) = forecast {
            // Null where it lasts.
            limit["exhausted_in_seconds"] = seconds.is_finite().then(|| rounded(*seconds)).into();
        }
        // Null where the upstream's responses do not tell.
        let count = fleet.upstream_counts.iter().find(|count| limit["limit"] == *count.limit);
        limit["upstream"] = count
            .map(|count| {
                json!({ "available": count.remaining, "apart": count.apart, "told_ms_ago": count.age_us / 1000 })
            })
            .into();
    }
    view
}

/// Rounds to hundredths.
fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// A limiter or one of its partitions, as a path and a query name it.
pub(super) struct LimiterPath<'a> {
    /// The configuration, which has the key.
    pub(super) config: &'a Config,
    pub(super) name: &'a str,
    /// `partition=VALUE`, once for each part of the key.
    pub(super) query: Option<&'a str>,
}

/// Answers with one limiter, or one of its partitions.
pub(super) async fn one(limiters: &Limiters, fleet: &Fleet, path: LimiterPath<'_>) -> Response {
    let name = path.name;
    match Chosen::find(limiters, path) {
        Ok(chosen) => {
            let fleet = fleet.limiters().into_iter().find(|limiter| *limiter.name == *name);
            let shown = chosen.view(limiters).await;
            response::document(&in_fleet(shown, fleet.as_ref(), |top| {
                let value = LimiterName::parse(name).map(|name| limiters.partition_values(&name));
                partitions::view(top, |hash| value.as_ref()?(hash), usize::MAX)
            }))
        }
        Err(error) => error.answer(),
    }
}

/// An error of reading a body.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An action on a limiter by hand.
#[derive(Clone, Copy)]
pub(super) enum Action {
    Pause,
    Resume,
    Reset,
}

impl Action {
    /// Returns its name, as in a path.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Action::Pause => "pause",
            Action::Resume => "resume",
            Action::Reset => "reset",
        }
    }

    /// Returns the action of this name in a path.
    pub(super) fn named(name: &str) -> Option<Action> {
        [Action::Pause, Action::Resume, Action::Reset].into_iter().find(|action| action.as_str() == name)
    }
}

/// The body of a request for a pause.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseFor {
    r#for: String,
}

/// Acts on a limiter, or on one of its partitions, for all replicas. Answers with the state afterwards.
pub(super) async fn act(
    limiters: &Limiters,
    action: Action,
    path: LimiterPath<'_>,
    body: impl Body<Data = Bytes, Error: Into<BoxError>>,
) -> Response {
    let chosen = match Chosen::find(limiters, path) {
        Ok(chosen) => chosen,
        Err(error) => return error.answer(),
    };
    let Chosen { inspection, .. } = &chosen;
    let done = match action {
        Action::Reset => inspection.reset().await.map(|()| Applied::Fleet),
        Action::Resume => inspection.pause(Duration::ZERO).await,
        Action::Pause => match pause_for(body).await {
            Some(lasting) => inspection.pause(lasting).await,
            None => {
                let detail = "expected a body such as {\"for\": \"30s\"}, from 1ms to 1d";
                return response::problem(StatusCode::BAD_REQUEST, detail);
            }
        },
    };
    match done {
        Ok(applied) => {
            let mut document = chosen.view(limiters).await;
            document["applied"] = applied_to(&applied).into();
            if let Applied::ThisReplica(error) = applied {
                document["detail"] = format!("{LOCAL_ALONE}: {error}").into();
            }
            response::document(&document)
        }
        Err(error) => {
            response::problem(StatusCode::SERVICE_UNAVAILABLE, &format!("nothing has changed: {error}"))
        }
    }
}

/// Reads the length of a pause from a body.
async fn pause_for(body: impl Body<Data = Bytes, Error: Into<BoxError>>) -> Option<Duration> {
    let read = Limited::new(body, BODY_BYTES_MAX).collect();
    let bytes = timeout(BODY_TIME_MAX, read).await.ok()?.ok()?.to_bytes();
    let PauseFor { r#for } = serde_json::from_slice(&bytes).ok()?;
    pause_length(&r#for)
}

/// Parses the length of a pause by hand, as [`PAUSE_LENGTH`] describes it.
pub fn pause_length(text: &str) -> Option<Duration> {
    let longest = PAUSE_MAX.to_duration();
    units::duration(text).filter(|lasting| (Duration::from_millis(1)..=longest).contains(lasting))
}

async fn viewed(limiters: &Limiters, chosen: &Inspection) -> Value {
    view(&chosen.inspect().await, |replica| limiters.host_of(replica))
}

/// Returns the word for where an action is in force.
fn applied_to(applied: &Applied) -> &'static str {
    match applied {
        Applied::Fleet => "fleet",
        Applied::ThisReplica(_) => "replica",
    }
}

/// A limiter, or one of its partitions, that was found.
struct Chosen {
    inspection: Inspection,
    /// The values of the partition by the parts of the key; null for the limiter as a whole.
    partition: Value,
}

impl Chosen {
    /// Finds what a path and a query name.
    fn find(
        limiters: &Limiters,
        LimiterPath { config, name, query }: LimiterPath<'_>,
    ) -> Result<Chosen, ChooseError> {
        let known = config.limiters.iter().map(|limiter| limiter.name.as_str());
        let unknown = || ChooseError::Unknown(unknown_name("limiter", name, known.clone()));
        let name = LimiterName::parse(name).ok_or_else(unknown)?;
        let inspection = limiters.find(&name, None).map_err(|_| unknown())?;
        let values = named_partition::values(query);
        if values.is_empty() {
            return Ok(Chosen { inspection, partition: Value::Null });
        }
        let key = config.keys.get(&name).ok_or(NotFound::Partition)?;
        let named = NamedPartition::read(key, &values).map_err(ChooseError::Partition)?;
        let inspection = limiters.find(&name, Some(named.partition))?;
        Ok(Chosen { inspection, partition: named.shown })
    }

    /// Returns the present state as JSON.
    async fn view(&self, limiters: &Limiters) -> Value {
        let mut document = viewed(limiters, &self.inspection).await;
        document["partition"] = self.partition.clone();
        document
    }
}

/// The reason why nothing was found.
#[derive(Debug, thiserror::Error)]
enum ChooseError {
    /// No limiter has this name; the text names the nearest.
    #[error("{0}")]
    Unknown(String),
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// No request has these values.
    #[error("{0}")]
    Partition(String),
}

impl ChooseError {
    fn answer(&self) -> Response {
        let status = match self {
            ChooseError::Unknown(_) | ChooseError::NotFound(NotFound::Limiter) => StatusCode::NOT_FOUND,
            ChooseError::NotFound(NotFound::Partition) | ChooseError::Partition(_) => StatusCode::BAD_REQUEST,
        };
        response::problem(status, &self.to_string())
    }
}

/// Returns the present state of a limiter, or of one of its partitions; `None` if it was removed meanwhile.
pub(super) async fn present(
    limiters: &Limiters,
    name: &LimiterName,
    partition: Option<Partition>,
) -> Option<Value> {
    let chosen = limiters.find(name, partition).ok()?;
    Some(viewed(limiters, &chosen).await)
}

/// Returns a limiter as JSON. `host_of` returns the host of a replica.
fn view(state: &LimiterStatus, host_of: impl Fn(u64) -> Option<Arc<str>>) -> Value {
    let limiter = &state.limiter;
    let paused = state.pause.map(|pause| {
        let by_host = pause.cause.and_then(|cause| host_of(cause.replica));
        paused(pause, by_host.as_deref())
    });
    let limits = limiter.limits.iter().enumerate().map(|(index, limit)| {
        json!({
            "limit": &*limit.label,
            "rate": limit.rate.get(),
            // Null for a calendar month, whose length varies.
            "per_ms": limit.window().map(millis),
            "algorithm": limit.algorithm.as_str(),
            // The permits that could be used at once; null if the store did not answer.
            "available": state.available.as_ref().and_then(|available| available.get(index)),
        })
    });
    json!({
        "name": limiter.name.as_str(),
        "limits": limits.collect::<Vec<_>>(),
        "waiting": state.waiting,
        // The longest time that a waiting request has waited so far.
        "longest_wait_ms": millis(state.longest_wait),
        "granted": state.granted,
        "refused": state.refused,
        "paused_until": paused.as_ref().map(|paused| &paused["until"]),
        "paused": paused,
        "queue": limiter.queue.as_ref().map(|queue| {
            json!({ "timeout_ms": millis(queue.timeout), "max_waiting": queue.max_waiting })
        }),
        "guard_us": Micros::from(limiter.guard).0,
        "on_store_failure": match limiter.on_store_failure {
            OnStoreFailure::Local => "local",
            OnStoreFailure::Reject => "reject",
            OnStoreFailure::Allow => "allow",
        },
        "mode": if limiter.is_shadow() { "shadow" } else { "enforce" },
        // A limiter with a key has a state for each partition, and none as a whole.
        "partitioned": limiter.partitioned.is_some(),
        // The value of the key whose limits these are, if they are not those of all others.
        "override": limiter.value(),
        "overrides": state.overrides,
        // Null where callers do not share it.
        "share": state.share.as_ref().map(share),
    })
}

/// Returns how the callers of a limiter share it, as JSON.
fn share(share: &ShareStatus) -> Value {
    let part = |ppm: u32| f64::from(ppm) / 1e6;
    let classes = share.classes.iter().map(|status| {
        let class = &status.class;
        json!({
            "class": &*class.name,
            // Of each window; null without one.
            "floor": (class.floor_ppm > 0).then(|| part(class.floor_ppm)),
            "ceiling": class.ceiling_ppm.map(part),
            "queue": {"timeout_ms": millis(class.queue.timeout), "max_waiting": class.queue.max_waiting},
            "waiting": status.waiting,
            "longest_wait_ms": millis(status.longest_wait),
            "granted": status.granted,
            "refused": status.refused,
        })
    });
    let flows = share.flows.iter().map(|flow| {
        json!({
            // Values that the configuration does not name are not shown; their hash tells them apart.
            "name": flow.name.as_deref(),
            "flow": format!("{:013x}", flow.flow.id),
            "class": share.classes.get(flow.class).map(|status| &*status.class.name),
            "waiting": flow.waiting,
            "longest_wait_ms": millis(flow.longest_wait),
        })
    });
    json!({
        "classes": classes.collect::<Vec<_>>(),
        // Those that wait longest.
        "flows": flows.collect::<Vec<_>>(),
        "flows_waiting": share.flows_waiting,
    })
}

/// Returns a pause as JSON: its end, in milliseconds since the Unix epoch by this machine's clock, whether this replica alone knows
/// it, its reason, and the replica that received the rejection or the request for the pause by hand. What is not known is null: the
/// reason and the replica where the store had named the end alone before it went away, and often the host of the replica.
fn paused(PauseState { left, cause, is_local }: PauseState, by_host: Option<&str>) -> Value {
    let mut paused = json!({ "until": millis(unix_now() + left), "local": is_local, "reason": null });
    match cause.map(|cause| cause.reason) {
        Some(Reason::Upstream { status, is_named }) => {
            paused["reason"] = "upstream".into();
            paused["status"] = status.into();
            // True if the upstream named the instant; otherwise weir chose it.
            paused["named"] = is_named.into();
        }
        Some(Reason::ByHand) => paused["reason"] = "by_hand".into(),
        None => {}
    }
    paused["by"] = cause.map(|cause| replica_name(cause.replica)).into();
    paused["by_host"] = by_host.into();
    paused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::model::limit::{Algorithm, Limit, Limiter, Permits, QueueLimits};
    use crate::limiter::model::pause::Cause;

    fn state(available: Option<Vec<u64>>) -> LimiterStatus {
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
        LimiterStatus {
            overrides: 0,
            limiter: Arc::new(limiter),
            waiting: 3,
            granted: 40,
            refused: 2,
            available,
            longest_wait: Duration::from_millis(1250),
            pause: None,
            share: None,
        }
    }

    #[test]
    fn a_limiter_is_shown_with_all_its_fields() {
        let expected = json!({
            "name": "github",
            "limits": [
                {"limit": "900/1m", "rate": 900, "per_ms": 60000, "algorithm": "sliding_window", "available": 860}
            ],
            "guard_us": 1500,
            "queue": {"timeout_ms": 10000, "max_waiting": 1000},
            "on_store_failure": "reject",
            "mode": "enforce",
            "partitioned": false,
            "override": null,
            "overrides": 0,
            "share": null,
            "waiting": 3,
            "longest_wait_ms": 1250,
            "paused_until": null,
            "paused": null,
            "granted": 40,
            "refused": 2,
        });
        assert_eq!(view(&state(Some(vec![860])), |_| None), expected);
    }

    #[test]
    fn a_pause_is_shown_with_its_reason_and_replica() {
        let upstream = |is_named| Reason::Upstream { status: 429, is_named };
        for (reason, shown_reason) in [
            (upstream(true), json!({"reason": "upstream", "status": 429, "named": true})),
            (upstream(false), json!({"reason": "upstream", "status": 429, "named": false})),
            (Reason::ByHand, json!({"reason": "by_hand"})),
        ] {
            let is_local = reason == Reason::ByHand;
            let cause = Some(Cause { reason, replica: 0xa1 });
            let pause = PauseState { left: Duration::from_secs(28), cause, is_local };
            let state = LimiterStatus { pause: Some(pause), ..state(None) };
            let host_of = |replica| (replica == 0xa1).then(|| "weir-2".into());
            let mut shown = view(&state, host_of);
            let mut paused = shown["paused"].take();
            assert_eq!(paused["until"], shown["paused_until"]);
            assert!(paused["until"].take().as_u64().is_some_and(|until| until > 1_700_000_028_000));
            let mut expected =
                json!({"until": null, "local": is_local, "by": "000000000000a1", "by_host": "weir-2"});
            expected.as_object_mut().unwrap().extend(shown_reason.as_object().unwrap().clone());
            assert_eq!(paused, expected);
        }
    }

    #[test]
    fn available_permits_are_null_while_the_store_does_not_answer() {
        assert!(view(&state(None), |_| None)["limits"][0]["available"].is_null());
    }
}
