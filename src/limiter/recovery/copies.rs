//! Copies of what the other replicas were granted, for when the store loses its memory and they are not there to say so.
//!
//! Each replica tells the store with its heartbeats what its [ledger](crate::limiter::recovery::ledger) holds, and gets the others'
//! copies with the answers. After a loss those who are there restore the copies of those who have not reported. Invariants:
//! - a copy is of one replica, which alone makes new ones, so that of two copies the one with the higher number holds all;
//! - a final copy is made when nothing is granted to the replica any more: all of it is in the ledger, and reported to the store's
//!   present memory. So the store need not charge what it may have been granted beside.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{CopyExchange, GrantCopy, HeartbeatAnswer, Reset, Step};
use crate::limiter::recovery::ledger::Ledger;

/// The most bytes of a replica's own copy. Grants that do not fit are charged as those of a replica that says nothing.
pub(in crate::limiter) const COPY_MAX: usize = 64 * 1024;

/// The most bytes of copies that are restored with one heartbeat.
const RESTORED_MAX: usize = 4 * COPY_MAX;

/// How long a replica waits after telling its copy, for each byte of it: 40 KB a second.
const WAIT_A_BYTE: Micros = Micros(25);

/// How long it waits for each page that it looked through for that: looking costs a tenth of that time.
const WAIT_A_PAGE: Micros = Micros(20);

/// How long after a loss the copies of those are restored that may still report themselves.
const MAY_REPORT: Micros = Micros::from_millis(150);

/// The copies that this replica keeps, and what it has told of its own. Pure.
#[derive(Default)]
pub(in crate::limiter) struct Copies {
    /// The latest copy of each other member, and the latest memory of the store that has it.
    others: BTreeMap<u64, (GrantCopy, u64)>,
    /// The store's present memory, and when this replica heard of it.
    memory: u64,
    lost: Option<Moment>,
    /// The members that have not reported to it.
    awaited: Vec<u64>,
    own: Own,
}

/// The copy of its own grants that this replica has told.
#[derive(Default)]
struct Own {
    /// The number of the copy, and the memory that has it.
    told: (u64, u64),
    /// When the next one may be told.
    due: Option<Moment>,
    /// The pages that were looked through for the last copy.
    pages: usize,
}

/// The part of a replica's own copy that its heartbeat tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum OwnCopy {
    /// Nothing: the replica has not reported to the store's present memory yet, or nobody would hear.
    Withheld,
    /// The part that has changed.
    Changes,
    /// All: the replica has ended.
    Final,
}

impl Copies {
    /// Returns what the next heartbeat of a replica says of copies, now and at the earliest instant that the store's clock may show.
    pub(in crate::limiter) fn exchange(
        &mut self,
        replica: u64,
        ledger: &Ledger,
        now: (Moment, Micros),
        own_copy: OwnCopy,
    ) -> CopyExchange {
        let mut told = self.to_restore(now.0);
        told.extend(self.own_copy(replica, ledger, now, own_copy));
        let known = self.others.values().map(|(copy, _)| (copy.replica, copy.number)).collect();
        CopyExchange { follows: true, known, told }
    }

    /// Takes in the answer to a heartbeat that said this of copies, for an epoch.
    pub(in crate::limiter) fn learn(
        &mut self,
        replica: u64,
        said: &CopyExchange,
        known_epoch: u64,
        answer: &HeartbeatAnswer,
        now: Moment,
    ) {
        let memory = answer.epoch.memory;
        if self.memory != memory {
            self.lost = (self.memory != 0).then_some(now);
            self.memory = memory;
        }
        if known_epoch == answer.epoch.id {
            for copy in &said.told {
                if copy.replica == replica {
                    self.own.told = (copy.number, memory);
                    self.own.due = Some(now + self.own.pace(copy.text.len()));
                } else if let Some((_, has_it)) = self.others.get_mut(&copy.replica) {
                    *has_it = memory;
                }
            }
        }
        self.awaited.clone_from(&answer.awaited);
        self.others.retain(|other, _| answer.members.iter().any(|member| member.replica == *other));
        for copy in answer.copies.iter().filter(|copy| copy.replica != replica) {
            let mut copy = copy.clone();
            answer.resets.iter().for_each(|reset| cut(&mut copy, reset));
            self.others.insert(copy.replica, (copy, memory));
        }
    }

    /// Removes the grants from before a reset: who has ended makes no new copy without them.
    pub(in crate::limiter) fn reset(&mut self, reset: &Reset) {
        self.others.values_mut().for_each(|(copy, _)| cut(copy, reset));
    }

    /// Moves all copies with a step of the store's clock.
    pub(in crate::limiter) fn step(&mut self, step: Step) {
        let span = |by: Micros| i64::try_from(by.0).unwrap_or(i64::MAX);
        let by = match step {
            Step::Forward(by) => span(by),
            Step::Back(by) => -span(by),
        };
        for (copy, _) in self.others.values_mut() {
            copy.shift = copy.shift.saturating_add(by);
        }
    }

    /// Returns the copies of members that have not reported, and that the store's present memory lacks.
    fn to_restore(&self, now: Moment) -> Vec<GrantCopy> {
        let may_report = self.lost.is_some_and(|lost| now - lost < MAY_REPORT);
        let mut size = 0;
        let lacking = self.others.values().filter(|(copy, memory)| {
            *memory < self.memory && self.awaited.contains(&copy.replica) && (copy.is_final || !may_report)
        });
        let fitting = lacking.map(|(copy, _)| copy).take_while(|copy| {
            size += copy.text.len();
            size <= RESTORED_MAX
        });
        fitting.cloned().collect()
    }

    /// Returns this replica's own copy, if there is something to tell.
    fn own_copy(
        &mut self,
        replica: u64,
        ledger: &Ledger,
        (now, written): (Moment, Micros),
        own_copy: OwnCopy,
    ) -> Option<GrantCopy> {
        let is_last = own_copy == OwnCopy::Final;
        let is_due = self.own.due.is_none_or(|due| due <= now);
        // Odd numbers are those of last copies.
        let is_told = self.own.told == (2 * ledger.changes(), self.memory);
        if own_copy == OwnCopy::Withheld || !is_last && (is_told || !is_due) {
            return None;
        }
        let copy = ledger.copy(written, COPY_MAX);
        self.own.pages = copy.pages;
        // Also where nobody hears it, and the next heartbeat comes at once.
        self.own.due = Some(now + self.own.pace(0));
        let is_final = is_last && copy.is_whole;
        let number = 2 * copy.number + u64::from(is_last);
        Some(GrantCopy { replica, number, is_final, shift: 0, written, text: copy.text.into() })
    }
}

/// Cuts the grants until a reset out of a copy.
fn cut(copy: &mut GrantCopy, Reset { name, partition, at }: &Reset) {
    let is_meant = |of: &str| match of.split_once(':') {
        Some((limiter, value)) => {
            limiter == name.as_str() && partition.is_none_or(|one| one.to_string() == value)
        }
        None => of == name.as_str() && partition.is_none(),
    };
    // The instants of a copy are those before its shift.
    let until = at.0.saturating_add_signed(copy.shift.saturating_neg());
    let mut text = String::with_capacity(copy.text.len());
    for line in copy.text.split('\n').skip(1) {
        text.push('\n');
        let (of, grants) = line.split_once(' ').unwrap_or((line, ""));
        if !is_meant(of) {
            text.push_str(line);
            continue;
        }
        text.push_str(of);
        let (mut instant, mut before) = (0_u64, 0);
        let parsed = |grant: &str| {
            let (gap, permits) = grant.split_once(':')?;
            Some((gap.parse::<u64>().ok()?, permits.parse::<u64>().ok()?))
        };
        for (gap, permits) in grants.split(' ').filter_map(parsed) {
            instant = instant.saturating_add(gap);
            if instant > until {
                // Writing to a text never fails.
                let _ = write!(text, " {}:{permits}", instant - before);
                before = instant;
            }
        }
    }
    copy.text = text.into();
}

impl Own {
    /// Returns how long after a copy of so many bytes the next one may come.
    fn pace(&self, bytes: usize) -> Micros {
        let (bytes, pages) = (bytes as u64 * WAIT_A_BYTE.0, self.pages as u64 * WAIT_A_PAGE.0);
        Micros(bytes.max(pages))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limiter::arithmetic::limiter_ref::LimiterRef;
    use crate::limiter::model::{Answer, Call, Epoch, LimiterName, Member, Outcome, Partition, Run};
    use crate::limiter::tests;

    const ME: u64 = 1;
    const OTHER: u64 = 2;

    fn at(millis: u64) -> Moment {
        Moment(1_000_000) + Micros::from_millis(millis)
    }

    /// Returns a ledger with so many changes, each of which is a grant.
    fn ledger(changes: u64) -> Ledger {
        let limiter = tests::limiter(10, Duration::from_secs(60), Duration::ZERO);
        let refs = [LimiterRef::new(&limiter, None, Micros::ZERO)];
        let mut ledger = Ledger::default();
        for number in 0..changes {
            let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }];
            let now = Micros::from_millis(1000 + number);
            let answer = Answer { now, outcomes: vec![(1, Outcome::Booked(now))], ..Answer::default() };
            ledger.record(&refs, &Call { runs, ..Call::default() }, &answer);
        }
        ledger
    }

    fn copy(replica: u64, number: u64, text: &str) -> GrantCopy {
        GrantCopy { replica, number, is_final: false, shift: 0, written: Micros(7), text: text.into() }
    }

    /// Returns an answer in an epoch of a memory, with these members, and those that have not reported to it.
    fn answer(epoch: u64, memory: u64, members: &[u64], awaited: &[u64]) -> HeartbeatAnswer {
        let member = |replica: &u64| Member { replica: *replica, matters_for: Micros::ONE, is_counted: true };
        HeartbeatAnswer {
            epoch: Epoch { id: epoch, memory, ..Epoch::default() },
            members: members.iter().map(member).collect(),
            awaited: awaited.to_vec(),
            ..HeartbeatAnswer::default()
        }
    }

    struct Replica(Copies);

    impl Replica {
        /// Returns a replica that has heard of a memory, and of this copy of another replica.
        fn with(memory: u64, other: GrantCopy) -> Replica {
            let mut copies = Copies::default();
            let answer = HeartbeatAnswer { copies: vec![other], ..answer(1, memory, &[ME, OTHER], &[]) };
            copies.learn(ME, &CopyExchange::default(), 1, &answer, at(0));
            Replica(copies)
        }

        fn said(&mut self, ledger: &Ledger, now: Moment, own_copy: OwnCopy) -> CopyExchange {
            self.0.exchange(ME, ledger, (now, Micros::from_millis(1000)), own_copy)
        }

        /// Returns the copies that a heartbeat tells, with an empty ledger of its own.
        fn restored(&mut self, now: Moment) -> Vec<GrantCopy> {
            self.said(&ledger(0), now, OwnCopy::Withheld).told
        }

        fn hears(&mut self, said: &CopyExchange, known_epoch: u64, answer: &HeartbeatAnswer, now: Moment) {
            self.0.learn(ME, said, known_epoch, answer, now);
        }
    }

    #[test]
    fn a_replica_tells_its_copy_when_it_has_changed_and_not_too_often() {
        let (mut replica, mut ledger_now) = (Replica::with(5, copy(OTHER, 4, "")), ledger(3));
        assert_eq!(replica.said(&ledger_now, at(0), OwnCopy::Withheld).told, []);
        let said = replica.said(&ledger_now, at(0), OwnCopy::Changes);
        let [own] = &said.told[..] else { panic!("{said:?}") };
        assert_eq!((own.replica, own.number, own.is_final), (ME, 2 * ledger_now.changes(), false));
        assert_eq!(
            (own.written, &*own.text),
            (Micros::from_millis(1000), &*ledger_now.copy(Micros::from_millis(1000), COPY_MAX).text)
        );
        assert_eq!(said.known, [(OTHER, 4)]);
        // Its answer was that of another epoch: the store may have begun it without the copy.
        replica.hears(&said, 1, &answer(2, 5, &[ME, OTHER], &[]), at(1));
        assert_eq!(replica.said(&ledger_now, at(1), OwnCopy::Changes), said);
        replica.hears(&said, 2, &answer(2, 5, &[ME, OTHER], &[]), at(1));
        assert_eq!(replica.said(&ledger_now, at(60_000), OwnCopy::Changes).told, []);
        // For each byte it waits 25 us.
        ledger_now = ledger(4);
        let due = at(1) + Micros(25 * said.told[0].text.len() as u64);
        assert_eq!(replica.said(&ledger_now, Moment(due.0 - 1), OwnCopy::Changes).told, []);
        assert_eq!(replica.said(&ledger_now, due, OwnCopy::Changes).told.len(), 1);
        // A new memory knows nothing of it.
        let later = due + Micros::from_millis(1);
        replica.hears(&CopyExchange::default(), 3, &answer(3, 6, &[ME, OTHER], &[]), later);
        assert_eq!(replica.said(&ledger(3), later, OwnCopy::Changes).told.len(), 1);
    }

    #[test]
    fn a_copy_of_many_pages_that_say_little_is_told_seldom_too() {
        let own = Own { pages: 1000, ..Own::default() };
        assert_eq!((own.pace(10), own.pace(4000)), (Micros(20_000), Micros(100_000)));
    }

    #[test]
    fn a_copy_that_nobody_has_heard_is_not_made_anew_with_each_heartbeat() {
        let (mut replica, mut known) = (Replica::with(5, copy(OTHER, 4, "")), Ledger::default());
        for number in 0..1000 {
            let limiter = tests::limiter(10, Duration::from_secs(60), Duration::ZERO);
            let partition = Partition::of([Some(&u64::to_be_bytes(number)[..])]);
            let refs = [LimiterRef::new(&limiter, Some(partition), Micros::ZERO)];
            known.charge(&refs[0], Micros::from_millis(1000), 1);
        }
        let told = |replica: &mut Replica, now| replica.said(&known, now, OwnCopy::Changes).told.len();
        // Looking through a page costs as much as 20 us of waiting.
        assert_eq!([0, 19, 20, 39].map(|millis| told(&mut replica, at(millis))), [1, 0, 1, 0]);
    }

    #[test]
    fn the_last_copy_comes_at_once_under_a_number_of_its_own() {
        let (mut replica, known) = (Replica::with(5, copy(OTHER, 4, "")), ledger(3));
        let said = replica.said(&known, at(0), OwnCopy::Changes);
        replica.hears(&said, 1, &answer(1, 5, &[ME, OTHER], &[]), at(1));
        let last = replica.said(&known, at(1), OwnCopy::Final).told;
        assert_eq!(
            last.iter().map(|copy| (copy.number, copy.is_final)).collect::<Vec<_>>(),
            [(2 * known.changes() + 1, true)]
        );
        let mut lossy = ledger(3);
        lossy.mark_forgotten(6, Micros::from_millis(1001));
        let last = replica.said(&lossy, at(1), OwnCopy::Final).told;
        assert!(last.iter().all(|copy| !copy.is_final), "some was not reported: {last:?}");
    }

    #[test]
    fn copies_are_restored_to_a_new_memory_that_awaits_their_replicas() {
        let other = copy(OTHER, 4, "\na 1:1");
        let mut replica = Replica::with(5, other.clone());
        replica.hears(&CopyExchange::default(), 1, &answer(1, 5, &[ME, OTHER], &[OTHER]), at(10));
        assert_eq!(replica.restored(at(1000)), [], "the store has it");
        replica.hears(&CopyExchange::default(), 2, &answer(2, 6, &[ME, OTHER], &[OTHER]), at(1000));
        // It may report by itself for a moment.
        assert_eq!((replica.restored(at(1149)), replica.restored(at(1150))), (vec![], vec![other.clone()]));
        // A further epoch of that memory begins no such moment anew.
        replica.hears(&CopyExchange::default(), 3, &answer(3, 6, &[ME, OTHER], &[OTHER]), at(1100));
        assert_eq!(replica.restored(at(1150)), std::slice::from_ref(&other));
        // A copy that was told to an epoch that is over does not count.
        let said = CopyExchange { told: vec![other.clone()], ..CopyExchange::default() };
        replica.hears(&said, 2, &answer(3, 6, &[ME, OTHER], &[OTHER]), at(1160));
        assert_eq!(replica.restored(at(1160)), [other]);
        replica.hears(&said, 3, &answer(3, 6, &[ME, OTHER], &[OTHER]), at(1170));
        assert_eq!(replica.restored(at(1170)), []);
        replica.hears(&said, 4, &answer(4, 7, &[ME, OTHER], &[]), at(2000));
        assert_eq!(replica.restored(at(3000)), [], "it has reported itself");
    }

    #[test]
    fn the_last_copy_of_a_replica_is_restored_at_once() {
        let last = GrantCopy { is_final: true, ..copy(OTHER, 5, "\na 1:1") };
        let mut replica = Replica::with(5, last.clone());
        replica.hears(&CopyExchange::default(), 2, &answer(2, 6, &[ME, OTHER], &[OTHER]), at(1000));
        assert_eq!(replica.restored(at(1000)), [last]);
        replica.hears(&CopyExchange::default(), 2, &answer(2, 6, &[ME], &[OTHER]), at(1000));
        assert_eq!(replica.restored(at(1000)), [], "it is no member, so nothing of it matters");
    }

    #[test]
    fn no_more_copies_are_restored_at_once_than_a_call_may_carry() {
        let mut copies = Copies::default();
        let many: Vec<GrantCopy> = (2..8).map(|replica| copy(replica, 4, &"x".repeat(COPY_MAX))).collect();
        let members: Vec<u64> = (1..8).collect();
        let heard = HeartbeatAnswer { copies: many.clone(), ..answer(1, 5, &members, &[]) };
        copies.learn(ME, &CopyExchange::default(), 1, &heard, at(0));
        let mut replica = Replica(copies);
        replica.hears(&CopyExchange::default(), 2, &answer(2, 6, &members, &members), at(1000));
        assert_eq!(replica.restored(at(2000)), many[..4]);
    }

    #[test]
    fn copies_go_with_a_step_of_the_clock_and_own_ones_are_not_kept() {
        let mut replica = Replica::with(5, copy(OTHER, 4, ""));
        replica.0.step(Step::Forward(Micros(10)));
        replica.0.step(Step::Back(Micros(3)));
        let own =
            HeartbeatAnswer { copies: vec![copy(ME, 9, "")], ..answer(2, 6, &[ME, OTHER], &[ME, OTHER]) };
        replica.hears(&CopyExchange::default(), 2, &own, at(0));
        assert_eq!(replica.restored(at(1000)), [GrantCopy { shift: 7, ..copy(OTHER, 4, "") }]);
    }

    #[test]
    fn a_reset_cuts_what_others_were_granted_before_it() {
        let (tenant, other) = (Partition::of([Some(&b"1"[..])]), Partition::of([Some(&b"2"[..])]));
        let text = format!("\na 100:1 20:2 30:3\na:{tenant} 110:4 1:5\na:{other} 7:6\nb 110:7\nab 1:8");
        let reset = |partition, at| {
            let (name, at) = (LimiterName::parse("a").unwrap(), Micros(at));
            Reset { name, partition, at }
        };
        let of_all = format!("\na 150:3\na:{tenant}\na:{other}\nb 110:7\nab 1:8");
        let of_one = format!("\na 100:1 20:2 30:3\na:{tenant} 111:5\na:{other} 7:6\nb 110:7\nab 1:8");
        // The clock was set forward by ten since the second copy was made.
        for (reset, shift, left) in [
            (reset(None, 120), 0, &of_all),
            (reset(Some(tenant), 120), 10, &of_one),
            (
                reset(None, 99),
                0,
                &of_all
                    .replace(" 150:3", " 100:1 20:2 30:3")
                    .replace(&format!("{tenant}\n"), &format!("{tenant} 110:4 1:5\n")),
            ),
        ] {
            let before = GrantCopy { shift, ..copy(OTHER, 4, &text) };
            let mut known = Replica::with(5, before.clone());
            known.0.reset(&reset);
            // Another one hears of the copy behind the reset.
            let mut late = Copies::default();
            let heard = HeartbeatAnswer {
                copies: vec![before],
                resets: vec![reset],
                ..answer(1, 5, &[ME, OTHER], &[])
            };
            late.learn(ME, &CopyExchange::default(), 1, &heard, at(0));
            for mut replica in [known, Replica(late)] {
                replica.hears(&CopyExchange::default(), 2, &answer(2, 6, &[ME, OTHER], &[OTHER]), at(1000));
                assert_eq!(
                    replica.restored(at(2000)).iter().map(|copy| &*copy.text).collect::<Vec<_>>(),
                    [left]
                );
            }
        }
    }

    #[test]
    fn the_first_memory_is_none_that_was_lost() {
        let mut copies = Copies::default();
        let heard =
            HeartbeatAnswer { copies: vec![copy(OTHER, 4, "")], ..answer(1, 5, &[ME, OTHER], &[OTHER]) };
        copies.learn(ME, &CopyExchange::default(), 1, &heard, at(0));
        assert_eq!((copies.lost, copies.to_restore(at(1000))), (None, vec![]));
    }
}
