//! Shortens the history of a failing run: takes out faults, replicas and time, as long as it still fails in the same way.

use crate::oracle::Finding;
use crate::plan::Plan;
use crate::world::World;

/// The most runs that one history is worth.
const RUNS_MAX: u32 = 50;

/// A shortened run, and what it finds.
pub struct Shortened {
    pub plan: Plan,
    pub finding: Finding,
}

struct Shrinking {
    wanted: Finding,
    best: Shortened,
    runs: u32,
}

/// Shortens a plan that has this finding.
pub fn shorten(plan: &Plan, finding: &Finding) -> Shortened {
    let best = Shortened { plan: plan.clone(), finding: finding.clone() };
    let mut shrinking = Shrinking { wanted: finding.clone(), best, runs: 0 };
    shrinking.cut_end();
    shrinking.drop_hiccups();
    while shrinking.drop_faults() | shrinking.drop_replicas() | shrinking.drop_limiters() {}
    shrinking.cut_end();
    shrinking.best
}

impl Shrinking {
    /// Returns whether a plan fails in the same way, and keeps it then.
    fn keeps(&mut self, plan: Plan) -> bool {
        self.runs += 1;
        let Ok(outcome) = World::run(&plan, false) else { return false };
        let same = |found: &&Finding| found.what == self.wanted.what && found.limiter == self.wanted.limiter;
        let Some(finding) = outcome.findings.iter().find(same).cloned() else { return false };
        self.best = Shortened { plan, finding };
        true
    }

    fn is_over(&self) -> bool {
        self.runs >= RUNS_MAX
    }

    /// Takes out what comes after the finding.
    fn cut_end(&mut self) {
        let mut plan = self.best.plan.clone();
        let at = self.best.finding.at;
        plan.faults.retain(|fault| fault.at <= at);
        plan.end = plan.end.min(at + 1);
        self.keeps(plan);
    }

    /// Takes out faults: half of them at once, then fewer, then each by itself.
    fn drop_faults(&mut self) -> bool {
        let (mut has_changed, mut size) = (false, self.best.plan.faults.len().div_ceil(2));
        while size > 0 {
            let mut first = 0;
            while first < self.best.plan.faults.len() && !self.is_over() {
                let mut plan = self.best.plan.clone();
                plan.faults.drain(first..(first + size).min(plan.faults.len()));
                if self.keeps(plan) {
                    has_changed = true;
                } else {
                    first += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
        has_changed
    }

    /// Takes out the stalls of ordinary time.
    fn drop_hiccups(&mut self) {
        let plan = Plan { hiccup: 0, ..self.best.plan.clone() };
        self.keeps(plan);
    }

    fn drop_replicas(&mut self) -> bool {
        let mut has_changed = false;
        while self.best.plan.replicas > 1 && !self.is_over() {
            let mut plan = self.best.plan.clone();
            plan.replicas -= 1;
            if !self.keeps(plan) {
                break;
            }
            has_changed = true;
        }
        has_changed
    }

    /// Takes out routes that others call.
    fn drop_limiters(&mut self) -> bool {
        let mut has_changed = false;
        for route in 0..self.best.plan.routes.len() {
            let mut plan = self.best.plan.clone();
            if plan.routes[route].demand > 0.002 && !self.is_over() {
                // A route without demand stays in its place, so that the others keep theirs.
                plan.routes[route].demand = 0.001;
                has_changed |= self.keeps(plan);
            }
        }
        has_changed
    }
}
