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
    /// Deals slots of a line.
    Deal,
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
    /// Writes states in the layout before.
    HandOver,
    /// Adds to the fleet's counts of who has used what, or reads them.
    Usage,
    /// Tells the fleet this replica's figures.
    Figures,
}

impl StoreOp {
    /// Every operation, in the order of the variants.
    #[rustfmt::skip]
    pub const ALL: [StoreOp; 13] = [
        StoreOp::Reserve, StoreOp::Deal, StoreOp::Inspect, StoreOp::Ping, StoreOp::Heartbeat, StoreOp::WriteBack, StoreOp::RegisterReplica,
        StoreOp::Reset, StoreOp::ReportUpstream, StoreOp::Pause, StoreOp::HandOver, StoreOp::Usage, StoreOp::Figures,
    ];

    /// The values of the label `op`, in the order of the variants.
    #[rustfmt::skip]
    const NAMES: [&str; 13] = [
        "reserve", "deal", "inspect", "ping", "heartbeat", "write_back", "register_replica", "reset", "report_upstream", "pause",
        "hand_over", "usage", "figures",
    ];

    /// Returns its name, as in the label `op`.
    pub fn as_str(self) -> &'static str {
        StoreOp::NAMES[self as usize]
    }
}

// Arrays have an element for each operation in this order.
const _: () = {
    let mut place = 0;
    while place < StoreOp::ALL.len() {
        assert!(StoreOp::ALL[place] as usize == place);
        place += 1;
    }
};

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
    /// The values of the label `result`, in the order of the variants.
    const NAMES: [&str; 5] = ["ok", "timeout", "noscript", "connection", "error"];
}

/// The series of the store. Cheap to clone.
#[derive(Clone)]
pub struct StoreMetrics {
    shared: Arc<StoreShared>,
}

struct StoreShared {
    /// Indexed by [`StoreOp`], then by [`StoreResult`].
    calls: [[IntCounter; StoreResult::NAMES.len()]; StoreOp::NAMES.len()],
    durations: [Histogram; StoreOp::NAMES.len()],
    batch_size: Histogram,
    up: IntGauge,
}

impl StoreMetrics {
    pub(in crate::telemetry) fn new(families: &Families) -> StoreMetrics {
        let calls =
            |op| StoreResult::NAMES.map(|result| families.store_calls_total.with_label_values(&[op, result]));
        let duration = |op| families.store_call_duration_seconds.with_label_values(&[op]);
        let shared = StoreShared {
            calls: StoreOp::NAMES.map(calls),
            durations: StoreOp::NAMES.map(duration),
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
