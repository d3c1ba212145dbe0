//! A circuit breaker: after repeated failures nobody asks the store until a probe has found it again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::{info, warn};

use crate::telemetry::StoreMetrics;

/// Failures in a row that open the circuit: one may be a lost connection, three are an outage.
const FAILURES_MAX: u32 = 3;

/// How long an open circuit waits between two probes.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// Whether the store is worth asking.
pub(super) struct Health {
    up: AtomicBool,
    failures: AtomicU32,
    opened: Notify,
    metrics: StoreMetrics,
}

impl Health {
    /// Assumes that the store is there.
    pub(super) fn new(metrics: StoreMetrics) -> Health {
        metrics.set_up(true);
        Health { up: AtomicBool::new(true), failures: AtomicU32::new(0), opened: Notify::new(), metrics }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(super) fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if !self.up.swap(true, Ordering::AcqRel) {
            self.metrics.set_up(true);
            info!("the store answers again");
        }
    }

    pub(super) fn failed(&self, why: &str) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= FAILURES_MAX && self.up.swap(false, Ordering::AcqRel) {
            self.metrics.set_up(false);
            warn!(error = why, failures, "the store is away: limiters go by their on_store_failure");
            self.opened.notify_one();
        }
    }

    /// Ends while the circuit is open.
    pub(super) async fn is_open(&self) {
        while self.is_up() {
            self.opened.notified().await;
        }
    }
}
