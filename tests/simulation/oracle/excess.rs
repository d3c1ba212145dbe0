//! Judges what responses have cost beyond their estimates: weir hears of it behind the request, and those that come after leave it out.
//!
//! An excess is booked at the earliest instants with room, which lie behind all that was booked until then. So nobody can say from outside
//! which window holds it. But where weir keeps each window, a long time holds no more than its windows together: what was sent in it, and
//! each excess that weir was told of since it began, and that must have found its room before it ended.

use std::collections::VecDeque;

use super::demand::BACK;
use super::event::Algorithm;
use super::faults::Faults;
use super::finding::Evidence;
use super::limiters::{Limiter, Rule};
use super::usage::StateUse;

/// For how many windows a limit is judged.
const WINDOWS: [u64; 6] = [4, 6, 10, 16, 32, 64];
/// The time in which the store has surely heard of an excess: reports are sent ten times a second.
const REPORTED: u64 = 500_000;

/// An excess that weir was told of.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: u64,
    /// When it must have been booked at the latest.
    booked_by: u64,
    /// All permits told before it, and with it.
    before: u64,
    with: u64,
}

/// Each excess of a state.
#[derive(Default, Debug)]
pub(crate) struct Excesses {
    told: VecDeque<Told>,
    total: u64,
    /// When all of them have found room, where nobody else gets any.
    owed_until: u64,
}

impl Excesses {
    /// Takes in that weir is told of an excess now. One that is not judged may take the room of others.
    pub(crate) fn tell(&mut self, at: u64, permits: u64, limiter: &Limiter, is_judged: bool) {
        if permits == 0 {
            return;
        }
        let takes = limiter.rules.iter().map(|rule| permits * rule.limit.per / rule.last().rate.max(1));
        self.owed_until = self.owed_until.max(at) + takes.max().unwrap_or_default();
        // Behind all that may wait, and where it has room as a whole.
        let further = REPORTED + limiter.model.wait_max.unwrap_or_default() + 2 * limiter.window();
        let before = self.total;
        self.total += if is_judged { permits } else { 0 };
        let booked_by = self.told.back().map_or(0, |last| last.booked_by).max(self.owed_until + further);
        self.told.push_back(Told { at, booked_by, before, with: self.total });
    }

    /// Returns the permits that weir was told of since an instant, and that were booked by another.
    fn within(&self, from: u64, until: u64) -> u64 {
        let first = self.told.partition_point(|told| told.at < from);
        let end = self.told.partition_point(|told| told.booked_by <= until);
        let within = self.told.get(first).zip(end.checked_sub(1).and_then(|last| self.told.get(last)));
        within.map_or(0, |(first, last)| last.with.saturating_sub(first.before))
    }

    /// Returns whether none is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Forgets what was told before an instant.
    pub(crate) fn forget(&mut self, before: u64) {
        while self.told.front().is_some_and(|told| told.at < before) {
            self.told.pop_front();
        }
    }
}

/// Judges the windows before a request that is written now, which the history of its state holds already. `None`: there is nothing to judge,
/// because something was disturbed, or nothing had to be left out.
pub(crate) fn judge(
    state: &StateUse,
    limiter: &Limiter,
    faults: &Faults,
    at: u64,
) -> Option<Option<Evidence>> {
    let calm = faults.calm_since()?.max(limiter.known_from);
    let known = calm + limiter.window() + BACK + limiter.model.wait_max.unwrap_or_default();
    let mut verdict: Option<Option<Evidence>> = None;
    for rule in &limiter.rules {
        for windows in WINDOWS {
            let from = (at + 1).saturating_sub(windows * rule.limit.per);
            let is_known = from >= known.max(rule.since).max(state.history.known_from);
            if !is_known || !limiter.is_unpaused_since(calm) || limiter.excess(faults, from) != Some(0) {
                break;
            }
            let told = state.excesses.within(from, at);
            if told == 0 {
                continue;
            }
            let (sent, limit) =
                (state.history.used(from, at + 1), allowed(rule, from, windows, state.cost_max));
            let evidence = (sent + told > limit).then(|| Evidence {
                sent: sent + told,
                limit,
                detail: format!(
                    "{told} of them beyond their estimates, in {windows} windows from {from} us on"
                ),
            });
            verdict = Some(verdict.flatten().or(evidence));
        }
    }
    verdict
}

/// Returns the most that so many windows from an instant on hold together.
fn allowed(rule: &Rule, from: u64, windows: u64, cost_max: u64) -> u64 {
    let bounds = rule.bounds(from);
    let all = windows * bounds.rate;
    match rule.limit.algorithm {
        Algorithm::SlidingWindow => all,
        // They begin at instants of their own.
        Algorithm::FixedWindow => all + bounds.rate,
        // A permit may be used a guard behind its slot.
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket | Algorithm::WarmUp { .. } => {
            let late = (bounds.rate * bounds.guard).div_ceil(rule.limit.per);
            all + late + 1 + bounds.burst.max(cost_max)
        }
    }
}
