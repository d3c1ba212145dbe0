//! What weir says about itself: metrics, logs and traces. Knows no store and no configuration file, and of a request
//! what it is told.
//!
//! - [`metrics`]: every metric's name, help, labels and buckets in one place.
//! - [`handles`]: what the other rooms count with, resolved once per label set.
//! - [`logging`]: where log lines go and which of them, changed by a reload.
//! - [`spans`]: traces of requests; [`otlp`]: where they are sent, if the standard variables of OpenTelemetry say so.

pub mod handles;
pub mod logging;
pub mod metrics;
mod otlp;
pub mod spans;

pub use handles::{LimiterMetrics, Outcome, RouteMetrics, StoreMetrics, StoreOp, StoreResult};
pub use logging::Logging;
pub use metrics::Metrics;
pub use spans::{Part, Spans, Summary, Trace};
