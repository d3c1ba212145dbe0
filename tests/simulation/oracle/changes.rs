//! Events that change what is judged: resets, steps of the clock, ends.

use super::event::Scope;
use super::finding::{Evidence, Named, What};
use super::over::Meter;
use super::{Oracle, limiters};

impl Oracle {
    /// Forgets the states of limiters that are no more.
    pub(super) fn drop_limiters(&mut self, gone: &[u32]) {
        if !gone.is_empty() {
            self.states.retain(|key, _| !gone.contains(&key.state.limiter));
        }
    }

    /// Takes in the end of a fault.
    pub(super) fn end_fault(&mut self, fault: u64) {
        let lost = self.faults.lost();
        self.counts.senseless += u64::from(!self.faults.end(self.now, fault));
        if self.faults.lost() != lost {
            self.doubt();
        }
    }

    /// Takes in that nobody may know what was used until now. A bucket in full use never makes up for that.
    fn doubt(&mut self) {
        let (at, lease) = (self.now, self.settings.lease);
        for (_, meter) in self.states.values_mut().flat_map(|state| &mut state.meters) {
            if let Meter::Bucket(bucket) = meter {
                bucket.doubt(at, lease);
            }
        }
    }

    /// Takes in a step of the store's clock: what fixed windows hold is not known, nor what a limit leaves for a window.
    pub(super) fn step_clock(&mut self) {
        self.stepped = self.now;
        self.faults.disturb(self.now);
        self.faults.lose(self.now);
        self.limiters.step_clock(self.now, self.settings.lease);
        for state in self.states.values_mut() {
            state.store_ahead = None;
            state.meters.retain(|(_, meter)| !matches!(meter, Meter::Fixed { .. }));
        }
        self.doubt();
    }

    /// Takes in a reset: what was sent no longer counts.
    pub(super) fn reset(&mut self, scope: Scope) {
        let is_meant = |state: super::State| match scope {
            Scope::Limiter(limiter) => state.limiter == limiter,
            Scope::State(one) => state == one,
        };
        let states = self.states.iter_mut().filter(|(key, _)| is_meant(key.state));
        states.for_each(|(_, state)| state.reset());
        self.faults.disturb(self.now);
    }

    /// Takes in the end of a replica: its requests and what it kept for itself are gone.
    pub(super) fn end_replica(&mut self, replica: usize) {
        for number in self.requests.of_replica(replica) {
            self.orphan(number);
        }
        let gone = self.limiters.end_replica(self.now, self.settings.lease, replica);
        self.drop_limiters(&gone);
        self.states.retain(|key, _| key.replica != Some(replica));
        self.faults.go_on(self.now, replica);
        self.faults.stall(self.now, replica, self.now);
        self.faults.disturb(self.now);
    }

    /// Finds requests that nobody has answered, by limiter.
    pub(super) fn end(&mut self) {
        let mut leaked = std::collections::BTreeMap::new();
        for request in self.requests.unanswered() {
            let limiter = request.takes.first().map_or(u32::MAX, |(key, _)| key.state.limiter);
            let first = (0, request.number);
            leaked.entry(limiter).or_insert(first).0 += 1;
        }
        for (id, (sent, first)) in leaked {
            let named =
                self.limiters.get(id).map_or(Named { id, name: "none", window: 0 }, limiters::Limiter::named);
            let detail = format!("request {first} is the first of them");
            self.reports.judge(self.now, What::Leaked, named, Some(Evidence { sent, limit: 0, detail }));
        }
    }
}
