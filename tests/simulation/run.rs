//! Many runs on several cores: their coverage and their findings.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fault::{DRAWN, NAMES};
use crate::oracle::Finding;
use crate::plan::{Mix, Plan};
use crate::shrink::{Shortened, shorten};
use crate::world::World;

/// Faults that begin within this time of each other come close together, in microseconds.
const CLOSE: u64 = 3_000_000;

/// The settings of many runs.
#[derive(Clone)]
pub struct Wanted {
    pub mix: Mix,
    pub from: u64,
    pub time: Duration,
    /// The most runs.
    pub runs: u64,
    pub cores: usize,
    /// True if each finding is shortened, which takes as long as dozens of runs.
    pub shortens: bool,
    /// The kind of findings to look at; all without one.
    pub what: Option<String>,
    pub stops_at_first: bool,
}

/// The coverage and the findings of many runs.
#[derive(Default)]
pub struct Totals {
    pub runs: u64,
    /// True time, in microseconds.
    pub time: u64,
    pub faults: u64,
    pub calls: u64,
    /// The instructions of Lua of the longest script call.
    pub longest_script: u64,
    /// How often each kind of fault came soon after each other kind.
    pairs: BTreeMap<(usize, usize), u64>,
    /// Permits that were used in calm time with enough demand, and that could have been.
    pub used: u64,
    pub room: u64,
    /// How often each check had something to decide.
    judged: BTreeMap<String, u64>,
    /// Findings that were taken for the same cause as one before in their run.
    repeated: u64,
    pub findings: Vec<(u64, Finding)>,
    /// The hash of each run, by its seed.
    pub hashes: BTreeMap<u64, u64>,
    /// The shortened findings: the seed, and what is wrong under which faults.
    pub shortened: Vec<(u64, String)>,
    pub errors: Vec<String>,
}

/// Makes runs until the time is over.
pub fn run(wanted: &Wanted) -> Totals {
    let (next, totals) = (AtomicU64::new(wanted.from), Mutex::new(Totals::default()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..wanted.cores {
            scope.spawn(|| {
                while began.elapsed() < wanted.time {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - wanted.from >= wanted.runs {
                        return;
                    }
                    let found = one(seed, wanted, &totals, began);
                    if found && wanted.stops_at_first {
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
    });
    totals.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Makes one run. Returns whether it found something.
fn one(seed: u64, wanted: &Wanted, totals: &Mutex<Totals>, began: Instant) -> bool {
    let plan = Plan::draw(seed, wanted.mix);
    let result = World::run(&plan, false);
    let mut outcome = match result {
        Ok(outcome) => outcome,
        Err(error) => {
            totals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .errors
                .push(format!("seed {seed}: {error}"));
            return false;
        }
    };
    // An excess counts in every mix.
    let what = if wanted.mix.is_exact() { wanted.what.as_deref() } else { Some("Over") };
    outcome.findings.retain(|finding| is_meant(finding, what));
    let found = !outcome.findings.is_empty();
    let kinds: Vec<String> =
        if wanted.shortens { first_of_each(&plan, &outcome.findings) } else { Vec::new() };
    let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
    totals.count(&plan);
    totals.hashes.insert(seed, outcome.hash);
    totals.calls += outcome.calls;
    totals.longest_script = totals.longest_script.max(outcome.longest_script);
    totals.used += outcome.summary.permits_used;
    totals.room += outcome.summary.permits_room;
    totals.repeated += outcome.summary.repeated;
    for (what, times) in &outcome.summary.judged {
        *totals.judged.entry(format!("{what:?}")).or_default() += times;
    }
    kinds.iter().for_each(|kind| eprintln!("{seed} {kind}"));
    totals.shortened.extend(kinds.into_iter().map(|kind| (seed, kind)));
    // A long run that is broken off has told what it has found.
    outcome.findings.iter().for_each(|finding| eprintln!("{}", json_of(seed, finding)));
    totals.findings.extend(outcome.findings.into_iter().map(|finding| (seed, finding)));
    if totals.runs.is_multiple_of(50) {
        eprintln!(
            "{:6.0} s: {} runs, {} fleet-seconds, {} faults, {} findings",
            began.elapsed().as_secs_f64(),
            totals.runs,
            totals.time / 1_000_000,
            totals.faults,
            totals.findings.len()
        );
    }
    found
}

/// Returns whether a finding is of the kind to look at.
pub fn is_meant(finding: &Finding, what: Option<&str>) -> bool {
    what.is_none_or(|what| format!("{:?}", finding.what) == what)
}

/// Shortens the first finding of each kind, and names what it needs.
fn first_of_each(plan: &Plan, findings: &[Finding]) -> Vec<String> {
    let mut seen = Vec::new();
    let mut kinds = Vec::new();
    for finding in findings {
        if !seen.contains(&finding.what) {
            seen.push(finding.what);
            kinds.push(kind_of(&shorten(plan, finding)));
        }
    }
    kinds
}

/// Names what a shortened finding has in common with others: what is wrong, the limiter, and the faults that it needs.
pub fn kind_of(shortened: &Shortened) -> String {
    let Shortened { plan, finding } = shortened;
    let mut faults: Vec<&str> = plan.faults.iter().map(|fault| fault.kind.name()).collect();
    faults.dedup();
    let limiter = plan.configurations[0].limiters.iter().find(|limiter| limiter.name == finding.limiter);
    let limits = limiter.map(|limiter| {
        let limits: Vec<String> =
            limiter.limits.iter().map(|limit| format!("{:?}", limit.algorithm)).collect();
        let queue = if limiter.queue.is_some() { "queue" } else { "no queue" };
        format!("{} {} {queue}", limits.join("+"), limiter.policy)
    });
    let limits = limits.unwrap_or_default();
    let faults = if faults.is_empty() { "nothing".to_owned() } else { faults.join(", ") };
    let Finding { what, sent, limit, .. } = finding;
    format!("{what:?}: {sent} of {limit} | {limits} | {} replicas | after {faults}", plan.replicas)
}

impl Totals {
    fn count(&mut self, plan: &Plan) {
        self.runs += 1;
        self.time += plan.end;
        self.faults += plan.faults.len() as u64;
        for (place, first) in plan.faults.iter().enumerate() {
            let close = plan.faults[place + 1..].iter().take_while(|second| second.at - first.at < CLOSE);
            for second in close {
                *self.pairs.entry((first.kind.place(), second.kind.place())).or_default() += 1;
            }
        }
    }

    /// Returns the pair of kinds that came close together least often.
    fn rarest(&self) -> (&'static str, &'static str, u64) {
        let all = (0..DRAWN).flat_map(|first| (0..DRAWN).map(move |second| (first, second)));
        let count = |pair: &(usize, usize)| self.pairs.get(pair).copied().unwrap_or_default();
        let pair = all.min_by_key(count).unwrap_or_default();
        (NAMES[pair.0], NAMES[pair.1], count(&pair))
    }

    /// Returns the share of what the windows left room for that was used in calm time.
    pub fn used(&self) -> Option<f64> {
        (self.room > 0).then(|| self.used as f64 / self.room as f64)
    }

    /// Returns all as JSON.
    pub fn json(&self) -> Value {
        let findings: Vec<Value> =
            self.findings.iter().map(|(seed, finding)| json_of(*seed, finding)).collect();
        let (first, second, times) = self.rarest();
        json!({
            "runs": self.runs,
            "fleet_seconds": self.time / 1_000_000,
            "faults": self.faults,
            "calls": self.calls,
            "instructions": self.longest_script,
            "pairs": self.pairs.len(),
            "rarest_pair": [first, second, times],
            "used": self.used(),
            "judged": self.judged,
            "repeated": self.repeated,
            "findings": findings,
        })
    }
}

/// Returns a finding as JSON.
pub fn json_of(seed: u64, finding: &Finding) -> Value {
    let Finding { at, what, limiter, sent, limit, .. } = finding;
    json!({ "seed": seed, "what": format!("{what:?}"), "limiter": limiter, "sent": sent, "limit": limit, "at": *at as f64 / 1e6 })
}
