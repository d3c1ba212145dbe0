//! Charges a state with use that was not booked before, and tells what it lacks.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::Algorithm;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::search::Search;
use crate::limiter::arithmetic::state::LimiterState;

/// The most instants at which permits are booked that were used beyond those that had been taken. A window holds no more than its rate;
/// what is left is booked at the last of them.
const EXCESS_INSTANTS_MAX: usize = 4;

impl LimiterState {
    /// Books permits at an instant whether there is room or not, because they are used there.
    pub fn charge(&mut self, at: Micros, permits: u64) {
        Search::new(&mut self.timeline, &self.rules, &self.checkpoints, at).charge(permits);
    }

    /// Books permits that were used beyond those that had been taken, at the earliest instants with room, so that those who come next
    /// leave them out: as many as have room at the first, the others together. Without windows they are booked at `now`, because a level that is below zero leaves them out by itself, and so they
    /// are during a pause.
    pub fn charge_excess(&mut self, now: Micros, permits: u64) {
        let rates = self.rules.iter().filter(|rule| rule.has_windows()).map(|rule| rule.rate);
        let Some(rate) = rates.min().filter(|_| self.pause.until() <= now) else {
            return self.charge(now, permits);
        };
        let search = Search::new(&mut self.timeline, &self.rules, &self.checkpoints, now);
        let (mut search, mut left) = (search.beside(&self.external_usage), permits);
        for instant in 1..=EXCESS_INSTANTS_MAX {
            let most = left.min(rate);
            let room = search.earliest(if instant == 1 { 1 } else { most }).room;
            let booked = match instant {
                1 => left.min(room),
                EXCESS_INSTANTS_MAX => left,
                _ => most,
            };
            search.charge(booked);
            left -= booked;
            if left == 0 {
                break;
            }
        }
    }

    /// Charges permits until at least `permits` count as used at an instant or since.
    ///
    /// Earlier bookings may be among them, but it is unknown when the other permits were used: those bookings would leave
    /// their windows too soon. So they move up to the instant first. Without windows only the level matters, whenever the
    /// permits were used. Use until `now` is not compared with an instant that lies ahead. Returns how many were charged.
    pub fn charge_missing(&mut self, now: Micros, at: Micros, permits: u64) -> u64 {
        self.charge_folded(at, permits);
        let lies_ahead = at > now;
        let has_windows = self.rules.iter().any(Rule::has_windows);
        let known = if lies_ahead {
            self.held(at, Micros(u64::MAX))
        } else if has_windows {
            self.held(at, now)
        } else {
            self.rules.iter().map(|rule| self.surely_in_use(at, permits, rule)).min().unwrap_or_default()
        };
        let missing = permits.saturating_sub(known);
        if missing == 0 {
            return 0;
        }
        if !lies_ahead && has_windows {
            self.uncharge_before(at, missing);
        }
        self.charge(at, missing);
        self.cap_buckets(at);
        missing
    }

    /// Lets the checkpoints that hold an instant lack so many permits there: a booking at it is seen no more.
    fn charge_folded(&mut self, at: Micros, permits: u64) {
        for (rule, checkpoint) in self.rules.iter().zip(&mut self.checkpoints) {
            let (quota, kind) = (rule.quota(), &rule.kind);
            let Some((_, folded)) = kind.missing(quota, checkpoint).filter(|(_, folded)| *folded >= at)
            else {
                continue;
            };
            let mut behind = kind.lacking(quota, at, permits.min(rule.lacking_max()));
            kind.fold(quota, &mut behind, &[], folded);
            if kind.is_emptier(&behind, checkpoint) {
                *checkpoint = behind;
            }
        }
    }

    /// Lets no bucket lack more at an instant than it ever can. What was charged there is what the longest limit counts, and most of it was used
    /// long before: a bucket of 40/1s beside 5000/1h would make up for all permits of the hour.
    fn cap_buckets(&mut self, at: Micros) {
        for (rule, checkpoint) in self.rules.iter().zip(&mut self.checkpoints) {
            let (quota, kind) = (rule.quota(), &rule.kind);
            if kind.missing(quota, checkpoint).is_none_or(|(_, folded)| folded >= at) {
                continue;
            }
            let (mut charged, most) = (*checkpoint, kind.lacking(quota, at, rule.lacking_max()));
            kind.fold(quota, &mut charged, self.timeline.entries(), at);
            if kind.is_emptier(&charged, &most) {
                *checkpoint = most;
            }
        }
    }

    /// Returns how many permits are surely in use at an instant under a rule without windows, of at most so many. What is in use flows
    /// out bit by bit, so that a part of a permit does not count.
    fn surely_in_use(&self, at: Micros, most: u64, rule: &Rule) -> u64 {
        let in_use = |at| self.lacks(at, rule);
        let flows_out = at + rule.spacing(most);
        if in_use(Micros(flows_out.0.saturating_sub(1))) > 0 {
            most
        } else {
            in_use(at).saturating_sub(1).min(most)
        }
    }

    /// Takes back up to `permits` that are booked before an instant, the latest first.
    fn uncharge_before(&mut self, at: Micros, mut permits: u64) {
        let before = self.timeline.entries().iter().rev().filter(|entry| entry.at < at);
        for entry in before.copied().collect::<Vec<_>>() {
            self.timeline.uncharge(entry.at, entry.permits.min(permits), &self.rules);
            permits = permits.saturating_sub(entry.permits);
        }
    }

    /// Returns the permits that each of the caller's rules lacks at an instant.
    pub fn lacking(&self, at: Micros, rules: &[Rule]) -> Vec<u64> {
        rules.iter().map(|rule| self.lacks(at, rule)).collect()
    }

    /// Returns the most permits that a rule which spaces them lacks at `now`, or behind the last booking if that is later.
    pub(in crate::limiter::arithmetic) fn lacking_behind(&self, now: Micros) -> u64 {
        let at = now.max(self.timeline.last().unwrap_or_default());
        let spaced = self.rules.iter().filter(|rule| rule.is_spaced());
        spaced.map(|rule| self.lacks(at, rule)).max().unwrap_or_default()
    }

    fn lacks(&self, at: Micros, rule: &Rule) -> u64 {
        if !rule.is_spaced() {
            return rule.capacity().saturating_sub(self.left(at, rule));
        }
        let mut checkpoint = self.checkpoint(rule).unwrap_or_else(|| rule.kind.empty_checkpoint());
        rule.kind.fold(rule.quota(), &mut checkpoint, self.timeline.entries(), at);
        rule.kind.missing(rule.quota(), &checkpoint).map_or(0, |(permits, _)| permits)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limiter::arithmetic::algorithm::bucket::Bucket;
    use crate::limiter::arithmetic::algorithm::kind::Kind;
    use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
    use crate::limiter::arithmetic::algorithm::warm_up::WarmUp;

    const SECOND: Micros = Micros::from_millis(1000);

    /// As where a report was made in an outage, before the usage until then was charged.
    #[test]
    fn use_from_before_a_state_was_last_opened_is_charged() {
        let warm_up = WarmUp { warm_up: SECOND, cold: 3 };
        let kinds =
            [Kind::Bucket(Bucket { burst: 10 }), Kind::Bucket(Bucket { burst: 1 }), Kind::WarmUp(warm_up)];
        for kind in kinds {
            let rule = Rule { rate: 10, window: Micros(10 * SECOND.0), cell: Micros::ONE, kind };
            let (rules, mut state): (Arc<[Rule]>, _) = ([rule].into(), LimiterState::default());
            let [used, opened] = [100, 103].map(|seconds| Micros(seconds * SECOND.0));
            state.open(opened, &rules, SECOND, 1);
            // A second time changes nothing.
            for _ in 0..2 {
                state.charge_missing(opened, used, 10);
                assert_eq!(state.lacking(used + SECOND + SECOND, &rules), [8], "{rules:?}");
            }
        }
    }

    #[test]
    fn a_bucket_does_not_make_up_for_what_a_long_limit_counts() {
        let kinds = [Kind::Bucket(Bucket { burst: 40 }), Kind::Bucket(Bucket { burst: 1 })];
        for kind in kinds {
            let short = Rule { rate: 40, window: SECOND, cell: Micros::ONE, kind };
            let kind = Kind::SlidingWindow(SlidingWindow);
            let long = Rule { rate: 5000, window: Micros(3600 * SECOND.0), kind, ..short.clone() };
            let (rules, mut state): (Arc<[Rule]>, _) = ([short, long].into(), LimiterState::default());
            let [used, now] = [100, 101].map(|seconds| Micros(seconds * SECOND.0));
            state.open(used, &rules, SECOND, 1);
            state.charge_missing(now, used, 560);
            assert_eq!(state.lacking(used, &rules)[1], 560, "{rules:?}");
            assert_eq!(state.lacking(used + SECOND, &rules)[0], 0, "{rules:?}");
        }
    }

    /// Permits from before a reset come back behind it, and what was booked since stands in the cell where they were.
    #[test]
    fn what_a_reset_has_forgotten_is_not_given_back() {
        let kind = Kind::SlidingWindow(SlidingWindow);
        let rule = Rule { rate: 10, window: Micros(10 * SECOND.0), cell: Micros(4 * SECOND.0), kind };
        let (rules, mut state): (Arc<[Rule]>, _) = ([rule].into(), LimiterState::default());
        let [before, reset, since] = [600, 700, 800].map(Micros::from_millis);
        state.open(before, &rules, SECOND, 1);
        state.charge(before, 6);
        state.reset(reset);
        state.open(since, &rules, SECOND, 1);
        state.charge(since, 7);
        for (slot, permits, left) in [(before, 6, 3), (since, 2, 5)] {
            let mut cursor = state.cursor(slot, state.generation().number);
            state.give_back(&mut cursor, permits);
            assert_eq!(state.available(since, &rules), [left]);
        }
    }
}
