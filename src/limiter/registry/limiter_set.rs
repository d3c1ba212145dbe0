//! The limiters of a route, from which a request takes its permits together or not at all.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::limiter::model::{Costs, Flow, Limiter, LimiterName, Partition, Refusal, TrueCost};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::queue::guard::QueueGuard;
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::outside::WaitingOutside;
use crate::limiter::queue::permit::{OriginQueue, Permit, PermitReport, Receipt};
use crate::limiter::queue::shadow::Shadows;
use crate::limiter::queue::ticket::{Answered, Demand, Entered};
use crate::limiter::queue::upstream_report::UpstreamSignal;
use crate::limiter::registry::queues::Queues;

/// Limiters cannot be taken together.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LimiterSetError {
    /// No limiter has this name.
    #[error("there is no limiter {0}")]
    Unknown(LimiterName),
    /// The two limiters' states lie in different stores, or parts of a store, so no call can book both at once.
    #[error("limiters {0} and {1} are of different scopes, so they cannot be taken together")]
    Scopes(LimiterName, LimiterName),
}

/// The limiters of a route. Cheap to clone; created once per route, not per request.
#[derive(Clone)]
pub struct LimiterSet {
    inner: Arc<Inner>,
}

struct Inner {
    queues: Arc<Queues>,
    /// The limiters, each once, with the index of their partition in a request. Sorted by name, so that routes with the
    /// same limiters share queues.
    limiters: Vec<(Arc<ActiveLimiter>, usize)>,
    has_partitions: bool,
    /// The destination of every request, if no limiter has partitions. Empty before the first request.
    fixed: ArcSwapOption<Fixed>,
}

/// The destination of every request of a set without partitions.
struct Fixed {
    /// The queue of the enforced limiters; `None` without any.
    queue: Option<QueueGuard>,
    /// The limiters in shadow mode, which only count.
    shadows: Option<Shadows>,
}

impl Fixed {
    /// Returns whether every limiter still has the mode that it had.
    fn holds(&self) -> bool {
        let mut enforced = self.queue.iter().flat_map(|queue| queue.instances.iter());
        let mut shadows = self.shadows.iter().flat_map(Shadows::instances);
        enforced.all(|instance| !instance.active.is_shadow())
            && shadows.all(|instance| instance.active.is_shadow())
    }
}

impl LimiterSet {
    /// Returns the set of the limiters that have these names among `limiters`; `None` without names.
    ///
    /// # Errors
    /// The first name that no limiter has, or two limiters that cannot be taken together.
    pub(in crate::limiter) fn of(
        queues: &Arc<Queues>,
        limiters: &[Arc<ActiveLimiter>],
        names: &[LimiterName],
    ) -> Result<Option<LimiterSet>, LimiterSetError> {
        let named = |name: &LimiterName| {
            let active = limiters.iter().find(|active| active.name == *name);
            active.cloned().ok_or_else(|| LimiterSetError::Unknown(name.clone()))
        };
        let named = names.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = named.first() else { return Ok(None) };
        if let Some(other) = named.iter().find(|active| !Arc::ptr_eq(&active.session, &first.session)) {
            return Err(LimiterSetError::Scopes(first.name.clone(), other.name.clone()));
        }
        Ok(Some(LimiterSet::new(queues.clone(), named)))
    }

    /// Creates a set. A request names its partitions in the order of `limiters`.
    fn new(queues: Arc<Queues>, limiters: Vec<Arc<ActiveLimiter>>) -> LimiterSet {
        let mut limiters: Vec<_> = limiters.into_iter().zip(0..).collect();
        limiters.sort_by_cached_key(|(active, place)| (active.name.clone(), *place));
        limiters.dedup_by(|(second, _), (first, _)| Arc::ptr_eq(first, second));
        let has_partitions = limiters.iter().any(|(active, _)| active.is_partitioned());
        let fixed = ArcSwapOption::empty();
        LimiterSet { inner: Arc::new(Inner { queues, limiters, has_partitions, fixed }) }
    }

    /// Asks for a permit of every limiter. `partitions` are in the order in which the route names its limiters; `None`,
    /// or nothing, stands for a limiter without a key. Ends when the store has answered: at once, or after one round trip.
    ///
    /// # Errors
    /// The refusal, if the request may not pass within its wait.
    pub async fn enter(&self, partitions: &[Option<Partition>], demand: Demand) -> Result<Entered, Refusal> {
        let (submitted, shadows) = self.submit(partitions, &demand)?;
        let mut entered = match submitted {
            Submitted::Granted(permit) => Entered::Granted(permit),
            Submitted::Asked(answered) => answered.await.unwrap_or_else(|_| Err(self.closed()))?,
        };
        match &mut entered {
            Entered::Granted(permit) => permit.shadows = shadows,
            Entered::Waiting(ticket) => ticket.shadows = shadows,
        }
        Ok(entered)
    }

    /// Notes the values of a request's partitions, where they may be shown; `value` returns that of a limiter, by its place in the order in
    /// which the route names them.
    pub fn name_partitions(&self, partitions: &[Option<Partition>], value: impl Fn(usize) -> String) {
        for (active, place) in &self.inner.limiters {
            if let Some(partition) = partitions.get(*place).copied().flatten() {
                active.name_partition(partition, || value(*place));
            }
        }
    }

    /// Counts a request among those that wait, before it is known which permits it needs.
    ///
    /// # Errors
    /// The refusal, if as many wait as may.
    pub fn wait_outside(&self) -> Result<WaitingOutside, Refusal> {
        WaitingOutside::enter(self.inner.limiters.iter().map(|(active, _)| active))
    }

    /// Reports the quota signals in an upstream's answer to the limiters. `partitions` are those with which the request
    /// entered.
    pub fn report_upstream(
        &self,
        partitions: &[Option<Partition>],
        receipt: &Receipt,
        signal: UpstreamSignal,
    ) {
        self.tell(partitions, receipt, receipt.signalled(signal));
    }

    /// Corrects what a request has cost: charges what that is beyond its permit, or gives back what it did not need. `used` tells the true
    /// cost at a limiter, by its place in the order in which the route names them.
    pub fn settle(
        &self,
        partitions: &[Option<Partition>],
        receipt: &Receipt,
        used: impl Fn(usize) -> Option<TrueCost>,
    ) {
        let enforced = || self.inner.limiters.iter().filter(|(active, _)| !active.is_shadow());
        // A limiter may have begun or ceased to only count since; then nobody knows which cost is whose.
        if !receipt.is_of(enforced().map(|(active, _)| active)) {
            return;
        }
        let used: Vec<_> = enforced().map(|(_, place)| used(*place)).collect();
        let taken: Vec<u64> = receipt.taken().collect();
        for ((active, _), (taken, used)) in enforced().zip(taken.iter().zip(&used)) {
            if let Some(used) = used.filter(|used| used.permits > 0 && *taken > 0) {
                active.metrics().estimate_ratio(used.permits as f64 / *taken as f64);
            }
        }
        let charged =
            taken.iter().zip(used).map(|(taken, used)| used.map_or(*taken, |it| it.charged(*taken)));
        let charged: Vec<u64> = charged.collect();
        receipt.queue.settle(&taken, &charged);
        for report in receipt.settled(&charged) {
            self.tell(partitions, receipt, report);
        }
    }

    /// Reports to the queue that gave the permit, or, if it has ended, to the present queue of these partitions.
    fn tell(&self, partitions: &[Option<Partition>], receipt: &Receipt, report: PermitReport) {
        let mut told = receipt.queue.report(report);
        let enforced: Vec<LimiterInstance> = match &told {
            Ok(()) => return,
            Err(_) => self.instances(partitions).filter(|instance| !instance.active.is_shadow()).collect(),
        };
        // A queue may end as soon as it was found. None is found once weir is shutting down.
        while let Err(report) = told
            && !enforced.is_empty()
            && let Ok(queue) = self.inner.queues.find_for_used(&enforced)
        {
            told = queue.report(report);
        }
    }

    /// Returns the name of a flow's class, where callers share the quota.
    pub fn class(&self, flow: Flow) -> Option<Arc<str>> {
        let mut limiters = self.inner.limiters.iter();
        limiters.find_map(|(active, _)| Some(active.limiter().share()?.class(flow).name.clone()))
    }

    /// Returns the longest wait of a request of a flow that names none. Limiters in shadow mode delay nobody, so theirs does not count.
    pub fn wait_max(&self, flow: Flow) -> Duration {
        let enforced = self.inner.limiters.iter().filter(|(active, _)| !active.is_shadow());
        let waits = enforced.map(|(active, _)| active.limiter().wait_max(flow));
        waits.min().unwrap_or_default()
    }

    /// Returns the longest wait of a request: its own, unless the limiters' is shorter.
    pub fn wait_of(&self, demand: &Demand) -> Duration {
        self.wait_max(demand.flow).min(demand.wait_max.unwrap_or(Duration::MAX))
    }

    /// Returns one of the limiters as configured now, with the limits that hold for a request with these partitions; `None` if none has
    /// this name.
    pub fn limiter(&self, name: &LimiterName, partitions: &[Option<Partition>]) -> Option<Arc<Limiter>> {
        let mut instances = self.instances(partitions);
        instances.find(|instance| instance.active.name == *name).map(|instance| instance.limiter())
    }
}

/// A request that was passed on.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
enum Submitted {
    /// The request has its permit.
    Granted(Permit),
    /// The queue of the request will answer.
    Asked(Answered),
}

impl LimiterSet {
    /// Passes a request on. The shadows count it once it has been sent.
    fn submit(
        &self,
        partitions: &[Option<Partition>],
        demand: &Demand,
    ) -> Result<(Submitted, Option<Shadows>), Refusal> {
        loop {
            let (queue, shadows) =
                self.destination(partitions).inspect_err(|refusal| self.count_refused(refusal, demand))?;
            let shadows = shadows.map(|shadows| {
                let costs = self.costs(&demand.costs, |active| active.is_shadow());
                shadows.taking(costs)
            });
            let Some(queue) = queue else { return Ok((Submitted::Granted(Permit::free()), shadows)) };
            let costs = self.costs(&demand.costs, |active| !active.is_shadow());
            let of_queue = Demand { costs, ..demand.clone() };
            if let Some(permit) = queue.take_prefetched(&of_queue) {
                return Ok((Submitted::Granted(permit), shadows));
            }
            if let Some(answered) = queue.submit(of_queue)? {
                return Ok((Submitted::Asked(answered), shadows));
            }
            // The queue has ended meanwhile.
            self.inner.fixed.store(None);
        }
    }

    /// Returns the queue of the enforced limiters, if there are any, and the limiters in shadow mode.
    fn destination(
        &self,
        partitions: &[Option<Partition>],
    ) -> Result<(Option<Arc<Queue>>, Option<Shadows>), Refusal> {
        let Inner { queues, has_partitions, fixed, .. } = &*self.inner;
        if let Some(fixed) = fixed.load().as_ref().filter(|fixed| fixed.holds()) {
            return Ok((fixed.queue.as_ref().map(QueueGuard::queue), fixed.shadows.clone()));
        }
        let (shadows, enforced): (Vec<LimiterInstance>, Vec<LimiterInstance>) =
            self.instances(partitions).partition(|instance| instance.active.is_shadow());
        let shadows = Shadows::new(queues, &shadows);
        if *has_partitions {
            let queue = (!enforced.is_empty()).then(|| queues.find(&enforced));
            return Ok((queue.transpose()?, shadows));
        }
        let guard = (!enforced.is_empty()).then(|| queues.keep(&enforced)).transpose()?;
        let queue = guard.as_ref().map(QueueGuard::queue);
        fixed.store(Some(Arc::new(Fixed { queue: guard, shadows: shadows.clone() })));
        Ok((queue, shadows))
    }

    /// Returns what a request takes of some of the limiters, in the order of their names, from what it takes in the order in which the route
    /// names them.
    fn costs(&self, costs: &Costs, is_one: impl Fn(&ActiveLimiter) -> bool) -> Costs {
        let Costs::Each(_) = costs else { return costs.clone() };
        let some = self.inner.limiters.iter().filter(|(active, _)| is_one(active));
        Costs::each(some.map(|(_, place)| costs.at(*place))).unwrap_or(Costs::Same(costs.largest()))
    }

    fn instances(&self, partitions: &[Option<Partition>]) -> impl Iterator<Item = LimiterInstance> {
        self.inner.limiters.iter().map(|(active, place)| {
            // Requests without a value share one partition.
            let partition = || partitions.get(*place).copied().flatten().unwrap_or(Partition::of([]));
            LimiterInstance { active: active.clone(), partition: active.is_partitioned().then(partition) }
        })
    }

    fn count_refused(&self, refusal: &Refusal, demand: &Demand) {
        let mut limiters = self.inner.limiters.iter();
        if let Some((active, place)) = limiters.find(|(active, _)| active.name == *refusal.limiter()) {
            active.count_refused(demand.flow, demand.costs.at(*place));
        }
    }

    fn closed(&self) -> Refusal {
        Refusal::Closed { limiter: self.inner.limiters[0].0.name.clone() }
    }
}
