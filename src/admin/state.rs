//! The handles that the endpoints share.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::dashboard::Dashboard;
use super::explain::Explain;
use super::reload::Reloader;
use crate::config;
use crate::limiter::Limiters;
use crate::telemetry::Metrics;
use crate::usage::{Fleet, FleetLimiter, Recorder};

/// Returns the breakers of the routes as JSON, in their order.
pub type Breakers = Arc<dyn Fn() -> Vec<Value> + Send + Sync>;

/// The handles that the endpoints share. Cheap to clone.
#[derive(Clone)]
pub struct AdminState {
    /// The metrics, for `/metrics`.
    pub metrics: Metrics,
    /// The limiters, for `/api/limiters`, `/api/replicas` and `/readyz`.
    pub limiters: Limiters,
    /// The running configuration, for `/api/config` and the token.
    pub config: Arc<config::Handle>,
    /// Requests reloads, for `/api/reload`.
    pub reloader: Reloader,
    /// Explains requests, for `/api/explain`.
    pub explain: Explain,
    /// Returns the breakers of the routes, and brings their metrics up to date.
    pub breakers: Breakers,
    /// True while this replica is shutting down.
    pub draining: watch::Receiver<bool>,
    /// The state that all open dashboard pages share.
    pub dashboard: Dashboard,
    /// When the last reading of the metrics began, and its text: scrapes that come at the same time share it.
    pub last_scrape: Arc<Mutex<Option<(Instant, Bytes)>>>,
    /// The fleet's use, for `/api/usage`, `/api/limiters` and `/metrics`.
    pub usage: FleetUsage,
    /// The workers, for what asks the store.
    pub workers: Handle,
}

/// The use of the fleet. Cheap to clone.
#[derive(Clone)]
pub struct FleetUsage {
    /// Its counts by hour and day.
    pub recorder: Arc<Recorder>,
    /// Its present figures.
    pub fleet: Arc<Fleet>,
}

impl FleetUsage {
    /// Shows in the metrics when limits are spent, and how far the upstream's count lies from weir's.
    pub(super) fn show_in(&self, metrics: &Metrics) {
        let limiters = self.fleet.limiters();
        let exhausted = limiters.iter().flat_map(|FleetLimiter { name, exhausted_in, .. }| {
            exhausted_in.iter().map(|(limit, seconds)| (&**name, &**limit, *seconds))
        });
        metrics.exhausted_in(exhausted);
        let apart = limiters.iter().flat_map(|limiter| {
            let counts = limiter.upstream_counts.iter();
            counts.map(|count| (&*limiter.name, &*count.limit, count.apart))
        });
        metrics.upstream_apart(apart);
    }
}
