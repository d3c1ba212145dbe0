//! What this replica was granted by a store that may forget it.
//!
//! Redis is the fleet's shared memory, not its only one: when it has lost what it held, each replica writes back what it
//! was granted itself, and so the windows that are running stay full. What was granted while it was away it hears when it is back.
//! A page is kept for as long as what is on it matters to its limits; it is as large as the store's own book at most.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::{Entry, cell_start};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::{Rule, finest_cell, is_one};
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::model::call::{Answer, Call, Outcome};
use crate::limiter::model::clock_step::{Step, stepped};
use crate::limiter::model::epoch::Reset;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::partition::Partition;
use crate::limiter::store::expiry::Expiring;

/// What was seen in use longer ago says little of what is in use now.
const SEEN_FOR: Micros = Micros::from_millis(1000);

/// The most limiters and partitions of which something is kept: some 30 MB. What is granted under further ones is not
/// written back.
const PAGES_MAX: usize = 100_000;

/// What is granted while the store is away is told to it, when it is back, up to so long ahead: what lies further ahead is
/// asked for anew.
pub(in crate::limiter) const SAID_AHEAD: Micros = Micros::from_millis(500);

/// For how much longer than it matters what was granted while the store was away is kept for it.
const AWAY_MAX: Micros = Micros::from_millis(24 * 3_600_000);

type Key = (LimiterName, Option<Partition>);

/// What was granted under each limiter and partition.
#[derive(Default)]
pub(in crate::limiter) struct Ledger {
    pages: Mutex<Expiring<Key, Page>>,
    /// Whether one of them may hold something of which the store has not heard.
    has_unsaid: AtomicBool,
    begun: Notify,
}

/// What was granted under one.
#[derive(Clone, Default)]
struct Page {
    limiter_ref: Option<LimiterRef>,
    /// Its limits, each as a window: that in which a grant matters.
    windows: Vec<Rule>,
    /// By the store's clock.
    granted: Timeline,
    /// When the store was last heard, and how much of the tightest limit was in use then.
    seen: (Micros, u64),
    /// Since when the store is away that has not been told so, by this process's clock.
    away_since: Option<Micros>,
    /// Granted meanwhile, by the same clock.
    away: Timeline,
    /// What of that is being said.
    saying: Option<OfflineGrants>,
}

/// What the store is being told, under one number until it has heard it.
#[derive(Clone)]
pub(in crate::limiter) struct OfflineGrants {
    pub(in crate::limiter) number: u64,
    /// When this replica might first have granted something without the store, by this process's clock.
    pub(in crate::limiter) since: Micros,
    /// By the same clock, ascending.
    pub(in crate::limiter) entries: Vec<Entry>,
}

/// What a replica has to write back.
pub(in crate::limiter) struct Granted {
    pub(in crate::limiter) limiter_ref: LimiterRef,
    /// Ascending.
    pub(in crate::limiter) entries: Vec<Entry>,
    /// What it has lately seen in use, by whomever.
    pub(in crate::limiter) seen: u64,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Expiring<Key, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what a call has come to.
    pub(in crate::limiter) fn remember(&self, limiter_refs: &[LimiterRef], call: &Call, answer: &Answer) {
        let is_nothing =
            call.give_back.is_empty() && answer.rescheduled.is_empty() && answer.outcomes.is_empty();
        if is_nothing {
            return;
        }
        let charged: Vec<(Micros, u64)> = granted(call, answer).collect();
        let mut pages = self.lock();
        let had_none = pages.len() == 0;
        pages.sweep(answer.now, Page::expires);
        for (limiter_ref, available) in limiter_refs.iter().zip(&answer.available) {
            let key = key(limiter_ref);
            let Some(mut page) = take(&mut pages, &key) else { continue };
            page.follow(limiter_ref);
            page.granted.prune(answer.now, &page.windows, |_, rule| rule.window);
            for holding in call.give_back.iter().chain(&call.reschedule) {
                page.granted.uncharge(holding.slot, holding.cost * holding.count, &page.windows);
            }
            charged.iter().for_each(|(at, permits)| charge(&mut page.granted, &page.windows, *at, *permits));
            let in_use = limiter_ref.rules.iter().zip(available);
            let in_use = in_use.map(|(rule, left)| rule.capacity().saturating_sub(*left)).max();
            page.seen = (answer.now, in_use.unwrap_or_default());
            let expires = page.expires();
            if expires > answer.now {
                pages.put(key, page, expires);
            }
        }
        let begins = had_none && pages.len() > 0;
        drop(pages);
        if begins {
            self.begun.notify_one();
        }
    }

    /// Writes down that the store is away, and what was granted without it: when, by this process's clock, and how many
    /// permits. If nothing was, others may have granted something, and the store must wait for them all the same.
    pub(in crate::limiter) fn remember_away(
        &self,
        now: Micros,
        limiter_refs: &[LimiterRef],
        granted: &[(Micros, u64)],
    ) {
        let mut pages = self.lock();
        self.has_unsaid.store(true, Ordering::Release);
        for limiter_ref in limiter_refs {
            let key = key(limiter_ref);
            let Some(mut page) = take(&mut pages, &key) else { continue };
            page.follow(limiter_ref);
            page.away_since.get_or_insert(now);
            page.away.prune(now, &page.windows, |_, rule| rule.window);
            granted.iter().for_each(|(at, permits)| charge(&mut page.away, &page.windows, *at, *permits));
            let expires = page.expires();
            pages.put(key, page, expires);
        }
    }

    /// Takes back what was granted while the store was away and not used.
    pub(in crate::limiter) fn forget_away(&self, limiter_refs: &[LimiterRef], at: Micros, permits: u64) {
        let mut pages = self.lock();
        for limiter_ref in limiter_refs {
            if let Some(page) = pages.get_mut(&key(limiter_ref)) {
                page.away.uncharge(at, permits, &page.windows);
            }
        }
    }

    /// Whether the store has something to hear.
    pub(in crate::limiter) fn has_unsaid(&self) -> bool {
        self.has_unsaid.load(Ordering::Acquire)
    }

    /// Of which the store has something to hear.
    pub(in crate::limiter) fn unsaid(&self) -> Vec<LimiterRef> {
        let pages = self.lock();
        let unsaid = pages.iter().filter(|(_, page)| page.has_unsaid());
        let unsaid: Vec<_> = unsaid.filter_map(|(_, page)| page.limiter_ref.clone()).collect();
        self.has_unsaid.store(!unsaid.is_empty(), Ordering::Release);
        unsaid
    }

    /// What the store has to hear of one now.
    pub(in crate::limiter) fn take_offline_grants(
        &self,
        limiter_ref: &LimiterRef,
        now: Micros,
    ) -> Option<OfflineGrants> {
        let mut pages = self.lock();
        let page = pages.get_mut(&key(limiter_ref))?;
        if page.saying.is_none() {
            let entries = page.away.take_until(now + SAID_AHEAD, &page.windows);
            let since = page.away_since.take().into_iter().chain(entries.first().map(|entry| entry.at)).min();
            page.saying = since.map(|since| OfflineGrants { number: now.0, since, entries });
        }
        page.saying.clone()
    }

    /// The store has heard what was said under a number, when its clock showed `heard` and this process's `now`.
    pub(in crate::limiter) fn said(&self, limiter_ref: &LimiterRef, number: u64, heard: Micros, now: Micros) {
        let (mut pages, key) = (self.lock(), key(limiter_ref));
        let Some(mut page) = pages.remove(&key) else { return };
        if let Some(saying) = page.saying.take_if(|saying| saying.number == number) {
            for Entry { at, permits } in saying.entries {
                charge(&mut page.granted, &page.windows, (heard + at) - now, permits);
            }
        }
        let expires = page.expires();
        pages.put(key, page, expires);
    }

    /// What was granted and still matters, up to an instant: what is booked for later is void.
    pub(in crate::limiter) fn granted(&self, now: Micros) -> Vec<Granted> {
        let mut pages = self.lock();
        pages.sweep(now, Page::expires);
        pages.iter().filter_map(|(_, page)| page.granted(now)).collect()
    }

    /// Forgets what is booked after an instant: it is void.
    pub(in crate::limiter) fn forget_after(&self, now: Micros) {
        self.lock().iter_mut().for_each(|(_, page)| drop(page.granted.split_off(now + Micros::ONE)));
    }

    /// Moves everything with the store's clock.
    pub(in crate::limiter) fn step(&self, step: Step) {
        self.lock().iter_mut().for_each(|(_, page)| {
            page.granted.step(step);
            page.seen.0 = stepped(page.seen.0, step);
        });
    }

    /// Forgets what was granted of a limiter, or of one of its partitions, before it was reset: when that was, by the store's clock
    /// and by this process's.
    pub(in crate::limiter) fn reset(&self, Reset { name, partition, at }: &Reset, local_at: Micros) {
        let mut pages = self.lock();
        let is_meant = |key: &Key| key.0 == *name && partition.is_none_or(|one| key.1 == Some(one));
        for (_, page) in pages.iter_mut().filter(|(key, _)| is_meant(key)) {
            page.granted = page.granted.split_off(*at + Micros::ONE).into();
            page.away = page.away.split_off(local_at + Micros::ONE).into();
            if page.seen.0 <= *at {
                page.seen.1 = 0;
            }
        }
    }

    /// Forgets what no longer matters.
    pub(in crate::limiter) fn sweep(&self, now: Micros) {
        while !self.lock().sweep(now, Page::expires).is_empty() {}
    }

    /// Whether there is nothing to write back.
    pub(in crate::limiter) fn is_empty(&self) -> bool {
        self.lock().len() == 0
    }

    /// Ends when there is something, after there was nothing.
    pub(in crate::limiter) async fn begun(&self) {
        self.begun.notified().await;
    }
}

impl Page {
    /// Takes on a limiter_ref's limits as they are now.
    fn follow(&mut self, limiter_ref: &LimiterRef) {
        let is_same = self.limiter_ref.as_ref().is_some_and(|known| known.rules == limiter_ref.rules);
        if !is_same {
            self.windows = limiter_ref.rules.iter().map(window).collect();
            self.limiter_ref = Some(limiter_ref.clone());
        }
    }

    fn has_unsaid(&self) -> bool {
        self.saying.is_some() || self.away_since.is_some() || !self.away.entries().is_empty()
    }

    fn granted(&self, now: Micros) -> Option<Granted> {
        let entries: Vec<Entry> =
            self.granted.entries().iter().copied().take_while(|entry| entry.at <= now).collect();
        let (at, seen) = self.seen;
        let seen = if at + SEEN_FOR > now { seen } else { 0 };
        Some(Granted { limiter_ref: self.limiter_ref.clone()?, entries, seen })
    }

    fn expires(&self) -> Micros {
        let longest = self.windows.iter().map(|rule| rule.window).max().unwrap_or_default();
        let granted = self.granted.last().map_or(Micros::ZERO, |last| last + longest);
        // By another clock, and the store may be away for long.
        let said = self.saying.as_ref().and_then(|saying| saying.entries.last()).map(|entry| entry.at);
        let away = self.away.last().max(said).max(self.away_since);
        granted.max(away.map_or(Micros::ZERO, |last| last + longest + AWAY_MAX))
    }
}

fn key(limiter_ref: &LimiterRef) -> Key {
    (limiter_ref.name.clone(), limiter_ref.partition)
}

/// A page, to be put back; `None` where there may be no further one.
fn take(pages: &mut Expiring<Key, Page>, key: &Key) -> Option<Page> {
    let is_full = pages.len() >= PAGES_MAX;
    pages.take(key).or_else(|| (!is_full).then(Page::default))
}

fn charge(calendar: &mut Timeline, windows: &[Rule], at: Micros, permits: u64) {
    let cell = finest_cell(windows);
    let after = calendar.entries().partition_point(|entry| cell_start(entry.at, cell) <= at);
    let is_one = |other: Micros| is_one(windows, cell, at.min(other), at.max(other));
    calendar.charge(after, at, permits, is_one);
}

/// A limit as the window in which a grant matters to it.
fn window(rule: &Rule) -> Rule {
    Rule { window: rule.seen_for(), ..rule.clone() }
}

/// What a call has come to: when, and how many permits.
pub(in crate::limiter) fn granted(call: &Call, answer: &Answer) -> impl Iterator<Item = (Micros, u64)> {
    let exchange = call.reschedule.iter().map(|holding| (holding.count, holding.cost));
    let exchanged = pair(exchange, answer.rescheduled.iter().copied());
    let moved = exchanged.filter_map(|(count, cost, at)| Some((at?, count * cost)));
    moved.chain(booked(call, answer))
}

/// What was booked for the requests of a call: when, and how many permits.
pub(in crate::limiter) fn booked(call: &Call, answer: &Answer) -> impl Iterator<Item = (Micros, u64)> {
    let runs = call.runs.iter().map(|run| (run.count, run.cost));
    pair(runs, answer.outcomes.iter().copied()).filter_map(|(count, cost, outcome)| match outcome {
        Outcome::Booked(at) => Some((at, count * cost)),
        Outcome::TooFar(_) | Outcome::Full(_) => None,
    })
}

/// Goes along two rows of counts, of which one says what each costs and the other what became of it.
fn pair<T: Copy>(
    mut costs: impl Iterator<Item = (u64, u64)>,
    outcomes: impl Iterator<Item = (u64, T)>,
) -> impl Iterator<Item = (u64, u64, T)> {
    let mut of_one = (0, 0);
    outcomes.flat_map(move |(mut count, outcome)| {
        let mut parts = Vec::new();
        while count > 0 {
            if of_one.0 == 0 {
                let Some(next) = costs.next() else { break };
                of_one = next;
                continue;
            }
            let part = count.min(of_one.0);
            parts.push((part, of_one.1, outcome));
            of_one.0 -= part;
            count -= part;
        }
        parts
    })
}
