//! Health, metrics, live state and a page that shows it, for operators and their tools. Reads the other rooms, and asks them
//! for what is done by hand: a reload, a pause, a reset.
//!
//! - [`server`]: accepts connections and bounds them.
//! - [`router`]: which path is answered by whom, and for whom.
//! - [`access`]: who may see and do what.
//! - [`response`]: the forms in which an answer is written.
//! - [`health`], [`metrics`], [`limiters`], [`replicas`], [`config`], [`dashboard`]: the endpoints.

mod access;
mod config;
mod dashboard;
mod health;
mod limiters;
mod metrics;
mod replicas;
mod response;
mod router;
mod server;

use std::sync::Arc;

use tokio::sync::watch;

pub use self::config::{ReloadRequest, Reloader};
pub use self::dashboard::Dashboard;
pub use self::server::serve;
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
