//! Circuit breakers: after repeated failures no call is made until a probe succeeds.
//!
//! One server has one circuit. On a Cluster each group of limiters has its own, for one group may fail alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::{info, warn};

use crate::entropy::Entropy;
use crate::telemetry::StoreMetrics;

/// Failures in a row that open the circuit: one may be a lost connection, three are an outage.
const FAILURES_MAX: u32 = 3;

/// How long an open circuit waits between two probes; each time a quarter more or less, so that a fleet does not probe at once.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// The circuits of a store.
pub(super) struct Circuits {
    open: AtomicUsize,
    opened: Notify,
    metrics: StoreMetrics,
    entropy: Entropy,
}

impl Circuits {
    pub(super) fn new(metrics: StoreMetrics, entropy: Entropy) -> Circuits {
        metrics.set_up(true);
        Circuits { open: AtomicUsize::new(0), opened: Notify::new(), metrics, entropy }
    }

    /// Returns whether no circuit is open.
    pub(super) fn are_closed(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// Waits until a probe is due.
    pub(super) async fn probe_is_due(&self) {
        while self.are_closed() {
            self.opened.notified().await;
        }
        tokio::time::sleep(jittered(PROBE_INTERVAL, &self.entropy)).await;
    }

    fn count(&self, opens: bool) {
        if opens {
            self.open.fetch_add(1, Ordering::AcqRel);
            self.metrics.set_up(false);
            self.opened.notify_one();
        } else if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.metrics.set_up(true);
        }
    }
}

/// Returns three to five quarters of a time, at random.
fn jittered(time: Duration, entropy: &Entropy) -> Duration {
    let share = u32::try_from(entropy.draw() % 512).unwrap_or_default();
    time * (768 + share) / 1024
}

/// The circuit of a store, or of a part of one.
pub(super) struct Health {
    up: AtomicBool,
    failures: AtomicU32,
    circuits: Arc<Circuits>,
}

impl Health {
    /// Returns a closed circuit.
    pub(super) fn new(circuits: Arc<Circuits>) -> Health {
        Health { up: AtomicBool::new(true), failures: AtomicU32::new(0), circuits }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(super) fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if !self.up.swap(true, Ordering::AcqRel) {
            self.circuits.count(false);
            info!("the store answers again");
        }
    }

    /// Returns whether the circuit has opened with this failure.
    pub(super) fn failed(&self, why: &str) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let opens = failures >= FAILURES_MAX && self.up.swap(false, Ordering::AcqRel);
        if opens {
            self.circuits.count(true);
            warn!(error = why, failures, "the store is away: limiters go by their on_store_failure");
        }
        opens
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if !self.is_up() {
            self.circuits.count(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;

    #[test]
    fn probes_are_spread() {
        let entropy = Entropy::system();
        let times: Vec<Duration> = (0..200).map(|_| jittered(PROBE_INTERVAL, &entropy)).collect();
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!((150..165).contains(&least.as_millis()), "{least:?}");
        assert!((235..=250).contains(&most.as_millis()), "{most:?}");
    }

    #[test]
    fn a_store_is_up_when_each_part_is() {
        let metrics = Metrics::new();
        let circuits = Arc::new(Circuits::new(metrics.store(), Entropy::system()));
        let (one, two) = (Health::new(circuits.clone()), Health::new(circuits.clone()));
        assert_eq!([(); 3].map(|()| one.failed("away")), [false, false, true]);
        assert!((0..4).any(|_| two.failed("away")));
        assert!(!one.is_up() && !two.is_up() && !circuits.are_closed());
        one.succeeded();
        one.succeeded();
        assert!(one.is_up() && !circuits.are_closed());
        assert!(metrics.render().contains("weir_store_up 0"));
        drop(two);
        assert!(circuits.are_closed());
        assert!(metrics.render().contains("weir_store_up 1"));
    }
}
