//! One limiter, looked at or acted on by hand.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Duration;
use tracing::{info, warn};

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{
    Cause, Lasting, Limiter, LimiterName, Partition, PauseByHand, PauseStretch, Reason,
};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance, seen_for};
use crate::limiter::queue::worker::Siblings;
use crate::limiter::registry::queues::Queues;
use crate::limiter::registry::shares::{ShareStatus, Shares};
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
    /// The limiter as configured now, with the limits that hold for the partition.
    pub limiter: Arc<Limiter>,
    /// The number of overrides that the limiter has as a whole.
    pub overrides: usize,
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
    /// The present pause, as this replica keeps to it; `None` without one.
    pub pause: Option<PauseState>,
    /// How its callers share it; `None` if they do not.
    pub share: Option<ShareStatus>,
}

/// A pause that is not over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseState {
    /// The time until the pause ends.
    pub left: Duration,
    /// The pause's reason, and the replica that began it; `None` if they are not known.
    pub cause: Option<Cause>,
    /// True if this replica alone knows the pause, because the store did not answer or has forgotten it.
    pub is_local: bool,
}

/// Where an action by hand is in force.
#[derive(Debug)]
pub enum Applied {
    /// On all replicas.
    Fleet,
    /// On this replica alone: the store did not take it, for this reason. It is told when it answers again.
    ThisReplica(StoreError),
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
        self.inspect_with(&self.queues.longest_waits(), &Shares::now(&self.queues)).await
    }

    /// Like [`Inspection::inspect`], with the age of each limiter's oldest waiting request, and the flows that wait.
    pub(in crate::limiter) async fn inspect_with(
        &self,
        waits: &HashMap<LimiterName, Duration>,
        shares: &Shares,
    ) -> LimiterStatus {
        let LimiterInstance { active, partition } = &self.instance;
        // Of a limiter with partitions as a whole, the store has nothing but pauses and resets by hand.
        let view = active.session.store.inspect(&self.limiter_ref()).await.ok();
        let of_store = view.as_ref().and_then(|view| {
            let Lasting { until, cause } = view.pause?;
            Some(PauseState { left: (until - view.now).to_duration(), cause: Some(cause), is_local: false })
        });
        let pause = match self.known_pause() {
            // The part that this replica keeps to.
            Some((known, is_local)) if is_local || view.is_none() => known,
            _ => of_store,
        };
        let is_whole = active.is_partitioned() && partition.is_none();
        let available = view.filter(|_| !is_whole).map(|view| view.available);
        LimiterStatus {
            limiter: self.instance.limiter(),
            overrides: active.limiter().partitioned.as_ref().map_or(0, |it| it.overrides.len()),
            waiting: active.counts.waiting(),
            granted: active.counts.granted(),
            refused: active.counts.refused(),
            available,
            longest_wait: waits.get(&active.name).copied().unwrap_or_default(),
            pause,
            share: shares.status(active),
        }
    }

    /// Returns the pause that this replica knows of, and whether it alone does.
    fn known_pause(&self) -> Option<(Option<PauseState>, bool)> {
        let LimiterInstance { active, partition } = &self.instance;
        let (known, is_local) = active.pauses.known(*partition)?;
        let left = (known.until - active.session.moment()).to_duration();
        let state = PauseState { left, cause: known.cause, is_local };
        let is_paused = !known.is_lifted() && !state.left.is_zero();
        Some((is_paused.then_some(state), is_local))
    }

    /// Pauses the limiter for `lasting` on all replicas that share it; queued requests keep their order through the pause. A
    /// pause of zero ends the present one. If the store does not answer, this replica alone acts, and tells the store later.
    ///
    /// # Errors
    /// If the store keeps too many pauses already: nothing has changed then.
    pub async fn pause(&self, lasting: Duration) -> Result<Applied, StoreError> {
        let LimiterInstance { active, .. } = &self.instance;
        let sent = active.session.moment();
        let replica = self.queues.fallback.replica;
        let by_hand = PauseByHand { lasting: lasting.into(), ago: Micros::ZERO, replica };
        let cause = Cause { reason: Reason::ByHand, replica };
        let applied = match active.session.store.pause(&self.limiter_ref(), &by_hand).await {
            Ok(result) => {
                if active.session.answered(sent, result.epoch) {
                    self.queues.wake_all();
                }
                let stretch = PauseStretch { from: result.epoch.now, until: result.paused_until };
                self.queues.note_pause(&self.instance, stretch, cause);
                Applied::Fleet
            }
            Err(error @ StoreError::Full(_)) => return Err(error),
            Err(error) => {
                self.queues.pause_fallback(&self.instance, &by_hand);
                self.queues.pause_locally(&self.instance, sent + by_hand.lasting, cause);
                Applied::ThisReplica(error)
            }
        };
        let is_local = matches!(applied, Applied::ThisReplica(_));
        if lasting.is_zero() {
            info!(limiter = %active.name, is_local, "resumed by hand");
        } else {
            warn!(limiter = %active.name, ?lasting, is_local, "paused by hand");
        }
        Ok(applied)
    }

    /// Forgets what was used until now, on all replicas that share the limiter, in all partitions if none is named. Queued
    /// requests move up.
    ///
    /// # Errors
    /// If the store did not answer: the limits are not reset then, and what classes may use of them may be.
    pub async fn reset(&self) -> Result<(), StoreError> {
        let session = &self.instance.active.session;
        // Partitions may have limits of their own.
        let seen_for = seen_for(&self.instance.active.limiter(), session);
        // The states of all ceilings begin with the limiter's name, but not with the partition's.
        let ceilings = if self.instance.partition.is_some() { self.instance.ceilings() } else { Vec::new() };
        for limiter_ref in ceilings.into_iter().chain([self.limiter_ref()]) {
            session.observe_epoch(session.store.reset(&limiter_ref, seen_for).await?);
        }
        self.queues.wake_all();
        Ok(())
    }

    fn limiter_ref(&self) -> LimiterRef {
        self.instance.limiter_ref()
    }
}
