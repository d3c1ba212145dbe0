//! Clients and the upstream: who calls when, and what is answered.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fastrand::Rng;
use weir::limiter::model::{Flow, LimiterName};
use weir::limiter::{AskedPause, Partition, UpstreamSignal, Window};

use super::{Event, Phase, World};
use crate::client::{Request, UpstreamAnswer};
use crate::judge::State;

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;

/// A request that was begun.
struct Begun {
    route: usize,
    states: Vec<State>,
    costs: Vec<u64>,
}

/// A request that was sent, and whose response tells another cost.
struct Unsettled {
    sent_at: u64,
    states: Vec<State>,
    /// Its cost at each beyond its estimate.
    more: Vec<u64>,
    /// True if the replica is busy with its response until then.
    is_late: bool,
}

/// Demand, and what the upstream has seen.
#[derive(Default)]
pub(super) struct Demand {
    next: u64,
    begun: BTreeMap<u64, Begun>,
    /// How many idle times and bursts there are now.
    pub(super) idle: u32,
    pub(super) bursts: u32,
    /// Until when the upstream refuses, and for how long it asks to be left alone.
    pub(super) refuses: Option<(u64, u64)>,
    /// Until when every new client leaves after a while.
    pub(super) leave_until: u64,
    /// The recent use of each limiter, by others, too: instants and permits.
    seen: BTreeMap<State, VecDeque<(u64, u64)>>,
    /// The requests whose responses have not told their cost yet.
    unsettled: BTreeMap<u64, Unsettled>,
}

impl World {
    pub(super) fn arrive(&mut self, route: usize) {
        let (begin, end) = self.plan.demand;
        if self.now >= end {
            return;
        }
        let factor = if self.demand.bursts > 0 { 5.0 } else { 1.0 };
        let mean = SECOND as f64 / (self.plan.routes[route].demand * factor);
        let gap = -(1.0 - self.demand_draws.f64()).ln() * mean;
        let gap = Duration::from_secs_f64((gap / SECOND as f64).clamp(1e-6, 60.0));
        let at = self.now + u64::try_from(gap.as_micros()).unwrap_or_default();
        self.schedule(at, Event::Arrive { route });
        let draws: [u64; 6] = std::array::from_fn(|_| self.demand_draws.u64(..));
        if self.now < begin || self.demand.idle > 0 {
            return;
        }
        let serving: Vec<usize> = (0..self.places.len()).filter(|place| self.is_serving(*place)).collect();
        if serving.is_empty() {
            return;
        }
        let place = serving[usize::try_from(draws[0] % serving.len() as u64).unwrap_or_default()];
        self.call(place, route, draws);
    }

    fn is_serving(&self, place: usize) -> bool {
        self.places[place].replica.is_some() && self.places[place].phase == Phase::Serving
    }

    /// Lets a client call a route through a replica.
    fn call(&mut self, place: usize, route: usize, draws: [u64; 6]) {
        let configuration = self.places[place].configuration;
        let plan = &self.plan.routes[route];
        let limiters: Vec<_> = self.plan.configurations[configuration]
            .limiters
            .iter()
            .filter(|limiter| plan.limiters.contains(&limiter.name))
            .collect();
        if limiters.is_empty() {
            return;
        }
        let tenant = draws[1] % plan.partitions;
        // In the order in which the route names its limiters.
        let named: Vec<_> = plan
            .limiters
            .iter()
            .filter_map(|name| limiters.iter().find(|limiter| limiter.name == *name))
            .collect();
        let states: Vec<State> =
            named.iter().map(|limiter| (limiter.name.clone(), limiter.is_keyed.then_some(tenant))).collect();
        let partitions = named
            .iter()
            .map(|limiter| limiter.is_keyed.then(|| Partition::of([Some(&tenant.to_be_bytes()[..])])))
            .collect();
        let cost = 1 + draws[2] % plan.cost_max;
        // With costs of their own all limiters but the first are about tokens.
        let costs: Vec<u64> =
            (0..states.len()).map(|place| if plan.has_own_costs && place == 0 { 1 } else { cost }).collect();
        let wait_max = (draws[3] % 100 < plan.hasty_percent).then_some(draws[3] / 100 % SECOND);
        let leaves = draws[4] % 100 < plan.leaving_percent || self.now < self.demand.leave_until;
        let patience = leaves.then_some(draws[4] / 100 % (2 * SECOND));
        let id = self.demand.next;
        let caller = caller_name(id % plan.callers);
        let flow = if plan.has_own_costs { Flow::default() } else { Flow::of(&[Some(caller.as_bytes())]) };
        self.demand.next += 1;
        let request = Request {
            id,
            route,
            partitions,
            costs: costs.clone(),
            flow,
            wait_max: wait_max.map(Duration::from_micros),
            patience: patience.map(Duration::from_micros),
            connecting: self.connecting(place),
            upstream: Duration::from_micros(5 * MILLI + draws[5] % (200 * MILLI)),
            answers: self.answers.clone(),
        };
        self.history
            .add(self.now, || format!("request {id} of route {route} at replica {place}, costs {costs:?}"));
        self.judge.arrived(self.now, id, place, (&states, &costs), wait_max);
        self.demand.begun.insert(id, Begun { route, states, costs });
        self.places[place].open += 1;
        if let Some((replica, _)) = &self.places[place].replica {
            replica.begin(request);
        }
        self.step_replica(place);
    }

    /// Takes in that a request was written to the upstream, and prepares the upstream's answer.
    pub(super) fn sent(&mut self, place: usize, id: u64) {
        let clock = self.hosts[self.primary].shown(self.now);
        self.judge.sent(self.now, id, clock);
        self.sent.push((self.now, id));
        let Some(Begun { route, states, costs }) = self.demand.begun.remove(&id) else {
            return self.over(place);
        };
        let mut answer = UpstreamAnswer::default();
        if let Some((_, wait)) = self.demand.refuses.filter(|(until, _)| self.now < *until) {
            let asked = AskedPause { status: 429, wait: Some(Duration::from_micros(wait)) };
            let limiters = self.plan.configurations[0].limiters.iter();
            let names = limiters.filter_map(|limiter| LimiterName::parse(&limiter.name));
            let pauses = names.map(|name| (name, asked)).collect();
            answer.signal = Some(UpstreamSignal { is_rejection: true, pauses, windows: Vec::new() });
        } else if let Some(windows) = self.windows(place, &states, &costs) {
            answer.signal = Some(UpstreamSignal { windows, ..UpstreamSignal::default() });
        }
        let settled = self.plan.routes[route].settled_percent;
        if self.demand_draws.u64(..100) < settled {
            answer.costs = self.true_costs(route, &costs);
            answer.body = self.body(id);
        }
        let is_late = !answer.body.is_zero();
        if !is_late {
            self.over(place);
        }
        let pairs = || costs.iter().zip(&answer.costs);
        let less: Vec<u64> = pairs().map(|(cost, settled)| cost.saturating_sub(*settled)).collect();
        if less.iter().any(|less| *less > 0) {
            self.judge.settled(self.now, place, &states, &less);
        }
        let more: Vec<u64> = pairs().map(|(cost, settled)| settled.saturating_sub(*cost)).collect();
        if !answer.costs.is_empty() {
            let sent_at = self.now;
            self.demand.unsettled.insert(id, Unsettled { sent_at, states, more, is_late });
        }
        self.answers.put(id, answer);
    }

    /// Takes in that the cost of a request is known, and that its replica is done with it.
    pub(super) fn settled(&mut self, place: usize, id: u64) {
        let Some(unsettled) = self.demand.unsettled.remove(&id) else { return };
        let Unsettled { sent_at, states, more, is_late } = unsettled;
        if more.iter().any(|more| *more > 0) {
            self.judge.exceeded(self.now, place, &states, &more, sent_at);
        }
        if is_late {
            self.over(place);
        }
    }

    /// Draws how long the body of a response takes, from a stream of its own.
    fn body(&self, id: u64) -> Duration {
        let late = self.plan.late_responses;
        let mut rng = Rng::with_seed(self.plan.seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1a7e);
        let is_late = rng.u64(..100) < late.percent;
        Duration::from_micros(if is_late { rng.u64(200 * MILLI..=late.most) } else { 0 })
    }

    /// Draws the true costs of a request, above and below those that were taken.
    fn true_costs(&mut self, route: usize, costs: &[u64]) -> Vec<u64> {
        let largest = costs.iter().copied().max().unwrap_or_default();
        if !self.plan.routes[route].has_own_costs {
            return vec![self.demand_draws.u64(0..=largest + 1); costs.len()];
        }
        let used = self.demand_draws.u64(0..=2 * largest);
        costs.iter().enumerate().map(|(place, cost)| if place == 0 { *cost } else { used }).collect()
    }

    /// Counts a request as the upstream does, with what others use of the same quota. Returns what is left of the windows, where a
    /// limiter heeds that.
    fn windows(&mut self, place: usize, states: &[State], costs: &[u64]) -> Option<Vec<Window>> {
        let configuration = &self.plan.configurations[self.places[place].configuration];
        let (now, mut windows) = (self.now, Vec::new());
        for (state, cost) in states.iter().zip(costs) {
            let limiter =
                configuration.limiters.iter().find(|one| one.name == state.0 && one.follows_upstream)?;
            let limit = limiter.limits[0];
            let seen = self.demand.seen.entry(state.clone()).or_default();
            seen.push_back((now, *cost));
            if self.demand_draws.u8(..50) == 0 {
                seen.push_back((now, self.demand_draws.u64(1..=limit.rate)));
            }
            while seen.front().is_some_and(|(at, _)| at + limit.per <= now) {
                seen.pop_front();
            }
            let used: u64 = seen.iter().map(|(_, permits)| permits).sum();
            let per = Some(Duration::from_micros(limit.per));
            windows.push(Window { limit: Some(limit.rate), remaining: limit.rate.saturating_sub(used), per });
        }
        Some(windows)
    }
}

/// Returns the name of a caller: a, b, c and so on, then a1 and so on.
fn caller_name(number: u64) -> String {
    const LETTERS: u64 = 26;
    let letter = char::from(b'a' + u8::try_from(number % LETTERS).unwrap_or_default());
    let round = number / LETTERS;
    if round == 0 { letter.to_string() } else { format!("{letter}{round}") }
}
