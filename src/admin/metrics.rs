//! `/metrics`. A scrape reads counters of this process and never calls the store.

use http::StatusCode;

use super::response::{self, Response};
use crate::telemetry::Metrics;

/// Everything in Prometheus's text format.
pub(super) fn render(metrics: &Metrics) -> Response {
    response::of(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics.render())
}
