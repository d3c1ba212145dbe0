//! Keeps the memory of the store: tells it that this replica lives, hears when it has lost what it held, and writes back
//! what this replica was granted.
//!
//! An [epoch](Epoch) is the time between two losses. Invariants:
//! - nobody uses a slot that was booked in an epoch before the one last heard of ([`StoreSession::epoch`]), so all that is ever used
//!   of what was booked before lies at or before the instant at which the ledger is read;
//! - the store grants nothing in the first moments of an epoch, in which every replica is heard at least twice.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::time::{Duration, Instant, sleep};
use tracing::debug;

use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::recovery::write_back::{report_offline_grants, write_back};
use crate::limiter::store::StoreError;

/// How often the store is asked for its epoch while nothing is granted. Its key lives longer than two of these.
const QUIET: Duration = Duration::from_secs(5);

/// Keeps one store's memory.
pub(in crate::limiter) struct Recovery<F> {
    session: Weak<StoreSession>,
    fallback: Arc<Fallback>,
    /// Called when the store has lost what it held.
    on_loss: F,
    /// The epoch into which everything has been written.
    written: u64,
}

impl<F: Fn()> Recovery<F> {
    pub(in crate::limiter) fn new(
        session: Weak<StoreSession>,
        fallback: Arc<Fallback>,
        on_loss: F,
    ) -> Recovery<F> {
        Recovery { session, fallback, on_loss, written: 0 }
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
                (self.on_loss)();
            }
            session.follow_resets(&resets, &self.fallback);
        }
        let current = session.epoch.load(Ordering::Acquire);
        // The first one that is heard of has lost nothing of this replica's.
        if self.written == 0 {
            self.written = current;
        }
        if self.written != current {
            write_back(session, &self.fallback, current).await?;
            self.written = current;
        }
        report_offline_grants(session, &session.ledger.unsaid(), &self.fallback).await
    }
}
