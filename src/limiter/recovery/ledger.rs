//! The permits granted to this replica by a store that may forget them.
//!
//! When the store has lost its state, each replica writes back its own grants, so that the windows in progress stay charged.
//! Grants from the time when the store was unreachable are reported when it returns.
//!
//! There is one page per limiter and partition. It is kept while its grants matter to the limits, and is at most as large as
//! the state in the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::Entry;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::model::{Answer, Call, LimiterName, Partition, Reset, Step, stepped};
use crate::limiter::recovery::grants::{charge, granted, window};
use crate::limiter::recovery::offline_grants::{OfflineGrants, OfflineRecord};
use crate::limiter::store::expiry::Expiring;

/// How long an observed usage is worth writing back.
const USAGE_KEPT: Micros = Micros::from_millis(1000);

/// The most pages: some 30 MB. Grants under further limiters and partitions are not written back.
const PAGES_MAX: usize = 100_000;

type Key = (LimiterName, Option<Partition>);

/// The grants of all limiters and partitions.
#[derive(Default)]
pub(in crate::limiter) struct Ledger {
    pages: Mutex<Expiring<Key, Page>>,
    /// True if a page may hold offline grants that the store does not have.
    has_unreported: AtomicBool,
    /// Notified when the first page is begun.
    first_grant: Notify,
}

/// The grants of one limiter or partition.
#[derive(Clone, Default)]
struct Page {
    limiter_ref: Option<LimiterRef>,
    /// For each limit, the window in which a grant matters to it.
    windows: Vec<Rule>,
    /// The grants, by the store's clock.
    granted: Timeline,
    /// The permits of the tightest limit in use by the whole fleet, and when the store answered that.
    observed_usage: (Micros, u64),
    offline: OfflineRecord,
}

/// The grants of one limiter or partition, to be written back.
pub(in crate::limiter) struct Granted {
    pub(in crate::limiter) limiter_ref: LimiterRef,
    /// The instants and permits, ascending.
    pub(in crate::limiter) entries: Vec<Entry>,
    /// The permits of the tightest limit in use by the whole fleet, as lately observed; zero if that was too long ago.
    pub(in crate::limiter) observed_usage: u64,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Expiring<Key, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the bookings and the returns of an answered call.
    pub(in crate::limiter) fn record(&self, limiter_refs: &[LimiterRef], call: &Call, answer: &Answer) {
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
            page.record(call, &charged, answer.now);
            page.observed_usage = (answer.now, usage(limiter_ref, available));
            let expires = page.expires();
            if expires > answer.now {
                pages.put(key, page, expires);
            }
        }
        let begins = had_none && pages.len() > 0;
        drop(pages);
        if begins {
            self.first_grant.notify_one();
        }
    }

    /// Records that the store is unreachable, and the permits granted without it, by this process's clock.
    ///
    /// An outage without grants is recorded too: other replicas may have granted permits, and the returning store has to wait
    /// for their reports.
    pub(in crate::limiter) fn record_offline(
        &self,
        now: Micros,
        limiter_refs: &[LimiterRef],
        granted: &[(Micros, u64)],
    ) {
        let mut pages = self.lock();
        self.has_unreported.store(true, Ordering::Release);
        for limiter_ref in limiter_refs {
            let key = key(limiter_ref);
            let Some(mut page) = take(&mut pages, &key) else { continue };
            page.follow(limiter_ref);
            page.offline.record(now, &page.windows, granted);
            let expires = page.expires();
            pages.put(key, page, expires);
        }
    }

    /// Removes permits that were granted while the store was unreachable, and not used.
    pub(in crate::limiter) fn remove_offline(&self, limiter_refs: &[LimiterRef], at: Micros, permits: u64) {
        let mut pages = self.lock();
        for limiter_ref in limiter_refs {
            if let Some(page) = pages.get_mut(&key(limiter_ref)) {
                page.offline.remove(&page.windows, at, permits);
            }
        }
    }

    /// Returns whether there may be offline grants that the store does not have.
    pub(in crate::limiter) fn has_unreported(&self) -> bool {
        self.has_unreported.load(Ordering::Acquire)
    }

    /// Returns the limiters and partitions with offline grants that the store does not have, in the order of their names.
    pub(in crate::limiter) fn unreported(&self) -> Vec<LimiterRef> {
        let pages = self.lock();
        let mut unreported: Vec<_> = pages.iter().filter(|(_, page)| page.offline.is_pending()).collect();
        unreported.sort_by_key(|(key, _)| *key);
        let unreported: Vec<_> =
            unreported.into_iter().filter_map(|(_, page)| page.limiter_ref.clone()).collect();
        self.has_unreported.store(!unreported.is_empty(), Ordering::Release);
        unreported
    }

    /// Returns the next part of a limiter's offline grants to report; `None` if all is reported that may be.
    pub(in crate::limiter) fn next_offline_part(
        &self,
        limiter_ref: &LimiterRef,
        now: Micros,
    ) -> Option<OfflineGrants> {
        let mut pages = self.lock();
        let page = pages.get_mut(&key(limiter_ref))?;
        page.offline.next_part(now, &page.windows)
    }

    /// Turns a reported part into grants of the store, whose clock showed `store_now` when this process's showed `now`.
    pub(in crate::limiter) fn confirm_report(
        &self,
        limiter_ref: &LimiterRef,
        number: u64,
        store_now: Micros,
        now: Micros,
    ) {
        let (mut pages, key) = (self.lock(), key(limiter_ref));
        let Some(mut page) = pages.remove(&key) else { return };
        if let Some(part) = page.offline.confirm(number) {
            for Entry { at, permits } in part.entries {
                charge(&mut page.granted, &page.windows, (store_now + at) - now, permits);
            }
        }
        let expires = page.expires();
        pages.put(key, page, expires);
    }

    /// Returns the grants up to an instant that still matter, in the order of their limiters' names. Later bookings are void after a loss.
    pub(in crate::limiter) fn granted(&self, now: Micros) -> Vec<Granted> {
        let mut pages = self.lock();
        pages.sweep(now, Page::expires);
        let mut granted: Vec<_> =
            pages.iter().filter_map(|(key, page)| Some((key, page.granted(now)?))).collect();
        granted.sort_by_key(|(key, _)| *key);
        granted.into_iter().map(|(_, granted)| granted).collect()
    }

    /// Removes the bookings after an instant, which a loss has made void.
    pub(in crate::limiter) fn remove_after(&self, now: Micros) {
        self.lock().iter_mut().for_each(|(_, page)| drop(page.granted.split_off(now + Micros::ONE)));
    }

    /// Moves all grants with a step of the store's clock.
    pub(in crate::limiter) fn step(&self, step: Step) {
        self.lock().iter_mut().for_each(|(_, page)| {
            page.granted.step(step);
            page.observed_usage.0 = stepped(page.observed_usage.0, step);
        });
    }

    /// Removes the grants of a limiter, or of one partition, from before its reset. `local_at` is the instant of the reset by
    /// this process's clock.
    pub(in crate::limiter) fn reset(&self, Reset { name, partition, at }: &Reset, local_at: Micros) {
        let mut pages = self.lock();
        let is_meant = |key: &Key| key.0 == *name && partition.is_none_or(|one| key.1 == Some(one));
        for (_, page) in pages.iter_mut().filter(|(key, _)| is_meant(key)) {
            page.granted = page.granted.split_off(*at + Micros::ONE).into();
            page.offline.reset(local_at);
            if page.observed_usage.0 <= *at {
                page.observed_usage.1 = 0;
            }
        }
    }

    /// Removes the pages that no longer matter.
    pub(in crate::limiter) fn sweep(&self, now: Micros) {
        while !self.lock().sweep(now, Page::expires).is_empty() {}
    }

    /// Returns whether there is nothing to write back.
    pub(in crate::limiter) fn is_empty(&self) -> bool {
        self.lock().len() == 0
    }

    /// Waits until the first page is begun in an empty ledger.
    pub(in crate::limiter) async fn first_grant(&self) {
        self.first_grant.notified().await;
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
    fn record(&mut self, call: &Call, charged: &[(Micros, u64)], now: Micros) {
        self.granted.prune(now, &self.windows, |_, rule| rule.window);
        for holding in call.give_back.iter().chain(&call.reschedule) {
            self.granted.uncharge(holding.slot, holding.cost * holding.count, &self.windows);
        }
        charged.iter().for_each(|(at, permits)| charge(&mut self.granted, &self.windows, *at, *permits));
    }

    fn granted(&self, now: Micros) -> Option<Granted> {
        let entries = self.granted.entries().iter().copied().take_while(|entry| entry.at <= now).collect();
        let (at, usage) = self.observed_usage;
        let observed_usage = if at + USAGE_KEPT > now { usage } else { 0 };
        Some(Granted { limiter_ref: self.limiter_ref.clone()?, entries, observed_usage })
    }

    fn expires(&self) -> Micros {
        let longest = self.windows.iter().map(|rule| rule.window).max().unwrap_or_default();
        let granted = self.granted.last().map_or(Micros::ZERO, |last| last + longest);
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

/// Returns the permits in use under the tightest limit, by those that are available under each.
fn usage(limiter_ref: &LimiterRef, available: &[u64]) -> u64 {
    let in_use = limiter_ref.rules.iter().zip(available);
    in_use.map(|(rule, left)| rule.capacity().saturating_sub(*left)).max().unwrap_or_default()
}
