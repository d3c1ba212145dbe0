//! Judgements over instants: the fullest window, the used share of a quota, the order of service.
//!
//! Pure functions; `harness.rs` tests them, because a wrong judge proves nothing.

use std::time::{Duration, Instant};

/// Returns the most instants in any half-open interval `[t, t + per)`. Exact. `instants` need not be sorted.
pub(crate) fn fullest_window(instants: &[Instant], per: Duration) -> usize {
    let mut sorted = instants.to_vec();
    sorted.sort_unstable();
    let mut first = 0;
    let mut fullest = 0;
    for (index, instant) in sorted.iter().enumerate() {
        while instant.duration_since(sorted[first]) >= per {
            first += 1;
        }
        fullest = fullest.max(index - first + 1);
    }
    fullest
}

/// Returns the share of the quota that was in use on average from the first instant to the last: a permit is in use for
/// a window from its instant on. A straggler in a window of its own costs one permit of that window; a measure by time
/// until the last instant would count the whole window as lost.
pub(crate) fn occupancy(instants: &[Instant], rate: usize, per: Duration) -> f64 {
    let (Some(first), Some(last)) = (instants.iter().min(), instants.iter().max()) else {
        return 0.0;
    };
    let taken = last.duration_since(*first).as_secs_f64();
    let in_use: f64 = instants.iter().map(|at| last.duration_since(*at).min(per).as_secs_f64()).sum();
    if taken == 0.0 { 1.0 } else { in_use / (rate as f64 * taken) }
}

/// A request, with the instants of its arrival and its service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    pub(crate) arrived: Instant,
    pub(crate) served: Instant,
}

/// Returns the share of all pairs in which the first arrival was served more than `tolerance` after the other.
pub(crate) fn pairs_out_of_order(services: &[Service], tolerance: Duration) -> f64 {
    let mut sorted = services.to_vec();
    sorted.sort_by_key(|service| service.arrived);
    let mut pairs = 0_u64;
    let mut out_of_order = 0_u64;
    for (index, earlier) in sorted.iter().enumerate() {
        for later in &sorted[index + 1..] {
            pairs += 1;
            if earlier.served > later.served + tolerance {
                out_of_order += 1;
            }
        }
    }
    if pairs == 0 { 0.0 } else { out_of_order as f64 / pairs as f64 }
}

/// Returns the most permits in any closed interval `[t, t + d]` beyond `rate` for each `per` of it: the least size of a
/// token bucket that would allow them. Exact. `instants` need not be sorted.
pub(crate) fn fullest_bucket(instants: &[Instant], rate: f64, per: Duration) -> f64 {
    let mut sorted = instants.to_vec();
    sorted.sort_unstable();
    let (mut level, mut fullest) = (0.0_f64, 0.0_f64);
    for (index, instant) in sorted.iter().enumerate() {
        let since = instant.duration_since(sorted[index.saturating_sub(1)]).as_secs_f64();
        level = (level - since * rate / per.as_secs_f64()).max(0.0) + 1.0;
        fullest = fullest.max(level);
    }
    fullest
}

/// Returns Jain's index: 1 for equal shares, 1/n if one client has everything.
pub(crate) fn jain(shares: &[usize]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Returns the middle value, the later of two. Panics on an empty list.
pub(crate) fn median<T: Ord + Copy>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}
