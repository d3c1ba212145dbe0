//! The routes of this replica in the last minute: rate, codes, and how long the upstream took.
//!
//! Pure: has no clock.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use crate::telemetry::{REQUEST_SECONDS, RouteCounts};
use crate::usage::{float, quantiles};

/// Samples that are kept: a minute, and the one before it.
const SAMPLES_MAX: usize = 13;

/// The counts of the last minute.
#[derive(Default)]
pub(super) struct Routes {
    samples: VecDeque<(u64, Vec<RouteCounts>)>,
}

impl Routes {
    /// Takes in the counts at an instant.
    pub(super) fn add(&mut self, at_unix_ms: u64, counts: Vec<RouteCounts>) {
        if self.samples.len() >= SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back((at_unix_ms, counts));
    }

    /// Returns the routes as JSON. The name of requests that matched none is empty.
    pub(super) fn view(&self) -> Vec<Value> {
        let (Some((began, before)), Some((at, now))) = (self.samples.front(), self.samples.back()) else {
            return Vec::new();
        };
        let seconds = float(at.saturating_sub(*began)) / 1000.0;
        let view = |counts: &RouteCounts| {
            let earlier = before.iter().find(|earlier| earlier.route == counts.route);
            let codes: BTreeMap<&str, u64> = counts
                .codes
                .iter()
                .map(|(code, count)| {
                    let earlier = earlier.and_then(|earlier| earlier.codes.get(code)).copied().unwrap_or(0);
                    (code.as_str(), count.saturating_sub(earlier))
                })
                .filter(|(_, count)| *count > 0)
                .collect();
            let requests: u64 = codes.values().sum();
            let upstream: Vec<u64> = counts
                .upstream
                .iter()
                .enumerate()
                .map(|(place, count)| {
                    let earlier = earlier.and_then(|earlier| earlier.upstream.get(place)).copied();
                    count.saturating_sub(earlier.unwrap_or(0))
                })
                .collect();
            let answered: u64 = upstream.iter().sum();
            let rejected = counts.rejected.saturating_sub(earlier.map_or(0, |earlier| earlier.rejected));
            let waits = quantiles(REQUEST_SECONDS, [&upstream[..]].into_iter());
            json!({
                "route": counts.route,
                "per_second": if seconds > 0.0 { rounded(float(requests) / seconds) } else { 0.0 },
                "codes": codes,
                // In seconds; null without answers.
                "upstream_p50": waits.map(|waits| rounded(waits[0])),
                "upstream_p95": waits.map(|waits| rounded(waits[1])),
                "rejected": rejected,
                "answered": answered,
            })
        };
        now.iter().map(view).collect()
    }
}

/// Rounds to thousandths.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_has_the_counts_of_the_last_minute() {
        let counts = |ok: u64, refused: u64| {
            let codes = BTreeMap::from([("200".to_owned(), ok), ("429".to_owned(), refused)]);
            let upstream = [0, 0, ok].into_iter().chain([0; 13]).collect();
            vec![RouteCounts { route: "r".to_owned(), codes, upstream, rejected: refused }]
        };
        let mut routes = Routes::default();
        assert!(routes.view().is_empty());
        for sample in 0..30 {
            routes.add(sample * 5000, counts(10 * sample, sample / 29));
        }
        let view = &routes.view()[0];
        assert_eq!((&view["route"], &view["codes"]), (&json!("r"), &json!({"200": 120, "429": 1})));
        assert_eq!(view["per_second"], 2.017);
        assert_eq!((&view["answered"], &view["rejected"]), (&json!(120), &json!(1)));
        assert!(view["upstream_p50"].as_f64().is_some_and(|p50| (0.0025..=0.005).contains(&p50)), "{view}");
    }
}
