//! Tells the oracle what happens in a run, in its words.

use crate::client::{Command, Why};
use crate::fault::Kind;
use crate::oracle::{
    self, Event, Excess, FaultKind, Finding, LimitModel, LimiterModel, Oracle, Policy, What, Witnesses,
};
use crate::plan::{Algorithm, Limiter, Plan};

const MILLI: u64 = 1_000;

/// The number of the first of the faults that are replicas' starts without the store.
const STARTED_ALONE: u64 = 1 << 32;

/// The number of the first excuse for replicas that have not met again since there were two primaries.
const UNHEALED: u64 = 2 << 32;

/// How long a replica may act on what it heard last.
const LEASE: u64 = 500 * MILLI;

/// A partition of a limiter: `None` for one without a key.
pub type State = (String, Option<u64>);

/// The oracle of a run, and what it has found.
pub struct Judge {
    oracle: Oracle,
    /// The names of all limiters: their places are their numbers.
    names: Vec<String>,
    configurations: Vec<Vec<LimiterModel>>,
    replicas: usize,
    fleet_size: u64,
    /// The faults of the store that go on, by number, and the replicas that were started meanwhile.
    store_faults: Vec<u64>,
    /// The faults that hide the store from one place in the fleet, and that place.
    cut_off: Vec<(u64, usize)>,
    started_alone: u64,
    /// The faults, by number, that make a round trip take longer than the smallest guard.
    slow: Vec<u64>,
    /// The faults, by number, in which the store's clock stands still.
    standing: Vec<u64>,
    /// The splits that have ended while replicas could not hear the store.
    unhealed: u64,
    /// True if the store's clock was stepped in these faults.
    has_stepped_unseen: bool,
    witnesses: Witnesses,
    /// How long a permit matters at most.
    matters_for: u64,
    findings: Vec<Finding>,
}

impl Judge {
    /// Returns a judge of a plan's run.
    pub fn new(plan: &Plan) -> Judge {
        let settings = oracle::Settings {
            floor_wait: plan.store_timeout_ms * MILLI + LEASE,
            lease: LEASE,
            refusal_margin: Some(10 * MILLI),
            judges_order: plan.faults.is_empty(),
            ..oracle::Settings::default()
        };
        let names: Vec<String> = plan.configurations[0].limiters.iter().map(|one| one.name.clone()).collect();
        let model = |limiter: &Limiter| model(limiter, plan, &names);
        let configurations: Vec<Vec<LimiterModel>> =
            plan.configurations.iter().map(|one| one.limiters.iter().map(model).collect()).collect();
        let limits = configurations.iter().flatten().flat_map(|limiter| &limiter.limits);
        let matters_for = limits.map(|limit| match limit.algorithm {
            oracle::Algorithm::TokenBucket { burst } => limit.per * burst.div_ceil(limit.rate).max(1),
            _ => limit.per,
        });
        let matters_for = matters_for.max().unwrap_or_default() + LEASE;
        Judge {
            oracle: Oracle::new(settings),
            slow: Vec::new(),
            standing: Vec::new(),
            configurations,
            replicas: plan.replicas,
            fleet_size: plan.fleet_size.max(1),
            store_faults: Vec::new(),
            cut_off: Vec::new(),
            started_alone: 0,
            unhealed: 0,
            has_stepped_unseen: false,
            witnesses: Witnesses::default(),
            matters_for,
            findings: Vec::new(),
            names,
        }
    }

    fn observe(&mut self, at: u64, event: &Event) {
        let has_forgotten = self.witnesses.forgot_since(at.saturating_sub(self.matters_for));
        self.findings.extend(self.oracle.observe(at, event).into_iter().map(|found| match found.what {
            What::Over if has_forgotten => Finding { what: What::Forgotten, ..found },
            _ => found,
        }));
    }

    fn number(&self, limiter: &str) -> Option<u32> {
        self.names.iter().position(|name| name == limiter).and_then(|place| u32::try_from(place).ok())
    }

    /// Returns the states with a number of permits of each.
    fn permits(&self, states: &[State], permits: &[u64]) -> Vec<(oracle::State, u64)> {
        let of = |((limiter, partition), permits): (&State, &u64)| {
            Some((oracle::State { limiter: self.number(limiter)?, partition: *partition }, *permits))
        };
        states.iter().zip(permits).filter_map(of).collect()
    }

    /// A configuration comes into force: in one replica, at its start or later, or, without one named, in all that run.
    pub fn configured(&mut self, at: u64, replica: Option<usize>, configuration: usize, is_start: bool) {
        let limiters = self.configurations[configuration].clone();
        if let (Some(replica), true) = (replica, is_start) {
            self.witnesses.started(at, replica);
        }
        let is_cut_off = self.cut_off.iter().any(|(_, place)| replica == Some(*place));
        if is_start && (is_cut_off || !self.store_faults.is_empty()) {
            self.started_alone(at);
        }
        self.observe(at, &Event::Configured { replica, limiters });
    }

    /// A request has come to a replica.
    pub fn arrived(
        &mut self,
        at: u64,
        request: u64,
        replica: usize,
        (states, costs): (&[State], &[u64]),
        wait_max: Option<u64>,
    ) {
        let costs = self.permits(states, costs);
        self.observe(at, &Event::Arrived { request, replica, costs, wait_max });
    }

    /// A request has a place in the queue.
    pub fn waiting(&mut self, at: u64, request: u64) {
        self.observe(at, &Event::Waiting { request });
    }

    /// A request has its turn, and waits for its connection.
    pub fn connecting(&mut self, at: u64, request: u64) {
        self.observe(at, &Event::Connecting { request });
    }

    /// The connection of a request is there.
    pub fn connected(&mut self, at: u64, request: u64) {
        self.observe(at, &Event::Connected { request });
    }

    /// A request was written to the upstream.
    pub fn sent(&mut self, at: u64, request: u64, store_clock: u64) {
        self.observe(at, &Event::Sent { request, store_clock });
    }

    /// A request that was just sent has cost so much less than it took.
    pub fn settled(&mut self, at: u64, replica: usize, states: &[State], less: &[u64]) {
        let less = self.permits(states, less);
        self.observe(at, &Event::Settled { replica, less, sent_at: at });
    }

    /// The response to a request that was sent at an instant has ended, and has cost so much more than it took.
    pub fn exceeded(&mut self, at: u64, replica: usize, states: &[State], more: &[u64], sent_at: u64) {
        let more = self.permits(states, more);
        self.observe(at, &Event::Exceeded { replica, more, sent_at });
    }

    /// A request was refused.
    pub fn refused(&mut self, at: u64, request: u64, why: Why, store_clock: u64) {
        let why = match why {
            Why::RateLimited => oracle::Why::RateLimited,
            Why::QueueFull => oracle::Why::QueueFull,
            Why::StoreUnavailable => oracle::Why::StoreUnavailable,
            Why::Closed | Why::Paused => oracle::Why::Closed,
            Why::TooCostly => oracle::Why::TooCostly,
        };
        self.observe(at, &Event::Refused { request, why, store_clock });
    }

    /// The client of a request has gone.
    pub fn left(&mut self, at: u64, request: u64) {
        self.observe(at, &Event::Left { request });
    }

    /// A command of an operator was carried out, or may have been.
    pub fn operated(&mut self, at: u64, limiter: &str, command: Command) {
        if let (Command::Reset, Some(number)) = (command, self.number(limiter)) {
            self.observe(at, &Event::Reset(oracle::Scope::Limiter(number)));
        }
    }

    /// A fault begins.
    pub fn fault_begins(&mut self, at: u64, fault: usize, kind: &Kind) {
        let excess = excess(kind, self.replicas);
        let (name, loses_knowledge, touches_store) =
            (kind.name(), kind.loses_knowledge(), kind.touches_store());
        if kind.hides_store() {
            self.store_faults.push(fault as u64);
            self.witnesses.away(at);
        }
        if matches!(kind, Kind::Flush | Kind::RestartEmpty { .. } | Kind::RestartOlder { .. }) {
            self.witnesses.lost(at);
        }
        let guard = self.configurations.iter().flatten().map(|limiter| limiter.guard).min();
        if matches!(kind, Kind::Slow { extra, .. } if Some(2 * extra) > guard) {
            self.slow.push(fault as u64);
        }
        if matches!(kind, Kind::ClockStands { .. }) {
            self.standing.push(fault as u64);
        }
        if !self.standing.is_empty() && !self.store_faults.is_empty() {
            self.hide_clock(at);
        }
        if let Kind::CutOff { replica, .. } | Kind::Break { replica: Some(replica), .. } = kind {
            self.cut_off.push((fault as u64, *replica));
        }
        let apart = kind.cuts_off();
        let told = FaultKind { name, loses_knowledge, touches_store, apart, excess };
        self.observe(at, &Event::FaultBegins { fault: fault as u64, kind: told });
        for limiter in self.paused(kind) {
            self.observe(at, &Event::Paused(oracle::Scope::Limiter(limiter)));
        }
    }

    /// A fault is over.
    pub fn fault_ends(&mut self, at: u64, fault: usize, kind: &Kind) {
        for limiter in self.paused(kind) {
            self.observe(at, &Event::Resumed(oracle::Scope::Limiter(limiter)));
        }
        self.observe(at, &Event::FaultEnds { fault: fault as u64 });
        let before = self.store_faults.len();
        self.store_faults.retain(|one| *one != fault as u64);
        self.cut_off.retain(|(one, _)| *one != fault as u64);
        self.slow.retain(|one| *one != fault as u64);
        self.standing.retain(|one| *one != fault as u64);
        if before > 0 && self.store_faults.is_empty() {
            self.witnesses.back(at);
        }
        if before > 0 && self.store_faults.is_empty() && std::mem::take(&mut self.has_stepped_unseen) {
            self.observe(at, &Event::ClockShown);
        }
        let split = excess(kind, self.replicas).other > 0;
        if matches!(kind, Kind::Failover { .. }) && split && !self.store_faults.is_empty() {
            self.unhealed(at);
        }
        if self.store_faults.is_empty() && self.cut_off.is_empty() {
            for number in 0..std::mem::take(&mut self.unhealed) {
                self.observe(at, &Event::FaultEnds { fault: UNHEALED + number });
            }
            for number in 0..std::mem::take(&mut self.started_alone) {
                self.observe(at, &Event::FaultEnds { fault: STARTED_ALONE + number });
            }
        }
    }

    /// A replica is started while it cannot reach the store: nobody knows of it, and it does not know how many others there are. It grants its
    /// share of as many as it assumes, and the others grant theirs, or all.
    fn started_alone(&mut self, at: u64) {
        let share = 100_u64.div_ceil(self.fleet_size);
        self.excuse(at, share * (self.started_alone + 1));
    }

    /// Excuses a share, beside what is late where the store is slow: a replica learns the store's clock to a round trip then, at its start
    /// and after a step of it, and its permits are as late. All of a window may be sent at once.
    fn excuse(&mut self, at: u64, share: u64) {
        let late = if self.slow.is_empty() { 0 } else { 100 };
        let kind = FaultKind {
            name: "started_alone",
            loses_knowledge: false,
            touches_store: false,
            apart: None,
            excess: Excess { local: share + late, other: late },
        };
        self.observe(at, &Event::FaultBegins { fault: STARTED_ALONE + self.started_alone, kind });
        self.started_alone += 1;
    }

    /// There is one primary again, and no replica can hear it. Those that heard the other one know of nobody else, and grant all.
    fn unhealed(&mut self, at: u64) {
        let excess = Excess { local: 100, other: 0 };
        let (loses_knowledge, touches_store) = (false, false);
        let kind = FaultKind { name: "failover", loses_knowledge, touches_store, apart: None, excess };
        self.observe(at, &Event::FaultBegins { fault: UNHEALED + self.unhealed, kind });
        self.unhealed += 1;
    }

    /// Returns the limiters that a fault pauses.
    fn paused(&self, kind: &Kind) -> Vec<u32> {
        let all = || (0..).zip(&self.names).map(|(number, _)| number);
        match kind {
            Kind::Pause { limiter, .. } => all().skip(*limiter).take(1).collect(),
            Kind::UpstreamPause { .. } => all().collect(),
            _ => Vec::new(),
        }
    }

    /// The store's clock shows another time than it would.
    pub fn clock_stepped(&mut self, at: u64) {
        self.observe(at, &Event::ClockStepped);
        if !self.slow.is_empty() {
            self.excuse(at, 0);
        }
        if !self.store_faults.is_empty() {
            self.hide_clock(at);
        }
    }

    /// Replicas go by their own clocks, and cannot see that the store's windows begin at other instants now.
    fn hide_clock(&mut self, at: u64) {
        self.has_stepped_unseen = true;
        self.observe(at, &Event::ClockHidden);
    }

    /// A replica stands still.
    pub fn stopped(&mut self, at: u64, replica: usize) {
        self.observe(at, &Event::ReplicaStopped { replica });
    }

    /// A replica does nothing until an instant, because its processor is busy.
    pub fn stalled(&mut self, at: u64, replica: usize, until: u64) {
        self.observe(at, &Event::ReplicaStalled { replica, until });
    }

    /// A replica runs again.
    pub fn continued(&mut self, at: u64, replica: usize) {
        self.observe(at, &Event::ReplicaContinued { replica });
    }

    /// A replica has ended.
    pub fn gone(&mut self, at: u64, replica: usize) {
        self.witnesses.gone(at, replica);
        self.observe(at, &Event::ReplicaEnded { replica });
    }

    /// The run is over: demand has ended long ago.
    pub fn ended(&mut self, at: u64) {
        self.observe(at, &Event::Ended);
    }

    /// Returns what was found, and the share that was used of what there was room for.
    pub fn finish(self) -> (Vec<Finding>, oracle::Summary) {
        (self.findings, self.oracle.summary())
    }
}

/// Returns what nobody can promise in a fault: RECOVERY's table of what cannot be promised, in percent of a limit.
fn excess(kind: &Kind, replicas: usize) -> Excess {
    match kind {
        // Two servers that both take writes.
        Kind::Failover { split, .. } if *split > 0 => Excess { local: 100, other: 100 },
        // The one that is cut off uses its share, and the others may use all.
        kind if kind.cuts_off().is_some() => Excess { local: 100_u64.div_ceil(replicas as u64), other: 0 },
        Kind::Reset { .. } => Excess { local: Excess::ANY, other: Excess::ANY },
        _ => Excess::default(),
    }
}

fn model(limiter: &Limiter, plan: &Plan, names: &[String]) -> LimiterModel {
    let routes = plan.routes.iter().filter(|route| route.limiters.contains(&limiter.name));
    let is_settled = routes.clone().any(|route| route.settled_percent > 0);
    let has_own_costs = routes.clone().any(|route| route.has_own_costs);
    // Nobody sees from outside which partitions a replica has when it refuses one more.
    let partitions = routes.clone().map(|route| route.partitions).max().unwrap_or_default();
    let is_crowded = limiter.max_partitions.is_some_and(|most| most < partitions);
    let limits = limiter.limits.iter().map(|limit| LimitModel {
        rate: limit.rate,
        per: limit.per,
        algorithm: match limit.algorithm {
            Algorithm::SlidingWindow => oracle::Algorithm::SlidingWindow,
            Algorithm::TokenBucket { burst } => oracle::Algorithm::TokenBucket { burst },
            Algorithm::LeakyBucket => oracle::Algorithm::LeakyBucket,
            Algorithm::FixedWindow => oracle::Algorithm::FixedWindow,
            Algorithm::WarmUp => oracle::Algorithm::WarmUp { cold: 3 },
        },
    });
    let id = names.iter().position(|name| *name == limiter.name).unwrap_or_default();
    LimiterModel {
        id: u32::try_from(id).unwrap_or_default(),
        name: limiter.name.clone(),
        limits: limits.collect(),
        wait_max: limiter.queue.map(|(timeout, _)| timeout),
        // Without a queue a request may still wait for the instant at which its slot is sure to have come.
        // Each class has as many places.
        max_waiting: limiter.queue.filter(|_| limiter.share.is_none()).map_or(u64::MAX, |(_, most)| most),
        // In a line those have no place that have a slot, which may be those of a whole window.
        slots_max: limiter
            .limits
            .iter()
            .filter(|_| has_own_costs)
            .map(|limit| limit.rate)
            .min()
            .unwrap_or_default(),
        guard: limiter.guard(),
        policy: match limiter.policy {
            "local" => Policy::Local,
            "allow" => Policy::Allow,
            _ => Policy::Reject,
        },
        is_shadow: limiter.is_shadow,
        is_per_replica: limiter.is_per_replica,
        judges_room: !is_settled
            && !is_crowded
            && !limiter.follows_upstream
            && limiter.share.is_none_or(|share| !share.contains("ceiling")),
        is_shared: limiter.share.is_some(),
        is_crowded,
    }
}
