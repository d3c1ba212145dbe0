//! How long requests waited lately, by the bounds of a histogram, and the quantiles of the whole fleet.
//!
//! Pure: has no clock.

use std::collections::VecDeque;

use super::numbers::float;

/// The time over which waits are counted, and the time between two snapshots of the counts.
const LATELY_US: u64 = 60_000_000;
const SNAPSHOT_US: u64 = 10_000_000;

/// The quantiles that are shown.
const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];

/// Running counts of the last minute.
#[derive(Default, Debug)]
pub(super) struct Waits {
    snapshots: VecDeque<(u64, Vec<u64>)>,
    last: Vec<u64>,
}

impl Waits {
    /// Takes in the running counts at an instant.
    pub(super) fn sample(&mut self, now_us: u64, counts: &[u64]) {
        if self.snapshots.back().is_none_or(|(at, _)| now_us.saturating_sub(*at) >= SNAPSHOT_US) {
            self.snapshots.push_back((now_us, counts.to_vec()));
        }
        // One snapshot at the beginning of the time, or before it.
        while self.snapshots.get(1).is_some_and(|(at, _)| at + LATELY_US <= now_us) {
            self.snapshots.pop_front();
        }
        self.last = counts.to_vec();
    }

    /// Returns the counts of the last minute; empty without requests.
    pub(super) fn lately(&self) -> Vec<u64> {
        let Some((_, before)) = self.snapshots.front() else { return Vec::new() };
        let counts: Vec<u64> =
            self.last.iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect();
        if counts.iter().all(|count| *count == 0) { Vec::new() } else { counts }
    }
}

/// Returns the quantiles of all these counts, between the bounds in proportion; `None` without requests. What is within the first bound
/// did not wait, and what is beyond the last one waited at least so long.
pub fn quantiles<'a>(bounds: &[f64], counts: impl Iterator<Item = &'a [u64]>) -> Option<[f64; 3]> {
    let mut sums = vec![0_u64; bounds.len() + 1];
    counts.for_each(|counts| sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count));
    let all: u64 = sums.iter().sum();
    (all > 0).then(|| QUANTILES.map(|quantile| at(bounds, &sums, quantile * float(all))))
}

/// Returns the wait of the request with this rank.
fn at(bounds: &[f64], sums: &[u64], rank: f64) -> f64 {
    let mut before = 0;
    for (place, count) in sums.iter().enumerate() {
        if float(before + count) >= rank {
            let below = if place == 0 { 0.0 } else { bounds[place - 1] };
            let Some(above) = bounds.get(place).filter(|_| place > 0) else { return below };
            return below + (above - below) * (rank - float(before)) / float(*count).max(1.0);
        }
        before += count;
    }
    bounds.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_the_bounds_in_proportion() {
        let bounds = [0.001, 1.0, 3.0];
        let of = |counts: &[&[u64]]| quantiles(&bounds, counts.iter().copied());
        assert_eq!(of(&[&[], &[0, 0, 0, 0]]), None);
        assert_eq!(of(&[&[7, 0, 0, 0]]), Some([0.0, 0.0, 0.0]));
        let [half, most, nearly_all] = of(&[&[50, 0, 25, 0], &[0, 0, 25, 0]]).unwrap();
        assert!(half == 0.0 && (most - 2.8).abs() < 1e-9 && (nearly_all - 2.96).abs() < 1e-9);
        assert_eq!(of(&[&[0, 0, 0, 9]]), Some([3.0; 3]));
    }

    #[test]
    fn only_the_last_minute_counts() {
        let mut waits = Waits::default();
        for second in 0..200 {
            waits.sample(second * 1_000_000, &[second.min(100), 0]);
        }
        assert_eq!(waits.lately(), Vec::<u64>::new());
        let mut waits = Waits::default();
        for second in 0..200 {
            waits.sample(second * 1_000_000, &[second, 0]);
        }
        assert!((60..=70).contains(&waits.lately()[0]), "{:?}", waits.lately());
    }
}
