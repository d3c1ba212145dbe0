//! `/metrics`. A scrape reads this process's counters and never calls the store.

use http::StatusCode;

use super::response::{self, Response};
use crate::telemetry::Metrics;

/// Answers with all metrics in Prometheus's text format.
pub(super) fn render(metrics: &Metrics) -> Response {
    response::of(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics.render())
}
