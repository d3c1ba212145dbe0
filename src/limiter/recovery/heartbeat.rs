//! The heartbeat of one part of a store: notices that the store has lost its state, and has this replica's grants written
//! back to it.
//!
//! An [epoch](crate::limiter::model::epoch::Epoch) is the time between two losses. Invariants:
//! - no slot is used that was booked in an earlier epoch than the latest one known ([`StoreSession::epoch`]). So every slot
//!   of an earlier epoch that is ever used lies at or before the instant at which the ledger is read;
//! - the store grants nothing in the first moments of an epoch, and each replica's heartbeat reaches it at least twice
//!   meanwhile.

use std::sync::{Arc, Weak};

use tokio::time::{Duration, sleep};
use tracing::debug;

use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::link::SessionEvent;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::recovery::write_back::{report_offline_grants, write_back};
use crate::limiter::store::StoreError;

/// How often the store is asked for its epoch while nothing is granted. Its key lives longer than two of these.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// The heartbeat of one session.
pub(in crate::limiter) struct Recovery<F> {
    session: Weak<StoreSession>,
    fallback: Arc<Fallback>,
    /// Called when the store has lost its state.
    on_loss: F,
    /// The epoch into which all grants have been written; zero before the first epoch.
    written: u64,
}

impl<F: Fn()> Recovery<F> {
    /// Creates the heartbeat of a session; `on_loss` is called after each loss of the store's state.
    pub(in crate::limiter) fn new(
        session: Weak<StoreSession>,
        fallback: Arc<Fallback>,
        on_loss: F,
    ) -> Recovery<F> {
        Recovery { session, fallback, on_loss, written: 0 }
    }

    /// Runs until no limiter uses the session any more.
    pub(in crate::limiter) async fn run(mut self) {
        while let Some(session) = self.session.upgrade() {
            // The store counts and logs the error; the next heartbeat tries again.
            if let Err(error) = self.beat(&session).await {
                debug!(%error, "the store's epoch is not known");
            }
            session.ledger.sweep(session.now());
            let pause =
                if session.ledger.is_empty() { IDLE_INTERVAL } else { session.terms.heartbeat.to_duration() };
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = session.ledger.first_grant() => {}
                () = session.changed() => {}
            }
        }
    }

    async fn beat(&mut self, session: &StoreSession) -> Result<(), StoreError> {
        if !is_fresh(session) {
            self.refresh(session).await?;
        }
        let current = session.epoch();
        // The first epoch that this replica sees has lost none of its grants.
        if self.written == 0 {
            self.written = current;
        }
        if self.written != current {
            write_back(session, &self.fallback, current).await?;
            self.written = current;
        }
        report_offline_grants(session, &session.ledger.unreported(), &self.fallback).await
    }

    /// Asks the store for its epoch and for recent resets.
    async fn refresh(&self, session: &StoreSession) -> Result<(), StoreError> {
        let sent = session.moment();
        let (epoch, resets) = match session.store.epoch(session.epoch_least()).await {
            Ok(answered) => answered,
            Err(error) => {
                session.on(SessionEvent::Failed { sent }, session.moment());
                return Err(error);
            }
        };
        // A store that never loses its state answers no epoch.
        if epoch.id != 0 && session.answered(sent, epoch) {
            (self.on_loss)();
        }
        session.follow_resets(&resets, &self.fallback);
        Ok(())
    }
}

/// Returns whether a worker's call has just returned the epoch, and kept it alive in the store.
fn is_fresh(session: &StoreSession) -> bool {
    let known = session.epoch();
    let heard = session.clock().map(|clock| clock.heard());
    known != 0
        && known == session.epoch_least()
        && !session.has_reset()
        && heard.is_some_and(|heard| session.moment() - heard < session.terms.heartbeat)
}
