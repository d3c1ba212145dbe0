//! The pauses of one limiter as this replica knows them, the latest of the limiter as a whole and of each of its partitions, and
//! whether the store knows them, too. Pure: the present moment is an argument.
//!
//! A pause that was made while the store did not answer, or that the store has forgotten, is known by this replica alone. It is
//! *unreported* until the store has been told of it. Of two actions the later one counts.

use std::collections::HashMap;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Cause, PAUSE_MAX, Partition, Reason};

/// The most partitions of a limiter whose pauses are known by name. The queues of others keep to theirs all the same.
const PARTITIONS_MAX: usize = 1000;

/// Two replicas that tell the store of one action do not agree on its moment, but nearly.
const SAME_WITHIN: Micros = Micros::from_millis(100);

/// How much later than the announcement of a resume an answer may be heard that the store gave before the resume.
const HEARD_LATE: Micros = Micros::from_millis(1000);

/// A pause, or the end of one by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct KnownPause {
    /// When it was set or lifted.
    pub(in crate::limiter) at: Moment,
    /// The end; not behind `at` where the pause was lifted.
    pub(in crate::limiter) until: Moment,
    /// The reason and the replica; `None` if only the end is known.
    pub(in crate::limiter) cause: Option<Cause>,
    /// The memory of the store in which it is; `None` while the store was not told.
    pub(in crate::limiter) memory: Option<u64>,
}

impl KnownPause {
    /// Returns whether it is the end of a pause, by hand.
    pub(in crate::limiter) fn is_lifted(&self) -> bool {
        self.until <= self.at
    }

    /// Returns whether an operator set or lifted it.
    fn is_by_hand(&self) -> bool {
        self.is_lifted() || matches!(self.cause, Some(Cause { reason: Reason::ByHand, .. }))
    }

    /// Returns whether the same replica, as far as it is known, set or lifted another.
    fn is_of_same(&self, other: &KnownPause) -> bool {
        self.cause.map(|cause| cause.replica) == other.cause.map(|cause| cause.replica)
    }

    /// Returns whether it is the same action as another, heard in another way.
    fn is_same(&self, other: &KnownPause) -> bool {
        let is_near = |one: Moment, two: Moment| one.0.abs_diff(two.0) <= SAME_WITHIN.0;
        let reasons = [self, other].map(|one| one.cause.map(|cause| cause.reason));
        let is_by_hand = self.is_by_hand();
        self.is_lifted() == other.is_lifted()
            && reasons[0] == reasons[1]
            && is_near(self.until, other.until)
            && (!is_by_hand || is_near(self.at, other.at))
    }

    /// Returns whether the store has to be told. What is not known in full cannot be told.
    fn is_unreported(&self, memory: u64) -> bool {
        self.memory != Some(memory) && self.cause.is_some()
    }

    /// Returns whether the pause is not over, or its end by hand may still matter.
    fn matters(&self, memory: u64, now: Moment) -> bool {
        let matters_for = if self.is_unreported(memory) { PAUSE_MAX } else { HEARD_LATE };
        self.until > now || (self.is_lifted() && now < self.at + matters_for)
    }

    /// Returns the resume by hand of a partition that is left of its last pause once that is over, if the pause of the whole limiter began
    /// before. After an upstream's pause the store knows of it if it knows of that of the whole.
    fn as_resume(self, whole: &KnownPause) -> KnownPause {
        let memory = if self.is_by_hand() { self.memory } else { whole.memory };
        let cause = self.cause.map(|cause| Cause { reason: Reason::ByHand, ..cause });
        KnownPause { until: self.at, cause, memory, ..self }
    }
}

/// The known pauses of one limiter.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct KnownPauses {
    whole: Option<KnownPause>,
    partitions: HashMap<Partition, KnownPause>,
}

impl KnownPauses {
    /// Takes in a pause, or the end of one. Returns false if an action that the store was not told of yet outranks it: a later one,
    /// and one by hand whatever another replica has done, because the store orders both when it is told, and its answer says which holds.
    pub(in crate::limiter) fn note(
        &mut self,
        partition: Option<Partition>,
        pause: KnownPause,
        memory: u64,
        now: Moment,
    ) -> bool {
        self.prune(memory, now);
        let known = self.of(partition);
        if let Some(known) = known.filter(|known| known.is_unreported(memory)) {
            if known.is_same(&pause) {
                self.put(partition, KnownPause { memory: pause.memory, ..known });
                self.prune(memory, now);
                return true;
            }
            if known.at > pause.at {
                return false;
            }
        }
        let outranks =
            |own: &mut KnownPause| own.is_by_hand() && own.memory.is_none() && !own.is_of_same(&pause);
        if pause.memory.is_some() && self.place(partition).is_some_and(outranks) {
            return false;
        }
        let goes_on = known.filter(|known| !pause.is_by_hand() && known.until >= pause.until);
        let pause = match (goes_on, pause.memory) {
            // A longer pause is never shortened by an upstream.
            (Some(known), _) if known.is_unreported(memory) => known,
            (Some(known), memory) => KnownPause { memory, ..known },
            (None, _) => pause,
        };
        if partition.is_none() && pause.is_by_hand() {
            self.partitions.retain(|_, part| part.at > pause.at);
        }
        self.put(partition, pause);
        self.prune(memory, now);
        true
    }

    /// Returns whether an action by hand that the store has is later than what is known, or tells what is only known by its end.
    pub(in crate::limiter) fn is_news(&self, partition: Option<Partition>, action: &KnownPause) -> bool {
        let is_outranked =
            |known: KnownPause| known.at >= action.at && (known.cause.is_some() || action.is_lifted());
        !self.of(partition).is_some_and(is_outranked)
    }

    /// Takes in the end of a pause that an answer of the store names, which it gave at a moment. Returns false if an action that the store
    /// was not told of yet outranks it, or one that is later than the answer.
    pub(in crate::limiter) fn note_end(
        &mut self,
        partition: Option<Partition>,
        (at, until): (Moment, Moment),
        memory: u64,
        now: Moment,
    ) -> bool {
        self.prune(memory, now);
        let known = self.of(partition);
        if known.is_some_and(|known| known.is_unreported(memory) || known.at > at) {
            return false;
        }
        let heard = KnownPause { at, until, cause: None, memory: Some(memory) };
        let known = known.filter(|known| !known.is_lifted());
        let pause = known.map_or(heard, |known| KnownPause { until, memory: Some(memory), ..known });
        self.put(partition, pause);
        true
    }

    /// Returns the latest action on the limiter as a whole, or on one of its partitions alone.
    fn place(&mut self, partition: Option<Partition>) -> Option<&mut KnownPause> {
        match partition {
            None => self.whole.as_mut(),
            Some(partition) => self.partitions.get_mut(&partition),
        }
    }

    fn put(&mut self, partition: Option<Partition>, pause: KnownPause) {
        match partition {
            None => self.whole = Some(pause),
            Some(partition)
                if self.partitions.len() < PARTITIONS_MAX || self.partitions.contains_key(&partition) =>
            {
                self.partitions.insert(partition, pause);
            }
            Some(_) => {}
        }
    }

    /// Returns the latest action on the limiter, or on one of its partitions.
    pub(in crate::limiter) fn of(&self, partition: Option<Partition>) -> Option<KnownPause> {
        let part = partition.and_then(|partition| self.partitions.get(&partition)).copied();
        part.into_iter().chain(self.whole).max_by_key(|pause| pause.at)
    }

    /// Returns whether the store has to be told of the latest action on the limiter, or on one of its partitions.
    pub(in crate::limiter) fn is_unreported(&self, partition: Option<Partition>, memory: u64) -> bool {
        self.of(partition).is_some_and(|known| known.is_unreported(memory))
    }

    /// Returns what the store has to be told, in the order of the actions.
    pub(in crate::limiter) fn unreported(
        &self,
        memory: u64,
        now: Moment,
    ) -> Vec<(Option<Partition>, KnownPause)> {
        let parts = self.partitions.iter().map(|(partition, pause)| (Some(*partition), *pause));
        let all = self.whole.map(|pause| (None, pause)).into_iter().chain(parts);
        let mut unreported: Vec<_> =
            all.filter(|(_, pause)| pause.is_unreported(memory) && pause.matters(memory, now)).collect();
        unreported.sort_unstable_by_key(|(partition, pause)| (pause.at, *partition));
        unreported
    }

    /// Takes in that the store was told, and that the pause ends at a moment by now. Returns false if another action has been heard of
    /// meanwhile, which counts.
    pub(in crate::limiter) fn confirm_report(
        &mut self,
        partition: Option<Partition>,
        told: KnownPause,
        (memory, until): (u64, Moment),
        now: Moment,
    ) -> bool {
        let known = self.place(partition).filter(|known| known.at == told.at);
        let is_known = known.map(|known| (known.memory, known.until) = (Some(memory), until)).is_some();
        self.prune(memory, now);
        is_known
    }

    /// Takes in that the store knew of no pause at the sending of a call. Returns whether the replica keeps to none either.
    pub(in crate::limiter) fn ended(
        &mut self,
        partition: Option<Partition>,
        memory: u64,
        sent: Moment,
    ) -> bool {
        let Some(known) = self.of(partition) else { return true };
        if known.memory != Some(memory) || known.at >= sent {
            return known.until <= sent;
        }
        match partition.and_then(|partition| self.partitions.get_mut(&partition)) {
            Some(part) => part.until = part.until.min(sent),
            None if partition.is_none() => self.whole = None,
            None => {}
        }
        true
    }

    /// Removes what does not matter any more. A later action on a partition than on the whole matters until the pause of the whole is over,
    /// which does not hold for that partition.
    pub(in crate::limiter) fn prune(&mut self, memory: u64, now: Moment) {
        self.whole.take_if(|pause| !pause.matters(memory, now));
        let whole = self.whole.filter(|whole| whole.until > now);
        self.partitions.retain(|_, part| {
            if part.matters(memory, now) {
                return true;
            }
            let exempted_from = whole.filter(|whole| whole.at < part.at);
            exempted_from.inspect(|whole| *part = part.as_resume(whole)).is_some()
        });
    }

    /// Returns whether the limiter, or any of its partitions, is paused.
    pub(in crate::limiter) fn is_paused(&self, now: Moment) -> bool {
        self.whole.iter().chain(self.partitions.values()).any(|pause| !pause.is_lifted() && pause.until > now)
    }

    pub(in crate::limiter) fn is_empty(&self) -> bool {
        self.whole.is_none() && self.partitions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros::from_millis(1000);
    const MEMORY: u64 = 7;

    fn at(seconds: u64) -> Moment {
        Moment(seconds * SECOND.0)
    }

    fn by_hand(set: u64, until: u64, memory: Option<u64>) -> KnownPause {
        let cause = Some(Cause { reason: Reason::ByHand, replica: 1 });
        KnownPause { at: at(set), until: at(until), cause, memory }
    }

    fn upstreams(set: u64, until: u64, memory: Option<u64>) -> KnownPause {
        let cause = Some(Cause { reason: Reason::Upstream { status: 429, is_named: true }, replica: 1 });
        KnownPause { cause, ..by_hand(set, until, memory) }
    }

    fn partition() -> Option<Partition> {
        Some(Partition::of([Some(&b"tenant"[..])]))
    }

    #[test]
    fn the_later_of_two_actions_counts() {
        let mut known = KnownPauses::default();
        assert!(known.note(None, by_hand(10, 60, None), MEMORY, at(10)));
        assert!(!known.note(None, by_hand(9, 9, Some(MEMORY)), MEMORY, at(11)), "a resume from before");
        assert_eq!(known.of(partition()), Some(by_hand(10, 60, None)), "of all partitions");
        assert!(known.note(partition(), by_hand(12, 12, None), MEMORY, at(12)));
        assert_eq!(known.of(partition()), Some(by_hand(12, 12, None)));
        assert_eq!(known.of(None), Some(by_hand(10, 60, None)));
        assert_eq!(
            known.unreported(MEMORY, at(13)),
            [(None, by_hand(10, 60, None)), (partition(), by_hand(12, 12, None))]
        );
        assert!(known.note(None, by_hand(14, 14, Some(MEMORY)), MEMORY, at(14)), "a resume of all, later");
        assert_eq!(known.of(partition()), Some(by_hand(14, 14, Some(MEMORY))));
        known.prune(MEMORY, at(15));
        assert!(known.is_empty(), "{known:?}");
    }

    /// Its instant may have been told later than it was.
    #[test]
    fn an_action_that_is_heard_does_not_take_the_place_of_an_untold_one() {
        for heard in [by_hand(11, 60, Some(MEMORY)), upstreams(11, 60, Some(MEMORY))] {
            let cause = heard.cause.map(|cause| Cause { replica: 2, ..cause });
            let heard = KnownPause { cause, ..heard };
            let (mut known, resume) = (KnownPauses::default(), by_hand(10, 10, None));
            known.note(None, resume, MEMORY, at(10));
            assert!(!known.note(None, heard, MEMORY, at(12)));
            assert_eq!(known.unreported(MEMORY, at(12)), [(None, resume)]);
            known.confirm_report(None, resume, (MEMORY, at(10)), at(12));
            assert!(known.note(None, heard, MEMORY, at(13)), "the store has been told");
            assert_eq!(known.of(None), Some(heard));
        }
    }

    #[test]
    fn an_answer_does_not_undo_what_the_store_was_not_told_of() {
        let mut known = KnownPauses::default();
        known.note(None, by_hand(10, 10, None), MEMORY, at(10));
        assert!(!known.note_end(None, (at(11), at(60)), MEMORY, at(11)));
        assert!(!known.is_paused(at(11)));
        known.confirm_report(None, by_hand(10, 10, None), (MEMORY, at(10)), at(12));
        assert!(known.is_empty());
        assert!(known.note_end(None, (at(13), at(60)), MEMORY, at(13)));
        assert!(known.is_paused(at(59)) && !known.is_paused(at(60)));
    }

    /// The answer comes late: behind the announcement of the resume, or before it.
    #[test]
    fn an_answer_from_before_a_resume_does_not_undo_it() {
        let (resume, answer) = (by_hand(12, 12, Some(MEMORY)), (at(11), at(60)));
        let mut known = KnownPauses::default();
        known.note(None, resume, MEMORY, at(12));
        assert!(!known.note_end(None, answer, MEMORY, at(12)));
        assert!(!known.is_paused(at(12)));
        let mut heard = KnownPauses::default();
        assert!(heard.note_end(None, answer, MEMORY, at(13)));
        assert!(heard.is_news(None, &resume));
    }

    #[test]
    fn a_pause_that_the_store_has_forgotten_is_told_again() {
        let mut known = KnownPauses::default();
        known.note(None, by_hand(10, 60, Some(MEMORY)), MEMORY, at(10));
        assert!(known.unreported(MEMORY, at(11)).is_empty());
        assert_eq!(known.unreported(MEMORY + 1, at(11)), [(None, by_hand(10, 60, Some(MEMORY)))]);
        assert!(!known.ended(None, MEMORY + 1, at(12)), "the new memory has not been told yet");
        // Another replica was the first to tell it.
        let told = KnownPause { at: Moment(at(10).0 - 2000), ..by_hand(10, 60, Some(MEMORY + 1)) };
        assert!(known.note(None, told, MEMORY + 1, at(12)));
        assert!(known.unreported(MEMORY + 1, at(13)).is_empty());
        assert!(known.unreported(MEMORY + 2, at(60)).is_empty(), "it is over");
    }

    #[test]
    fn a_missed_end_is_heard_with_an_answer() {
        let mut known = KnownPauses::default();
        known.note(None, by_hand(10, 60, Some(MEMORY)), MEMORY, at(10));
        assert!(!known.ended(None, MEMORY, at(10)), "the call was sent before the pause");
        assert!(known.ended(None, MEMORY, at(11)));
        assert!(known.is_empty());
    }

    #[test]
    fn an_action_by_hand_that_was_not_announced_is_news_unless_a_later_one_is_known() {
        let mut known = KnownPauses::default();
        assert!(known.is_news(None, &by_hand(10, 60, Some(MEMORY))));
        known.note(None, by_hand(10, 60, Some(MEMORY)), MEMORY, at(10));
        assert!(!known.is_news(None, &by_hand(10, 60, Some(MEMORY))));
        assert!(!known.is_news(None, &by_hand(9, 9, Some(MEMORY))), "a resume from before");
        assert!(known.is_news(None, &by_hand(11, 11, Some(MEMORY))));
        known.note(None, upstreams(12, 90, Some(MEMORY)), MEMORY, at(12));
        assert!(!known.is_news(None, &by_hand(11, 11, Some(MEMORY))), "the upstream has asked since");
        // Only the end of a pause is known, by an answer that came later than the action.
        let mut heard = KnownPauses::default();
        heard.note_end(None, (at(13), at(60)), MEMORY, at(13));
        assert!(heard.is_news(None, &by_hand(10, 60, Some(MEMORY))));
        assert!(!heard.is_news(None, &by_hand(10, 10, Some(MEMORY))), "the pause may be a later one");
    }

    /// The answer of a heartbeat may be from before a resume, and be heard behind its announcement.
    #[test]
    fn a_pause_is_no_news_right_behind_its_end() {
        let mut known = KnownPauses::default();
        known.note(None, by_hand(11, 11, Some(MEMORY)), MEMORY, at(11));
        assert!(!known.is_news(None, &by_hand(10, 60, Some(MEMORY))));
        known.prune(MEMORY, at(12));
        assert!(known.is_empty());
    }

    #[test]
    fn a_partition_that_was_resumed_stays_so_while_the_whole_is_paused() {
        let (whole, resume) = (by_hand(10, 60, Some(MEMORY)), by_hand(20, 20, Some(MEMORY)));
        let mut known = KnownPauses::default();
        let is_open = |known: &KnownPauses| known.of(partition()).is_none_or(|pause| pause.is_lifted());
        known.note(None, whole, MEMORY, at(10));
        known.note(partition(), resume, MEMORY, at(20));
        assert!(known.ended(partition(), MEMORY, at(30)), "the store knows of no pause");
        known.prune(MEMORY, at(30));
        assert_eq!((known.of(partition()), known.of(None)), (Some(resume), Some(whole)));
        assert!(!known.is_news(partition(), &resume));
        assert_eq!(known.unreported(MEMORY + 1, at(30)), [(None, whole), (partition(), resume)]);
        // Nor does the pause of the whole hold behind one of the partition's own.
        known.note(partition(), upstreams(30, 35, None), MEMORY, at(30));
        assert!(!is_open(&known));
        known.prune(MEMORY, at(35));
        assert!(is_open(&known) && known.unreported(MEMORY, at(35)).is_empty(), "{known:?}");
        known.note_end(partition(), (at(40), at(60)), MEMORY, at(40));
        assert!(!is_open(&known));
        known.ended(partition(), MEMORY, at(41));
        known.prune(MEMORY, at(41));
        assert!(is_open(&known), "{known:?}");
        let mut later = known.clone();
        later.note(None, by_hand(50, 70, Some(MEMORY)), MEMORY, at(50));
        assert!(!is_open(&later), "of all partitions");
        known.prune(MEMORY, at(60));
        assert!(known.is_empty());
    }

    #[test]
    fn an_upstream_does_not_shorten_a_pause() {
        let mut known = KnownPauses::default();
        known.note(None, upstreams(10, 60, None), MEMORY, at(10));
        assert!(known.note(None, upstreams(11, 30, None), MEMORY, at(11)));
        assert_eq!(known.of(None), Some(upstreams(10, 60, None)));
        assert!(known.note(None, by_hand(12, 30, None), MEMORY, at(12)));
        assert_eq!(known.of(None), Some(by_hand(12, 30, None)));
    }

    #[test]
    fn no_more_partitions_are_known_than_may_be() {
        let mut known = KnownPauses::default();
        for value in 0..2 * PARTITIONS_MAX {
            let partition = Partition::of([Some(&value.to_be_bytes()[..])]);
            known.note(Some(partition), upstreams(10, 60, None), MEMORY, at(10));
        }
        assert_eq!(known.partitions.len(), PARTITIONS_MAX);
        known.prune(MEMORY, at(60));
        assert!(known.is_empty());
    }
}
