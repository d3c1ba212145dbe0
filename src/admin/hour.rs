//! The last hour of the fleet, for the dashboard's charts: figures of each limiter, and marks of what happened.
//!
//! Pure: has no clock. Bounded by the number of samples and marks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use crate::usage::FleetLimiter;

/// Samples that are kept: an hour, at one in five seconds.
const SAMPLES_MAX: usize = 720;
/// Marks that are kept.
const MARKS_MAX: usize = 100;
/// The most samples of all limiters that a page gets; with many limiters it gets one of several.
const VALUES_MAX: usize = 12_000;

/// The names of a limiter's figures, in their order.
const FIGURES: [&str; 7] = ["granted", "refused", "waiting", "p50", "p95", "p99", "apart"];

/// A limiter's figures in one sample; not a number where there is none.
type Figures = [f32; FIGURES.len()];

/// The fleet at one instant.
pub(super) struct FleetSnapshot {
    /// The limiters.
    pub(super) limiters: Vec<FleetLimiter>,
    /// True while the store answers.
    pub(super) store_up: bool,
    /// The last reload: its instant in seconds since the Unix epoch, and whether it succeeded.
    pub(super) reload: Option<(u64, bool)>,
    /// The replicas that share the store: number, and name for people.
    pub(super) replicas: BTreeMap<u64, String>,
}

struct Sample {
    at_unix_ms: u64,
    /// The names of the limiters, mostly those of the sample before.
    names: Arc<[Arc<str>]>,
    /// Of each limiter.
    figures: Vec<Figures>,
}

/// Something that happened.
struct Mark {
    at_unix_ms: u64,
    kind: &'static str,
    text: String,
    /// The limiter that it concerns; all of them if `None`.
    limiter: Option<Arc<str>>,
}

/// The last hour.
#[derive(Default)]
pub(super) struct Hour {
    samples: VecDeque<Sample>,
    marks: VecDeque<Mark>,
    before: Option<FleetSnapshot>,
}

/// The last hour as a page gets it. Small beside a tree of JSON values: there may be tens of thousands of figures.
#[derive(Serialize)]
pub(super) struct HourView<'a> {
    at: Vec<u64>,
    /// By limiter and figure; not a number, which becomes `null`, where there is none.
    limiters: BTreeMap<&'a str, BTreeMap<&'a str, Vec<f32>>>,
    marks: Value,
}

impl Hour {
    /// Takes in the fleet at an instant.
    pub(super) fn add(&mut self, at_unix_ms: u64, fleet: FleetSnapshot) {
        if self.samples.len() >= SAMPLES_MAX {
            self.samples.pop_front();
        }
        let names = fleet.limiters.iter().map(|limiter| &limiter.name);
        let names = match self.samples.back() {
            Some(before) if before.names.iter().eq(names.clone()) => Arc::clone(&before.names),
            _ => names.cloned().collect(),
        };
        let figures = fleet.limiters.iter().map(figures).collect();
        self.samples.push_back(Sample { at_unix_ms, names, figures });
        if let Some(before) = &self.before {
            let marks = happened(before, &fleet);
            self.marks.extend(marks.into_iter().map(|(kind, text, limiter)| Mark {
                at_unix_ms,
                kind,
                text,
                limiter,
            }));
            while self.marks.len() > MARKS_MAX {
                self.marks.pop_front();
            }
        }
        self.before = Some(fleet);
    }

    /// Returns what a page gets: instants, and for each limiter a list of each figure.
    pub(super) fn view(&self) -> HourView<'_> {
        let values = self.samples.iter().map(|sample| sample.names.len()).sum::<usize>();
        let step = values.div_ceil(VALUES_MAX).max(1);
        // The last one is always among them.
        let kept: Vec<&Sample> =
            self.samples.iter().rev().step_by(step).collect::<Vec<_>>().into_iter().rev().collect();
        let mut limiters: BTreeMap<&str, BTreeMap<&str, Vec<f32>>> = BTreeMap::new();
        for (place, sample) in kept.iter().enumerate() {
            for (name, figures) in sample.names.iter().zip(&sample.figures) {
                let lists = limiters.entry(name).or_default();
                for (name, figure) in FIGURES.iter().zip(figures) {
                    let list = lists.entry(name).or_default();
                    // The limiter may be new.
                    list.resize(place, f32::NAN);
                    list.push((figure * 1000.0).round() / 1000.0);
                }
            }
        }
        HourView { at: kept.iter().map(|sample| sample.at_unix_ms).collect(), limiters, marks: self.marks() }
    }

    /// Returns the marks as JSON.
    pub(super) fn marks(&self) -> Value {
        let mark = |mark: &Mark| json!({ "at": mark.at_unix_ms, "kind": mark.kind, "text": mark.text, "limiter": mark.limiter });
        self.marks.iter().map(mark).collect::<Vec<_>>().into()
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "figures for a chart")]
fn figures(limiter: &FleetLimiter) -> Figures {
    let [p50, p95, p99] = limiter.waits.map_or([f32::NAN; 3], |waits| waits.map(|wait| wait as f32));
    [
        limiter.granted_per_second as f32,
        limiter.refused_per_second as f32,
        limiter.waiting as f32,
        p50,
        p95,
        p99,
        // Of the limit of which the counts lie furthest apart.
        limiter
            .upstream_counts
            .iter()
            .map(|count| count.apart)
            .max_by_key(|apart| apart.abs())
            .map_or(f32::NAN, |apart| apart as f32),
    ]
}

/// Returns what has happened between two samples: a kind, a text, and the limiter that it concerns.
fn happened(before: &FleetSnapshot, now: &FleetSnapshot) -> Vec<(&'static str, String, Option<Arc<str>>)> {
    let mut marks = Vec::new();
    match (before.store_up, now.store_up) {
        (true, false) => marks.push(("outage", "the store is away".to_owned(), None)),
        (false, true) => marks.push(("recovery", "the store is back".to_owned(), None)),
        _ => {}
    }
    if let Some((_, is_done)) = now.reload.filter(|reload| before.reload != Some(*reload)) {
        let text = if is_done { "configuration reloaded" } else { "reload refused" };
        marks.push(("reload", text.to_owned(), None));
    }
    for (_, name) in before.replicas.iter().filter(|(id, _)| !now.replicas.contains_key(id)) {
        marks.push(("replica_lost", format!("replica lost: {name}"), None));
    }
    for (_, name) in now.replicas.iter().filter(|(id, _)| !before.replicas.contains_key(id)) {
        marks.push(("replica_joined", format!("replica joined: {name}"), None));
    }
    for limiter in &now.limiters {
        let was_paused = before.limiters.iter().any(|other| other.name == limiter.name && other.is_paused);
        let name = || Some(Arc::clone(&limiter.name));
        match (was_paused, limiter.is_paused) {
            (false, true) => marks.push(("pause", format!("{} paused", limiter.name), name())),
            (true, false) => marks.push(("resume", format!("{} goes on", limiter.name), name())),
            _ => {}
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(names: &[&str], is_paused: bool) -> FleetSnapshot {
        let limiter = |name: &&str| FleetLimiter {
            name: (*name).into(),
            granted_per_second: 2.5,
            refused_per_second: 0.0,
            waiting: 3,
            is_paused,
            waits: None,
            exhausted_in: Vec::new(),
            upstream_counts: Vec::new(),
            partitions: None,
        };
        let limiters = names.iter().map(limiter).collect();
        FleetSnapshot {
            limiters,
            store_up: true,
            reload: None,
            replicas: BTreeMap::from([(1, "a".to_owned())]),
        }
    }

    #[test]
    fn a_limiter_that_is_new_has_no_figures_before() {
        let mut hour = Hour::default();
        hour.add(1000, snapshot(&["a"], false));
        hour.add(6000, snapshot(&["a", "b"], false));
        let view = serde_json::to_value(hour.view()).unwrap();
        assert_eq!(view["at"], json!([1000, 6000]));
        assert_eq!(view["limiters"]["a"]["granted"], json!([2.5, 2.5]));
        assert_eq!(view["limiters"]["b"]["waiting"], json!([null, 3.0]));
        assert_eq!(view["limiters"]["b"]["p99"], json!([null, null]));
        assert_eq!(view["marks"], json!([]));
    }

    #[test]
    fn a_change_between_two_samples_is_a_mark() {
        let mut hour = Hour::default();
        hour.add(0, snapshot(&["a"], false));
        hour.add(1, snapshot(&["a"], true));
        hour.add(2, FleetSnapshot { store_up: false, ..snapshot(&["a"], true) });
        hour.add(
            3,
            FleetSnapshot { reload: Some((7, true)), replicas: BTreeMap::new(), ..snapshot(&["a"], false) },
        );
        hour.add(4, FleetSnapshot { reload: Some((7, true)), ..snapshot(&["a"], false) });
        let marks = hour.marks();
        let kinds: Vec<_> = marks
            .as_array()
            .unwrap()
            .iter()
            .map(|mark| (mark["at"].as_u64().unwrap(), mark["kind"].as_str().unwrap()))
            .collect();
        let expected = [
            (1, "pause"),
            (2, "outage"),
            (3, "recovery"),
            (3, "reload"),
            (3, "replica_lost"),
            (3, "resume"),
            (4, "replica_joined"),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(marks[0]["limiter"], "a");
    }

    #[test]
    fn an_hour_of_many_limiters_is_bounded() {
        let names: Vec<String> = (0..50).map(|index| format!("limiter-{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut hour = Hour::default();
        (0..1000).for_each(|at| hour.add(at, snapshot(&names, false)));
        let view = serde_json::to_value(hour.view()).unwrap();
        let instants = view["at"].as_array().unwrap();
        assert_eq!((hour.samples.len(), instants.len(), &instants[239]), (720, 240, &json!(999)));
        assert!(view.to_string().len() < 600_000, "{}", view.to_string().len());
    }
}
