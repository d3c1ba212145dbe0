//! A limiter that somebody looks at, or acts on by hand.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::{Duration, Instant};
use tracing::info;

use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::limit::{Limiter, LimiterName};
use crate::limiter::model::partition::Partition;
use crate::limiter::model::pause::{Cause, Lasting, PauseStretch};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::registry::queues::Queues;
use crate::limiter::store::StoreError;

/// A limiter, or one of its partitions.
pub struct Inspection {
    instance: LimiterInstance,
    queues: Arc<Queues>,
}

/// Why nothing was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotFound {
    /// No limiter has this name.
    #[error("there is no limiter of this name")]
    Limiter,
    /// A partition of a limiter without partitions.
    #[error("this limiter has no key, so it has no partitions")]
    Partition,
}

/// What has become of a limiter's requests in this replica.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Which.
    pub name: LimiterName,
    /// Permits used since this replica started, counted in cost.
    pub granted: u64,
    /// Permits refused since then, counted in cost.
    pub refused: u64,
    /// The longest that a request has waited for its permit of late.
    pub longest_wait: Duration,
}

/// One limiter's active state.
#[derive(Debug)]
pub struct LimiterStatus {
    /// The limiter as configured now.
    pub limiter: Arc<Limiter>,
    /// Requests of this replica that wait.
    pub waiting: u32,
    /// Permits used by this replica since it started, counted in cost.
    pub granted: u64,
    /// Permits refused by this replica since it started, counted in cost.
    pub refused: u64,
    /// Permits that could be used at once, for each limit; `None` if the store could not be asked, and for a partitioned
    /// limiter as a whole.
    pub available: Option<Vec<u64>>,
    /// For how long the one has waited that has waited longest of them.
    pub longest_wait: Duration,
    /// Why no permit will be given for a while; `None` if it is not paused, or the store could not be asked.
    pub pause: Option<PauseState>,
}

/// A pause that lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseState {
    /// How much longer.
    pub left: Duration,
    /// Why, and which replica has seen to it.
    pub cause: Cause,
}

impl Inspection {
    /// # Errors
    /// If the limiter has no partitions and one of them is meant.
    pub(in crate::limiter) fn new(
        active: Arc<ActiveLimiter>,
        partition: Option<Partition>,
        queues: &Arc<Queues>,
    ) -> Result<Inspection, NotFound> {
        if partition.is_some() && !active.is_partitioned() {
            return Err(NotFound::Partition);
        }
        Ok(Inspection { instance: LimiterInstance { active, partition }, queues: queues.clone() })
    }

    /// The active state. Asks the store, and changes nothing.
    pub async fn inspect(&self) -> LimiterStatus {
        self.inspect_with(&self.queues.longest_waits()).await
    }

    /// The same, where it is known how long one has waited at most for each limiter.
    pub(in crate::limiter) async fn inspect_with(
        &self,
        waits: &HashMap<LimiterName, Duration>,
    ) -> LimiterStatus {
        let LimiterInstance { active, partition } = &self.instance;
        // As a whole, one that is partitioned has nothing but what was done to it by hand.
        let inspection = active.session.store.inspect(&self.limiter_ref()).await.ok();
        let pause = inspection.as_ref().and_then(|inspection| {
            let Lasting { until, cause } = inspection.pause?;
            Some(PauseState { left: (until - inspection.now).to_duration(), cause })
        });
        let is_whole = active.is_partitioned() && partition.is_none();
        let available = inspection.filter(|_| !is_whole).map(|inspection| inspection.available);
        LimiterStatus {
            limiter: active.limiter().clone(),
            waiting: active.counts.waiting(),
            granted: active.counts.granted(),
            refused: active.counts.refused(),
            available,
            longest_wait: waits.get(&active.name).copied().unwrap_or_default(),
            pause,
        }
    }

    /// Gives no permit for so long, on all replicas that share it; what waits waits longer. For no time at all: goes on, and what
    /// waits moves up.
    ///
    /// # Errors
    /// If the store could not be asked: nothing has changed then.
    pub async fn pause(&self, lasting: Duration) -> Result<(), StoreError> {
        let LimiterInstance { active, partition } = &self.instance;
        let sent = Instant::now();
        let replica = self.queues.fallback.replica;
        let heard = active.session.store.pause(&self.limiter_ref(), lasting.into(), replica).await?;
        if lasting.is_zero() {
            info!(limiter = %active.name, "resumed by hand");
        } else {
            info!(limiter = %active.name, ?lasting, "paused by hand");
        }
        active.session.hear_clock(sent, Instant::now(), heard.epoch.now);
        active.session.meet_epoch(heard.epoch);
        let is_meant = |instance: &LimiterInstance| {
            Arc::ptr_eq(&instance.active, active) && (partition.is_none() || instance.partition == *partition)
        };
        let from = heard.epoch.now;
        active.show_pause(heard.paused_until, *partition);
        self.queues.pause(is_meant, PauseStretch { from, until: heard.paused_until });
        Ok(())
    }

    /// Forgets what was used until now, on all replicas that share it, in all partitions if none is meant. What waits moves
    /// up.
    ///
    /// # Errors
    /// If the store could not be asked: nothing is reset then.
    pub async fn reset(&self) -> Result<(), StoreError> {
        let session = &self.instance.active.session;
        session.meet_epoch(session.store.reset(&self.limiter_ref()).await?);
        self.queues.wake_all();
        Ok(())
    }

    fn limiter_ref(&self) -> LimiterRef {
        self.instance.limiter_ref()
    }
}
