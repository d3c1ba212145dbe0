//! What weir says about itself: metrics, logs and traces. Knows no store and no configuration file, and of a request
//! what it is told.
//!
//! - [`metrics`]: every metric's name, help, labels and buckets in one place.
//! - [`handles`]: what the other rooms count with, resolved once per label set.
//! - [`logging`]: where log lines go and which of them, changed by a reload.
//! - [`spans`]: traces of requests, where the standard variables of OpenTelemetry ask for them.

pub mod handles;
pub mod logging;
pub mod metrics;
pub mod spans;

pub use handles::{LimiterMetrics, Outcome, RouteMetrics, StoreMetrics, StoreOp, StoreResult};
pub use logging::Logging;
pub use metrics::Metrics;
pub use spans::{Part, Spans, Summary, Trace};
