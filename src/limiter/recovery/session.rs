//! The session with one part of a store, as all workers of this replica share it: its [core](crate::limiter::recovery::link),
//! the members, the permits granted there and copies of others', each under a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracing::{info, warn};

use crate::clock::{Clock, Micros, Moment};
use crate::limiter::model::{ActionByHand, Epoch, HeartbeatAnswer, LimiterName, PauseStretch};
use crate::limiter::recovery::copies::Copies;
use crate::limiter::recovery::earlier_layout::EarlierLayout;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::ledger::Ledger;
use crate::limiter::recovery::link::{Link, MovesTold, Session, SessionAction, SessionEvent, Terms};
use crate::limiter::recovery::members::Members;
use crate::limiter::store::Store;
use crate::limiter::store::call_gate::CallGate;
use crate::limiter::store::clock::StoreClock;

/// A part of a store, with this replica's knowledge of it. Limiters that are taken together share one.
pub(in crate::limiter) struct StoreSession {
    pub(in crate::limiter) store: Arc<dyn Store>,
    /// This process's clock, used before the store's first answer.
    pub(in crate::limiter) wall: Clock,
    pub(in crate::limiter) terms: Terms,
    /// Bounds the calls of workers.
    pub(in crate::limiter) gate: CallGate,
    /// The records kept for replicas of an earlier version.
    pub(in crate::limiter) earlier_layout: EarlierLayout,
    /// The four cores. Whoever holds two of them at once has locked the copies before the ledger.
    state: Mutex<Session>,
    members: Mutex<Members>,
    copies: Mutex<Copies>,
    ledger: Mutex<Ledger>,
    /// The actions by hand that the last heartbeat's answer told of.
    by_hand: Mutex<Vec<ActionByHand>>,
    /// One more than the epoch whose slots may be used; zero if none may be. Read for each permit, so it stands outside the lock.
    usable: AtomicU64,
    /// Wakes the heartbeat.
    changed: Notify,
}

/// The knowledge of a part of a store after an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Known {
    pub(in crate::limiter) link: Link,
    /// The store's clock; `None` before its first answer.
    pub(in crate::limiter) clock: Option<StoreClock>,
    /// The earliest epoch whose answers are accepted.
    pub(in crate::limiter) epoch_least: u64,
    /// The first epoch of the store's present memory; zero before its first answer.
    pub(in crate::limiter) memory: u64,
    /// How far queues have been told what was moved in the epoch.
    pub(in crate::limiter) moves_told: Option<MovesTold>,
}

impl StoreSession {
    /// Creates the session with a store that has not answered yet.
    pub(in crate::limiter) fn new(store: Arc<dyn Store>, wall: Clock) -> StoreSession {
        let terms = Terms::new(store.lease(), store.timeout());
        let terms = if store.may_fail() { terms } else { terms.without_failures() };
        let gate = CallGate::new(store.timeout());
        StoreSession {
            store,
            wall,
            terms,
            gate,
            earlier_layout: EarlierLayout::default(),
            state: Mutex::new(Session::new(terms)),
            members: Mutex::default(),
            copies: Mutex::default(),
            ledger: Mutex::default(),
            by_hand: Mutex::default(),
            usable: AtomicU64::new(1),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Session> {
        lock(&self.state)
    }

    /// Returns the permits granted to this replica.
    pub(in crate::limiter) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Returns the copies of the permits granted to the other replicas.
    pub(in crate::limiter) fn copies(&self) -> MutexGuard<'_, Copies> {
        lock(&self.copies)
    }

    /// Returns the members that share the store, and what this replica has told it.
    pub(in crate::limiter) fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    /// Takes in an event. Returns what is known then, and whether the slots of an earlier epoch are void with it.
    pub(in crate::limiter) fn on(&self, event: SessionEvent, now: Moment) -> (Known, bool) {
        if let SessionEvent::Answered { epoch, .. } = event {
            self.members().answered(epoch.now);
        }
        let mut actions = Vec::new();
        let mut state = self.state();
        // Time may have passed until the lock was free, in which permits were used by what was known before.
        state.on(event, now.max(self.moment()), &mut actions);
        let Session { link, moves_told, memory, .. } = *state;
        let clock = state.clock();
        let known = Known { link, clock, epoch_least: state.epoch_least(), memory, moves_told };
        self.usable.store(link.usable_epoch().map_or(0, |epoch| epoch + 1), Ordering::Release);
        drop(state);
        for action in &actions {
            match action {
                SessionAction::Step(step) => {
                    warn!(
                        ?step,
                        "the store's clock was stepped: replicas write back their grants into a new epoch"
                    );
                    self.ledger().step(*step);
                    self.copies().step(*step);
                }
                SessionAction::WriteBack { memory, until } => self.ledger().mark_forgotten(*memory, *until),
                SessionAction::VoidSlots { after } => self.ledger().void_after(*after),
                SessionAction::Reset => {}
            }
            self.changed.notify_one();
        }
        (known, actions.iter().any(|action| matches!(action, SessionAction::VoidSlots { .. })))
    }

    /// Advances to `now`: a doubt may have become an outage, or an epoch may have opened. Returns what is known then.
    pub(in crate::limiter) fn advance(&self, now: Moment) -> Known {
        self.on(SessionEvent::Tick, now).0
    }

    /// Returns the present moment.
    pub(in crate::limiter) fn moment(&self) -> Moment {
        self.wall.moment()
    }

    /// Takes in the answer to a call that was sent at a moment. Returns whether slots are void since the answer before, because a new epoch
    /// has begun.
    pub(in crate::limiter) fn answered(&self, sent: Moment, epoch: Epoch) -> bool {
        self.on(SessionEvent::Answered { sent, epoch }, self.moment()).1
    }

    /// Takes in the epoch of an answer. Returns whether slots are void since the answer before, because a new one has begun.
    pub(in crate::limiter) fn observe_epoch(&self, epoch: Epoch) -> bool {
        self.on(SessionEvent::Announced(epoch), self.moment()).1
    }

    /// Returns whether slots of an epoch may be used, each within the lease of its queue.
    pub(in crate::limiter) fn is_usable(&self, epoch: u64) -> bool {
        self.usable.load(Ordering::Acquire) == epoch + 1
    }

    /// Removes the grants from before the resets of an answer, from the ledger and from this replica's own memory. Those of an epoch that
    /// is over are at instants of a clock that may have been set back since: they would seem to lie behind what was granted later.
    pub(in crate::limiter) fn follow_resets(&self, answer: &HeartbeatAnswer, fallback: &Fallback) {
        if answer.epoch.id < self.epoch_least() {
            return;
        }
        let (now, followed) = (self.now(), self.state().resets.followed);
        for reset in answer.resets.iter().filter(|reset| reset.at > followed) {
            let local_at = fallback.clock.now() - (now - reset.at);
            self.ledger().reset(reset, local_at);
            self.copies().reset(reset);
            fallback.store.reset_at(local_at, &reset.name, reset.partition);
            self.on(SessionEvent::ResetsFollowed(reset.at), self.moment());
            info!(limiter = %reset.name, "reset: earlier use no longer counts");
        }
    }

    /// Returns the actions by hand of an answer that the one before did not tell of.
    pub(in crate::limiter) fn take_by_hand(&self, answer: &HeartbeatAnswer) -> Vec<ActionByHand> {
        let mut told = lock(&self.by_hand);
        let untold = answer.by_hand.iter().filter(|action| !told.contains(action)).cloned().collect();
        told.clone_from(&answer.by_hand);
        untold
    }

    /// Lets the next answer tell of the actions by hand on a limiter once more: one that has come since knows of none.
    pub(in crate::limiter) fn hear_again_of(&self, limiter: &LimiterName) {
        lock(&self.by_hand).retain(|told| told.name != *limiter);
    }

    /// Lets the next answer tell of an action by hand once more.
    pub(in crate::limiter) fn hear_again(&self, action: &ActionByHand) {
        lock(&self.by_hand).retain(|told| told != action);
    }

    /// Returns the instant until which queues have been told what was moved in the epoch; zero: not at all.
    pub(in crate::limiter) fn moves_told_until(&self) -> Micros {
        self.state().moves_told.map_or(Micros::ZERO, |told| told.until)
    }

    /// Returns when the store's outage began; `None` if there is none.
    pub(in crate::limiter) fn away_since(&self) -> Option<Moment> {
        let state = self.state();
        matches!(state.link, Link::Away { .. }).then_some(state.outages.began)
    }

    /// Returns the latest epoch that the store has answered; zero before its first answer.
    pub(in crate::limiter) fn epoch(&self) -> u64 {
        self.state().epoch
    }

    /// Returns the store's present memory; zero before its first answer.
    pub(in crate::limiter) fn memory(&self) -> u64 {
        self.state().memory
    }

    /// Returns the earliest epoch whose answers are accepted.
    pub(in crate::limiter) fn epoch_least(&self) -> u64 {
        self.state().epoch_least()
    }

    /// Returns the store's clock, if the store has answered.
    pub(in crate::limiter) fn clock(&self) -> Option<StoreClock> {
        self.state().clock()
    }

    /// Returns the moments of a pause by the store's clock; `None` before the store's first answer.
    ///
    /// It ends no later than its length from now on: that clock may have been stepped since this replica heard it last.
    pub(in crate::limiter) fn moments(&self, stretch: PauseStretch) -> Option<(Moment, Moment)> {
        let (clock, now) = (self.clock()?, self.moment());
        let until =
            clock.moment_of(stretch.until.max(stretch.from)).min(now + (stretch.until - stretch.from));
        Some((clock.moment_of(stretch.from).min(now), until))
    }

    /// Gives the heartbeat something to do: the ledger has grants that the store does not have.
    pub(in crate::limiter) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Waits until the heartbeat has something to do: a new epoch has begun, or a limiter was reset.
    pub(in crate::limiter) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the least time that the store's clock shows now; this process's time before the store's first answer.
    pub(in crate::limiter) fn now(&self) -> Micros {
        let now = self.moment();
        self.clock().map_or_else(|| self.wall.at(now), |clock| clock.earliest(now))
    }

    /// Returns the instant that an answer tells, or the nearest to it that the store's clock can show now. The first answer behind a step
    /// of that clock is on another one than all that was granted, until the step is noticed and all of that moves with it.
    pub(in crate::limiter) fn on_known_clock(&self, told: Micros) -> Micros {
        let now = self.moment();
        self.clock().map_or(told, |clock| told.max(clock.earliest(now)).min(clock.latest(now)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
