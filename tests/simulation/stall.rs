//! Very many partitions that wait for one limiter, and a store that stands still: how much of the limit is used when it is back.

use serde_json::{Value, json};

use crate::fault::{Fault, Kind};
use crate::plan::{Algorithm, CALLERS, Configuration, LateResponses, Limit, Limiter, Plan, Route};
use crate::world::World;

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;

const REPLICAS: usize = 3;

/// The limit for all partitions together, in a second; and a window with its guard.
const RATE: u64 = 100;
const WINDOW: u64 = SECOND + 10 * MILLI;

/// The time in which requests come, how long after them the store stands still, and for how long.
const COMES_IN: u64 = 2 * SECOND;
const WAITS: u64 = 3 * SECOND;
const STANDS: u64 = SECOND;

/// When all is to be as it was, and for how many windows that is judged.
const BACK_WITHIN: u64 = 2 * SECOND;
const JUDGED: u64 = 6;

/// The least used part of the limit, in percent.
const USED_LEAST: f64 = 97.0;

/// A store that stands still for a second while requests of so many partitions wait.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    pub partitions: u64,
}

impl Stall {
    fn plan(&self, seed: u64) -> Plan {
        let limiter = |name: &str, rate, is_keyed| Limiter {
            name: name.to_owned(),
            limits: vec![Limit { rate, per: SECOND, algorithm: Algorithm::SlidingWindow, precision: None }],
            queue: Some((120 * SECOND, 2 * self.partitions)),
            policy: "local",
            group: None,
            is_keyed,
            is_shadow: false,
            is_per_replica: false,
            follows_upstream: false,
            share: None,
            guard: None,
            max_partitions: None,
        };
        let limiters = vec![limiter("all", RATE, false), limiter("tenant", RATE / 10, true)];
        let route = Route {
            limiters: limiters.iter().map(|limiter| limiter.name.clone()).collect(),
            // Nearly every request is of a partition of its own.
            partitions: 1000 * self.partitions,
            demand: self.partitions as f64 * SECOND as f64 / COMES_IN as f64,
            cost_max: 1,
            has_own_costs: false,
            callers: CALLERS,
            hasty_percent: 0,
            leaving_percent: 0,
            settled_percent: 0,
        };
        let begin = SECOND;
        let at = begin + COMES_IN + WAITS;
        Plan {
            seed,
            replicas: REPLICAS,
            fleet_size: REPLICAS as u64,
            store_timeout_ms: 100,
            // As on a real server, where a call reads and writes the bookings of all.
            script_time: 900..1100,
            latency: 60,
            drift_ppm: 20,
            hiccup: 0,
            configurations: vec![Configuration { limiters }],
            routes: vec![route],
            late_responses: LateResponses::default(),
            faults: vec![Fault { at, kind: Kind::Freeze { lasts: STANDS } }],
            demand: (begin, begin + COMES_IN),
            // Everybody is answered by then.
            end: at + 20 * SECOND + self.partitions * WINDOW / RATE,
        }
    }

    /// Carries the run of a seed out. Returns what it shows, and whether it is as it should be.
    pub fn run(&self, seed: u64) -> Result<(Value, bool), String> {
        let plan = self.plan(seed);
        let outcome = World::run(&plan, false)?;
        let from = plan.faults[0].at + STANDS + BACK_WITHIN;
        let judged = from..from + JUDGED * WINDOW;
        let sent: Vec<u64> = outcome.sent.iter().map(|(sent, _)| *sent).collect();
        let used = sent.iter().filter(|sent| judged.contains(sent)).count();
        let used = 100.0 * used as f64 / (JUDGED * RATE) as f64;
        let first = sent.iter().find(|sent| **sent > from - BACK_WITHIN);
        let findings: Vec<_> = outcome.findings.iter().map(|finding| format!("{:?}", finding.what)).collect();
        let shown = json!({
            "partitions": self.partitions,
            "used_percent": used,
            "first_after_s": first.map(|first| (first + BACK_WITHIN - from) as f64 / 1e6),
            "calls": outcome.calls,
            "findings": findings,
        });
        Ok((shown, used >= USED_LEAST && findings.is_empty()))
    }
}
