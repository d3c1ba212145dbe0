//! Sends to a store the grants of this replica that it does not have: after it lost its memory, or was away.

use futures_util::stream::{self, StreamExt};
use tracing::warn;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Unknown, WriteBack};
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::ledger::Unreported;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::store::StoreError;

/// The most writes under way at once: a store that has just come back has enough to do.
const WRITES_MAX: usize = 16;

/// Writes back the grants under all limiters that the store does not have. Returns whether it has all of them now: false if a new epoch
/// has begun meanwhile, or some could not be kept.
///
/// # Errors
/// The first failed write. A repetition counts no grant twice.
pub(in crate::limiter) async fn write_back(
    session: &StoreSession,
    fallback: &Fallback,
) -> Result<bool, StoreError> {
    let limiter_refs = session.ledger().unreported();
    if !limiter_refs.is_empty() {
        warn!(
            limiters = limiter_refs.len(),
            "the store does not know what this replica was granted: writing it back"
        );
    }
    let writes = limiter_refs
        .into_iter()
        .map(|limiter_ref| async move { write_back_one(session, fallback, &limiter_ref).await });
    // A failed write does not stop the others.
    let written: Vec<_> = stream::iter(writes).buffer_unordered(WRITES_MAX).collect().await;
    let mut is_complete = session.ledger().is_complete(session.now());
    for result in written {
        is_complete &= result?;
    }
    Ok(is_complete)
}

/// Writes back the grants under these limiters that the store does not have, before any other call for them.
///
/// # Errors
/// The first failed write.
pub(in crate::limiter) async fn report_offline_grants(
    session: &StoreSession,
    limiter_refs: &[LimiterRef],
    fallback: &Fallback,
) -> Result<(), StoreError> {
    if session.ledger().has_unreported() {
        for limiter_ref in limiter_refs {
            write_back_one(session, fallback, limiter_ref).await?;
        }
    }
    Ok(())
}

/// Writes back the grants under one limiter. Returns whether the store has them now.
async fn write_back_one(
    session: &StoreSession,
    fallback: &Fallback,
    limiter_ref: &LimiterRef,
) -> Result<bool, StoreError> {
    let epoch = session.epoch();
    loop {
        let now = fallback.clock.now();
        let Some(part) = session.ledger().next_unreported(limiter_ref, now) else { return Ok(true) };
        let write = write_of(session, fallback.replica, epoch, &part, now);
        let sent = session.moment();
        match session.store.write_back(limiter_ref, &write).await {
            Ok(answer) => {
                // First of all it may show that the store's clock was stepped. What is confirmed then would be taken for older than
                // the step, and be moved with the rest. A store that never loses its memory answers no epoch, and no time.
                if answer.id != 0 {
                    session.answered(sent, answer);
                }
                if answer.id != epoch || session.epoch_least() != epoch {
                    return Ok(false);
                }
                session.ledger().confirm_report(limiter_ref, &part, answer.now, now);
            }
            // The key holds something else, until somebody deletes that; nothing is left to write then.
            Err(error @ StoreError::Unreadable(_)) => {
                warn!(%error, "cannot write back");
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the write for a part of the grants, at `now` of this process's clock.
fn write_of(session: &StoreSession, replica: u64, epoch: u64, part: &Unreported, now: Micros) -> WriteBack {
    let sent = session.clock().map_or(Micros::ZERO, |clock| clock.latest(session.moment()));
    let (unknown, number, since, entries) = match part {
        Unreported::Forgotten { number, entries, .. } => (Unknown::Lost, *number, sent, entries),
        Unreported::Offline(part) => (Unknown::Away, part.number, now, &part.entries),
    };
    let entries = entries.iter().map(|entry| (ago(since, entry.at), entry.permits)).collect();
    WriteBack { replica, unknown, number, epoch, sent, entries }
}

/// Returns how many microseconds an instant lies before another; negative if it lies after it.
fn ago(now: Micros, at: Micros) -> i64 {
    let span = |span: Micros| i64::try_from(span.0).unwrap_or(i64::MAX);
    span(now - at) - span(at - now)
}
