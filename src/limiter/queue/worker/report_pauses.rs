//! Tells the store of the pauses that this replica alone knows: those that were made while the store did not answer, and those that
//! the store has forgotten. Of two actions the later one counts, whichever replica is the first to tell.

use std::sync::Arc;

use super::siblings::Siblings;
use crate::clock::{Micros, Moment};
use crate::limiter::model::{PauseByHand, PauseRequest, PauseStretch, Reason, ReportResult, UpstreamReport};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::queue::known_pauses::KnownPause;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::store::StoreError;

/// Tells the store of the pauses of a limiter that it does not know, and keeps to what it answers.
///
/// # Errors
/// The first call that the store did not answer. One that it will not take does not stop the others.
pub(in crate::limiter) async fn report_pauses(
    active: &Arc<ActiveLimiter>,
    fallback: &Fallback,
    siblings: &dyn Siblings,
) -> Result<(), StoreError> {
    let session = &active.session;
    for (partition, pause) in active.pauses.unreported() {
        let instance = LimiterInstance { active: active.clone(), partition };
        let now = session.moment();
        if !pause.is_lifted() && pause.until <= now {
            continue;
        }
        let result = match tell(&instance, pause, now, fallback).await {
            Ok(result) => result,
            Err(StoreError::Full(_) | StoreError::Unreadable(_) | StoreError::Malformed(_)) => continue,
            Err(error) => return Err(error),
        };
        if session.observe_epoch(result.epoch) {
            siblings.wake_all();
        }
        let stretch = PauseStretch { from: result.epoch.now, until: result.paused_until };
        let left = session.moments(stretch).filter(|_| stretch.until > stretch.from);
        let until = left.map_or(pause.at, |(_, until)| until);
        if !active.pauses.confirm_report(partition, pause, until) {
            continue;
        }
        let answered = session.moment();
        // As of the sending: what others have done since outranks it.
        let (lasting, ago) = (until - answered, (answered - now).max(Micros::ONE));
        let by_hand = PauseByHand { lasting, ago, replica: fallback.replica };
        // In the next outage this replica is to keep to the same.
        fallback.store.pause_at(fallback.clock.now(), &instance.limiter_ref(), &by_hand);
        siblings.apply_pause(&instance, pause.at, until);
    }
    Ok(())
}

/// Tells the store of one pause.
async fn tell(
    instance: &LimiterInstance,
    pause: KnownPause,
    now: Moment,
    fallback: &Fallback,
) -> Result<ReportResult, StoreError> {
    let (session, limiter_ref) = (&instance.active.session, instance.limiter_ref());
    let (lasting, ago) = (pause.until - now, (now - pause.at).max(Micros::ONE));
    match pause.cause.map(|cause| (cause.reason, cause.replica)) {
        Some((Reason::Upstream { status, is_named }, _)) => {
            let request = PauseRequest {
                wait: is_named.then_some(lasting),
                fallback: lasting,
                max: lasting,
                sent_ago: ago,
                jitter: 0,
                status,
                made_ago: ago,
            };
            let (replica, known_epoch) = (fallback.replica, session.epoch_least());
            let report =
                UpstreamReport { replica, known_epoch, pause: Some(request), ..UpstreamReport::default() };
            session.store.report_upstream(&limiter_ref, &report).await.map_err(|failure| failure.error)
        }
        by_hand => {
            let replica = by_hand.map_or(fallback.replica, |(_, replica)| replica);
            session.store.pause(&limiter_ref, &PauseByHand { lasting, ago, replica }).await
        }
    }
}
