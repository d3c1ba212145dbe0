//! The permits that this replica granted under one limiter while the store was unreachable, until the store has them.
//!
//! They are reported in parts, each under a number: a part whose answer was lost is sent again under the same number, and the
//! store counts it once. Instants are on this process's clock. Knows no store.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::Algorithm;
use crate::limiter::arithmetic::algorithm::kind::Sight;
use crate::limiter::arithmetic::cell::Entry;
use crate::limiter::arithmetic::rule::{Rule, checkpoint_after};
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::recovery::grants::charge;

/// How far into the future grants are reported. Slots that lie further ahead are given up and asked for in the store.
pub(in crate::limiter) const REPORT_AHEAD: Micros = Micros::from_millis(500);

/// How long offline grants are kept beyond the windows in which they matter: the store may be unreachable for long, and its
/// clock may differ.
const KEPT_MAX: Micros = Micros::from_millis(24 * 3_600_000);

/// The limits of a limiter.
#[derive(Clone, Copy)]
pub(in crate::limiter) struct Limits<'a> {
    pub(in crate::limiter) rules: &'a [Rule],
    /// For each of them, the window in which a grant matters to it.
    pub(in crate::limiter) windows: &'a [Rule],
}

/// The offline grants of one limiter.
#[derive(Clone, Default)]
pub(in crate::limiter) struct OfflineRecord {
    granted: Timeline,
    /// For each limit, what of earlier grants matters still: a bucket in use lacks them for as long as it is not full.
    checkpoints: Vec<Sight>,
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
    pub(in crate::limiter) fn record(&mut self, now: Micros, limits: Limits<'_>, granted: &[(Micros, u64)]) {
        self.prune(now, limits);
        granted.iter().for_each(|(at, permits)| charge(&mut self.granted, limits.windows, *at, *permits));
    }

    /// Takes on changed limits: what the old ones lacked, the new ones lack.
    pub(in crate::limiter) fn follow(&mut self, before: &[Rule], rules: &[Rule]) {
        let after = |rule| checkpoint_after(before.iter().zip(&self.checkpoints), rule);
        self.checkpoints = rules.iter().map(after).collect();
    }

    /// Takes the grants that have left every window into the checkpoints.
    fn prune(&mut self, now: Micros, Limits { rules, windows }: Limits<'_>) {
        if self.checkpoints.is_empty() {
            self.checkpoints = rules.iter().map(|rule| rule.kind.sight()).collect();
        }
        let longest = windows.iter().map(|rule| rule.window).max().unwrap_or_default();
        for (checkpoint, rule) in self.checkpoints.iter_mut().zip(rules) {
            rule.kind.fold(rule.quota(), checkpoint, self.granted.entries(), now - longest);
        }
        self.granted.prune(now, windows, &[], |_, rule| rule.window);
    }

    /// Takes what the emptiest bucket lacked when the grants before left every window, as one grant of that instant.
    fn take_lacking(&mut self, rules: &[Rule]) -> Option<Entry> {
        let checkpoints = std::mem::take(&mut self.checkpoints);
        let missing =
            rules.iter().zip(&checkpoints).filter_map(|(rule, own)| rule.kind.missing(rule.quota(), own));
        let most = missing.max().filter(|(permits, _)| *permits > 0);
        most.map(|(permits, at)| Entry { at, permits })
    }

    /// Removes permits that were granted and not used.
    pub(in crate::limiter) fn remove(&mut self, windows: &[Rule], at: Micros, permits: u64) {
        self.granted.uncharge(at, permits, windows);
    }

    /// Removes the grants up to an instant at which the limiter was reset.
    pub(in crate::limiter) fn reset(&mut self, at: Micros) {
        self.granted = self.granted.split_off(at + Micros::ONE).into();
        self.checkpoints.clear();
    }

    /// Returns whether anything has still to be reported to the store.
    pub(in crate::limiter) fn is_pending(&self) -> bool {
        self.pending.is_some() || !self.granted.entries().is_empty()
    }

    /// Returns the part to send at `now`: the one that was sent and not answered, or a new one. `None` if there is none.
    pub(in crate::limiter) fn next_part(&mut self, now: Micros, limits: Limits<'_>) -> Option<OfflineGrants> {
        if self.pending.is_none() {
            self.prune(now, limits);
            let entries = self.granted.take_until(now + REPORT_AHEAD, limits.windows);
            if !entries.is_empty() {
                let lacking = self.take_lacking(limits.rules);
                let entries = lacking.into_iter().chain(entries).collect();
                self.pending = Some(OfflineGrants { number: now.0, entries });
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::arithmetic::algorithm::bucket::Bucket;
    use crate::limiter::arithmetic::algorithm::kind::Kind;
    use crate::limiter::recovery::grants::window;

    const SECOND: u64 = 1_000_000;

    /// Returns the permits of the parts that are written back after ten seconds of grants, those before the last window first.
    fn written_back(grants: &[(u64, u64)]) -> [u64; 2] {
        let rules = [Rule {
            rate: 2,
            window: Micros(SECOND),
            cell: Micros::ONE,
            kind: Kind::Bucket(Bucket { burst: 5 }),
        }];
        let windows: Vec<Rule> = rules.iter().map(window).collect();
        let limits = Limits { rules: &rules, windows: &windows };
        let (mut record, start) = (OfflineRecord::default(), Micros(100 * SECOND));
        for (seconds, permits) in grants {
            let at = start + Micros(seconds * SECOND);
            record.record(at, limits, &[(at, *permits)]);
        }
        let now = start + Micros(10 * SECOND);
        let entries = record.next_part(now, limits).map(|part| part.entries).unwrap_or_default();
        let (before, within): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|entry| entry.at + windows[0].window <= now);
        assert!(before.len() <= 1);
        [before, within].map(|entries| entries.iter().map(|entry| entry.permits).sum())
    }

    #[test]
    fn what_a_bucket_lacked_before_the_window_is_written_back() {
        let in_full_use: Vec<(u64, u64)> =
            std::iter::once((0, 5)).chain((1..10).map(|second| (second, 2))).collect();
        // The window is the 2.5 s in which the bucket fills. It was empty all the time, which what was granted within does not show.
        assert_eq!(written_back(&in_full_use), [5, 4], "rounded up");
        let filled_between = [(0, 5), (8, 1), (9, 2)];
        assert_eq!(written_back(&filled_between), [0, 3], "nothing was lacking any more");
        assert_eq!(written_back(&[(0, 5)]), [0, 0], "and it is full by now");
    }
}
