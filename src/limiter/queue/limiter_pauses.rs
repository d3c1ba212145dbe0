//! The known pauses of a limiter, as its queues and its operators share them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{Micros, Moment};
use crate::limiter::model::{ActionByHand, Cause, Partition, PauseStretch, Reason};
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

    /// Takes in an action by hand that the store has. Returns when it was, and when the pause ends; `None` if it changes nothing. It is told
    /// again while an action is known that the store has still to be told of: its answer to that says which of them holds.
    pub(in crate::limiter) fn follow_by_hand(&self, action: &ActionByHand) -> Option<(Moment, Moment)> {
        let ActionByHand { partition, stretch, replica, .. } = *action;
        let (at, until) = self.session.moments(stretch)?;
        let cause = Cause { reason: Reason::ByHand, replica };
        let (is_followed, is_unreported) = self.with(|known, memory, now| {
            let pause = KnownPause { at, until, cause: Some(cause), memory: Some(memory) };
            let is_followed = known.is_news(partition, &pause) && known.note(partition, pause, memory, now);
            (is_followed, known.is_unreported(partition, memory))
        });
        if is_unreported {
            self.session.hear_again(action);
        }
        is_followed.then_some((at, until))
    }

    /// Takes in the end of a pause that an answer of the store names, which it gave at a moment. Returns false if an action that the store
    /// was not told of yet outranks it, or one that is later than the answer.
    pub(in crate::limiter) fn note_end(
        &self,
        partition: Option<Partition>,
        (at, until): (Moment, Moment),
    ) -> bool {
        self.with(|known, memory, now| known.note_end(partition, (at, until), memory, now))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use crate::clock::Clock;
    use crate::limiter::model::{Epoch, HeartbeatAnswer, LimiterName};
    use crate::limiter::tests::latent_store::LatentStore;

    const SECOND: Micros = Micros::from_millis(1000);

    fn by_hand(partition: Option<Partition>, stretch: PauseStretch) -> ActionByHand {
        let name = LimiterName::parse("api").unwrap();
        ActionByHand { name, partition, stretch, replica: 2 }
    }

    /// One that another replica has told the store of, of which this one hears first with a heartbeat.
    #[tokio::test(start_paused = true)]
    async fn an_action_by_hand_is_heard_again_once_the_store_was_told_of_this_replicas_own() {
        let clock = Clock::of_runtime();
        let session = Arc::new(StoreSession::new(LatentStore::new(clock, Duration::ZERO), clock));
        let answered = || {
            let epoch = Epoch { now: clock.now(), id: 1, memory: 1, ..Epoch::default() };
            session.answered(session.moment(), epoch);
        };
        let pauses = LimiterPauses::new(session.clone());
        answered();
        sleep(Duration::from_secs(10)).await;
        let resume = Cause { reason: Reason::ByHand, replica: 1 };
        let resumed_at = pauses.pause_locally(None, session.moment(), resume);
        sleep(Duration::from_secs(5)).await;
        answered();
        for before in [6, 1] {
            let from = clock.now() - Micros(before * SECOND.0);
            let stretch = PauseStretch { from, until: clock.now() + SECOND + SECOND };
            let action = by_hand(None, stretch);
            let answer = HeartbeatAnswer { by_hand: vec![action.clone()], ..HeartbeatAnswer::default() };
            for _ in 0..2 {
                assert_eq!(session.take_by_hand(&answer), answer.by_hand);
                assert_eq!(pauses.follow_by_hand(&action), None, "the store is told of the resume first");
                assert_eq!(pauses.unreported().len(), 1);
            }
            if before == 6 {
                continue;
            }
            // The store answers that the pause holds, which was later.
            let (_, told) = pauses.unreported()[0];
            assert_eq!(told.at, resumed_at);
            assert!(pauses.confirm_report(None, told, session.moments(stretch).unwrap().1));
            assert_eq!(session.take_by_hand(&answer), answer.by_hand);
            assert_eq!(pauses.follow_by_hand(&action), session.moments(stretch));
            assert!(session.take_by_hand(&answer).is_empty() && pauses.is_paused());
        }
    }

    #[test]
    fn of_actions_from_before_the_machine_started_the_later_one_counts() {
        let wall = Micros(1_000_000 * SECOND.0);
        let clock = Clock::starting_at(wall, || SECOND + SECOND);
        let session = Arc::new(StoreSession::new(LatentStore::new(clock, Duration::ZERO), clock));
        session.answered(session.moment(), Epoch { now: wall, id: 1, memory: 1, ..Epoch::default() });
        let pauses = LimiterPauses::new(session);
        let (partition, ago) =
            (Some(Partition::of([Some(&b"tenant"[..])])), |seconds| wall - Micros(seconds * SECOND.0));
        let pause = PauseStretch { from: ago(60), until: wall + Micros(60 * SECOND.0) };
        assert!(pauses.follow_by_hand(&by_hand(None, pause)).is_some());
        let resume = PauseStretch { from: ago(30), until: Micros::ZERO };
        assert!(pauses.follow_by_hand(&by_hand(partition, resume)).is_some(), "it is the later one");
        assert_eq!((pauses.in_force(partition).is_some(), pauses.in_force(None).is_some()), (false, true));
    }
}
