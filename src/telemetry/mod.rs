//! Metrics, logs and traces. The lowest room but the clock: imports no other room of weir.
//!
//! - `metrics`: every metric's name, help, labels and buckets.
//! - `handles`: the series of a route, a client, a limiter, the store and clients' errors, resolved once per label set.
//! - `registry`: all metrics of one weir; creates handles and renders `/metrics`.
//! - `process`: what the system knows of this process.
//! - `outcome`: how a request ended, in the words of metrics, logs and traces.
//! - [`logging`]: log lines to standard error, in a form and from a level that a reload can change.
//! - `log_buffer`: the bounded buffer in front of standard error, so that nothing waits for the log's reader.
//! - `access_log`: the line of a request.
//! - `spans`: traces of requests. `otlp`: their export, as the standard `OTEL_*` variables ask for it.
//!
//! Knows no request, limiter, store or configuration file: callers pass names and numbers.

mod access_log;
mod handles;
mod log_buffer;
pub mod logging;
mod metrics;
mod otlp;
mod outcome;
#[cfg(target_os = "linux")]
mod process;
mod registry;
mod spans;

pub use access_log::{AccessLine, AccessRule};
pub use handles::{
    ClassMetrics, ClassSeries, ClientPermit, ClientPermits, ClientRequests, ConnectionError,
    ConnectionErrors, LimiterMetrics, LimiterSeries, RouteMetrics, StoreMetrics, StoreOp, StoreResult,
};
pub(crate) use logging::AUDIT;
pub use logging::Logging;
pub use metrics::{REQUEST_SECONDS, WAIT_SECONDS};
pub use outcome::Outcome;
pub use registry::{Metrics, RouteCounts};
pub use spans::{Part, Spans, Summary, Trace};
