//! The series of the store.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use crate::telemetry::metrics::Families;

/// A kind of call to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreOp {
    /// Books slots.
    Reserve,
    /// Reads a limiter's state.
    Inspect,
    /// Probes whether the store answers.
    Ping,
    /// Keeps the store's epoch alive, and this replica in it.
    Heartbeat,
    /// Writes granted permits back to a store that has lost its state.
    WriteBack,
    /// Registers this replica with the store.
    RegisterReplica,
    /// Deletes the used permits of a limiter.
    Reset,
    /// Reports an upstream's quota headers or rejection.
    ReportUpstream,
    /// Pauses a limiter by hand.
    Pause,
}

impl StoreOp {
    const ALL: [StoreOp; 9] = [
        StoreOp::Reserve,
        StoreOp::Inspect,
        StoreOp::Ping,
        StoreOp::Heartbeat,
        StoreOp::WriteBack,
        StoreOp::RegisterReplica,
        StoreOp::Reset,
        StoreOp::ReportUpstream,
        StoreOp::Pause,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            StoreOp::Reserve => "reserve",
            StoreOp::Inspect => "inspect",
            StoreOp::Ping => "ping",
            StoreOp::Heartbeat => "heartbeat",
            StoreOp::WriteBack => "write_back",
            StoreOp::RegisterReplica => "register_replica",
            StoreOp::Reset => "reset",
            StoreOp::ReportUpstream => "report_upstream",
            StoreOp::Pause => "pause",
        }
    }
}

/// The way in which a call to the store ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreResult {
    /// The store answered.
    Ok,
    /// The store did not answer in time.
    Timeout,
    /// The server did not have the script; the call is repeated with it.
    NoScript,
    /// The connection could not be made, or broke.
    Connection,
    /// The store answered with another error.
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

/// The series of the store. Cheap to clone.
#[derive(Clone)]
pub struct StoreMetrics {
    shared: Arc<StoreShared>,
}

struct StoreShared {
    /// Indexed by [`StoreOp`], then by [`StoreResult`].
    calls: [[IntCounter; StoreResult::ALL.len()]; StoreOp::ALL.len()],
    durations: [Histogram; StoreOp::ALL.len()],
    batch_size: Histogram,
    up: IntGauge,
}

impl StoreMetrics {
    pub(in crate::telemetry) fn new(families: &Families) -> StoreMetrics {
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

    /// Counts a call to the store and records its duration.
    pub fn called(&self, op: StoreOp, result: StoreResult, elapsed: Duration) {
        self.shared.calls[op as usize][result as usize].inc();
        self.shared.durations[op as usize].observe(elapsed.as_secs_f64());
    }

    /// Records the number of requests that one call booked for.
    pub fn batch_size(&self, requests: usize) {
        self.shared.batch_size.observe(requests as f64);
    }

    /// Sets whether the store answers.
    pub fn set_up(&self, up: bool) {
        self.shared.up.set(i64::from(up));
    }
}
