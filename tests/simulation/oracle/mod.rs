//! The judge of the simulation: sees every request that is written upstream at its true instant, and decides without slack.
//!
//! It has an arithmetic of its own and no code of weir's. The driver tells it what happens ([`Event`]) in order of time;
//! [`Oracle::observe`] answers with what is wrong ([`Finding`]).
//!
//! - [`event`]: what the driver tells
//! - [`finding`]: what the oracle answers, each cause once
//! - [`limiters`]: the limits in force, over reloads
//! - [`faults`]: what disturbs, and what it excuses
//! - [`usage`]: what was sent and asked for in each state
//! - [`over`]: no window over its limit
//! - [`waits`]: nobody waits too long, not too many, in order
//! - [`passage`]: a request from its arrival to its answer, and which checks it meets
//! - [`room`]: nobody is refused while there is room
//! - [`excess`]: what responses have cost beyond their estimates is left out afterwards
//! - [`changes`]: resets, steps, ends
//! - [`demand`]: what is used of the room, and how soon again after a fault

mod changes;
mod demand;
mod event;
mod excess;
mod faults;
mod finding;
mod limiters;
mod over;
mod passage;
mod room;
mod usage;
mod waits;
mod witnesses;

use std::collections::{BTreeMap, VecDeque};

pub(crate) use event::{
    Algorithm, Event, Excess, FaultKind, LimitModel, LimiterModel, Policy, Scope, State, Why,
};
pub(crate) use finding::{Finding, What};
pub(crate) use witnesses::Witnesses;

use demand::Share;
use faults::Faults;
use finding::{Evidence, Named, Reports};
use limiters::Limiters;
use usage::{StateKey, StateUse, TICK};
use waits::{Request, Requests};

/// How often what is too old is forgotten.
const FORGET: u64 = 10 * TICK;

/// The settings of an oracle: all that it has to know beside events.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The time within which any request is answered, even without a queue: the store's timeout and a lease.
    pub(crate) floor_wait: u64,
    /// How long a replica may act on what it heard last.
    pub(crate) lease: u64,
    /// A refusal is judged if at most this percentage of each limit is in use: the rest may be prefetched.
    pub(crate) prefetch_percent: u64,
    /// How long before a refused request arrived there must have been room, because weir knows the store's clock and its own last
    /// refusals only to some milliseconds; `None`: there must be room when it is refused.
    pub(crate) refusal_margin: Option<u64>,
    /// The percentage of the room that must be used.
    pub(crate) used_percent: u64,
    /// True if the order of waiting requests is judged.
    pub(crate) judges_order: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            floor_wait: 0,
            lease: 500_000,
            prefetch_percent: 50,
            refusal_margin: None,
            used_percent: 60,
            judges_order: true,
        }
    }
}

/// A summary of all that the oracle has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    /// Requests written upstream.
    pub(crate) sent: u64,
    /// Requests refused.
    pub(crate) refused: u64,
    /// Requests that went away.
    pub(crate) left: u64,
    /// Requests without an answer.
    pub(crate) unanswered: usize,
    /// Permits used in calm time with enough demand.
    pub(crate) permits_used: u64,
    /// Permits that could have been used in that time.
    pub(crate) permits_room: u64,
    /// The share used, in thousandths; `None`: no such time.
    pub(crate) used_permille: Option<u64>,
    /// How often each check had something to decide: a check that is missing has judged nothing.
    pub(crate) judged: BTreeMap<What, u64>,
    /// The worst finding of each kind and limiter, also of those that were not told again.
    pub(crate) worst: Vec<Finding>,
    /// Findings that were not told again.
    pub(crate) repeated: u64,
    /// Events that make no sense: of requests or faults that there are not, or back in time. A fault of the driver.
    pub(crate) senseless: u64,
}

/// The judge.
pub(crate) struct Oracle {
    settings: Settings,
    limiters: Limiters,
    faults: Faults,
    pub(crate) states: BTreeMap<StateKey, StateUse>,
    requests: Requests,
    /// When requests of which replicas had their answer, or left; those of long ago are dropped.
    answered: VecDeque<(u64, usize)>,
    reports: Reports,
    share: Share,
    /// The end of the tick that is not over yet.
    tick: u64,
    /// The last step of the store's clock.
    stepped: u64,
    now: u64,
    counts: Summary,
}

impl Oracle {
    /// Returns a judge who has seen nothing.
    pub(crate) fn new(settings: Settings) -> Oracle {
        Oracle {
            faults: Faults::new(settings.lease, settings.floor_wait),
            settings,
            limiters: Limiters::default(),
            states: BTreeMap::new(),
            requests: Requests::default(),
            answered: VecDeque::new(),
            reports: Reports::default(),
            share: Share::default(),
            tick: TICK,
            stepped: 0,
            now: 0,
            counts: Summary::default(),
        }
    }

    /// Takes in an event; returns what is wrong since the last one.
    pub(crate) fn observe(&mut self, at: u64, event: &Event) -> Vec<Finding> {
        self.counts.senseless += u64::from(at < self.now);
        self.now = at.max(self.now);
        self.find_crowds();
        self.pass_ticks();
        self.find_late();
        self.take_in(event);
        self.reports.take()
    }

    /// Returns what has been seen.
    pub(crate) fn summary(&self) -> Summary {
        let Share { used, room } = self.share;
        let whole = |permits: u128| u64::try_from(permits).unwrap_or(u64::MAX);
        Summary {
            unanswered: self.requests.unanswered().count(),
            permits_used: whole(used / 1000),
            permits_room: whole(room / 1000),
            used_permille: (used * 1000).checked_div(room).map(whole),
            judged: self.reports.judged(),
            worst: self.reports.worst(),
            repeated: self.reports.repeated(),
            ..self.counts.clone()
        }
    }

    fn take_in(&mut self, event: &Event) {
        let at = self.now;
        match event {
            Event::Configured { replica, limiters } => {
                let gone = self.limiters.configure(at, self.settings.lease, *replica, limiters);
                self.drop_limiters(&gone);
                let limiters = &self.limiters;
                self.requests.reconfigure(at, &self.faults, |takes| {
                    let enforced = takes.iter().filter_map(|(key, _)| limiters.enforced(key.state.limiter));
                    enforced.map(|limiter| limiter.model.wait_max.unwrap_or(0)).min().unwrap_or(0)
                });
                self.faults.disturb(at);
            }
            Event::Arrived { request, replica, costs, wait_max } => {
                self.arrive(*request, *replica, costs, *wait_max);
            }
            Event::Waiting { request } => self.wait(*request),
            Event::Connecting { request } => {
                self.judge_order(*request);
                self.requests.connect(at, *request, &self.faults);
            }
            Event::Connected { request } => self.requests.connected(at, *request),
            Event::Sent { request, store_clock } => self.send(*request, *store_clock),
            Event::Refused { request, why, store_clock } => self.refuse(*request, *why, *store_clock),
            Event::Left { request } => self.leave(*request),
            Event::Settled { replica, less, sent_at } => {
                for (state, less) in less {
                    let key = self.key(*state, *replica);
                    if let Some(state) = self.states.get_mut(&key) {
                        state.settle(*sent_at, *less);
                    }
                }
            }
            Event::Exceeded { replica, more, sent_at } => {
                let is_judged = self.faults.calm_since().is_some_and(|calm| calm <= *sent_at);
                for (state, more) in more {
                    let key = self.key(*state, *replica);
                    let Some(limiter) = self.limiters.enforced(state.limiter) else { continue };
                    self.states.entry(key).or_default().excesses.tell(at, *more, limiter, is_judged);
                }
            }
            Event::FaultBegins { fault, kind } => self.faults.begin(*fault, *kind),
            Event::FaultEnds { fault } => self.end_fault(*fault),
            Event::ClockStepped => self.step_clock(),
            Event::ClockHidden => self.stepped = u64::MAX,
            Event::ClockShown => self.stepped = self.now + self.settings.lease,
            Event::Reset(scope) => self.reset(*scope),
            Event::Paused(scope) => self.limiters.pause(at, *scope),
            Event::Resumed(scope) => self.limiters.resume(at, *scope),
            Event::ReplicaStopped { replica } => self.faults.stop(at, *replica),
            Event::ReplicaStalled { replica, until } => self.faults.stall(at, *replica, *until),
            Event::ReplicaContinued { replica } => self.faults.go_on(at, *replica),
            Event::ReplicaEnded { replica } => self.end_replica(*replica),
            Event::Ended => self.end(),
        }
    }

    /// Judges the use of all states at the end of each tick until now.
    fn pass_ticks(&mut self) {
        while self.tick <= self.now {
            let calm = self.faults.calm_since();
            for (key, state) in &self.states {
                let Some(limiter) = self.limiters.enforced(key.state.limiter) else { continue };
                let percent = self.settings.used_percent;
                let verdicts = demand::judge(state, limiter, self.tick, calm, &mut self.share, percent);
                for (what, verdict) in [(What::Unused, verdicts.unused), (What::NotBack, verdicts.not_back)] {
                    if let Some(evidence) = verdict {
                        self.reports.judge(self.tick, what, limiter.named(), evidence);
                    }
                }
            }
            if self.tick.is_multiple_of(FORGET) {
                let before = self.tick.saturating_sub(demand::horizon(self.limiters.window()));
                self.faults.forget(before);
                self.states.retain(|_, state| !state.forget(before));
            }
            self.tick += TICK;
        }
    }

    /// Finds queues in which too many have waited for longer than an instant.
    fn find_crowds(&mut self) {
        for (request, waiting) in self.requests.crowds_before(self.now) {
            let detail = format!("in replica {}", request.replica);
            let evidence = Evidence { sent: waiting, limit: request.waiting_max, detail };
            self.report(What::TooManyWaiting, &request, Some(evidence));
        }
    }

    /// Finds requests that have waited too long and wait on.
    fn find_late(&mut self) {
        while let Some((request, evidence)) = self.requests.next_late(self.now, &self.faults) {
            self.report(What::Waited, &request, Some(evidence));
        }
    }

    /// Reports on a request by the first of its limiters.
    fn report(&mut self, what: What, request: &Request, evidence: Option<Evidence>) {
        let limiter = request.takes.first().and_then(|(key, _)| self.limiters.get(key.state.limiter));
        let named = limiter.map_or(Named { id: u32::MAX, name: "none", window: 0 }, limiters::Limiter::named);
        self.reports.judge(self.now, what, named, evidence);
    }

    fn key(&self, state: State, replica: usize) -> StateKey {
        let limiter = self.limiters.get(state.limiter);
        let is_own = limiter.is_some_and(|limiter| limiter.model.is_per_replica);
        StateKey { state, replica: is_own.then_some(replica) }
    }
}
