//! What a route's requests pass: all its limiters, taken together or not at all.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::limiter::model::limit::{Limiter, LimiterName};
use crate::limiter::model::partition::Partition;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::queue::handle::{Queue, QueueGuard};
use crate::limiter::queue::permit::{OriginQueue, Permit, PermitReport, Receipt};
use crate::limiter::queue::shadow::Shadows;
use crate::limiter::queue::ticket::{Answered, Demand, Entered};
use crate::limiter::queue::upstream_report::UpstreamSignal;
use crate::limiter::registry::queues::Queues;

/// Why limiters cannot be taken together.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LimiterSetError {
    /// There is no limiter of this name.
    #[error("there is no limiter {0}")]
    Unknown(LimiterName),
    /// The state of one is shared by the fleet, that of the other is not: nothing can book both at once.
    #[error("limiters {0} and {1} are of different scopes, so they cannot be taken together")]
    Scopes(LimiterName, LimiterName),
}

/// The limiters of a route. Cheap to clone; to be made once per route, not per request.
#[derive(Clone)]
pub struct LimiterSet {
    inner: Arc<Inner>,
}

struct Inner {
    queues: Arc<Queues>,
    /// Each once, in the order of their names, so that routes which name the same ones share their queues; with the place
    /// of its partition among those of a request.
    limiters: Vec<(Arc<ActiveLimiter>, usize)>,
    has_partitions: bool,
    /// Of a gate without partitions: where its requests go, since the first of them came.
    fixed: ArcSwapOption<Fixed>,
}

/// Where all requests of a gate go.
struct Fixed {
    /// The queue of the limiters that are enforced, if there are any.
    queue: Option<QueueGuard>,
    /// Those that only count.
    shadows: Option<Shadows>,
}

impl Fixed {
    /// Whether every limiter still acts as it did.
    fn holds(&self) -> bool {
        let mut enforced = self.queue.iter().flat_map(|queue| queue.instances.iter());
        let mut shadows = self.shadows.iter().flat_map(Shadows::instances);
        enforced.all(|instance| !instance.active.is_shadow())
            && shadows.all(|instance| instance.active.is_shadow())
    }
}

impl LimiterSet {
    /// `limiters` in the order in which their partitions will come.
    pub(in crate::limiter) fn new(queues: Arc<Queues>, limiters: Vec<Arc<ActiveLimiter>>) -> LimiterSet {
        let mut limiters: Vec<_> = limiters.into_iter().zip(0..).collect();
        limiters.sort_by_cached_key(|(active, place)| (active.name.clone(), *place));
        limiters.dedup_by(|(second, _), (first, _)| Arc::ptr_eq(first, second));
        let has_partitions = limiters.iter().any(|(active, _)| active.is_partitioned());
        let fixed = ArcSwapOption::empty();
        LimiterSet { inner: Arc::new(Inner { queues, limiters, has_partitions, fixed }) }
    }

    /// Asks for a permit of every limiter. `partitions` are those of the limiters, in the order in which the gate names
    /// them; `None` for one without a key. Ends when the store has answered: at once, or after one round trip.
    ///
    /// # Errors
    /// The refusal, if the request may not pass within its wait.
    pub async fn enter(&self, partitions: &[Option<Partition>], demand: Demand) -> Result<Entered, Refusal> {
        let (submitted, shadows) = self.submit(partitions, demand)?;
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

    /// Hears what the answer to a request says of the upstream's quota. `partitions` are those with which it entered.
    pub fn report_upstream(
        &self,
        partitions: &[Option<Partition>],
        receipt: &Receipt,
        spoken: UpstreamSignal,
    ) {
        self.tell(partitions, receipt, receipt.said(spoken));
    }

    /// Corrects what a request has cost: more is charged, less is given back.
    pub fn settle(&self, partitions: &[Option<Partition>], receipt: &Receipt, cost: u64) {
        if let Some(news) = receipt.settled(cost) {
            self.tell(partitions, receipt, news);
        }
    }

    /// Tells the queue from which a permit came. It may have ended while the upstream took its time: then another one hears it.
    fn tell(&self, partitions: &[Option<Partition>], receipt: &Receipt, news: PermitReport) {
        if let Err(news) = receipt.shared.tell(news)
            && let Ok((Some(queue), _)) = self.ways(partitions)
        {
            // One that ends in this moment was made by nobody else: what it would have heard changes little.
            let _ = queue.tell(news);
        }
    }

    /// The longest wait of a request that names none.
    pub fn wait_max(&self) -> Duration {
        let waits =
            self.inner.limiters.iter().map(|(active, _)| {
                active.limiter().queue.as_ref().map_or(Duration::ZERO, |queue| queue.timeout)
            });
        waits.min().unwrap_or_default()
    }

    /// One of its limiters as configured now; `None` for a name that it does not have.
    pub fn limiter(&self, name: &LimiterName) -> Option<Arc<Limiter>> {
        let active = self.inner.limiters.iter().map(|(active, _)| active).find(|active| active.name == *name);
        active.map(|active| Arc::clone(&active.limiter()))
    }
}

/// What becomes of a request.
enum Submitted {
    /// Its permit was there.
    Granted(Permit),
    /// It will hear.
    Asked(Answered),
}

impl LimiterSet {
    /// Also says who is told of it later.
    fn submit(
        &self,
        partitions: &[Option<Partition>],
        demand: Demand,
    ) -> Result<(Submitted, Option<Shadows>), Refusal> {
        loop {
            let (queue, shadows) =
                self.ways(partitions).inspect_err(|refusal| self.count_refused(refusal, demand))?;
            let Some(queue) = queue else {
                return Ok((Submitted::Granted(Permit::free(demand.cost)), shadows));
            };
            if let Some(permit) = queue.take_from_stock(demand) {
                return Ok((Submitted::Granted(permit), shadows));
            }
            if let Some(answered) = queue.submit(demand)? {
                return Ok((Submitted::Asked(answered), shadows));
            }
            // It has ended meanwhile.
            self.inner.fixed.store(None);
        }
    }

    fn ways(
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
        let kept = (!enforced.is_empty()).then(|| queues.keep(&enforced)).transpose()?;
        let queue = kept.as_ref().map(QueueGuard::queue);
        fixed.store(Some(Arc::new(Fixed { queue: kept, shadows: shadows.clone() })));
        Ok((queue, shadows))
    }

    fn instances(&self, partitions: &[Option<Partition>]) -> impl Iterator<Item = LimiterInstance> {
        self.inner.limiters.iter().map(|(active, place)| {
            // A missing value is a partition of its own.
            let partition = || partitions.get(*place).copied().flatten().unwrap_or(Partition::of([]));
            LimiterInstance { active: active.clone(), partition: active.is_partitioned().then(partition) }
        })
    }

    fn count_refused(&self, refusal: &Refusal, demand: Demand) {
        let mut lives = self.inner.limiters.iter().map(|(active, _)| active);
        if let Some(active) = lives.find(|active| active.name == *refusal.limiter()) {
            active.count_refused(demand.cost.get());
        }
    }

    fn closed(&self) -> Refusal {
        Refusal::Closed { limiter: self.inner.limiters[0].0.name.clone() }
    }
}
