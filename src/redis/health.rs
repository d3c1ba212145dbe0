//! Circuit breakers: after repeated failures no call is made until a probe succeeds.
//!
//! A server that refuses some calls and carries out others, as at the brink of its memory, would end an outage with each good probe, and begin the
//! next one at once. So outages that refusals begin again and again last longer, and limiters go by their `on_store_failure` meanwhile. A server that
//! was silent or away has the first good probe end the outage, however often.
//!
//! One server has one circuit. On a Cluster each group of limiters has its own, for one group may fail alone.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::entropy::Entropy;
use crate::limiter::store::StoreError;
use crate::telemetry::StoreMetrics;

/// Failures in a row that open the circuit: one may be a lost connection, three are an outage.
const FAILURES_MAX: u32 = 3;

/// How long an open circuit waits between two probes; each time a quarter more or less, so that a fleet does not probe at once.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// How long behind an outage the next one, if refusals begin it, lasts longer.
const CALM: Duration = Duration::from_secs(10);

/// The least time of the first outage that lasts longer, and the longest least time: each lasts twice as long as the one before.
const LEAST: Duration = Duration::from_secs(1);
const LEAST_MAX: Duration = Duration::from_secs(8);

/// The first words of the refusals of a server that is on its way up, busy, or between two topologies: it will do better by itself.
const PASSING: [&str; 4] = ["LOADING", "BUSY", "CLUSTERDOWN", "TRYAGAIN"];

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
    /// Whoever opens or closes the circuit has locked it.
    outage: Mutex<Outage>,
    circuits: Arc<Circuits>,
}

/// The present outage, or the last one.
#[derive(Default)]
struct Outage {
    /// The least time that it lasts, and until when that is.
    least: Duration,
    until: Option<Instant>,
    ended: Option<Instant>,
}

impl Outage {
    /// Begins the next outage with a failed call.
    fn begin(&mut self, error: &StoreError, now: Instant) {
        let is_again = self.ended.is_some_and(|ended| now < ended + CALM);
        let lasts = is_again && is_refusal(error);
        self.least = if lasts { (self.least * 2).clamp(LEAST, LEAST_MAX) } else { Duration::ZERO };
        self.until = Some(now + self.least);
    }

    fn may_end(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }
}

/// Returns whether a server has answered that it does not carry out the call.
fn is_refusal(error: &StoreError) -> bool {
    match error {
        StoreError::Refused(why) => !PASSING.iter().any(|word| why.starts_with(word)),
        StoreError::NotPrimary(_) => true,
        _ => false,
    }
}

impl Health {
    /// Returns a closed circuit.
    pub(super) fn new(circuits: Arc<Circuits>) -> Health {
        let (up, failures) = (AtomicBool::new(true), AtomicU32::new(0));
        Health { up, failures, outage: Mutex::default(), circuits }
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Returns whether a probe may end an outage now.
    pub(super) fn is_to_be_probed(&self) -> bool {
        !self.is_up() && self.outage().may_end(Instant::now())
    }

    /// Takes in a call that was carried out. One that was under way when an outage began does not end it before its least time.
    pub(super) fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if self.is_up() {
            return;
        }
        let (mut outage, now) = (self.outage(), Instant::now());
        if outage.may_end(now) && !self.up.swap(true, Ordering::AcqRel) {
            outage.ended = Some(now);
            self.circuits.count(false);
            info!("the store answers again");
        }
    }

    /// Takes in a failed call. Returns whether the circuit has opened with this failure.
    pub(super) fn failed(&self, error: &StoreError) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures < FAILURES_MAX || !self.is_up() {
            return false;
        }
        let mut outage = self.outage();
        let opens = self.up.swap(false, Ordering::AcqRel);
        if opens {
            outage.begin(error, Instant::now());
            self.circuits.count(true);
            let (error, least_seconds) = (error.to_string(), outage.least.as_secs());
            warn!(error, failures, least_seconds, "the store is away: limiters go by their on_store_failure");
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
        assert_eq!([(); 3].map(|()| one.failed(&StoreError::Away)), [false, false, true]);
        assert!((0..4).any(|_| two.failed(&StoreError::Away)));
        assert!(!one.is_up() && !two.is_up() && !circuits.are_closed());
        one.succeeded();
        one.succeeded();
        assert!(one.is_up() && !circuits.are_closed());
        assert!(metrics.render().contains("weir_store_up 0"));
        drop(two);
        assert!(circuits.are_closed());
        assert!(metrics.render().contains("weir_store_up 1"));
    }

    /// Begins an outage, and returns how long it is before a success ends it.
    async fn lasts(health: &Health, error: &StoreError) -> Duration {
        while !health.failed(error) {}
        let begun = Instant::now();
        health.succeeded();
        while !health.is_up() {
            assert!(!health.is_to_be_probed());
            tokio::time::advance(Duration::from_millis(100)).await;
            health.succeeded();
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn outages_that_refusals_begin_again_and_again_last_longer() {
        let health = Health::new(Arc::new(Circuits::new(Metrics::new().store(), Entropy::system())));
        let full = StoreError::Refused("OOM command not allowed".to_owned());
        let mut took = Vec::new();
        for _ in 0..6 {
            took.push(lasts(&health, &full).await.as_secs());
            tokio::time::advance(CALM - Duration::from_millis(1)).await;
        }
        assert_eq!(took, [0, 1, 2, 4, 8, 8]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(lasts(&health, &full).await, Duration::ZERO, "calls have succeeded meanwhile");
        assert_eq!(lasts(&health, &StoreError::NotPrimary(String::new())).await, LEAST);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_good_probe_ends_each_outage_of_a_server_that_was_silent() {
        let health = Health::new(Arc::new(Circuits::new(Metrics::new().store(), Entropy::system())));
        let loading = "LOADING Redis is loading the dataset in memory".to_owned();
        let silent = [StoreError::Timeout(Duration::ZERO), StoreError::Connection(String::new())];
        for error in silent.into_iter().chain([StoreError::Refused(loading), StoreError::Unconfirmed]) {
            for _ in 0..3 {
                assert_eq!(lasts(&health, &error).await, Duration::ZERO, "{error}");
            }
        }
    }
}
