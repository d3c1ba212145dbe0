//! The figures of this replica's limiters that it tells the fleet, for people.

use std::sync::Arc;

use crate::limiter::arithmetic::algorithm::kind;
use crate::limiter::model::limit::{Limit, Scope};
use crate::limiter::queue::active_limiter::ActiveLimiter;
use crate::usage::{Depth, LimitReading, Reading, Sharing};

/// Returns a limiter as it is now. Asks no store.
pub(super) fn reading(active: &ActiveLimiter, depth: Depth) -> Reading {
    let limiter = active.limiter();
    // A partition has limits of its own, and no limiter has them as a whole.
    let limits = if active.is_partitioned() { &[] } else { &limiter.limits[..] };
    let available = active.last_available();
    let limit_reading = |(place, limit): (usize, &Limit)| {
        Some(LimitReading {
            label: Arc::clone(&limit.label),
            rate: limit.rate.get(),
            per_us: u64::try_from(limit.per.as_micros()).unwrap_or(u64::MAX),
            refill: kind::refill(limit, active.session.now())?,
            available: available.get(place).copied().flatten(),
        })
    };
    Reading {
        name: active.name.as_str().into(),
        granted: active.counts.granted(),
        refused: active.counts.refused(),
        waiting: u64::from(active.counts.waiting()),
        sharing: if limiter.scope == Scope::Overall { Sharing::Fleet } else { Sharing::Replica },
        is_paused: active.pauses.is_paused(),
        waits: active.metrics().wait_counts(),
        upstream_counts: active.upstream_counts.latest(active.session.moment()),
        partitions: match depth {
            Depth::Counts => None,
            Depth::Partitions => active.top_partitions().map(Arc::new),
        },
        limits: limits.iter().enumerate().filter_map(limit_reading).collect(),
    }
}
