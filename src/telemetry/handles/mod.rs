//! Handles to the series of one route, one limiter, the store: resolved once per label set, then only atomic additions.
//!
//! Names no metric and knows no configuration: `metrics` has the names, and the caller gives the label values.

mod limiter;
mod route;
mod store;

pub use limiter::{LimiterMetrics, LimiterSeries};
pub use route::RouteMetrics;
pub use store::{StoreMetrics, StoreOp, StoreResult};
