//! Sends to a store the grants of this replica that it does not have: after it lost its state, or was unreachable.

use futures_util::stream::{self, StreamExt};
use tracing::warn;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Epoch, Unknown, WriteBack};
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::ledger::Granted;
use crate::limiter::recovery::offline_grants::OfflineGrants;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::store::StoreError;

/// The most writes under way at once. The store waits only for a limited time before it grants again.
const WRITES_MAX: usize = 64;

/// Writes all grants back into an epoch, after the store has lost its state.
///
/// # Errors
/// The first failed write. A repetition under the same epoch counts no grant twice.
pub(in crate::limiter) async fn write_back(
    session: &StoreSession,
    fallback: &Fallback,
    epoch: u64,
) -> Result<(), StoreError> {
    let now = session.moment();
    let clock = session.clock();
    let latest = clock.map_or_else(|| session.now(), |clock| clock.latest(now));
    let sent = clock.map_or(Micros::ZERO, |_| latest);
    session.ledger.remove_after(latest);
    let granted = session.ledger.granted(latest);
    let permits: u64 = granted.iter().flat_map(|page| &page.entries).map(|entry| entry.permits).sum();
    warn!(
        limiters = granted.len(),
        permits, "the store has lost its state: writing back what this replica was granted"
    );
    let (store, replica) = (&session.store, fallback.replica);
    let writes = granted.into_iter().map(|Granted { limiter_ref, entries, observed_usage }| async move {
        let entries = entries.iter().map(|entry| (ago(latest, entry.at), entry.permits)).collect();
        // The epoch serves as the number: the store accepts one write for each.
        let (unknown, number, known_epoch) = (Unknown::Lost, epoch, epoch);
        let write = WriteBack { replica, unknown, number, known_epoch, observed_usage, sent, entries };
        store.write_back(&limiter_ref, &write).await
    });
    // A failed write does not stop the others.
    let written: Vec<Result<Epoch, _>> = stream::iter(writes).buffer_unordered(WRITES_MAX).collect().await;
    for error in written.into_iter().filter_map(Result::err) {
        match error {
            // The key holds something else, until somebody deletes that; nothing is left to write then.
            StoreError::Unreadable(_) => warn!(%error, "cannot write back"),
            error => return Err(error),
        }
    }
    Ok(())
}

/// Reports the offline grants of these limiters to a store that is reachable again, before any other call for them.
///
/// # Errors
/// The first failure, but a limiter whose key holds something else does not stop the others. A failed part is sent again by
/// the next report, and counts once.
pub(in crate::limiter) async fn report_offline_grants(
    session: &StoreSession,
    limiter_refs: &[LimiterRef],
    fallback: &Fallback,
) -> Result<(), StoreError> {
    if !session.ledger.has_unreported() {
        return Ok(());
    }
    let mut reported = Ok(());
    'limiter_refs: for limiter_ref in limiter_refs {
        while let Some(part) = session.ledger.next_offline_part(limiter_ref, fallback.clock.now()) {
            let now = fallback.clock.now();
            let write = offline_write(session, fallback.replica, &part, now);
            match session.store.write_back(limiter_ref, &write).await {
                Ok(Epoch { now: store_now, .. }) => {
                    session.ledger.confirm_report(limiter_ref, part.number, store_now, now);
                }
                Err(error @ StoreError::Unreadable(_)) => {
                    reported = Err(error);
                    continue 'limiter_refs;
                }
                Err(error) => return Err(error),
            }
        }
    }
    reported
}

/// Returns the write that reports a part of the offline grants at `now` of this process's clock.
fn offline_write(session: &StoreSession, replica: u64, part: &OfflineGrants, now: Micros) -> WriteBack {
    WriteBack {
        replica,
        unknown: Unknown::Away(now - part.since),
        number: part.number,
        known_epoch: session.epoch_least(),
        observed_usage: 0,
        sent: session.clock().map_or(Micros::ZERO, |clock| clock.latest(session.moment())),
        entries: part.entries.iter().map(|entry| (ago(now, entry.at), entry.permits)).collect(),
    }
}

/// Returns how many microseconds an instant lies before another; negative if it lies after it.
fn ago(now: Micros, at: Micros) -> i64 {
    let span = |span: Micros| i64::try_from(span.0).unwrap_or(i64::MAX);
    span(now - at) - span(at - now)
}
