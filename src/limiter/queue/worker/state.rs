//! The state of a worker's shell.

use std::sync::Arc;

use tokio::time::Duration;

use super::cores::Core;
use super::events::{Action, Event};
use super::limits::Limits;
use super::own_fault::OwnFault;
use super::reporter::Reporter;
use super::requests::Requests;
use super::siblings::Siblings;
use super::store_calls::StoreCalls;
use crate::clock::{Micros, Moment};
use crate::limiter::queue::active_limiter::{LimiterInstance, Usage};
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::permit::OriginQueue;
use crate::limiter::queue::shared_quota::SharedQuota;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::session::StoreSession;

/// The worker of a queue.
pub(in crate::limiter) struct Worker {
    pub(super) queue: Arc<Queue>,
    pub(super) siblings: Arc<dyn Siblings>,
    pub(super) fallback: Arc<Fallback>,
    pub(super) session: Arc<StoreSession>,
    pub(super) core: Core,
    pub(super) requests: Requests,
    pub(super) store_calls: StoreCalls,
    pub(super) own_fault: OwnFault,
    pub(super) usage: FleetUsage,
    pub(super) reporter: Reporter,
    /// The events for the core, and its actions: empty between two turns, and kept so that nothing is allocated under load.
    pub(super) events: Vec<Event>,
    pub(super) actions: Vec<Action>,
}

/// The fleet's usage of the limiters, as this queue was last answered.
#[derive(Default)]
pub(super) struct FleetUsage {
    /// The usage of each limiter; empty before the first answer.
    pub(super) each: Box<[Usage]>,
    /// True if there was an outage since.
    pub(super) is_old: bool,
    /// Until when a limit counts as used up because too little was heard of it before an outage.
    pub(super) unheard_until: Moment,
}

impl Worker {
    /// Creates the worker of a queue. It stays for `linger` when it has nothing to do.
    pub(in crate::limiter) fn new(
        queue: Arc<Queue>,
        siblings: Arc<dyn Siblings>,
        fallback: Arc<Fallback>,
        linger: Duration,
    ) -> Worker {
        let session = queue.instances[0].active.session.clone();
        let store_calls = StoreCalls::new(&queue);
        let limits = limits(&queue, &session, &store_calls);
        let core = Core::new(limits, Micros::from(linger), session.moment());
        Worker {
            queue,
            siblings,
            fallback,
            session,
            core,
            requests: Requests::default(),
            store_calls,
            own_fault: OwnFault::default(),
            usage: FleetUsage::default(),
            reporter: Reporter::default(),
            events: Vec::new(),
            actions: Vec::new(),
        }
    }
}

/// Returns what the limiters of a queue allow now.
pub(super) fn limits(queue: &Queue, session: &StoreSession, store_calls: &StoreCalls) -> Limits {
    let instances = queue.instances.iter();
    Limits {
        refs: store_calls.limiter_refs.to_vec(),
        policies: instances.map(|instance| instance.active.limiter().on_store_failure).collect(),
        guard: queue.guard(),
        costs_max: queue.instances.iter().map(LimiterInstance::cost_max).collect(),
        too_costly: queue.too_costly(),
        max_waiting: queue.max_waiting(),
        terms: session.terms,
        shared: SharedQuota::of(&queue.instances),
    }
}
