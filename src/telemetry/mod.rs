//! What weir says about itself: metrics and logs. Knows nothing of requests, stores or configuration files.
//!
//! - [`metrics`]: every metric's name, help, labels and buckets in one place.
//! - [`handles`]: what the other rooms count with, resolved once per label set.

pub mod handles;
pub mod metrics;

pub use handles::{LimiterMetrics, Outcome, RouteMetrics, StoreMetrics, StoreOp, StoreResult};
pub use metrics::Metrics;
