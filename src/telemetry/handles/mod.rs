//! Handles to the series of one route, one client, one limiter, one class of its callers, the store, the errors of clients: resolved once
//! per label set, then only atomic additions.
//!
//! Names no metric and knows no configuration: `metrics` has the names, and the caller gives the label values.

mod class;
mod client;
mod connection_errors;
mod limiter;
mod route;
mod store;

use std::sync::LazyLock;

pub use class::{ClassMetrics, ClassSeries};
pub use client::{ClientPermit, ClientPermits, ClientRequests};
pub use connection_errors::{ConnectionError, ConnectionErrors};
pub(super) use limiter::LimiterShared;
pub use limiter::{LimiterMetrics, LimiterSeries};
pub use route::RouteMetrics;
pub(super) use route::RouteShared;
pub use store::{StoreMetrics, StoreOp, StoreResult};

/// Returns the counts of a histogram's buckets, and of what is beyond the last bound.
pub(in crate::telemetry) fn by_bucket(histogram: &prometheus::proto::Histogram) -> Vec<u64> {
    let mut before = 0;
    let bounded = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count());
    let all = bounded.chain([histogram.get_sample_count()]);
    all.map(|count| count - std::mem::replace(&mut before, count).min(count)).collect()
}

/// Series that appear in `/metrics` when the handle is published or first used, not when it is created.
///
/// A reload creates handles while it is prepared, and a reload that fails must leave no series behind.
type Unpublished<T> = LazyLock<T, Box<dyn FnOnce() -> T + Send>>;

/// Converts to a gauge's signed value; no rate comes near its maximum.
fn gauge_value(permits: u64) -> i64 {
    i64::try_from(permits).unwrap_or(i64::MAX)
}
