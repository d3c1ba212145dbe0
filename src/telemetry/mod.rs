//! What weir says about itself: metrics and logs. Knows nothing of requests, stores or configuration files.
//!
//! - [`metrics`]: every metric's name, help, labels and buckets in one place.
//! - [`handles`]: what the other rooms count with, resolved once per label set.
//! - [`logging`]: where log lines go and which of them, changed by a reload.

pub mod handles;
pub mod logging;
pub mod metrics;

pub use handles::{LimiterMetrics, Outcome, RouteMetrics, StoreMetrics, StoreOp, StoreResult};
pub use logging::Logging;
pub use metrics::Metrics;
