//! Copies of what the other replicas were granted, for when the store loses its memory and they are not there to say so.
//!
//! Each replica tells the store with its heartbeats what its [ledger](crate::limiter::recovery::ledger) holds, and gets the others'
//! copies with the answers. After a loss those who are there restore the copies of those who have not reported. Invariants:
//! - a copy is of one replica, which alone makes new ones, so that of two copies the one with the higher number holds all;
//! - a final copy is made when nothing is granted to the replica any more: all of it is in the ledger, and reported to the store's
//!   present memory. So the store need not charge what it may have been granted beside.

use std::collections::BTreeMap;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{CopyExchange, GrantCopy, HeartbeatAnswer, Step};
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

/// The copy of its own that a replica tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Telling {
    /// It has not reported to the store's present memory yet, or nobody would hear.
    Nothing,
    /// It tells what has changed.
    Changes,
    /// It has ended: this is all.
    Last,
}

impl Copies {
    /// Returns what the next heartbeat of a replica says of copies, now and at the earliest instant that the store's clock may show.
    pub(in crate::limiter) fn exchange(
        &mut self,
        replica: u64,
        ledger: &Ledger,
        now: (Moment, Micros),
        telling: Telling,
    ) -> CopyExchange {
        let mut told = self.to_restore(now.0);
        told.extend(self.own_copy(replica, ledger, now, telling));
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
            self.others.insert(copy.replica, (copy.clone(), memory));
        }
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
        telling: Telling,
    ) -> Option<GrantCopy> {
        let is_last = telling == Telling::Last;
        let is_due = self.own.due.is_none_or(|due| due <= now);
        // Odd numbers are those of last copies.
        let is_told = self.own.told == (2 * ledger.changes(), self.memory);
        if telling == Telling::Nothing || !is_last && (is_told || !is_due) {
            return None;
        }
        let copy = ledger.copy(written, COPY_MAX);
        self.own.pages = copy.pages;
        let is_final = is_last && copy.is_whole;
        let number = 2 * copy.number + u64::from(is_last);
        Some(GrantCopy { replica, number, is_final, shift: 0, written, text: copy.text.into() })
    }
}

impl Own {
    /// Returns how long after a copy of so many bytes the next one may come.
    fn pace(&self, bytes: usize) -> Micros {
        let (bytes, pages) = (bytes as u64 * WAIT_A_BYTE.0, self.pages as u64 * WAIT_A_PAGE.0);
        Micros(bytes.max(pages))
    }
}
