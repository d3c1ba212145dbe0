//! The series of one limiter.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use crate::telemetry::handles::Unpublished;
use crate::telemetry::metrics::Families;

/// A limiter as the metrics show it.
pub struct LimiterSeries {
    /// The name, for the label `limiter`.
    pub name: Arc<str>,
    /// The most requests that may wait at once; 0 without a queue.
    pub queue_capacity: u32,
    /// The label and the rate of each limit.
    pub limits: Vec<(Arc<str>, u64)>,
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
    /// The gauge of each limit's available permits, in the limiter's order.
    available: Vec<IntGauge>,
}

/// The gauges of whether a limiter lets requests pass.
struct Condition {
    paused: IntGauge,
    ready: IntGauge,
}

impl LimiterShared {
    /// Creates the series of a limiter.
    pub(in crate::telemetry) fn new(families: &Families, limiter: &LimiterSeries) -> LimiterShared {
        let LimiterSeries { name, queue_capacity, limits } = limiter;
        let name = &**name;
        families.queue_capacity.with_label_values(&[name]).set(i64::from(*queue_capacity));
        for (label, rate) in limits {
            families.limiter_limit_permits.with_label_values(&[name, &**label]).set(gauge_value(*rate));
        }
        let permits = |result| families.permits_total.with_label_values(&[name, result]);
        let available = |label: &str| families.limiter_available_permits.with_label_values(&[name, label]);
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
            available: limits.iter().map(|(label, _)| available(label)).collect(),
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

    /// Sets the permits left of the limit with this index, in the tightest partition.
    pub fn set_available(&self, limit: usize, permits: u64) {
        if let Some(available) = self.shared.available.get(limit) {
            available.set(gauge_value(permits));
        }
    }
}

/// Converts to a gauge's signed value; no rate comes near its maximum.
fn gauge_value(permits: u64) -> i64 {
    i64::try_from(permits).unwrap_or(i64::MAX)
}
