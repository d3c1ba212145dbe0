//! The heartbeat of one part of a store: tells the store that this replica hears it, hears of new epochs, and has this replica's
//! grants written back where the store does not know them.
//!
//! An [epoch](crate::limiter::model::epoch::Epoch) is the time between two doubts of what the store knows. Invariants:
//! - no slot is used that was booked in an earlier epoch than the latest one known ([`StoreSession::epoch`]). So every slot
//!   of an earlier memory that is ever used lies at or before the instant at which the ledger moves it to what is to be written
//!   back ([`WriteBack`](crate::limiter::recovery::link::SessionAction::WriteBack));
//! - the store grants nothing in the first moments of an epoch, and each replica's heartbeat reaches it at least twice
//!   meanwhile;
//! - a replica says that it has reported everything only when the store has confirmed each write of that epoch. Until each member
//!   has said so the store charges what they may have been granted.

use std::sync::{Arc, Weak};

use tokio::time::{Duration, sleep, timeout};
use tracing::{debug, warn};

use crate::clock::{Micros, Moment};
use crate::limiter::model::{ActionByHand, CopyExchange, Heartbeat, HeartbeatAnswer, Moved, Reported};
use crate::limiter::recovery::copies::OwnCopy;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::link::{Link, SessionEvent};
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::recovery::write_back::write_back;
use crate::limiter::store::StoreError;

/// The most times in a row that a heartbeat is repeated because the store's answer shows that it misses something.
const REPEATED_MAX: usize = 4;

/// How many times sooner than at its interval a failed heartbeat is repeated.
const RETRIED: u32 = 4;

/// The longest time that a replica spends on saying farewell.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// The notices of a heartbeat to queues.
#[derive(Clone, Copy)]
pub(in crate::limiter) enum HeartbeatNotice<'a> {
    /// A new epoch has begun, or the store is away or back.
    LinkChanged,
    /// Bookings of these limiters of this session were moved, or the next call moves them, as of an instant of its store's clock.
    Moved(&'a StoreSession, &'a [Moved], Micros),
    /// Bookings of any limiter of this session may be moved by the next call, as of an instant of its store's clock.
    AllMoved(&'a StoreSession, Micros),
    /// Limiters of this session, or partitions, were paused or resumed by hand.
    ByHand(&'a StoreSession, &'a [ActionByHand]),
}

/// The heartbeat of one session.
pub(in crate::limiter) struct Recovery<F> {
    session: Weak<StoreSession>,
    fallback: Arc<Fallback>,
    /// Tells queues what they must know.
    tell: F,
}

impl<F: Fn(HeartbeatNotice<'_>)> Recovery<F> {
    /// Creates the heartbeat of a session; `tell` tells queues what they must know.
    pub(in crate::limiter) fn new(
        session: Weak<StoreSession>,
        fallback: Arc<Fallback>,
        tell: F,
    ) -> Recovery<F> {
        Recovery { session, fallback, tell }
    }

    /// Runs until no limiter uses the session any more.
    pub(in crate::limiter) async fn run(self) {
        let mut link = None;
        while let Some(session) = self.session.upgrade() {
            let beaten = beat(&session, &self.fallback, &self.tell).await;
            // The store counts the error and logs it.
            if let Err(error) = &beaten {
                debug!(%error, "the store does not hear this replica");
            }
            session.ledger().sweep(session.now());
            // Workers look seldom while their slots are far.
            let known = session.advance(session.moment()).link;
            if link.replace(known).is_some_and(|before| is_another(before, known)) {
                (self.tell)(HeartbeatNotice::LinkChanged);
            }
            let interval = session.terms.heartbeat.to_duration();
            // A lost answer is made up for before the fleet's silence is a doubt.
            let pause = if beaten.is_ok() { interval } else { interval / RETRIED };
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = session.changed() => {}
            }
        }
    }
}

/// Makes a heartbeat, writes back what the store does not know, and says so.
///
/// # Errors
/// The first failed call.
pub(in crate::limiter) async fn beat(
    session: &StoreSession,
    fallback: &Fallback,
    tell: &impl Fn(HeartbeatNotice<'_>),
) -> Result<(), StoreError> {
    for _ in 0..REPEATED_MAX {
        let Some(heartbeat) = next_heartbeat(session, fallback) else {
            return Ok(());
        };
        let sent = session.moment();
        let answer = match session.store.heartbeat(&heartbeat).await {
            Ok(answer) => answer,
            Err(error) => {
                session.on(SessionEvent::Failed { sent }, session.moment());
                return Err(error);
            }
        };
        // A store that never loses its memory answers no epoch.
        if answer.epoch.id == 0 {
            return Ok(());
        }
        if session.answered(sent, answer.epoch) {
            tell(HeartbeatNotice::LinkChanged);
        }
        // By a stepped clock, permits of members that have ended would seem to matter for another time than they do.
        if answer.epoch.id >= session.epoch_least() {
            let now = session.moment();
            session.copies().learn(fallback.replica, &heartbeat.copies, heartbeat.known_epoch, &answer, now);
            tell_moves(session, fallback, sent, &answer, tell);
            log_doubt(session, &answer);
        }
        session.follow_resets(&answer, fallback);
        session.earlier_layout.follow(&*session.store, answer.earlier_epoch).await?;
        let current = Reported { memory: answer.epoch.memory, epoch: answer.epoch.id };
        let is_told = heartbeat.reported == current && heartbeat.version == answer.version;
        if is_told && !session.ledger().has_unreported() {
            return Ok(());
        }
        if !write_back(session, fallback).await? || session.epoch() != current.epoch {
            return Ok(());
        }
        session.members().set_reported(current);
    }
    Ok(())
}

/// Returns whether a store is something else to a replica than it was.
fn is_another(before: Link, now: Link) -> bool {
    std::mem::discriminant(&before) != std::mem::discriminant(&now)
}

/// Returns the next heartbeat; `None` once this replica has left.
fn next_heartbeat(session: &StoreSession, fallback: &Fallback) -> Option<Heartbeat> {
    let (epoch, told_until) = (session.epoch_least(), session.moves_told_until());
    let mut heartbeat = session.members().heartbeat(fallback.replica, epoch, told_until, session.moment())?;
    if heartbeat.reported.memory == 0 && session.ledger().has_unreported() {
        // It was granted nothing by the store, but something without it.
        heartbeat.reported = Reported { memory: 1, epoch: 1 };
    }
    let is_heard = has_reported(session, &heartbeat) && !session.members().is_alone();
    let own_copy = if is_heard { OwnCopy::Changes } else { OwnCopy::Withheld };
    heartbeat.copies = exchange(session, fallback, own_copy);
    Some(heartbeat)
}

/// Returns what a heartbeat says of copies.
fn exchange(session: &StoreSession, fallback: &Fallback, own_copy: OwnCopy) -> CopyExchange {
    let now = (session.moment(), session.now());
    let said = session.copies().exchange(fallback.replica, &session.ledger(), now, own_copy);
    CopyExchange { follows: session.members().follows(), ..said }
}

/// Returns whether this replica has reported to the store's present memory all that it was granted.
fn has_reported(session: &StoreSession, heartbeat: &Heartbeat) -> bool {
    let current = Reported { memory: session.memory(), epoch: session.epoch() };
    current.epoch != 0 && heartbeat.reported == current && !session.ledger().has_unreported()
}

/// Tells queues which bookings were moved, and of actions by hand, as the answer to a heartbeat names them.
///
/// Invariant: a queue is told before the session says that queues have been told, on which their leases go by.
fn tell_moves(
    session: &StoreSession,
    fallback: &Fallback,
    sent: Moment,
    answer: &HeartbeatAnswer,
    tell: &impl Fn(HeartbeatNotice<'_>),
) {
    let at = answer.epoch.now;
    if session.members().learn(fallback.replica, answer, session.moment()) {
        tell(HeartbeatNotice::AllMoved(session, at));
    }
    let moved = answer.moved.as_deref().unwrap_or_default();
    if !moved.is_empty() {
        tell(HeartbeatNotice::Moved(session, moved, at));
    }
    let by_hand = session.take_by_hand(answer);
    if !by_hand.is_empty() {
        tell(HeartbeatNotice::ByHand(session, &by_hand));
    }
    let is_complete = answer.moved.is_some();
    session.on(SessionEvent::MovesTold { sent, epoch: answer.epoch, is_complete }, session.moment());
}

/// Logs that the store charges what it does not know of, once for each epoch: a limit may be closed for its window.
fn log_doubt(session: &StoreSession, answer: &HeartbeatAnswer) {
    if !session.members().is_new_doubt(answer) {
        return;
    }
    if answer.awaited.is_empty() {
        warn!(
            "replicas have not told what they granted while the store was not heard, because they have ended or are cut off: each limit \
             counts as used what they may have granted, until that has left its window, or until `weir reset`"
        );
    } else {
        warn!(
            replicas = answer.awaited.len(),
            "the store has lost its memory, and replicas have not told it what they were granted, because they have ended or are cut off: \
             each limit counts as used what they may have been granted, until that has left its window, or until `weir reset`"
        );
    }
}

/// Says farewell to the store. The permits that this replica was granted matter still.
pub(in crate::limiter) async fn leave(session: &StoreSession, fallback: &Fallback) {
    let matters_for = session.ledger().expires().unwrap_or_default() - session.now();
    let farewell =
        session.members().farewell(fallback.replica, session.epoch_least(), matters_for, session.moment());
    if let Some(farewell) = farewell.filter(|_| session.store.may_fail()) {
        // After a failure its membership ends by itself.
        let _ = timeout(FAREWELL_MAX, say_farewell(session, fallback, farewell)).await;
    }
}

/// Says farewell until the store knows what this replica was granted: the answer may be the first word of a memory that does not. Its last
/// copy would not be there then, and all would be charged that it may have been granted.
async fn say_farewell(
    session: &StoreSession,
    fallback: &Fallback,
    mut farewell: Heartbeat,
) -> Result<(), StoreError> {
    for _ in 0..REPEATED_MAX {
        let is_written = session.ledger().unreported().is_empty();
        let is_all =
            is_written && has_reported(session, &farewell) && session.ledger().is_complete(session.now());
        let own_copy = if is_all { OwnCopy::Final } else { OwnCopy::Withheld };
        farewell.copies = exchange(session, fallback, own_copy);
        let sent = session.moment();
        let epoch = session.store.heartbeat(&farewell).await?.epoch;
        let current = Reported { memory: epoch.memory, epoch: epoch.id };
        if epoch.id == 0 || farewell.reported.memory == 0 || farewell.reported == current {
            return Ok(());
        }
        session.answered(sent, epoch);
        if !write_back(session, fallback).await? || session.epoch() != current.epoch {
            return Ok(());
        }
        (farewell.reported, farewell.known_epoch) = (current, session.epoch_least());
    }
    Ok(())
}
