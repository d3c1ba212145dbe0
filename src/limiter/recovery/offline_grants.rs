//! The permits that this replica granted under one limiter while the store was unreachable, until the store has them.
//!
//! They are reported in parts, each under a number: a part whose answer was lost is sent again under the same number, and the
//! store counts it once. Instants are on this process's clock. Knows no store.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::Algorithm;
use crate::limiter::arithmetic::algorithm::kind::Checkpoint;
use crate::limiter::arithmetic::cell::Entry;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::{Rule, checkpoint_after};
use crate::limiter::arithmetic::timeline::Timeline;
use crate::limiter::recovery::grants::{FAR, charge};

/// How far into the future grants are reported. Slots that lie further ahead are given up and asked for in the store.
pub(in crate::limiter) const REPORT_AHEAD: Micros = Micros::from_millis(500);

/// How long offline grants are kept beyond the windows in which they matter: the store may be unreachable for long, and its
/// clock may differ.
const KEPT_MAX: Micros = Micros::from_millis(24 * 3_600_000);

/// The part of a limiter that this replica may grant by itself.
#[derive(Clone)]
pub(in crate::limiter) struct OwnPart {
    pub(in crate::limiter) whole: LimiterRef,
    /// The same with its limits divided among the replicas.
    pub(in crate::limiter) share: LimiterRef,
    /// The permits that each of these lacks before this replica grants anything, and since when: those that the fleet used before.
    pub(in crate::limiter) lacking: (Micros, Vec<u64>),
}

/// The offline grants of one limiter.
///
/// A bucket in use lacks what was taken from it for as long as it is not full, so that the grants of one window do not tell its level.
/// The lack in front of them is reported as one more grant. Invariant: what all replicas report is lacking is at least what the whole
/// bucket lacked then. Each reckons with its own part of the bucket, which is filled more slowly, and begins with what that lacked.
#[derive(Clone, Default)]
pub(in crate::limiter) struct OfflineRecord {
    granted: Timeline,
    /// This replica's part of each limit.
    rules: Vec<Rule>,
    /// The permits that each of them lacked before the grants that are kept one by one.
    checkpoints: Vec<Checkpoint>,
    /// Since when they count.
    since: Micros,
    /// The part that was sent to the store and not answered yet.
    pending: Option<OfflineGrants>,
    /// Until when the grants have been sent to the store, or were forgotten with a reset: others may stand in their cell.
    gone_until: Micros,
}

/// A part of the offline grants, on its way to the store.
#[derive(Clone)]
pub(in crate::limiter) struct OfflineGrants {
    pub(in crate::limiter) number: u64,
    /// The instants and permits, ascending.
    pub(in crate::limiter) entries: Vec<Entry>,
}

impl OfflineRecord {
    /// Records the permits that this replica granted without the store, at `now`. A grant matters in `windows`.
    pub(in crate::limiter) fn record(
        &mut self,
        now: Micros,
        own: &OwnPart,
        windows: &[Rule],
        granted: &[(Micros, u64)],
    ) {
        self.follow(own);
        self.prune(now, windows);
        granted.iter().for_each(|grant| charge(&mut self.granted, windows, *grant, FAR));
    }

    /// Takes on this replica's part of the limits. What earlier ones lacked, changed ones lack.
    fn follow(&mut self, OwnPart { share, lacking: (since, permits), .. }: &OwnPart) {
        let rules = &*share.rules;
        if self.checkpoints.is_empty() {
            // The first grant may be of that instant.
            let before = *since - Micros::ONE;
            let lacking = |(rule, permits): (&Rule, &u64)| rule.kind.lacking(rule.quota(), before, *permits);
            self.checkpoints = rules.iter().zip(permits).map(lacking).collect();
            self.since = *since;
        } else if self.rules != rules {
            let after = |rule| checkpoint_after(self.rules.iter().zip(&self.checkpoints), rule);
            self.checkpoints = rules.iter().map(after).collect();
        }
        self.rules = rules.to_vec();
    }

    /// Takes the grants that have left every window into the checkpoints.
    fn prune(&mut self, now: Micros, windows: &[Rule]) {
        let longest = windows.iter().map(|rule| rule.window).max().unwrap_or_default();
        for (checkpoint, rule) in self.checkpoints.iter_mut().zip(self.rules.iter()) {
            rule.kind.fold(rule.quota(), checkpoint, self.granted.entries(), now - longest);
        }
        self.granted.prune(now, windows, &[], |_, rule| rule.window);
    }

    /// Takes what the emptiest bucket lacked when the grants before left every window, as one grant of that instant. The store itself
    /// knows what was lacking before this replica granted anything.
    fn take_lacking(&mut self) -> Option<Entry> {
        let checkpoints = std::mem::take(&mut self.checkpoints);
        let missing = self.rules.iter().zip(&checkpoints);
        let missing = missing.filter_map(|(rule, own)| rule.kind.missing(rule.quota(), own));
        let most = missing.max().filter(|(permits, at)| *permits > 0 && *at > self.since);
        most.map(|(permits, at)| Entry { at, permits })
    }

    /// Removes permits that were granted and not used. Those that the store may have by now stay.
    pub(in crate::limiter) fn remove(&mut self, windows: &[Rule], at: Micros, permits: u64) {
        if at > self.gone_until {
            self.granted.uncharge(at, permits, windows);
        }
    }

    /// Removes the grants up to an instant at which the limiter was reset.
    pub(in crate::limiter) fn reset(&mut self, at: Micros) {
        self.granted = self.granted.split_off(at + Micros::ONE).into();
        self.checkpoints.clear();
        self.gone_until = self.gone_until.max(at);
    }

    /// Returns whether anything has still to be reported to the store.
    pub(in crate::limiter) fn is_pending(&self) -> bool {
        self.pending.is_some() || !self.granted.entries().is_empty()
    }

    /// Returns the part to send at `now`: the one that was sent and not answered, or a new one. `None` if there is none.
    pub(in crate::limiter) fn next_part(&mut self, now: Micros, windows: &[Rule]) -> Option<OfflineGrants> {
        if self.pending.is_none() {
            self.prune(now, windows);
            let entries = self.granted.take_until(now + REPORT_AHEAD, windows);
            if let Some(last) = entries.last() {
                self.gone_until = self.gone_until.max(last.at);
                let lacking = self.take_lacking();
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
    use crate::limiter::model::LimiterName;
    use crate::limiter::recovery::grants::window;

    const SECOND: u64 = 1_000_000;

    fn bucket(rate: u64, burst: u64) -> Rule {
        Rule { rate, window: Micros(SECOND), cell: Micros::ONE, kind: Kind::Bucket(Bucket { burst }) }
    }

    /// Returns the permits of the parts that are written back ten seconds after an outage began, those before the last window first: of grants
    /// of a bucket's part that lacked so many permits then, at so many halves of a second.
    fn written_back(whole: &Rule, part: &Rule, lacking: u64, grants: &[(u64, u64)]) -> [u64; 2] {
        let (name, group) = (LimiterName::parse("bucket").unwrap(), "bucket".into());
        let limiter_ref =
            LimiterRef { name, partition: None, group, rules: [whole.clone()].into(), valid_until: None };
        let windows = [window(whole)];
        let (mut record, start) = (OfflineRecord::default(), Micros(100 * SECOND));
        let share = LimiterRef { rules: [part.clone()].into(), ..limiter_ref.clone() };
        let own = OwnPart { whole: limiter_ref, share, lacking: (start, vec![lacking]) };
        for (halves, permits) in grants {
            let at = start + Micros(halves * SECOND / 2);
            record.record(at, &own, &windows, &[(at, *permits)]);
        }
        let now = start + Micros(10 * SECOND);
        let entries = record.next_part(now, &windows).map(|part| part.entries).unwrap_or_default();
        let (before, within): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|entry| entry.at + windows[0].window <= now);
        assert!(before.len() <= 1 && before.iter().all(|entry| entry.permits > 0));
        [before, within].map(|entries| entries.iter().map(|entry| entry.permits).sum())
    }

    fn each_second(permits: u64) -> impl Iterator<Item = (u64, u64)> {
        (1..10).map(move |second| (2 * second, permits))
    }

    #[test]
    fn permits_that_a_bucket_lacked_before_the_window_are_written_back() {
        let whole = bucket(2, 5);
        let written = |grants: &[(u64, u64)]| written_back(&whole, &whole, 0, grants);
        let in_full_use: Vec<(u64, u64)> = std::iter::once((0, 5)).chain(each_second(2)).collect();
        // The window is the 2.5 s in which the bucket fills. It was empty all the time, which what was granted within does not show.
        assert_eq!(written(&in_full_use), [5, 4], "rounded up");
        assert_eq!(written(&[(0, 5), (16, 1), (18, 2)]), [0, 3], "nothing was lacking any more");
        assert_eq!(written(&[(0, 5)]), [0, 0], "and it is full by now");
    }

    #[test]
    fn a_bucket_that_was_empty_when_the_outage_began_still_is_if_in_full_use() {
        let (whole, in_full_use) = (bucket(2, 5), each_second(2).collect::<Vec<_>>());
        // All of it at the seventh second, and one less half a second later.
        assert_eq!(written_back(&whole, &whole, 5, &in_full_use), [4, 4]);
        assert_eq!(written_back(&whole, &whole, 0, &in_full_use), [2, 4], "less than it is filled by");
        // The store knows what was lacking when it was last heard, if that matters still.
        let long = bucket(2, 50);
        assert_eq!(written_back(&long, &long, 50, &in_full_use), [0, 18]);
    }

    #[test]
    fn a_part_of_a_bucket_is_filled_as_slowly_as_it_is_large() {
        let in_full_use: Vec<(u64, u64)> = (1..20).map(|half| (half, 1)).collect();
        let (whole, third) = (bucket(6, 6), bucket(2, 2));
        assert_eq!(written_back(&whole, &third, 2, &in_full_use), [1, 2]);
    }

    /// Returns a limiter with these rules, and this replica's part of it, which lacks nothing.
    fn own_part(rules: &[Rule]) -> OwnPart {
        let (name, group) = (LimiterName::parse("bucket").unwrap(), "bucket".into());
        let whole = LimiterRef { name, partition: None, group, rules: rules.into(), valid_until: None };
        OwnPart { share: whole.clone(), whole, lacking: (Micros(100 * SECOND), vec![0; rules.len()]) }
    }

    #[test]
    fn a_long_outage_keeps_no_more_grants_than_matter() {
        let rules = [bucket(2, 5), bucket(2, 10)];
        let (own, windows) = (own_part(&rules), rules.each_ref().map(window));
        let mut record = OfflineRecord::default();
        for second in 100..200 {
            let at = Micros(second * SECOND);
            record.record(at, &own, &windows, &[(at, 2)]);
        }
        // The longer window is five seconds and a moment.
        assert_eq!(record.granted.entries().len(), 6);
    }

    #[test]
    fn changed_limits_lack_what_those_before_lacked() {
        let (one, two) = ([bucket(2, 5)], [bucket(2, 5), bucket(1, 3)]);
        let mut record = OfflineRecord::default();
        let at = |second| Micros(second * SECOND);
        record.record(at(100), &own_part(&one), &one.each_ref().map(window), &[(at(100), 5)]);
        let windows = two.each_ref().map(window);
        record.record(at(101), &own_part(&two), &windows, &[]);
        assert_eq!((record.checkpoints.len(), record.rules.len()), (2, 2));
    }

    #[test]
    fn behind_a_reset_nothing_was_lacking() {
        let whole = bucket(2, 50);
        let (mut own, windows) = (own_part(std::slice::from_ref(&whole)), [window(&whole)]);
        own.lacking.1 = vec![50];
        let mut record = OfflineRecord::default();
        let at = |second| Micros(second * SECOND);
        for second in 100..130 {
            record.record(at(second), &own, &windows, &[(at(second), 2)]);
        }
        record.reset(at(128));
        assert!(record.is_pending());
        let part = record.next_part(at(130), &windows).unwrap();
        assert_eq!(part.entries, [Entry { at: at(129), permits: 2 }]);
    }
}
