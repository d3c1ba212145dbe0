//! A limiter as the metrics show it.

use crate::limiter::model::Limiter;
use crate::telemetry::LimiterSeries;

/// Returns the label values and configured numbers of a limiter.
pub(super) fn series(limiter: &Limiter) -> LimiterSeries {
    LimiterSeries {
        name: limiter.name.as_str().into(),
        queue_capacity: limiter.queue.as_ref().map_or(0, |queue| queue.max_waiting),
        limits: limiter.limits.iter().map(|limit| (limit.label.clone(), limit.rate.get())).collect(),
    }
}
