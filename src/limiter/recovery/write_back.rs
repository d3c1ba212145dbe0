//! Tells a store what it does not know of this replica's grants: because it has lost it, or because it was away.

use futures_util::stream::{self, StreamExt};
use tokio::time::Instant;
use tracing::warn;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::write_back::Unknown;
use crate::limiter::model::write_back::WriteBack;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::ledger::Granted;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::store::StoreError;

/// Writes that are under way at once: the epoch settles only while they come.
const WRITES_MAX: usize = 64;

/// Writes everything back. What fails is tried again with the next heartbeat, under its number.
pub(in crate::limiter) async fn write_back(
    session: &StoreSession,
    fallback: &Fallback,
    epoch: u64,
) -> Result<(), StoreError> {
    let now = Instant::now();
    let clock = session.clock.heard();
    let latest = clock.map_or_else(|| session.now(), |clock| clock.latest(now));
    let sent = clock.map_or(Micros::ZERO, |_| latest);
    session.ledger.forget_after(latest);
    let granted = session.ledger.granted(latest);
    let permits: u64 = granted.iter().flat_map(|page| &page.entries).map(|entry| entry.permits).sum();
    warn!(
        limiters = granted.len(),
        permits, "the store has lost its state: writing back what this replica was granted"
    );
    let (store, replica) = (&session.store, fallback.replica);
    let writes = granted.into_iter().map(|Granted { limiter_ref, entries, seen }| async move {
        let entries = entries.iter().map(|entry| (ago(latest, entry.at), entry.permits)).collect();
        // The epoch is the number: what has been written into it already is not written twice.
        let unknown = Unknown::Lost;
        let write = WriteBack {
            replica,
            unknown,
            number: epoch,
            known_epoch: epoch,
            observed_usage: seen,
            sent,
            entries,
        };
        store.write_back(&limiter_ref, &write).await
    });
    // One that fails does not keep the others from it.
    let written: Vec<Result<Epoch, _>> = stream::iter(writes).buffer_unordered(WRITES_MAX).collect().await;
    for error in written.into_iter().filter_map(Result::err) {
        match error {
            // It stays so until somebody deletes what is there, and begins anew with that.
            StoreError::Unreadable(_) => warn!(%error, "cannot write back"),
            error => return Err(error),
        }
    }
    Ok(())
}

/// Tells the store what was granted while it was away, before it is asked for anything else. Nothing is said twice, and what
/// fails is said again. A limiter whose key holds something else does not keep the others from being heard.
pub(in crate::limiter) async fn report_offline_grants(
    session: &StoreSession,
    limiter_refs: &[LimiterRef],
    fallback: &Fallback,
) -> Result<(), StoreError> {
    if !session.ledger.has_unsaid() {
        return Ok(());
    }
    let mut heard = Ok(());
    'limiter_refs: for limiter_ref in limiter_refs {
        while let Some(saying) = session.ledger.take_offline_grants(limiter_ref, fallback.clock.now()) {
            let (now, number) = (fallback.clock.now(), saying.number);
            let write = WriteBack {
                replica: fallback.replica,
                unknown: Unknown::Away(now - saying.since),
                number,
                known_epoch: session.epoch_least(),
                observed_usage: 0,
                sent: session.clock.heard().map_or(Micros::ZERO, |clock| clock.latest(Instant::now())),
                entries: saying.entries.iter().map(|entry| (ago(now, entry.at), entry.permits)).collect(),
            };
            match session.store.write_back(limiter_ref, &write).await {
                Ok(Epoch { now: store_now, .. }) => session.ledger.said(limiter_ref, number, store_now, now),
                Err(error @ StoreError::Unreadable(_)) => {
                    heard = Err(error);
                    continue 'limiter_refs;
                }
                Err(error) => return Err(error),
            }
        }
    }
    heard
}

/// How many microseconds an instant lies before another; less than zero: after it.
fn ago(now: Micros, at: Micros) -> i64 {
    let span = |span: Micros| i64::try_from(span.0).unwrap_or(i64::MAX);
    span(now - at) - span(at - now)
}
