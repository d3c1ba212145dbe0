//! How the callers of limiters share them at this moment, in this replica, for people and metrics.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Class, Flow, LimiterName, QuotaShare};
use crate::limiter::queue::active_limiter::ActiveLimiter;
use crate::limiter::registry::queues::Queues;

/// The most flows that are shown of a limiter: those that wait longest.
const FLOWS_SHOWN: usize = 20;

/// How the callers of a limiter share it at this moment.
#[derive(Debug)]
pub struct ShareStatus {
    /// The classes, the first one first.
    pub classes: Vec<ClassStatus>,
    /// The flows of which requests wait, those that wait longest first: at most 20.
    pub flows: Vec<FlowStatus>,
    /// How many flows wait.
    pub flows_waiting: usize,
}

/// A class of callers at this moment.
#[derive(Debug)]
pub struct ClassStatus {
    /// The class as configured.
    pub class: Class,
    /// Requests of this replica that wait.
    pub waiting: u64,
    /// Permits used by this replica, counted in cost, since it started or the class was added.
    pub granted: u64,
    /// Permits refused by this replica in the same time, counted in cost.
    pub refused: u64,
    /// The age of the oldest waiting request.
    pub longest_wait: Duration,
}

/// A flow of which requests wait.
#[derive(Debug)]
pub struct FlowStatus {
    /// The name of the caller, if the configuration has it.
    pub name: Option<Arc<str>>,
    /// The flow, which has no name of its own.
    pub flow: Flow,
    /// The place of its class.
    pub class: usize,
    /// Requests of this replica that wait.
    pub waiting: u64,
    /// The age of the oldest of them.
    pub longest_wait: Duration,
}

/// The requests of one flow that wait.
#[derive(Clone, Copy)]
struct Standing {
    waiting: u64,
    since: Moment,
}

/// The flows that wait for each shared limiter.
pub(in crate::limiter) struct Shares(HashMap<LimiterName, HashMap<Flow, Standing>>);

impl Shares {
    /// Looks at all queues.
    pub(super) fn now(queues: &Queues) -> Shares {
        let mut shares: HashMap<LimiterName, HashMap<Flow, Standing>> = HashMap::new();
        queues.each_flow(|active, waiting| {
            let flows = shares.entry(active.name.clone()).or_default();
            let flow = flows.entry(waiting.flow).or_insert(Standing { waiting: 0, since: waiting.since });
            flow.waiting += u64::from(waiting.count);
            flow.since = flow.since.min(waiting.since);
        });
        Shares(shares)
    }

    fn of(&self, active: &ActiveLimiter) -> impl Iterator<Item = (Flow, Standing)> {
        self.0.get(&active.name).into_iter().flatten().map(|(flow, standing)| (*flow, *standing))
    }

    /// Returns how many requests of each class wait; of all together where callers share nothing. Those that have not asked yet have no class,
    /// and count in the last one.
    pub(super) fn by_class(&self, active: &ActiveLimiter) -> Vec<u64> {
        match active.limiter().share() {
            Some(share) => self.of_classes(active, share),
            None => vec![active.counts.waiting().into()],
        }
    }

    fn of_classes(&self, active: &ActiveLimiter, share: &QuotaShare) -> Vec<u64> {
        let all = u64::from(active.counts.waiting());
        let mut waiting = vec![0; share.classes.len()];
        for (flow, standing) in self.of(active) {
            waiting[share.member(flow).class] += standing.waiting;
        }
        let known: u64 = waiting.iter().sum();
        if let Some(last) = waiting.last_mut() {
            *last += all.saturating_sub(known);
        }
        waiting
    }

    /// Returns how the callers of a limiter share it; `None` if they do not.
    pub(super) fn status(&self, active: &ActiveLimiter) -> Option<ShareStatus> {
        let (limiter, metrics, now) = (active.limiter(), active.metrics(), active.session.moment());
        let share = limiter.share()?;
        let mut flows: Vec<FlowStatus> =
            self.of(active).map(|(flow, standing)| flow_status(share, flow, standing, now)).collect();
        flows.sort_by_key(|flow| (std::cmp::Reverse(flow.longest_wait), flow.flow));
        // Of the same share: a reload may put another one in force meanwhile.
        let waiting = self.of_classes(active, share);
        let class_status = |(place, class): (usize, &Class)| {
            let (granted, refused) = metrics.class(place).counted();
            let waits = flows.iter().filter(|flow| flow.class == place).map(|flow| flow.longest_wait);
            let longest_wait = waits.max().unwrap_or_default();
            ClassStatus { class: class.clone(), waiting: waiting[place], granted, refused, longest_wait }
        };
        let classes = share.classes.iter().enumerate().map(class_status).collect();
        let flows_waiting = flows.len();
        flows.truncate(FLOWS_SHOWN);
        Some(ShareStatus { classes, flows, flows_waiting })
    }
}

fn flow_status(share: &QuotaShare, flow: Flow, standing: Standing, now: Moment) -> FlowStatus {
    let Standing { waiting, since } = standing;
    let longest_wait = Micros::to_duration(now - since);
    FlowStatus {
        name: share.names.get(&flow.member).cloned(),
        flow,
        class: share.member(flow).class,
        waiting,
        longest_wait,
    }
}
