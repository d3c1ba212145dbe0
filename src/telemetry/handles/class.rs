//! The series of one class of a limiter's callers.

use std::sync::Arc;
use std::time::Duration;

use prometheus::core::Metric as _;
use prometheus::{Histogram, IntCounter, IntGauge};

use crate::telemetry::handles::{by_bucket, gauge_value};
use crate::telemetry::metrics::Families;

/// A class of callers as the metrics show it.
pub struct ClassSeries {
    /// The name, for the label `class`; empty for all callers of a limiter that nobody shares.
    pub name: Arc<str>,
    /// The most requests that may wait at once; 0 without a queue.
    pub queue_capacity: u32,
}

/// The series of one class of a limiter's callers.
pub struct ClassMetrics {
    granted: IntCounter,
    refused: IntCounter,
    cancelled: IntCounter,
    local: IntCounter,
    allowed: IntCounter,
    shadow_refused: IntCounter,
    wait: Histogram,
    waiting: IntGauge,
}

impl ClassMetrics {
    pub(super) fn new(families: &Families, limiter: &str, class: &ClassSeries) -> ClassMetrics {
        let labels = [limiter, &class.name];
        families.queue_capacity.with_label_values(&labels).set(i64::from(class.queue_capacity));
        let permits = |result| families.permits_total.with_label_values(&[limiter, &class.name, result]);
        ClassMetrics {
            granted: permits("granted"),
            refused: permits("refused"),
            cancelled: permits("cancelled"),
            local: permits("local"),
            allowed: permits("allowed"),
            shadow_refused: permits("shadow_refused"),
            wait: families.queue_wait_seconds.with_label_values(&labels),
            waiting: families.queue_waiting.with_label_values(&labels),
        }
    }

    /// Counts permits that the store granted and requests used.
    pub fn granted(&self, permits: u64) {
        self.granted.inc_by(permits);
    }

    /// Counts permits that were refused.
    pub fn refused(&self, permits: u64) {
        self.refused.inc_by(permits);
    }

    /// Counts permits of requests that left before they were sent upstream.
    pub fn cancelled(&self, permits: u64) {
        self.cancelled.inc_by(permits);
    }

    /// Counts permits that this replica granted from its own share during an outage of the store.
    pub fn local(&self, permits: u64) {
        self.local.inc_by(permits);
    }

    /// Counts permits of requests that passed without a limit during an outage of the store.
    pub fn allowed(&self, permits: u64) {
        self.allowed.inc_by(permits);
    }

    /// Counts permits that the limiter, in shadow mode, would have refused.
    pub fn shadow_refused(&self, permits: u64) {
        self.shadow_refused.inc_by(permits);
    }

    /// Records the time that a request waited for its permit.
    pub fn waited(&self, wait: Duration) {
        self.wait.observe(wait.as_secs_f64());
    }

    /// Returns how many requests waited, by [`WAIT_SECONDS`](crate::telemetry::metrics::WAIT_SECONDS), and beyond the last bound.
    pub fn wait_counts(&self) -> Vec<u64> {
        by_bucket(self.wait.metric().get_histogram())
    }

    /// Sets how many requests wait.
    pub fn set_waiting(&self, waiting: u64) {
        self.waiting.set(gauge_value(waiting));
    }

    /// Returns the permits that were used, and those that were refused, as counted above.
    pub fn counted(&self) -> (u64, u64) {
        (self.granted.get() + self.local.get() + self.allowed.get(), self.refused.get())
    }
}
