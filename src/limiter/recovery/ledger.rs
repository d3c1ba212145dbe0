//! The permits granted to this replica by a store that may forget them.
//!
//! When the store has lost its memory, each replica writes back its own grants, so that the windows in progress stay charged.
//! Grants from the time when the store was unreachable are written back when it returns.
//!
//! Pure. There is one page per limiter and partition. It is kept while its grants matter to the limits. Slots ahead are kept one by one,
//! those that have come as precisely as the state in the store: when slots ahead are void, nothing that was used goes with them.

use std::cmp::Reverse;
use std::fmt::Write;

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::Entry;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::model::{
    Answer, Call, Holding, Limiter, LimiterName, NO_GENERATION, Partition, Reset, Step, stepped,
};
use crate::limiter::recovery::grants::{FAR, charge, granted_of, window};
use crate::limiter::recovery::offline_grants::{OfflineGrants, OfflineRecord, OwnPart};
use crate::limiter::store::expiry::Expiring;

/// The most pages: some 30 MB. Grants under further limiters and partitions are not written back, and the store charges all that
/// this replica may have been granted.
const PAGES_MAX: usize = 100_000;

/// How far ahead slots are copied for others: nobody charges those that had not come when a replica was last heard.
const COPIED_AHEAD: Micros = Micros::from_millis(1000);

/// The shortest line of a copy with a grant in it: a name, an instant and its permits.
const LINE_MIN: usize = 20;

type Key = (LimiterName, Option<Partition>);

/// The grants of all limiters and partitions.
#[derive(Default)]
pub(in crate::limiter) struct Ledger {
    pages: Expiring<Key, Page>,
    /// True if a page may hold offline grants that the store does not have.
    has_unreported: bool,
    /// The store's memory to which the pages' grants belong.
    memory: u64,
    /// How often grants from another part of the store were taken over.
    takeovers: u64,
    /// The number of changes of what the store knows of the grants.
    changes: u64,
    /// Until when grants matter that found no page, by the store's clock.
    incomplete_until: Micros,
}

/// The grants of one limiter or partition.
#[derive(Clone, Default)]
struct Page {
    limiter_ref: Option<LimiterRef>,
    /// For each limit, the window in which a grant matters to it.
    windows: Vec<Rule>,
    /// The grants that the store knows, by its clock.
    granted: Timeline,
    /// The grants that the store has forgotten, by its clock.
    forgotten: Timeline,
    /// The ledger's number of takeovers when grants were last taken over here.
    takeovers: u64,
    /// The instant of the last reset: grants until then are gone, and others may stand in their cell.
    reset_at: Micros,
    /// The number of the last write of forgotten grants that the store has.
    confirmed: u64,
    offline: OfflineRecord,
}

/// The content of the ledger, as text for other replicas.
pub(in crate::limiter) struct LedgerCopy {
    pub(in crate::limiter) text: String,
    /// The number of changes that it holds.
    pub(in crate::limiter) number: u64,
    /// True if all that this replica was granted is in it.
    pub(in crate::limiter) is_whole: bool,
    /// The pages that were looked through.
    pub(in crate::limiter) pages: usize,
}

/// Grants under one limiter or partition that the store does not know.
pub(in crate::limiter) enum Unreported {
    /// The store has forgotten them, or never knew. Its memory now, the number of this write, their instants by its clock and their permits,
    /// ascending.
    Forgotten { memory: u64, number: u64, entries: Vec<Entry> },
    /// They were made without the store.
    Offline(OfflineGrants),
}

impl Ledger {
    /// Records the bookings and the returns of an answered call.
    pub(in crate::limiter) fn record(&mut self, limiter_refs: &[LimiterRef], call: &Call, answer: &Answer) {
        let is_line = call.line.as_ref().is_some_and(|line| !line.unused.is_empty())
            || answer.line.as_ref().is_some_and(|line| !line.dealt.is_empty());
        let is_nothing = call.give_back.is_empty()
            && answer.rescheduled.is_empty()
            && answer.outcomes.is_empty()
            && !is_line;
        if is_nothing {
            return;
        }
        let unused = call.line.iter().flat_map(|line| &line.unused);
        self.changes += 1;
        self.pages.sweep(answer.now, Page::expires);
        for (index, limiter_ref) in limiter_refs.iter().enumerate() {
            let key = key(limiter_ref);
            let charged: Vec<(Micros, u64)> = granted_of(call, answer, index).collect();
            let Some(mut page) = take(&mut self.pages, &key) else {
                self.miss(limiter_ref, charged.iter().map(|(at, _)| *at).max());
                continue;
            };
            page.follow(limiter_ref);
            let is_left_alone = call.generations.get(index) == Some(&NO_GENERATION);
            let of_line: Vec<Holding> = unused
                .clone()
                .filter_map(|unused| {
                    let cost = *unused.costs.get(index).filter(|cost| **cost > 0)?;
                    Some(Holding { slot: unused.slot, cost, count: unused.count })
                })
                .collect();
            let gone: &[&[Holding]] = match answer.rescheduled.is_empty() {
                _ if is_left_alone => &[],
                true => &[&call.give_back, &of_line],
                false => &[&call.give_back, &call.reschedule, &of_line],
            };
            page.record(gone, &charged, answer.now);
            let expires = page.expires();
            if expires > answer.now {
                self.pages.put(key, page, expires);
            }
        }
    }

    /// Charges permits that a request has cost beyond those that it had taken, when the store was told.
    pub(in crate::limiter) fn charge(&mut self, limiter_ref: &LimiterRef, at: Micros, permits: u64) {
        self.changes += 1;
        let key = key(limiter_ref);
        let Some(mut page) = take(&mut self.pages, &key) else {
            return self.miss(limiter_ref, Some(at));
        };
        page.follow(limiter_ref);
        page.record(&[], &[(at, permits)], at);
        let expires = page.expires();
        self.pages.put(key, page, expires);
    }

    /// Notes that grants up to an instant find no page.
    fn miss(&mut self, limiter_ref: &LimiterRef, last: Option<Micros>) {
        let longest = limiter_ref.rules.iter().map(Rule::seen_for).max().unwrap_or_default();
        if let Some(last) = last {
            self.incomplete_until = self.incomplete_until.max(last + longest);
        }
    }

    /// Returns whether every grant that matters at an instant of the store's clock has a page.
    pub(in crate::limiter) fn is_complete(&self, now: Micros) -> bool {
        self.incomplete_until <= now
    }

    /// Records that the store is unreachable, and the permits granted of some limiters without it, by this process's clock.
    ///
    /// An outage without grants is recorded too: other replicas may have granted permits, and the returning store has to wait
    /// for their reports.
    pub(in crate::limiter) fn record_offline(
        &mut self,
        now: Micros,
        parts: &[OwnPart],
        granted: &[(Micros, u64)],
    ) {
        self.has_unreported = true;
        for own in parts {
            let key = key(&own.whole);
            let Some(mut page) = take(&mut self.pages, &key) else {
                // The store's clock is not known here, and hardly another one.
                self.miss(&own.whole, granted.iter().map(|(at, _)| *at).max());
                continue;
            };
            page.follow(&own.whole);
            page.offline.record(now, own, &page.windows, granted);
            let expires = page.expires();
            self.pages.put(key, page, expires);
        }
    }

    /// Removes permits that were granted while the store was unreachable, and not used.
    pub(in crate::limiter) fn remove_offline(&mut self, limiter_refs: &[LimiterRef], unused: &[Holding]) {
        for limiter_ref in limiter_refs {
            let Some(page) = self.pages.get_mut(&key(limiter_ref)) else { continue };
            for Holding { slot, cost, count } in unused {
                page.offline.remove(&page.windows, *slot, cost * count);
            }
        }
    }

    /// Returns whether there may be offline grants that the store does not have.
    pub(in crate::limiter) fn has_unreported(&self) -> bool {
        self.has_unreported
    }

    /// Returns whether the store lacks grants under one of these limiters.
    pub(in crate::limiter) fn lacks(&self, limiter_refs: &[LimiterRef]) -> bool {
        let is_pending = |limiter_ref| self.pages.get(&key(limiter_ref)).is_some_and(Page::is_pending);
        self.has_unreported && limiter_refs.iter().any(is_pending)
    }

    /// Returns the limiters and partitions with grants that the store does not have, in the order of their names.
    pub(in crate::limiter) fn unreported(&mut self) -> Vec<LimiterRef> {
        let mut unreported: Vec<_> = self.pages.iter().filter(|(_, page)| page.is_pending()).collect();
        unreported.sort_by_key(|(key, _)| *key);
        let unreported: Vec<_> =
            unreported.into_iter().filter_map(|(_, page)| page.limiter_ref.clone()).collect();
        self.has_unreported = !unreported.is_empty();
        unreported
    }

    /// Returns the next part of a limiter's grants to write back, at `now` of this process's clock; `None` if the store has all
    /// that may be written back.
    pub(in crate::limiter) fn next_unreported(
        &mut self,
        limiter_ref: &LimiterRef,
        now: Micros,
    ) -> Option<Unreported> {
        let memory = self.memory;
        let page = self.pages.get_mut(&key(limiter_ref))?;
        if !page.forgotten.entries().is_empty() {
            // A permit taken over later is told under a later number. The next memory is the instant of its beginning, and so far ahead of
            // it.
            let (number, entries) = (memory + page.takeovers, page.forgotten.entries().to_vec());
            return Some(Unreported::Forgotten { memory, number, entries });
        }
        page.offline.next_part(now, &page.windows).map(Unreported::Offline)
    }

    /// Turns a part that was written back into grants of the store, whose clock showed `store_now` when this process's showed `now`.
    pub(in crate::limiter) fn confirm_report(
        &mut self,
        limiter_ref: &LimiterRef,
        part: &Unreported,
        store_now: Micros,
        now: Micros,
    ) {
        let key = key(limiter_ref);
        let Some(mut page) = self.pages.take(&key) else { return };
        self.changes += 1;
        let entries = match part {
            // Meanwhile the store may have lost its memory again.
            Unreported::Forgotten { memory, .. } if *memory != self.memory => Vec::new(),
            // Or another caller has written the same.
            Unreported::Forgotten { number, .. } if *number <= page.confirmed => Vec::new(),
            // Or others were taken over, which stay, or there was a reset.
            Unreported::Forgotten { number, entries, .. } => {
                page.confirmed = *number;
                let told = |entry: &Entry| Entry {
                    permits: page.forgotten.uncharge(entry.at, entry.permits, &page.windows),
                    ..*entry
                };
                let kept = entries.iter().filter(|entry| entry.at > page.reset_at);
                kept.map(told).filter(|entry| entry.permits > 0).collect()
            }
            Unreported::Offline(part) => {
                let moved = |entry: Entry| Entry { at: (store_now + entry.at) - now, ..entry };
                let confirmed = page.offline.confirm(part.number).map_or(Vec::new(), |part| part.entries);
                confirmed.into_iter().map(moved).filter(|entry| entry.at > page.reset_at).collect()
            }
        };
        entries.iter().for_each(|entry| page.charge(entry.at, entry.permits, store_now));
        let expires = page.expires();
        self.pages.put(key, page, expires);
    }

    /// Takes over what another ledger knows of a limiter whose state moves to this one's part of the store: that part does not have it.
    pub(in crate::limiter) fn take_over(&mut self, limiter: &Limiter, other: &Ledger) {
        self.takeovers += 1;
        for (key, from) in other.pages.iter().filter(|(key, _)| key.0 == limiter.name) {
            let Some(mut page) = take(&mut self.pages, key) else {
                let last = from.granted.last().max(from.forgotten.last());
                from.limiter_ref.iter().for_each(|limiter_ref| self.miss(limiter_ref, last));
                continue;
            };
            if page.windows.is_empty() {
                let group = limiter.group.clone();
                let limiter_ref = from.limiter_ref.clone().map(|known| LimiterRef { group, ..known });
                (page.limiter_ref, page.windows) = (limiter_ref, from.windows.clone());
            }
            for entry in from.granted.entries().iter().chain(from.forgotten.entries()) {
                page.forget(*entry);
            }
            page.takeovers = self.takeovers;
            self.has_unreported |= page.is_pending();
            let expires = page.expires();
            self.pages.put(key.clone(), page, expires);
        }
        self.changes += 1;
    }

    /// Returns the permits of a limiter that the store has granted from an instant of its clock on.
    pub(in crate::limiter) fn granted_since(&self, limiter_ref: &LimiterRef, since: Micros) -> u64 {
        let entries =
            self.pages.get(&key(limiter_ref)).map(|page| page.granted.entries()).unwrap_or_default();
        entries.iter().rev().take_while(|entry| entry.at >= since).map(|entry| entry.permits).sum()
    }

    /// Notes that the store has lost its memory at `latest` of its clock: grants up to then are to be written back, and later
    /// bookings are void. `memory` is its new one.
    pub(in crate::limiter) fn mark_forgotten(&mut self, memory: u64, latest: Micros) {
        self.memory = memory;
        self.changes += 1;
        self.void_after(latest);
        for (_, page) in self.pages.iter_mut() {
            let granted = std::mem::take(&mut page.granted);
            granted.entries().iter().for_each(|entry| page.forget(*entry));
            self.has_unreported |= page.is_pending();
        }
    }

    /// Notes that bookings after an instant of the store's clock are void, and were not used.
    pub(in crate::limiter) fn void_after(&mut self, latest: Micros) {
        self.changes += 1;
        for (_, page) in self.pages.iter_mut() {
            page.granted.split_off(latest + Micros::ONE);
        }
    }

    /// Moves all grants with a step of the store's clock.
    pub(in crate::limiter) fn step(&mut self, step: Step) {
        self.changes += 1;
        self.pages.iter_mut().for_each(|(_, page)| {
            page.granted.step(step);
            page.forgotten.step(step);
            page.reset_at = stepped(page.reset_at, step);
        });
        self.incomplete_until = stepped(self.incomplete_until, step);
    }

    /// Removes the grants of a limiter, or of one partition, from before its reset. `local_at` is the instant of the reset by
    /// this process's clock.
    pub(in crate::limiter) fn reset(&mut self, Reset { name, partition, at }: &Reset, local_at: Micros) {
        self.changes += 1;
        let is_meant = |key: &Key| key.0 == *name && partition.is_none_or(|one| key.1 == Some(one));
        for (_, page) in self.pages.iter_mut().filter(|(key, _)| is_meant(key)) {
            page.granted = page.granted.split_off(*at + Micros::ONE).into();
            page.forgotten = page.forgotten.split_off(*at + Micros::ONE).into();
            page.reset_at = page.reset_at.max(*at);
            page.offline.reset(local_at);
        }
    }

    /// Returns the number of changes; never zero.
    pub(in crate::limiter) fn changes(&self) -> u64 {
        self.changes + 1
    }

    /// Returns the grants that the store knows and that matter at `now`, in lines as [`GrantCopy`] has them: those of the longest
    /// windows first, as many pages as fit.
    ///
    /// [`GrantCopy`]: crate::limiter::model::GrantCopy
    pub(in crate::limiter) fn copy(&self, now: Micros, size_max: usize) -> LedgerCopy {
        let number = self.changes();
        let mut is_whole = self.pages.iter().all(|(_, page)| !page.is_pending());
        let matter = self.pages.iter().filter(|(_, page)| page.expires() > now);
        let mut matter: Vec<_> = matter.map(|(key, page)| (Reverse(page.longest()), key, page)).collect();
        // Of many thousands few fit. Only those are put in order: answers of the store wait for the ledger meanwhile.
        let order = |one: &(_, &Key, _), other: &(_, &Key, _)| (one.0, one.1).cmp(&(other.0, other.1));
        let fitting = matter.len().min(size_max / LINE_MIN);
        if fitting < matter.len() {
            matter.select_nth_unstable_by(fitting, order);
        }
        matter[..fitting].sort_unstable_by(order);
        let mut text = String::new();
        for (_, key, page) in matter {
            let line = page.line(key, now);
            if text.len() + line.len() > size_max {
                is_whole = false;
                break;
            }
            text.push_str(&line);
        }
        LedgerCopy { text, number, is_whole, pages: self.pages.len() }
    }

    /// Removes the pages that no longer matter.
    pub(in crate::limiter) fn sweep(&mut self, now: Micros) {
        while !self.pages.sweep(now, Page::expires).is_empty() {}
    }

    /// Returns until when any grant matters, by the store's clock; `None` without grants.
    pub(in crate::limiter) fn expires(&self) -> Option<Micros> {
        let expires = self.pages.iter().map(|(_, page)| page.expires()).max();
        expires.map(|expires| expires.max(self.incomplete_until))
    }
}

impl Page {
    /// Takes on the limiter's current limits.
    fn follow(&mut self, limiter_ref: &LimiterRef) {
        let is_same = self.limiter_ref.as_ref().is_some_and(|known| known.rules == limiter_ref.rules);
        if !is_same {
            self.windows = limiter_ref.rules.iter().map(window).collect();
            self.limiter_ref = Some(limiter_ref.clone());
        }
    }

    /// Charges the bookings of a call, and uncharges the holdings that it gave back or rescheduled.
    fn record(&mut self, gone: &[&[Holding]], charged: &[(Micros, u64)], now: Micros) {
        self.granted.prune_past(now, &self.windows);
        for holding in gone.iter().copied().flatten().filter(|holding| holding.slot > self.reset_at) {
            self.granted.uncharge(holding.slot, holding.cost * holding.count, &self.windows);
        }
        charged.iter().for_each(|(at, permits)| self.charge(*at, *permits, now));
    }

    /// Charges permits that the store has granted, at `now` of its clock.
    fn charge(&mut self, at: Micros, permits: u64, now: Micros) {
        charge(&mut self.granted, &self.windows, (at, permits), now);
    }

    /// Adds a grant to those that the store has forgotten.
    fn forget(&mut self, Entry { at, permits }: Entry) {
        charge(&mut self.forgotten, &self.windows, (at, permits), FAR);
    }

    fn is_pending(&self) -> bool {
        !self.forgotten.entries().is_empty() || self.offline.is_pending()
    }

    /// Returns for how long a grant matters.
    fn longest(&self) -> Micros {
        self.windows.iter().map(|rule| rule.window).max().unwrap_or_default()
    }

    /// Returns the grants that the store knows as a line of a copy.
    fn line(&self, (name, partition): &Key, now: Micros) -> String {
        let mut line = match partition {
            Some(partition) => format!("\n{name}:{partition}"),
            None => format!("\n{name}"),
        };
        let (longest, mut before) = (self.longest(), Micros::ZERO);
        let matters = |entry: &&Entry| entry.at + longest > now && entry.at <= now + COPIED_AHEAD;
        for Entry { at, permits } in self.granted.entries().iter().filter(matters) {
            // Writing to a text never fails.
            let _ = write!(line, " {}:{permits}", (*at - before).0);
            before = *at;
        }
        line
    }

    fn expires(&self) -> Micros {
        let longest = self.longest();
        let last = self.granted.last().max(self.forgotten.last());
        let granted = last.map_or(Micros::ZERO, |last| last + longest);
        granted.max(self.offline.expires(longest))
    }
}

fn key(limiter_ref: &LimiterRef) -> Key {
    (limiter_ref.name.clone(), limiter_ref.partition)
}

/// Takes a page out, to be put back, or begins one; `None` if there may be no further page.
fn take(pages: &mut Expiring<Key, Page>, key: &Key) -> Option<Page> {
    let is_full = pages.len() >= PAGES_MAX;
    pages.take(key).or_else(|| (!is_full).then(Page::default))
}

#[cfg(test)]
mod tests;
