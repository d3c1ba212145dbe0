//! Handles to the series of one route, one limiter, the store: resolved once, then only atomic additions.
//!
//! Names no metric itself: [`super::metrics`] does.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use super::metrics::Families;
use crate::limiter::model::limit::Limiter;

/// How many (code, outcome) pairs of a route are found without a lookup by label. A route has a handful.
const CODES_CACHED: usize = 16;

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It went upstream, and the upstream's response came back.
    Forwarded,
    /// weir refused it: no permit, no route, not allowed.
    Refused,
    /// It should have gone upstream, and the upstream or weir failed.
    Failed,
    /// The client left.
    Cancelled,
}

impl Outcome {
    /// As in the label `outcome`, and in the access log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Forwarded => "forwarded",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
        }
    }
}

/// The series of one route.
#[derive(Clone)]
pub struct RouteMetrics {
    shared: Arc<RouteShared>,
}

struct RouteShared {
    name: Box<str>,
    requests: IntCounterVec,
    requests_cached: CounterCache<(u16, Outcome)>,
    duration: Histogram,
    upstream_duration: Histogram,
    upstream_rejections: IntCounterVec,
    upstream_refusals_cached: CounterCache<u16>,
    upstream_invalid_quota_headers: IntCounter,
    retries: IntCounterVec,
}

impl RouteMetrics {
    pub(super) fn new(families: &Families, name: &str) -> RouteMetrics {
        // The usual series exist from the start, so that their first increase is seen as one.
        families.requests_total.with_label_values(&[name, "200", Outcome::Forwarded.as_str()]);
        families.upstream_rejections_total.with_label_values(&[name, "429"]);
        families.retries_total.with_label_values(&[name, "429"]);
        let shared = RouteShared {
            name: name.into(),
            requests: families.requests_total.clone(),
            requests_cached: CounterCache::default(),
            duration: families.request_duration_seconds.with_label_values(&[name]),
            upstream_duration: families.upstream_duration_seconds.with_label_values(&[name]),
            upstream_rejections: families.upstream_rejections_total.clone(),
            upstream_refusals_cached: CounterCache::default(),
            upstream_invalid_quota_headers: families
                .upstream_invalid_quota_headers_total
                .with_label_values(&[name]),
            retries: families.retries_total.clone(),
        };
        RouteMetrics { shared: Arc::new(shared) }
    }

    /// A request is over: answered with `code`, `elapsed` after its head was read.
    pub fn finished(&self, code: u16, outcome: Outcome, elapsed: Duration) {
        let RouteShared { name, requests, requests_cached, duration, .. } = &*self.shared;
        requests_cached.increment((code, outcome), || {
            requests.with_label_values(&[name, code.to_string().as_str(), outcome.as_str()])
        });
        duration.observe(elapsed.as_secs_f64());
    }

    /// The head of the upstream's response is here, that long after the request's head was sent.
    pub fn upstream_answered(&self, elapsed: Duration) {
        self.shared.upstream_duration.observe(elapsed.as_secs_f64());
    }

    /// The upstream said that its quota is spent.
    pub fn upstream_rejected(&self, code: u16) {
        let RouteShared { name, upstream_rejections, upstream_refusals_cached, .. } = &*self.shared;
        upstream_refusals_cached
            .increment(code, || upstream_rejections.with_label_values(&[name, code.to_string().as_str()]));
    }
}

impl RouteMetrics {
    /// So many of the upstream's headers about its quota could not be understood.
    pub fn upstream_invalid_quota_headers(&self, values: u64) {
        self.shared.upstream_invalid_quota_headers.inc_by(values);
    }

    /// A request is sent once more, for that reason: `connect` or a status.
    pub fn retried(&self, reason: &str) {
        self.shared.retries.with_label_values(&[&*self.shared.name, reason]).inc();
    }
}

/// The series of one limiter, as it was configured when the handle was made.
#[derive(Clone)]
pub struct LimiterMetrics {
    shared: Arc<LimiterShared>,
}

struct LimiterShared {
    granted: IntCounter,
    refused: IntCounter,
    cancelled: IntCounter,
    local: IntCounter,
    allowed: IntCounter,
    shadow_refused: IntCounter,
    wait: Histogram,
    lateness: Histogram,
    waiting: IntGauge,
    paused: IntGauge,
    external_usage: IntCounter,
    /// In the order of the limiter's limits.
    available: Vec<IntGauge>,
}

impl LimiterMetrics {
    pub(super) fn new(families: &Families, limiter: &Limiter) -> LimiterMetrics {
        let name = limiter.name.as_str();
        let capacity = limiter.queue.as_ref().map_or(0, |queue| queue.max_waiting);
        families.queue_capacity.with_label_values(&[name]).set(i64::from(capacity));
        for limit in &limiter.limits {
            let configured = families.limiter_limit_permits.with_label_values(&[name, &*limit.label]);
            configured.set(gauge_value(limit.rate.get()));
        }
        let permits = |result| families.permits_total.with_label_values(&[name, result]);
        let available = |label: &str| families.limiter_available_permits.with_label_values(&[name, label]);
        let shared = LimiterShared {
            granted: permits("granted"),
            refused: permits("refused"),
            cancelled: permits("cancelled"),
            local: permits("local"),
            allowed: permits("allowed"),
            shadow_refused: permits("shadow_refused"),
            wait: families.queue_wait_seconds.with_label_values(&[name]),
            lateness: families.slot_lateness_seconds.with_label_values(&[name]),
            waiting: families.queue_waiting.with_label_values(&[name]),
            paused: families.limiter_paused.with_label_values(&[name]),
            external_usage: families.limiter_external_usage_permits_total.with_label_values(&[name]),
            available: limiter.limits.iter().map(|limit| available(&limit.label)).collect(),
        };
        LimiterMetrics { shared: Arc::new(shared) }
    }

    /// Permits that the store granted and that were used.
    pub fn granted(&self, permits: u64) {
        self.shared.granted.inc_by(permits);
    }

    /// Permits that were asked for and refused.
    pub fn refused(&self, permits: u64) {
        self.shared.refused.inc_by(permits);
    }

    /// Permits of requests that left before they were sent.
    pub fn cancelled(&self, permits: u64) {
        self.shared.cancelled.inc_by(permits);
    }

    /// Permits that this replica granted by itself while the store was away.
    pub fn local(&self, permits: u64) {
        self.shared.local.inc_by(permits);
    }

    /// Permits of requests that passed unlimited while the store was away.
    pub fn allowed(&self, permits: u64) {
        self.shared.allowed.inc_by(permits);
    }

    /// Permits that the limiter would have refused if it were enforced.
    pub fn shadow_refused(&self, permits: u64) {
        self.shared.shadow_refused.inc_by(permits);
    }

    /// A request waited that long for its permit.
    pub fn waited(&self, wait: Duration) {
        self.shared.wait.observe(wait.as_secs_f64());
    }

    /// A permit was used that long after its slot.
    pub fn lateness(&self, late: Duration) {
        self.shared.lateness.observe(late.as_secs_f64());
    }

    /// That many requests more wait than before; fewer, if negative.
    pub fn add_waiting(&self, more: i64) {
        self.shared.waiting.add(more);
    }

    /// The upstream asked for a pause that lasts, or it does not.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.paused.set(i64::from(is_paused));
    }

    /// The upstream left so many permits less than was thought.
    pub fn count_external_usage(&self, permits: u64) {
        self.shared.external_usage.inc_by(permits);
    }

    /// The limit with this index has that many permits left, in the tightest partition.
    pub fn set_available(&self, limit: usize, permits: u64) {
        if let Some(available) = self.shared.available.get(limit) {
            available.set(gauge_value(permits));
        }
    }
}

/// A kind of call to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreOp {
    /// Books slots.
    Reserve,
    /// Reads a limiter's state.
    Inspect,
    /// Asks whether the store is there.
    Ping,
    /// Keeps the store's epoch alive.
    Epoch,
    /// Writes back what the store has lost.
    WriteBack,
    /// Says that this replica is there.
    Attend,
    /// Forgets what was used.
    Reset,
    /// Hears what an upstream said.
    Hear,
    /// Pauses a limiter by hand.
    Pause,
}

impl StoreOp {
    const ALL: [StoreOp; 9] = [
        StoreOp::Reserve,
        StoreOp::Inspect,
        StoreOp::Ping,
        StoreOp::Epoch,
        StoreOp::WriteBack,
        StoreOp::Attend,
        StoreOp::Reset,
        StoreOp::Hear,
        StoreOp::Pause,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            StoreOp::Reserve => "reserve",
            StoreOp::Inspect => "inspect",
            StoreOp::Ping => "ping",
            StoreOp::Epoch => "epoch",
            StoreOp::WriteBack => "write_back",
            StoreOp::Attend => "attend",
            StoreOp::Reset => "reset",
            StoreOp::Hear => "hear",
            StoreOp::Pause => "pause",
        }
    }
}

/// How a call to the store ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreResult {
    /// With an answer.
    Ok,
    /// No answer in time.
    Timeout,
    /// The script was not there; the call is repeated with it.
    NoScript,
    /// No connection, or a broken one.
    Connection,
    /// The store answered with any other error.
    Error,
}

impl StoreResult {
    const ALL: [StoreResult; 5] = [
        StoreResult::Ok,
        StoreResult::Timeout,
        StoreResult::NoScript,
        StoreResult::Connection,
        StoreResult::Error,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            StoreResult::Ok => "ok",
            StoreResult::Timeout => "timeout",
            StoreResult::NoScript => "noscript",
            StoreResult::Connection => "connection",
            StoreResult::Error => "error",
        }
    }
}

/// The series of the store.
#[derive(Clone)]
pub struct StoreMetrics {
    shared: Arc<StoreShared>,
}

struct StoreShared {
    /// By [`StoreOp`], then by [`StoreResult`].
    calls: [[IntCounter; StoreResult::ALL.len()]; StoreOp::ALL.len()],
    durations: [Histogram; StoreOp::ALL.len()],
    batch_size: Histogram,
    up: IntGauge,
}

impl StoreMetrics {
    pub(super) fn new(families: &Families) -> StoreMetrics {
        let calls = |op: StoreOp| {
            StoreResult::ALL
                .map(|result| families.store_calls_total.with_label_values(&[op.as_str(), result.as_str()]))
        };
        let duration = |op: StoreOp| families.store_call_duration_seconds.with_label_values(&[op.as_str()]);
        let shared = StoreShared {
            calls: StoreOp::ALL.map(calls),
            durations: StoreOp::ALL.map(duration),
            batch_size: families.store_batch_size.clone(),
            up: families.store_up.clone(),
        };
        StoreMetrics { shared: Arc::new(shared) }
    }

    /// A call to the store is over.
    pub fn called(&self, op: StoreOp, result: StoreResult, elapsed: Duration) {
        self.shared.calls[op as usize][result as usize].inc();
        self.shared.durations[op as usize].observe(elapsed.as_secs_f64());
    }

    /// One call booked for that many requests.
    pub fn batch_size(&self, requests: usize) {
        self.shared.batch_size.observe(requests as f64);
    }

    /// Whether the store answers.
    pub fn set_up(&self, up: bool) {
        self.shared.up.set(i64::from(up));
    }
}

/// Counters found by key without a lock or an allocation: the first few keys that turn up have a place,
/// any further one is resolved each time.
struct CounterCache<K> {
    places: [OnceLock<(K, IntCounter)>; CODES_CACHED],
}

impl<K> Default for CounterCache<K> {
    fn default() -> CounterCache<K> {
        CounterCache { places: [const { OnceLock::new() }; CODES_CACHED] }
    }
}

impl<K: Copy + PartialEq> CounterCache<K> {
    fn increment(&self, key: K, resolve: impl Fn() -> IntCounter) {
        for place in &self.places {
            let (owner, counter) = place.get_or_init(|| (key, resolve()));
            if *owner == key {
                counter.inc();
                return;
            }
        }
        resolve().inc();
    }
}

/// Gauges are signed; no rate comes near the border.
fn gauge_value(permits: u64) -> i64 {
    i64::try_from(permits).unwrap_or(i64::MAX)
}
