//! How long newcomers of a line wait: those who would wait for too long are refused. Pure.

use crate::clock::Micros;
use crate::limiter::arithmetic::line::{Key, Line, Run, permits_of, virtual_of};
use crate::limiter::arithmetic::queue_order::Refused;
use crate::limiter::arithmetic::room::{DealTerms, Next, Room, States, earliest_for_costs, searches_from};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{
    CLASSES_MAX, Last, LineAnswer, LineCall, NotTaken, Outcome, RetryDelay, Violated, Waiting, Want,
};

/// For how many numbers of requests one call estimates how long they wait; for fewer among many flows. The rest comes with the next one.
const ESTIMATES_MAX: usize = 16;
const ESTIMATES_LEAST: usize = 8;

/// How many flows one call looks at for these estimates, and again to tell what the last requests of wants without taken newcomers wait for; it
/// tells of so many wants at least. The caller goes on with what it was told of the others.
const LOOKS_MAX: usize = 256;
const LASTS_LEAST: usize = 4;

/// Estimates how long newcomers wait, and refuses those who would wait for too long.
struct Estimates<'a, 'b, 'c> {
    terms: DealTerms,
    states: States<'b, 'c>,
    line: &'a mut Line,
    /// When the line finds room next, if it was looked for: none of the requests that are left finds room before.
    next: Option<Next>,
    /// The part of its cost that a request turns out to use of each limiter, in millionths; empty: all of it.
    expected: &'a [u64],
    left: usize,
}

/// How long a request waits, and the limit that it waits for.
#[derive(Clone, Copy)]
struct Estimate {
    delay: Micros,
    violated: Violated,
}

impl Estimates<'_, '_, '_> {
    /// Returns how many permits of each limiter that a key needs go before its last request but for `behind` requests, and including it.
    /// Of others in its flow those go before that came by `came`.
    fn before(&self, flow: usize, key: &Key, behind: u64, came: Micros) -> Vec<u64> {
        let flows = &self.line.flows;
        let waiting = |place: usize| {
            let goes = |run: &&Run| place != flow || run.key == *key || run.first <= came;
            let alive = flows[place].runs.iter().filter(|run| self.is_alive(run.key.replica));
            let mut sums = vec![0; key.costs.len()];
            for run in alive.filter(goes) {
                for (sum, cost) in sums.iter_mut().zip(&run.key.costs) {
                    *sum += cost * run.count;
                }
            }
            sums
        };
        let most = |sums: &[u64]| sums.iter().copied().max().unwrap_or_default();
        let own = waiting(flow).into_iter().zip(&key.costs);
        let mut before: Vec<u64> = own.map(|(sum, cost)| sum.saturating_sub(behind * cost)).collect();
        let own = most(&before);
        let end = flows[flow].tag + virtual_of(own, flows[flow].weight);
        for (place, other) in flows.iter().enumerate() {
            if place == flow || other.class > flows[flow].class {
                continue;
            }
            let sums = waiting(place);
            let first = if other.class < flows[flow].class {
                u64::MAX
            } else {
                permits_of(end.saturating_sub(other.tag), other.weight)
            };
            for (before, sum) in before.iter_mut().zip(sums) {
                *before += first.min(sum);
            }
        }
        // Permits that others take of a limiter that the key does not need are not in its way.
        before.iter_mut().zip(&key.costs).filter(|(_, cost)| **cost == 0).for_each(|(before, _)| *before = 0);
        before
    }

    fn is_alive(&self, replica: u64) -> bool {
        self.terms.reach(self.line, replica).is_some()
    }

    /// Returns how long the last of so many permits of each limiter waits.
    fn estimate(&mut self, key: &Key, before: &[u64]) -> Estimate {
        self.left = self.left.saturating_sub(1);
        let now = self.terms.now;
        let at_once: Vec<u64> = self
            .states
            .iter()
            .zip(key.costs.iter().zip(before))
            .map(|((state, _), (cost, before))| {
                let most = state.rules().iter().map(Rule::capacity).min().unwrap_or(u64::MAX);
                if *cost == 0 { 0 } else { (*before).min(most).max(*cost) }
            })
            .collect();
        let begin = self.next.map_or(now, |next| next.at.max(now));
        let Room { at, mut violated, .. } =
            earliest_for_costs(&mut searches_from(self.states, begin), &at_once);
        if let Some(next) = self.next.filter(|next| next.at == at) {
            violated = next.violated.unwrap_or(violated);
        }
        let mut more = Micros::ZERO;
        for (limiter, (state, _)) in self.states.iter().enumerate() {
            if before[limiter] <= at_once[limiter] || key.costs[limiter] == 0 {
                continue;
            }
            let rules = state.rules();
            for (limit, (rule, left)) in rules.iter().zip(state.available(now, rules)).enumerate() {
                let span = rule.quota().span(before[limiter].saturating_sub(left.max(at_once[limiter])));
                if span > more {
                    (more, violated) = (span, Violated { limiter, limit });
                }
            }
        }
        Estimate { delay: (at - now) + more, violated }
    }

    /// Returns how long the request waits behind which so many of its key wait, if it came by an instant.
    fn one(&mut self, flow: usize, key: &Key, behind: u64, came: Micros) -> Estimate {
        let mut before = self.before(flow, key, behind, came);
        for (before, part) in before.iter_mut().zip(self.expected) {
            *before = (*before * part).div_ceil(1_000_000);
        }
        self.estimate(key, &before)
    }

    /// Returns what the last request of a key waits for; the permits are those of the limiter where they are the most.
    fn last(&self, flow: usize, key: &Key) -> Last {
        let own = self.line.flows[flow].runs.iter().filter(|run| run.key == *key);
        let came = own.map(|run| run.last).max().unwrap_or_default();
        let before = self.before(flow, key, 0, came);
        let needed = self.states.iter().zip(&before).zip(&key.costs).filter(|(_, cost)| **cost > 0);
        let rules = needed.flat_map(|(((state, _), before), _)| {
            state.rules().iter().map(move |rule| rule.quota().span(*before))
        });
        let wait = rules.max().unwrap_or_default();
        Last { before: before.iter().copied().max().unwrap_or_default(), wait }
    }

    /// Returns what the last request of each want waits for; `None` for those that are left to the next call. Where no estimate looked at
    /// all flows already, no more than `left` are told.
    fn lasts(
        &self,
        keys: &[Key],
        wants: &[Want],
        has_estimate: &[bool],
        mut left: usize,
    ) -> Vec<Option<Last>> {
        let wants = keys.iter().zip(wants).zip(has_estimate);
        let last = |((key, want), has_estimate): ((&Key, &Want), &bool)| {
            if !has_estimate && left == 0 {
                return None;
            }
            left -= usize::from(!has_estimate);
            let flow = self.line.place_with(key, want.class);
            Some(flow.map(|flow| self.last(flow, key)).unwrap_or_default())
        };
        wants.map(last).collect()
    }

    /// Returns what the first of some refused requests is advised.
    fn advise(&mut self, class: usize, estimate: Estimate, callers: Refused) -> RetryDelay {
        let DealTerms { now, .. } = self.terms;
        let Estimate { delay, violated } = estimate;
        let (state, rules) = &self.states[violated.limiter];
        let rule = state.rules().get(violated.limit);
        let (advised, is_spread) = self.line.spreads[class].advise(now, now + delay, callers, rule);
        let limit = state.own_limit(violated.limit, rules);
        let available = state.available(now, rules).get(limit).copied().unwrap_or_default();
        let violated = Violated { limiter: violated.limiter, limit };
        RetryDelay { delay, advised: advised - now, is_spread, violated, available }
    }

    /// Returns how many of the first `count` newcomers, behind which so many of their key wait, may wait so long; and the estimate of the
    /// first that may not.
    fn fitting(
        &mut self,
        flow: usize,
        key: &Key,
        (count, behind): (u64, u64),
        (came, wait_max): (Micros, Micros),
    ) -> (u64, Option<Estimate>) {
        let mut estimate = |place: u64| self.one(flow, key, behind + (count - place), came);
        let last = estimate(count);
        if last.delay <= wait_max {
            return (count, None);
        }
        let (mut fits, mut too_far) = (0, (count, last));
        while fits + 1 < too_far.0 {
            let middle = (fits + too_far.0) / 2;
            let found = estimate(middle);
            if found.delay <= wait_max {
                fits = middle;
            } else {
                too_far = (middle, found);
            }
        }
        (fits, Some(too_far.1))
    }
}

/// Returns how many estimates one call makes, and for how many more wants it tells what the last request waits for.
fn budgets(terms: DealTerms, line: &Line) -> (usize, usize) {
    let looks = LOOKS_MAX / line.flows.len().max(1);
    if terms.tells_waits {
        (looks.clamp(ESTIMATES_LEAST, ESTIMATES_MAX), looks.max(LASTS_LEAST))
    } else {
        (0, 0)
    }
}

/// The requests that a call tells a line of, with the new ones among them.
pub(in crate::limiter::arithmetic) struct Newcomers<'a> {
    pub(in crate::limiter::arithmetic) asked: &'a LineCall,
    /// The key of each want.
    pub(in crate::limiter::arithmetic) keys: &'a [Key],
    /// How many requests of each group of each want are new.
    pub(in crate::limiter::arithmetic) counts: Vec<Vec<u64>>,
    /// How many further requests may be refused like the first refused one that is spread.
    pub(in crate::limiter::arithmetic) refusal_budget: u64,
}

/// Refuses the newcomers who would wait for too long, or beyond the places of their class. Returns the answer, and whether some
/// newcomers were left for the next call. `next` is when the line finds room next, if it was looked for.
pub(in crate::limiter::arithmetic) fn refuse_newcomers(
    terms: DealTerms,
    states: States<'_, '_>,
    line: &mut Line,
    newcomers: Newcomers<'_>,
    next: Option<Next>,
) -> (LineAnswer, bool) {
    let Newcomers { asked, keys, counts, refusal_budget: mut budget } = newcomers;
    let (mut answer, mut is_cut) = (LineAnswer::default(), false);
    let (mut places, mut refused) = (asked.places, [0; CLASSES_MAX]);
    let (left, lasts_left) = budgets(terms, line);
    let mut estimates = Estimates { terms, states, line, next, expected: &asked.expected, left };
    let mut has_estimate = vec![false; keys.len()];
    for (want, (key, new)) in keys.iter().zip(counts).enumerate() {
        let class = asked.wants[want].class;
        let all: u64 = new.iter().sum();
        let mut waits = all.min(estimates.line.tickets(key, class));
        // The first of them have a slot.
        let mut dealt = all - waits;
        for (group, count) in new.into_iter().enumerate() {
            let left = count - dealt.min(count);
            dealt -= count - left;
            if left == 0 {
                continue;
            }
            waits -= left;
            if group == 0 && asked.wants[want].begins_with_known {
                continue;
            }
            let Some(flow) = estimates.line.place_with(key, class) else { continue };
            if estimates.left == 0 {
                is_cut = true;
                estimates.line.remove_last(key, class, left);
                continue;
            }
            has_estimate[want] = true;
            let Waiting { newest, wait_max, .. } = asked.wants[want].waiting[group];
            let came = terms.now - newest;
            let (fits, too_far) = estimates.fitting(flow, key, (left, waits), (came, wait_max));
            let taken = fits.min(places[class]);
            places[class] -= taken;
            let count = left - taken;
            if count == 0 {
                continue;
            }
            refused[class] += count;
            let estimate = match too_far {
                Some(too_far) if taken == fits => too_far,
                _ => estimates.one(flow, key, waits + (count - 1), came),
            };
            estimates.line.remove_last(key, class, count);
            let is_full = taken < fits;
            let callers = Refused { cost: key.price(), count: count + budget, is_crowd: refused[class] > 1 };
            let away = estimates.advise(class, estimate, callers);
            budget = if away.is_spread { 0 } else { budget };
            let outcome = if is_full { Outcome::Full(away) } else { Outcome::TooFar(away) };
            answer.not_taken.push(NotTaken { want, group, count, outcome });
        }
    }
    answer.lasts = estimates.lasts(keys, &asked.wants, &has_estimate, lasts_left);
    (answer, is_cut)
}
