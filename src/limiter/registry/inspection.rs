//! One limiter, looked at or acted on by hand.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Duration;
use tracing::info;

use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Cause, Lasting, Limiter, LimiterName, Partition, PauseStretch};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::registry::queues::Queues;
use crate::limiter::store::StoreError;

/// A limiter, or one of its partitions.
pub struct Inspection {
    instance: LimiterInstance,
    queues: Arc<Queues>,
}

/// No such limiter or partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotFound {
    /// No limiter has this name.
    #[error("there is no limiter of this name")]
    Limiter,
    /// A partition was named, and the limiter has none.
    #[error("this limiter has no key, so it has no partitions")]
    Partition,
}

/// The counts of a limiter in this replica.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The limiter.
    pub name: LimiterName,
    /// Permits used since this replica started, counted in cost.
    pub granted: u64,
    /// Permits refused since this replica started, counted in cost.
    pub refused: u64,
    /// The longest wait of a granted request since the last tally.
    pub longest_wait: Duration,
}

/// The present state of a limiter.
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
    /// Permits left now, for each limit; `None` if the store did not answer, and for a limiter with partitions as a
    /// whole.
    pub available: Option<Vec<u64>>,
    /// The age of the oldest waiting request.
    pub longest_wait: Duration,
    /// The present pause; `None` without one, and if the store did not answer.
    pub pause: Option<PauseState>,
}

/// A pause that is not over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseState {
    /// The time until the pause ends.
    pub left: Duration,
    /// The pause's reason, and the replica that began it.
    pub cause: Cause,
}

impl Inspection {
    /// Creates an inspection of a limiter, or of one of its partitions.
    ///
    /// # Errors
    /// If a partition is named and the limiter has none.
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

    /// Returns the present state. Asks the store, and changes nothing.
    pub async fn inspect(&self) -> LimiterStatus {
        self.inspect_with(&self.queues.longest_waits()).await
    }

    /// Like [`Inspection::inspect`], with the age of each limiter's oldest waiting request.
    pub(in crate::limiter) async fn inspect_with(
        &self,
        waits: &HashMap<LimiterName, Duration>,
    ) -> LimiterStatus {
        let LimiterInstance { active, partition } = &self.instance;
        // Of a limiter with partitions as a whole, the store has nothing but pauses and resets by hand.
        let view = active.session.store.inspect(&self.limiter_ref()).await.ok();
        let pause = view.as_ref().and_then(|view| {
            let Lasting { until, cause } = view.pause?;
            Some(PauseState { left: (until - view.now).to_duration(), cause })
        });
        let is_whole = active.is_partitioned() && partition.is_none();
        let available = view.filter(|_| !is_whole).map(|view| view.available);
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

    /// Pauses the limiter for `lasting` on all replicas that share it; queued requests keep their order through the pause. A
    /// pause of zero ends the present one.
    ///
    /// # Errors
    /// If the store did not answer: nothing has changed then.
    pub async fn pause(&self, lasting: Duration) -> Result<(), StoreError> {
        let LimiterInstance { active, partition } = &self.instance;
        let sent = active.session.moment();
        let replica = self.queues.fallback.replica;
        let result = active.session.store.pause(&self.limiter_ref(), lasting.into(), replica).await?;
        if lasting.is_zero() {
            info!(limiter = %active.name, "resumed by hand");
        } else {
            info!(limiter = %active.name, ?lasting, "paused by hand");
        }
        if active.session.answered(sent, result.epoch) {
            self.queues.wake_all();
        }
        let is_meant = |instance: &LimiterInstance| {
            Arc::ptr_eq(&instance.active, active) && (partition.is_none() || instance.partition == *partition)
        };
        let from = result.epoch.now;
        active.show_pause(result.paused_until, *partition);
        self.queues.pause(is_meant, PauseStretch { from, until: result.paused_until });
        Ok(())
    }

    /// Forgets what was used until now, on all replicas that share the limiter, in all partitions if none is named. Queued
    /// requests move up.
    ///
    /// # Errors
    /// If the store did not answer: nothing is reset then.
    pub async fn reset(&self) -> Result<(), StoreError> {
        let session = &self.instance.active.session;
        session.observe_epoch(session.store.reset(&self.limiter_ref()).await?);
        self.queues.wake_all();
        Ok(())
    }

    fn limiter_ref(&self) -> LimiterRef {
        self.instance.limiter_ref()
    }
}
