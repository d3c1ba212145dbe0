//! The series of one limiter.

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use prometheus::core::Metric as _;
use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};

use crate::telemetry::handles::{Unpublished, by_bucket};
use crate::telemetry::metrics::Families;

/// A limiter as the metrics show it.
pub struct LimiterSeries {
    /// The name, for the label `limiter`.
    pub name: Arc<str>,
    /// The most requests that may wait at once; 0 without a queue.
    pub queue_capacity: u32,
    /// The label and the rate of each limit.
    pub limits: Vec<(Arc<str>, u64)>,
    /// The same of the limits that some partitions have in their place, in the order of the labels, which are others.
    pub overriding: Vec<(Arc<str>, u64)>,
}

impl LimiterSeries {
    /// Iterates over the limits of all partitions, the limiter's own first.
    pub(in crate::telemetry) fn all_limits(&self) -> impl Iterator<Item = &(Arc<str>, u64)> {
        self.limits.iter().chain(&self.overriding)
    }
}

/// The series of one limiter, as it was configured when the handle was created. Cheap to clone.
#[derive(Clone)]
pub struct LimiterMetrics {
    shared: Arc<Unpublished<LimiterShared>>,
}

pub(in crate::telemetry) struct LimiterShared {
    granted: IntCounter,
    refused: IntCounter,
    cancelled: IntCounter,
    local: IntCounter,
    allowed: IntCounter,
    shadow_refused: IntCounter,
    wait: Histogram,
    lateness: Histogram,
    waiting: IntGauge,
    condition: Condition,
    external_usage: IntCounter,
    available: Available,
}

/// The gauges of each limit's available permits.
struct Available {
    limiter: Arc<str>,
    family: IntGaugeVec,
    /// Those of the limiter's own limits, in its order.
    own: Vec<IntGauge>,
    /// Those of limits that some partitions have in their place, in the order of their labels. Each appears when such a partition is seen, because
    /// zero would be wrong until then.
    overriding: Vec<(Arc<str>, OnceLock<IntGauge>)>,
}

impl Available {
    fn new(families: &Families, limiter: &LimiterSeries) -> Available {
        let (name, family) = (&limiter.name, &families.limiter_available_permits);
        let own = limiter.limits.iter().map(|(label, _)| family.with_label_values(&[&**name, &**label]));
        Available {
            limiter: name.clone(),
            family: family.clone(),
            own: own.collect(),
            overriding: limiter
                .overriding
                .iter()
                .map(|(label, _)| (label.clone(), OnceLock::new()))
                .collect(),
        }
    }

    /// Returns the gauge of the limit with this index, the limiter's own first.
    fn gauge(&self, limit: usize) -> Option<&IntGauge> {
        let own = self.own.get(limit);
        own.or_else(|| {
            let (label, gauge) = self.overriding.get(limit - self.own.len())?;
            Some(gauge.get_or_init(|| self.family.with_label_values(&[&*self.limiter, &**label])))
        })
    }
}

/// The gauges of whether a limiter lets requests pass.
struct Condition {
    paused: IntGauge,
    ready: IntGauge,
}

impl LimiterShared {
    /// Creates the series of a limiter.
    pub(in crate::telemetry) fn new(families: &Families, limiter: &LimiterSeries) -> LimiterShared {
        let name = &*limiter.name;
        families.queue_capacity.with_label_values(&[name]).set(i64::from(limiter.queue_capacity));
        for (label, rate) in limiter.all_limits() {
            families.limiter_limit_permits.with_label_values(&[name, &**label]).set(gauge_value(*rate));
        }
        let permits = |result| families.permits_total.with_label_values(&[name, result]);
        LimiterShared {
            granted: permits("granted"),
            refused: permits("refused"),
            cancelled: permits("cancelled"),
            local: permits("local"),
            allowed: permits("allowed"),
            shadow_refused: permits("shadow_refused"),
            wait: families.queue_wait_seconds.with_label_values(&[name]),
            lateness: families.slot_lateness_seconds.with_label_values(&[name]),
            waiting: families.queue_waiting.with_label_values(&[name]),
            condition: Condition {
                paused: families.limiter_paused.with_label_values(&[name]),
                ready: families.limiter_ready.with_label_values(&[name]),
            },
            external_usage: families.limiter_external_usage_permits_total.with_label_values(&[name]),
            available: Available::new(families, limiter),
        }
    }
}

impl LimiterMetrics {
    /// Creates a handle to series that `create` will make.
    pub(in crate::telemetry) fn new(
        create: impl FnOnce() -> LimiterShared + Send + 'static,
    ) -> LimiterMetrics {
        LimiterMetrics { shared: Arc::new(LazyLock::new(Box::new(create))) }
    }

    /// Shows the series in `/metrics`, at zero where nothing was counted yet.
    pub fn publish(&self) {
        LazyLock::force(&self.shared);
    }

    /// Counts permits that the store granted and requests used.
    pub fn granted(&self, permits: u64) {
        self.shared.granted.inc_by(permits);
    }

    /// Counts permits that were refused.
    pub fn refused(&self, permits: u64) {
        self.shared.refused.inc_by(permits);
    }

    /// Counts permits of requests that left before they were sent upstream.
    pub fn cancelled(&self, permits: u64) {
        self.shared.cancelled.inc_by(permits);
    }

    /// Counts permits that this replica granted from its own share during an outage of the store.
    pub fn local(&self, permits: u64) {
        self.shared.local.inc_by(permits);
    }

    /// Counts permits of requests that passed without a limit during an outage of the store.
    pub fn allowed(&self, permits: u64) {
        self.shared.allowed.inc_by(permits);
    }

    /// Counts permits that the limiter, in shadow mode, would have refused.
    pub fn shadow_refused(&self, permits: u64) {
        self.shared.shadow_refused.inc_by(permits);
    }

    /// Records the time that a request waited for its permit.
    pub fn waited(&self, wait: Duration) {
        self.shared.wait.observe(wait.as_secs_f64());
    }

    /// Returns how many requests waited, by [`WAIT_SECONDS`], and beyond the last bound.
    pub fn wait_counts(&self) -> Vec<u64> {
        by_bucket(self.shared.wait.metric().get_histogram())
    }

    /// Records the time from a permit's slot to its use.
    pub fn lateness(&self, late: Duration) {
        self.shared.lateness.observe(late.as_secs_f64());
    }

    /// Adds to the number of waiting requests; a negative number subtracts.
    pub fn add_waiting(&self, more: i64) {
        self.shared.waiting.add(more);
    }

    /// Sets whether the limiter is paused.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.condition.paused.set(i64::from(is_paused));
    }

    /// Sets whether the limiter can serve.
    pub fn set_ready(&self, is_ready: bool) {
        self.shared.condition.ready.set(i64::from(is_ready));
    }

    /// Counts permits charged for external usage.
    pub fn count_external_usage(&self, permits: u64) {
        self.shared.external_usage.inc_by(permits);
    }

    /// Returns the index of the limit with this label, among those of all partitions; `None` if it is not shown.
    pub fn limit(&self, label: &str) -> Option<usize> {
        let Available { own, overriding, .. } = &self.shared.available;
        let place = overriding.binary_search_by(|(other, _)| (**other).cmp(label)).ok()?;
        Some(own.len() + place)
    }

    /// Sets the permits left of the limit with this index, in the partition that has least of it. The limiter's own limits come first.
    pub fn set_available(&self, limit: usize, permits: u64) {
        if let Some(available) = self.shared.available.gauge(limit) {
            available.set(gauge_value(permits));
        }
    }
}

/// Converts to a gauge's signed value; no rate comes near its maximum.
fn gauge_value(permits: u64) -> i64 {
    i64::try_from(permits).unwrap_or(i64::MAX)
}
