//! Keeps the memory of the store: tells it that this replica lives, hears when it has lost what it held, and writes back
//! what this replica was granted.
//!
//! An [epoch](Epoch) is the time between two losses. Invariants:
//! - nobody uses a slot that was booked in an epoch before the one last heard of ([`StoreSession::epoch`]), so all that is ever used
//!   of what was booked before lies at or before the instant at which the ledger is read;
//! - the store grants nothing in the first moments of an epoch, in which every replica is heard at least twice.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use futures_util::stream::{self, StreamExt};
use tokio::time::{Duration, Instant, sleep};
use tracing::{debug, warn};

use crate::clock::Micros;
use crate::limiter::queue::worker::Fallback;
use crate::limiter::recovery::ledger::Granted;
use crate::limiter::registry::active_limiter::StoreSession;
use crate::limiter::registry::queues::Queues;
use crate::limiter::store::{Epoch, LimiterRef, StoreError, Unknown, WriteBack};

/// How often the store is asked for its epoch while nothing is granted. Its key lives longer than two of these.
const QUIET: Duration = Duration::from_secs(5);

/// Writes that are under way at once: the epoch settles only while they come.
const WRITES_MAX: usize = 64;

/// Keeps one store's memory.
pub(in crate::limiter) struct Recovery {
    session: Weak<StoreSession>,
    queues: Arc<Queues>,
    /// The epoch into which everything has been written.
    written: u64,
}

impl Recovery {
    pub(in crate::limiter) fn new(session: Weak<StoreSession>, queues: Arc<Queues>) -> Recovery {
        Recovery { session, queues, written: 0 }
    }

    /// Works for as long as somebody uses the store.
    pub(in crate::limiter) async fn run(mut self) {
        while let Some(session) = self.session.upgrade() {
            // An error is counted and told by the store; the next heartbeat tries again.
            if let Err(error) = self.beat(&session).await {
                debug!(%error, "the store's epoch is not known");
            }
            session.ledger.sweep(session.now());
            let pause = if session.ledger.is_empty() { QUIET } else { session.heartbeat() };
            tokio::select! {
                () = sleep(pause) => {}
                () = session.ledger.begun() => {}
                () = session.news() => {}
            }
        }
    }

    async fn beat(&mut self, session: &StoreSession) -> Result<(), StoreError> {
        let known = session.epoch.load(Ordering::Acquire);
        // Each answer to a worker tells the epoch, and keeps it alive.
        let heard = session.clock.heard().map(|clock| clock.heard());
        let least = session.epoch_least();
        let is_fresh = known != 0
            && known == least
            && !session.has_reset()
            && heard.is_some_and(|heard| heard.elapsed() < session.heartbeat());
        if !is_fresh {
            let sent = Instant::now();
            let (epoch, resets) = session.store.epoch(least).await?;
            // A store that is never lost tells none.
            if epoch.id != 0 {
                session.hear_clock(sent, Instant::now(), epoch.now);
            }
            if session.meet_epoch(epoch) {
                self.queues.wake_all();
            }
            session.follow_resets(&resets, &self.queues.fallback);
        }
        let current = session.epoch.load(Ordering::Acquire);
        // The first one that is heard of has lost nothing of this replica's.
        if self.written == 0 {
            self.written = current;
        }
        if self.written != current {
            self.write_back(session, current).await?;
        }
        report_offline_grants(session, &session.ledger.unsaid(), &self.queues.fallback).await
    }

    /// Writes everything back. What fails is tried again with the next heartbeat, under its number.
    async fn write_back(&mut self, session: &StoreSession, epoch: u64) -> Result<(), StoreError> {
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
        let (store, replica) = (&session.store, self.queues.fallback.replica);
        let writes = granted.into_iter().map(|Granted { limiter_ref, entries, seen }| async move {
            let entries = entries.iter().map(|entry| (ago(latest, entry.at), entry.permits)).collect();
            // The epoch is the number: what has been written into it already is not written twice.
            let unknown = Unknown::Lost;
            let write = WriteBack { replica, unknown, number: epoch, known: epoch, seen, sent, entries };
            store.write_back(&limiter_ref, &write).await
        });
        // One that fails does not keep the others from it.
        let written: Vec<Result<Epoch, _>> =
            stream::iter(writes).buffer_unordered(WRITES_MAX).collect().await;
        for error in written.into_iter().filter_map(Result::err) {
            match error {
                // It stays so until somebody deletes what is there, and begins anew with that.
                StoreError::Unreadable(_) => warn!(%error, "cannot write back"),
                error => return Err(error),
            }
        }
        self.written = epoch;
        Ok(())
    }
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
                known: session.epoch_least(),
                seen: 0,
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
