//! What the callers of a queue share, as its limiters are configured now.

use std::sync::Arc;

use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::QuotaShare;
use crate::limiter::queue::active_limiter::LimiterInstance;

/// How the callers of a queue share its quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Shared {
    pub(in crate::limiter) share: QuotaShare,
    /// For each ceiling, which are the last ones of [`limiter_refs`]: the classes that it bounds.
    pub(in crate::limiter) ceilings: Vec<Vec<usize>>,
}

/// Returns the limiter whose quota callers share, if there is one.
fn sharer(instances: &[LimiterInstance]) -> Option<&LimiterInstance> {
    instances.iter().find(|instance| instance.active.limiter().share.is_some())
}

/// Returns how callers share the quota, if they do.
pub(in crate::limiter) fn shared(instances: &[LimiterInstance]) -> Option<Shared> {
    let share = sharer(instances)?.active.limiter().share.clone()?;
    let ceilings = share.bounds().into_iter().map(|bound| bound.classes).collect();
    Some(Shared { share, ceilings })
}

/// Returns the store's references to the limiters, and behind them to the ceilings of classes.
pub(in crate::limiter) fn limiter_refs(instances: &[LimiterInstance]) -> Arc<[LimiterRef]> {
    let limiters = instances.iter().map(LimiterInstance::limiter_ref);
    limiters.chain(sharer(instances).into_iter().flat_map(LimiterInstance::ceilings)).collect()
}
