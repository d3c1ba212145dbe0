//! The handles that the endpoints share.

use std::sync::Arc;

use tokio::sync::watch;

use super::dashboard::Dashboard;
use super::explain::Explain;
use super::reload::Reloader;
use crate::config::Handle;
use crate::limiter::Limiters;
use crate::telemetry::Metrics;

/// The handles that the endpoints share. Cheap to clone.
#[derive(Clone)]
pub struct AdminState {
    /// The metrics, for `/metrics`.
    pub metrics: Metrics,
    /// The limiters, for `/api/limiters`, `/api/replicas` and `/readyz`.
    pub limiters: Limiters,
    /// The running configuration, for `/api/config` and the token.
    pub config: Arc<Handle>,
    /// Requests reloads, for `/api/reload`.
    pub reloader: Reloader,
    /// Explains requests, for `/api/explain`.
    pub explain: Explain,
    /// True while this replica is shutting down.
    pub draining: watch::Receiver<bool>,
    /// The state that all open dashboard pages share.
    pub dashboard: Dashboard,
}
