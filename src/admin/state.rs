//! The handles that the endpoints share.

use std::sync::Arc;

use tokio::sync::watch;

use super::dashboard::Dashboard;
use super::reload::Reloader;
use crate::config::Handle;
use crate::limiter::Limiters;
use crate::telemetry::Metrics;

/// What the admin listener shows.
#[derive(Clone)]
pub struct AdminState {
    /// What `/metrics` renders.
    pub metrics: Metrics,
    /// What `/api/limiters`, `/api/replicas` and `/readyz` ask.
    pub limiters: Limiters,
    /// What `/api/config` shows, and where the token is.
    pub config: Arc<Handle>,
    /// Where `/api/reload` asks for a reload.
    pub reloader: Reloader,
    /// Whether this replica is shutting down.
    pub draining: watch::Receiver<bool>,
    /// What the pages share that show it.
    pub dashboard: Dashboard,
}
