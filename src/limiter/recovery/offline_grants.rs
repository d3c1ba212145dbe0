//! The permits that this replica granted under one limiter while the store was unreachable, until the store has them.
//!
//! They are reported in parts, each under a number: a part whose answer was lost is sent again under the same number, and the
//! store counts it once. Instants are on this process's clock. Knows no store.

use crate::clock::Micros;
use crate::limiter::arithmetic::cell::Entry;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::recovery::grants::charge;

/// How far into the future grants are reported. Slots that lie further ahead are given up and asked for in the store.
pub(in crate::limiter) const REPORT_AHEAD: Micros = Micros::from_millis(500);

/// How long offline grants are kept beyond the windows in which they matter: the store may be unreachable for long, and its
/// clock may differ.
const KEPT_MAX: Micros = Micros::from_millis(24 * 3_600_000);

/// The offline grants of one limiter.
#[derive(Clone, Default)]
pub(in crate::limiter) struct OfflineRecord {
    granted: Timeline,
    /// The part that was sent to the store and not answered yet.
    pending: Option<OfflineGrants>,
}

/// A part of the offline grants, on its way to the store.
#[derive(Clone)]
pub(in crate::limiter) struct OfflineGrants {
    pub(in crate::limiter) number: u64,
    /// The instants and permits, ascending.
    pub(in crate::limiter) entries: Vec<Entry>,
}

impl OfflineRecord {
    /// Records the permits that this replica granted without the store, at `now`.
    pub(in crate::limiter) fn record(&mut self, now: Micros, windows: &[Rule], granted: &[(Micros, u64)]) {
        self.granted.prune(now, windows, &[], |_, rule| rule.window);
        granted.iter().for_each(|(at, permits)| charge(&mut self.granted, windows, *at, *permits));
    }

    /// Removes permits that were granted and not used.
    pub(in crate::limiter) fn remove(&mut self, windows: &[Rule], at: Micros, permits: u64) {
        self.granted.uncharge(at, permits, windows);
    }

    /// Removes the grants up to an instant at which the limiter was reset.
    pub(in crate::limiter) fn reset(&mut self, at: Micros) {
        self.granted = self.granted.split_off(at + Micros::ONE).into();
    }

    /// Returns whether anything has still to be reported to the store.
    pub(in crate::limiter) fn is_pending(&self) -> bool {
        self.pending.is_some() || !self.granted.entries().is_empty()
    }

    /// Returns the part to send at `now`: the one that was sent and not answered, or a new one. `None` if there is none.
    pub(in crate::limiter) fn next_part(&mut self, now: Micros, windows: &[Rule]) -> Option<OfflineGrants> {
        if self.pending.is_none() {
            let entries = self.granted.take_until(now + REPORT_AHEAD, windows);
            self.pending = (!entries.is_empty()).then_some(OfflineGrants { number: now.0, entries });
        }
        self.pending.clone()
    }

    /// Takes out the part that was sent under a number, which the store has now.
    pub(in crate::limiter) fn confirm(&mut self, number: u64) -> Option<OfflineGrants> {
        self.pending.take_if(|part| part.number == number)
    }

    /// Returns until when the record is kept, where a grant matters for as long as `window`. Zero if it is empty.
    pub(in crate::limiter) fn expires(&self, window: Micros) -> Micros {
        let pending = self.pending.as_ref().and_then(|part| part.entries.last()).map(|entry| entry.at);
        let last = self.granted.last().max(pending);
        last.map_or(Micros::ZERO, |last| last + window + KEPT_MAX)
    }
}
