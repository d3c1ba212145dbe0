//! How the callers of a queue share its quota, as its limiters are configured now. Where only costs differ by limiter, they are one class.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Class, Order, QueueLimits, QuotaShare};
use crate::limiter::queue::active_limiter::LimiterInstance;

/// How far ahead slots are dealt where nobody shares.
const AHEAD: Duration = Duration::from_millis(250);

/// How the callers of a queue share its quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct SharedQuota {
    pub(in crate::limiter) share: QuotaShare,
    /// The place of the limiter whose quota is shared.
    pub(in crate::limiter) place: usize,
    /// For each ceiling, which are the last ones of [`limiter_refs`]: the classes that it bounds.
    pub(in crate::limiter) ceilings: Vec<Vec<usize>>,
    /// Since when they share it so.
    pub(in crate::limiter) since: Moment,
}

impl SharedQuota {
    /// Returns how callers share the quota, if slots are dealt.
    pub(in crate::limiter) fn of(instances: &[LimiterInstance]) -> Option<SharedQuota> {
        let Some((place, sharer)) = sharer(instances) else {
            let is_dealt = |instance: &LimiterInstance| {
                instance.active.limiter().order == Order::Dealt && !instance.active.is_shadow()
            };
            return instances.iter().any(is_dealt).then(|| SharedQuota::one_class(instances));
        };
        let share = sharer.active.limiter().share().cloned()?;
        let ceilings = share.bounds().into_iter().map(|bound| bound.classes).collect();
        Some(SharedQuota { share, place, ceilings, since: sharer.active.shared_since() })
    }

    /// Returns the share of one class, in which all requests are of one flow. Those that may not wait are dealt nothing ahead.
    fn one_class(instances: &[LimiterInstance]) -> SharedQuota {
        let nowhere = QueueLimits { timeout: Duration::ZERO, max_waiting: 0 };
        let queues = || instances.iter().map(|instance| instance.active.limiter().queue.unwrap_or(nowhere));
        let queue = QueueLimits {
            timeout: queues().map(|queue| queue.timeout).min().unwrap_or_default(),
            max_waiting: queues().map(|queue| queue.max_waiting).min().unwrap_or_default(),
        };
        let ahead = if queue.max_waiting == 0 { Duration::ZERO } else { AHEAD };
        let class = Class { name: "".into(), floor_ppm: 0, ceiling_ppm: None, queue };
        let share =
            QuotaShare { classes: [class].into(), members: Arc::default(), names: Default::default(), ahead };
        SharedQuota { share, place: 0, ceilings: Vec::new(), since: Moment::default() }
    }
}

/// Returns the limiter whose quota callers share, if there is one, with its place.
fn sharer(instances: &[LimiterInstance]) -> Option<(usize, &LimiterInstance)> {
    instances.iter().enumerate().find(|(_, instance)| instance.active.limiter().share().is_some())
}

/// Returns the store's references to the limiters, and behind them to the ceilings of classes.
pub(in crate::limiter) fn limiter_refs(instances: &[LimiterInstance]) -> Arc<[LimiterRef]> {
    let limiters = instances.iter().map(LimiterInstance::limiter_ref);
    limiters.chain(sharer(instances).into_iter().flat_map(|(_, sharer)| sharer.ceilings())).collect()
}
