//! Tests of the simulation's oracle: both sides of each check, and an honest limiter that it must not blame.

#![allow(clippy::expect_used, reason = "what is missing fails the test")]

#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../simulation/oracle/mod.rs"]
mod oracle;

mod changes;
mod demand;
mod excess;
mod honest;
mod over;
mod room;
mod speed;
mod waits;
mod witnesses;

use oracle::{
    Algorithm, Event, Excess, FaultKind, Finding, LimitModel, LimiterModel, Oracle, Policy, Scope, Settings,
    State, What, Why, Witnesses,
};

/// A millisecond, a second.
const MS: u64 = 1_000;
const S: u64 = 1_000_000;

/// A fault of which nobody need know anything afterwards.
const QUIET: FaultKind = FaultKind {
    name: "quiet",
    loses_knowledge: false,
    touches_store: true,
    apart: None,
    excess: Excess { local: 0, other: 0 },
};
/// A fault after which somebody may not know what was granted.
const FLUSH: FaultKind = FaultKind { name: "flush", loses_knowledge: true, ..QUIET };

fn limit(rate: u64, per: u64, algorithm: Algorithm) -> LimitModel {
    LimitModel { rate, per, algorithm }
}

fn sliding(rate: u64, per: u64) -> LimitModel {
    limit(rate, per, Algorithm::SlidingWindow)
}

/// Returns a limiter 0 with a queue of 5 s for 100 requests, and a guard of 10 ms.
fn limiter(limits: &[LimitModel]) -> LimiterModel {
    LimiterModel {
        id: 0,
        name: "api".to_owned(),
        limits: limits.to_vec(),
        wait_max: Some(5 * S),
        max_waiting: 100,
        slots_max: 0,
        guard: 10 * MS,
        policy: Policy::Local,
        is_shadow: false,
        is_per_replica: false,
        judges_room: true,
        is_shared: false,
        is_crowded: false,
    }
}

const STATE: State = State { limiter: 0, partition: None };

/// An oracle with a clock, and short names for events.
struct Court {
    oracle: Oracle,
    next: u64,
    /// The store's clock less the true time.
    ahead: u64,
    found: Vec<Finding>,
}

impl Court {
    fn new(limiters: &[LimiterModel]) -> Court {
        Court::with(Settings::default(), limiters)
    }

    fn with(settings: Settings, limiters: &[LimiterModel]) -> Court {
        let mut court = Court { oracle: Oracle::new(settings), next: 0, ahead: 0, found: Vec::new() };
        court.configure(0, limiters);
        court
    }

    fn see(&mut self, at: u64, event: &Event) {
        self.found.extend(self.oracle.observe(at, event));
    }

    fn configure(&mut self, at: u64, limiters: &[LimiterModel]) {
        self.see(at, &Event::Configured { replica: None, limiters: limiters.to_vec() });
    }

    fn arrive(&mut self, at: u64, cost: u64) -> u64 {
        self.arrive_at(at, 0, &[STATE], cost, None)
    }

    fn arrive_at(
        &mut self,
        at: u64,
        replica: usize,
        states: &[State],
        cost: u64,
        wait_max: Option<u64>,
    ) -> u64 {
        self.next += 1;
        let costs = states.iter().map(|state| (*state, cost)).collect();
        self.see(at, &Event::Arrived { request: self.next, replica, costs, wait_max });
        self.next
    }

    fn wait(&mut self, at: u64, request: u64) {
        self.see(at, &Event::Waiting { request });
    }

    fn send(&mut self, at: u64, request: u64) {
        self.see(at, &Event::Sent { request, store_clock: at + self.ahead });
    }

    fn refuse(&mut self, at: u64, request: u64) {
        self.see(at, &Event::Refused { request, why: Why::RateLimited, store_clock: at + self.ahead });
    }

    /// A request that is sent as it comes.
    fn pass(&mut self, at: u64, cost: u64) {
        let request = self.arrive(at, cost);
        self.send(at, request);
    }

    /// A request that is refused as it comes.
    fn turn_away(&mut self, at: u64, cost: u64) {
        let request = self.arrive(at, cost);
        self.refuse(at, request);
    }

    fn fault(&mut self, from: u64, until: u64, kind: FaultKind) {
        self.see(from, &Event::FaultBegins { fault: from, kind });
        self.see(until, &Event::FaultEnds { fault: from });
    }

    /// Returns the kinds found since the last call.
    fn whats(&mut self) -> Vec<What> {
        self.found.drain(..).map(|finding| finding.what).collect()
    }
}
