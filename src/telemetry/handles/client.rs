//! The series of one client: its requests to one route, and its permits of one limiter.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{IntCounter, IntCounterVec};

use super::route::{CounterCache, RouteMetrics};
use crate::telemetry::metrics::Families;
use crate::telemetry::outcome::Outcome;

/// How a client's permits ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientPermit {
    /// Granted by the store and used.
    Granted,
    /// Refused.
    Refused,
    /// Of a request that ended before it was sent.
    Cancelled,
    /// Granted from this replica's share during an outage of the store.
    Local,
    /// Passed without a limit during an outage of the store.
    Allowed,
}

impl ClientPermit {
    /// The values of the label `result`, in the order of the variants.
    const NAMES: [&str; 5] = ["granted", "refused", "cancelled", "local", "allowed"];
}

/// The requests of one client to one route.
pub struct ClientRequests {
    route: RouteMetrics,
    client: Box<str>,
    counted: CounterCache<(u16, Outcome)>,
}

impl ClientRequests {
    pub(in crate::telemetry) fn new(route: RouteMetrics, client: &str) -> ClientRequests {
        ClientRequests { route, client: client.into(), counted: CounterCache::default() }
    }

    /// Shows the usual series in `/metrics`: Prometheus sees no increase in one that appears with a 1.
    pub fn publish(&self) {
        self.counted.resolve((200, Outcome::Forwarded), |key| self.counter(key));
    }

    /// Counts a finished request: its status code, its outcome, and the time since its head was read.
    pub fn finished(&self, code: u16, outcome: Outcome, elapsed: Duration) {
        self.counted.resolve((code, outcome), |key| self.counter(key)).inc();
        self.route.took(elapsed);
    }

    fn counter(&self, (code, outcome): (u16, Outcome)) -> IntCounter {
        self.route.requests(&self.client, code, outcome)
    }
}

/// The permits of one client and one limiter.
pub struct ClientPermits {
    family: IntCounterVec,
    client: Box<str>,
    limiter: Box<str>,
    results: [OnceLock<IntCounter>; ClientPermit::NAMES.len()],
}

impl ClientPermits {
    pub(in crate::telemetry) fn new(families: &Families, client: &str, limiter: &str) -> ClientPermits {
        ClientPermits {
            family: families.client_permits_total.clone(),
            client: client.into(),
            limiter: limiter.into(),
            results: Default::default(),
        }
    }

    /// Shows the usual series in `/metrics`.
    pub fn publish(&self) {
        self.counter(ClientPermit::Granted);
        self.counter(ClientPermit::Refused);
    }

    /// Counts permits.
    pub fn add(&self, result: ClientPermit, permits: u64) {
        self.counter(result).inc_by(permits);
    }

    fn counter(&self, result: ClientPermit) -> &IntCounter {
        let place = result as usize;
        self.results[place].get_or_init(|| {
            self.family.with_label_values(&[&*self.client, &*self.limiter, ClientPermit::NAMES[place]])
        })
    }
}
