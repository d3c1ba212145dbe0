//! The known pauses of a limiter, as its queues and its operators share them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Cause, Partition, PauseStretch};
use crate::limiter::queue::known_pauses::{KnownPause, KnownPauses};
use crate::limiter::recovery::session::StoreSession;

/// The known pauses of a limiter.
pub(in crate::limiter) struct LimiterPauses {
    session: Arc<StoreSession>,
    known: Mutex<KnownPauses>,
    /// True if a pause is known. Read for each answer, so it stands outside the lock.
    has_any: AtomicBool,
}

impl LimiterPauses {
    /// Returns no pauses, of a limiter in this part of a store.
    pub(in crate::limiter) fn new(session: Arc<StoreSession>) -> LimiterPauses {
        LimiterPauses { session, known: Mutex::default(), has_any: AtomicBool::new(false) }
    }

    /// Acts on the known pauses, with the store's present memory and the present moment.
    fn with<T>(&self, act: impl FnOnce(&mut KnownPauses, u64, Moment) -> T) -> T {
        let (memory, now) = (self.session.memory(), self.session.moment());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.prune(memory, now);
        let result = act(&mut known, memory, now);
        self.has_any.store(!known.is_empty(), Ordering::Release);
        result
    }

    fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Takes in a pause that this replica alone knows, or the end of one by hand. Returns when it was set.
    pub(in crate::limiter) fn pause_locally(
        &self,
        partition: Option<Partition>,
        until: Moment,
        cause: Cause,
    ) -> Moment {
        self.with(|known, memory, now| {
            // A later action has a later moment.
            let at = known.of(partition).map_or(now, |last| now.max(last.at + Micros::ONE));
            let until = if until > now { until } else { at };
            known.note(partition, KnownPause { at, until, cause: Some(cause), memory: None }, memory, now);
            at
        })
    }

    /// Takes in a pause of the store, or the end of one by hand. Returns false if a later action, which the store was not told of
    /// yet, outranks it.
    pub(in crate::limiter) fn note(
        &self,
        partition: Option<Partition>,
        stretch: PauseStretch,
        cause: Cause,
    ) -> bool {
        let Some((at, until)) = self.session.moments(stretch) else { return true };
        self.with(|known, memory, now| {
            let pause = KnownPause { at, until, cause: Some(cause), memory: Some(memory) };
            known.note(partition, pause, memory, now)
        })
    }

    /// Takes in the end of a pause that an answer of the store names. Returns false if an action that the store was not told of
    /// yet outranks it.
    pub(in crate::limiter) fn note_end(&self, partition: Option<Partition>, until: Moment) -> bool {
        self.with(|known, memory, now| known.note_end(partition, until, memory, now))
    }

    /// Takes in that the store, in the answer to a call that was sent at a moment, knows of no pause. Returns whether this replica
    /// keeps to none either.
    pub(in crate::limiter) fn note_none(&self, partition: Option<Partition>, sent: Moment) -> bool {
        !self.has_any() || self.with(|known, memory, _| known.ended(partition, memory, sent))
    }

    /// Returns the last action on the limiter or a partition that may still matter, and whether this replica alone knows it.
    pub(in crate::limiter) fn known(&self, partition: Option<Partition>) -> Option<(KnownPause, bool)> {
        if !self.has_any() {
            return None;
        }
        let may_forget = self.session.store.may_fail();
        self.with(|known, memory, _| {
            known.of(partition).map(|pause| (pause, may_forget && pause.memory != Some(memory)))
        })
    }

    /// Returns the pause in force.
    pub(in crate::limiter) fn in_force(&self, partition: Option<Partition>) -> Option<KnownPause> {
        let (pause, _) = self.known(partition)?;
        Some(pause).filter(|pause| !pause.is_lifted() && pause.until > self.session.moment())
    }

    /// Returns what the store has to be told, in the order of the actions.
    pub(in crate::limiter) fn unreported(&self) -> Vec<(Option<Partition>, KnownPause)> {
        if !self.has_any() || !self.session.store.may_fail() {
            return Vec::new();
        }
        self.with(|known, memory, now| known.unreported(memory, now))
    }

    /// Takes in that the store was told of a pause, which ends at a moment by now. Returns false if another action has been heard of
    /// meanwhile, which counts.
    pub(in crate::limiter) fn confirm_report(
        &self,
        partition: Option<Partition>,
        told: KnownPause,
        until: Moment,
    ) -> bool {
        self.with(|known, memory, now| known.confirm_report(partition, told, (memory, until), now))
    }

    /// Returns whether the limiter, or any of its partitions, is paused.
    pub(in crate::limiter) fn is_paused(&self) -> bool {
        self.has_any() && self.with(|known, _, now| known.is_paused(now))
    }
}
