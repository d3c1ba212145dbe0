//! The series of one route.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use crate::telemetry::handles::Unpublished;
use crate::telemetry::metrics::Families;
use crate::telemetry::outcome::Outcome;

/// The number of counters that are found without a lookup by label. A route has a handful of codes and outcomes.
const CODES_CACHED: usize = 16;

/// The series of one route. Cheap to clone.
#[derive(Clone)]
pub struct RouteMetrics {
    shared: Arc<Unpublished<RouteShared>>,
}

pub(in crate::telemetry) struct RouteShared {
    name: Box<str>,
    requests: IntCounterVec,
    duration: Histogram,
    upstream_duration: Histogram,
    upstream_rejections: IntCounterVec,
    upstream_rejections_cached: CounterCache<u16>,
    upstream_invalid_quota_headers: IntCounter,
    retries: IntCounterVec,
    breaker_open: IntGauge,
}

impl RouteShared {
    /// Creates the series of a route.
    pub(in crate::telemetry) fn new(families: &Families, name: &str) -> RouteShared {
        // The usual series exist from the start: Prometheus sees no increase in a series that appears with a 1.
        families.upstream_rejections_total.with_label_values(&[name, "429"]);
        families.retries_total.with_label_values(&[name, "429"]);
        RouteShared {
            name: name.into(),
            requests: families.requests_total.clone(),
            duration: families.request_duration_seconds.with_label_values(&[name]),
            upstream_duration: families.upstream_duration_seconds.with_label_values(&[name]),
            upstream_rejections: families.upstream_rejections_total.clone(),
            upstream_rejections_cached: CounterCache::default(),
            upstream_invalid_quota_headers: families
                .upstream_invalid_quota_headers_total
                .with_label_values(&[name]),
            retries: families.retries_total.clone(),
            breaker_open: families.breaker_open.with_label_values(&[name]),
        }
    }
}

impl RouteMetrics {
    /// Creates a handle to series that `create` will make.
    pub(in crate::telemetry) fn new(create: impl FnOnce() -> RouteShared + Send + 'static) -> RouteMetrics {
        RouteMetrics { shared: Arc::new(LazyLock::new(Box::new(create))) }
    }

    /// Shows the series in `/metrics`, at zero where nothing was counted yet.
    pub fn publish(&self) {
        LazyLock::force(&self.shared);
    }

    /// Returns the counter of a client's requests that ended with this status code and outcome.
    pub(in crate::telemetry) fn requests(&self, client: &str, code: u16, outcome: Outcome) -> IntCounter {
        let RouteShared { name, requests, .. } = &**self.shared;
        requests.with_label_values(&[name, client, code.to_string().as_str(), outcome.as_str()])
    }

    /// Records the time from the end of a request's head to the end of its response.
    pub(in crate::telemetry) fn took(&self, elapsed: Duration) {
        self.shared.duration.observe(elapsed.as_secs_f64());
    }

    /// Records the time from the request's head sent upstream to the response's head.
    pub fn upstream_answered(&self, elapsed: Duration) {
        self.shared.upstream_duration.observe(elapsed.as_secs_f64());
    }

    /// Counts an upstream rejection with this status code.
    pub fn upstream_rejected(&self, code: u16) {
        let RouteShared { name, upstream_rejections, upstream_rejections_cached, .. } = &**self.shared;
        let counter = upstream_rejections_cached
            .resolve(code, |code| upstream_rejections.with_label_values(&[name, code.to_string().as_str()]));
        counter.inc();
    }

    /// Counts quota headers of the upstream that could not be parsed.
    pub fn upstream_invalid_quota_headers(&self, values: u64) {
        self.shared.upstream_invalid_quota_headers.inc_by(values);
    }

    /// Shows whether the route's breaker refuses requests.
    pub fn breaker_open(&self, is_open: bool) {
        self.shared.breaker_open.set(i64::from(is_open));
    }

    /// Counts a retry. The reason is `connect` or the status of the failed attempt.
    pub fn retried(&self, reason: &str) {
        self.shared.retries.with_label_values(&[&*self.shared.name, reason]).inc();
    }
}

/// Counters by key, without a lock or an allocation: the first [`CODES_CACHED`] keys keep their place, any further
/// key is resolved each time.
pub(super) struct CounterCache<K> {
    places: [OnceLock<(K, IntCounter)>; CODES_CACHED],
}

impl<K> Default for CounterCache<K> {
    fn default() -> CounterCache<K> {
        CounterCache { places: [const { OnceLock::new() }; CODES_CACHED] }
    }
}

impl<K: Copy + PartialEq> CounterCache<K> {
    /// Returns the counter of a key, which `create` finds by its labels.
    pub(super) fn resolve(&self, key: K, create: impl Fn(K) -> IntCounter) -> Cow<'_, IntCounter> {
        for place in &self.places {
            let (owner, counter) = place.get_or_init(|| (key, create(key)));
            if *owner == key {
                return Cow::Borrowed(counter);
            }
        }
        Cow::Owned(create(key))
    }
}
