//! The quota signals in an upstream's answers, on their way from the requests to the store.
//!
//! A request passes the signal of its answer to the queue of its permit, with the permit's
//! [`Receipt`](crate::limiter::queue::permit::Receipt). The queue's worker reports to the store, one call at a time; signals
//! that come meanwhile are merged.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Costs, Flow, Limiter, LimiterName, PauseRequest, Remaining};
use crate::limiter::queue::slot::{Slot, Source};

/// The most windows in a report.
const WINDOWS_MAX: usize = 16;

/// The most rejected permits in a report.
const REFUSED_MAX: usize = 256;

/// The quota signals in one answer of an upstream.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct UpstreamSignal {
    /// True if the upstream rejected the request because its quota is spent.
    pub is_rejection: bool,
    /// The limiters that the answer pauses.
    pub pauses: Vec<(LimiterName, AskedPause)>,
    /// The windows of the quota that the answer reports.
    pub windows: Vec<Window>,
}

/// A pause that an answer of the upstream asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AskedPause {
    /// The status code.
    pub status: u16,
    /// How long the upstream asks to be left alone, as in `Retry-After`; `None` if it names no time.
    pub wait: Option<Duration>,
}

/// A window of the upstream's quota, as an answer reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The requests that the window holds, if reported.
    pub limit: Option<u64>,
    /// The requests that are left in the window.
    pub remaining: u64,
    /// The length of the window, if reported.
    pub per: Option<Duration>,
}

/// The merged signals of a queue that were not reported to the store yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct PendingReport {
    /// True if a request was rejected.
    is_rejection: bool,
    /// The pauses of limiters, one each.
    pauses: Vec<PendingPause>,
    /// The slots in the store, and the costs, of rejected permits.
    refused: Vec<(Micros, Costs)>,
    /// The permits that requests have cost beyond what they had taken.
    charged: Charged,
    windows: Vec<ReportedWindow>,
}

/// Permits to be charged of the limiters of a queue, by the callers whose requests have cost them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Charged(BTreeMap<Flow, Excess>);

impl Charged {
    fn add(&mut self, later: Charged) {
        for (flow, Excess { all, each }) in later.0 {
            let own = self.0.entry(flow).or_default();
            own.all += all;
            own.add_each(&each);
        }
    }
}

/// Permits of the limiters of a queue beyond what was taken of them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Excess {
    /// Of every limiter.
    all: u64,
    /// Of each limiter beside that, by its place; zero where the list ends.
    each: Vec<u64>,
}

impl Excess {
    fn add(&mut self, costs: &Costs) {
        match costs {
            Costs::Same(cost) => self.all += cost.get(),
            Costs::Each(costs) => self.add_each(costs),
        }
    }

    fn add_each(&mut self, costs: &[u64]) {
        self.each.resize(self.each.len().max(costs.len()), 0);
        self.each.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost);
    }

    fn at(&self, place: usize) -> u64 {
        self.all + self.each.get(place).copied().unwrap_or_default()
    }
}

/// The pause of a limiter that rejections ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PendingPause {
    limiter: LimiterName,
    /// The status code of the last rejection.
    status: u16,
    /// The instant until which the upstream asks to be left alone.
    until: Option<Moment>,
    /// When the latest rejected request was sent.
    sent: Moment,
}

/// A window of the upstream's quota, with the time of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReportedWindow {
    window: Window,
    /// The slot of the request in the store.
    slot: Micros,
    /// How long after its slot the request's answer came.
    took: Micros,
}

impl PendingReport {
    /// Creates the report of one answer that came `now`, to a request that was `sent` with a permit of this slot and these costs.
    pub(in crate::limiter) fn new(
        signal: UpstreamSignal,
        (sent, now): (Moment, Moment),
        slot: Slot,
        taken: Costs,
    ) -> PendingReport {
        let UpstreamSignal { is_rejection, pauses, windows } = signal;
        let took = now - slot.due;
        // The store does not know the slots of other sources.
        let slot = matches!(slot.source, Source::Store(_)).then_some(slot.at);
        let reported = |window| slot.map(|slot| ReportedWindow { window, slot, took });
        let refused = slot.filter(|_| is_rejection).map(|slot| (slot, taken));
        // A longer wait is capped by the limiter's longest pause.
        let until = |wait: Duration| now + Micros::from(wait.min(Duration::from_secs(u64::from(u32::MAX))));
        let asked = |(limiter, AskedPause { status, wait })| PendingPause {
            limiter,
            status,
            until: wait.map(until),
            sent,
        };
        PendingReport {
            is_rejection,
            pauses: pauses.into_iter().map(asked).collect(),
            refused: refused.into_iter().collect(),
            charged: Charged::default(),
            windows: windows.into_iter().take(WINDOWS_MAX).filter_map(reported).collect(),
        }
    }

    /// Creates the report of permits that a caller's request has cost beyond what it had taken.
    pub(in crate::limiter) fn charge(flow: Flow, costs: &Costs) -> PendingReport {
        let mut excess = Excess::default();
        excess.add(costs);
        let charged = Charged(BTreeMap::from([(flow, excess)]));
        PendingReport {
            is_rejection: false,
            pauses: Vec::new(),
            refused: Vec::new(),
            charged,
            windows: Vec::new(),
        }
    }

    /// Merges a later report into this one.
    pub(in crate::limiter) fn add(&mut self, later: PendingReport) {
        self.is_rejection |= later.is_rejection;
        for pause in later.pauses {
            match self.pauses.iter_mut().find(|known| known.limiter == pause.limiter) {
                Some(known) => {
                    let (until, sent) = (known.until.max(pause.until), known.sent.max(pause.sent));
                    *known = PendingPause { until, sent, ..pause };
                }
                None => self.pauses.push(pause),
            }
        }
        self.refused.extend(later.refused);
        self.refused.truncate(REFUSED_MAX);
        self.charged.add(later.charged);
        for reported in later.windows {
            // The latest answer counts for each window.
            let name = |reported: &ReportedWindow| (reported.window.limit, reported.window.per);
            self.windows.retain(|before| name(before) != name(&reported));
            self.windows.push(reported);
        }
        self.windows.truncate(WINDOWS_MAX);
    }

    /// Returns the pause of a limiter to request of the store; `None` if nothing asks for one. The limiters of a report have one jitter,
    /// so that their pauses end together, and requests that wait for several of them keep their order.
    pub(in crate::limiter) fn pause(
        &self,
        limiter: &Limiter,
        now: Moment,
        jitter: u64,
    ) -> Option<PauseRequest> {
        let policy = limiter.pause.as_ref()?;
        let PendingPause { status, until, sent, .. } =
            self.pauses.iter().find(|pause| pause.limiter == limiter.name)?;
        let max = if until.is_some() { policy.max } else { policy.guess_max };
        Some(PauseRequest {
            wait: until.map(|until| until - now),
            fallback: Micros::from(policy.guess_first),
            max: Micros::from(max),
            sent_ago: now - *sent,
            jitter,
            status: *status,
            made_ago: Micros::ZERO,
        })
    }

    /// Returns whether the report may wait for further answers: it holds only what is left of a quota, which each answer
    /// reports anew.
    pub(in crate::limiter) fn can_wait(&self) -> bool {
        !self.is_rejection && self.pauses.is_empty() && !self.has_charges()
    }

    /// Returns whether a request has cost more than it had taken.
    pub(in crate::limiter) fn has_charges(&self) -> bool {
        !self.charged.0.is_empty()
    }

    /// Returns the permits to be charged of the limiter at a place for some callers.
    pub(in crate::limiter) fn charged(&self, place: usize, is_meant: impl Fn(Flow) -> bool) -> u64 {
        let charged = self.charged.0.iter().filter(|(flow, _)| is_meant(**flow));
        charged.map(|(_, excess)| excess.at(place)).sum()
    }

    /// Returns the rejected permits of the limiter at a place, if it follows the upstream's count.
    pub(in crate::limiter) fn refused(&self, place: usize, limiter: &Limiter) -> Vec<(Micros, u64)> {
        let refused = self.refused.iter().filter(|_| limiter.follows_upstream);
        refused.map(|(slot, costs)| (*slot, costs.at(place))).filter(|(_, cost)| *cost > 0).collect()
    }

    /// Returns the permits that the upstream leaves of the limiter's limits, with the limits' places.
    pub(in crate::limiter) fn remaining(&self, limiter: &Limiter) -> Vec<(usize, Remaining)> {
        let windows = self.windows.iter().filter(|_| limiter.follows_upstream);
        let remaining = windows.filter_map(|ReportedWindow { window, slot, took }| {
            let limit = limit_of(limiter, window)?;
            let per = Micros::from(limiter.limits.get(limit)?.per);
            Some((limit, Remaining { permits: window.remaining, per, slot: *slot, took: *took }))
        });
        remaining.collect()
    }
}

/// Returns the place of the limit that a window belongs to: the limit of the same size and length, or the only limit if the
/// answer reports neither.
pub(in crate::limiter) fn limit_of(limiter: &Limiter, window: &Window) -> Option<usize> {
    let Window { limit, per, .. } = *window;
    if limit.is_none() && per.is_none() {
        return (limiter.limits.len() == 1).then_some(0);
    }
    limiter.limits.iter().position(|own| {
        limit.is_none_or(|limit| limit == own.rate.get()) && per.is_none_or(|per| per == own.per)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::model::{PausePolicy, Permits};
    use crate::limiter::tests;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Moment = Moment(9_000_000);
    const SLOT: Micros = Micros::from_millis(1_800_000_000_000);

    fn limiter() -> Limiter {
        let limiter = Limiter::clone(&tests::limiter(20, SECOND, SECOND));
        let pause = PausePolicy { max: 3600 * SECOND, guess_first: SECOND, guess_max: 60 * SECOND };
        Limiter { pause: Some(pause), follows_upstream: true, ..limiter }
    }

    fn report(refusal: Option<u16>, wait: Option<Duration>) -> PendingReport {
        let slot = Slot { at: SLOT, due: NOW, source: Source::Store(0) };
        let pauses = refusal.map(|status| (limiter().name, AskedPause { status, wait }));
        let pauses = pauses.into_iter().collect();
        let signal = UpstreamSignal { is_rejection: refusal.is_some(), pauses, windows: Vec::new() };
        PendingReport::new(signal, (NOW, NOW), slot, Permits::new(2).unwrap().into())
    }

    #[test]
    fn merged_reports_request_the_longest_pause() {
        let now = NOW;
        let mut all = report(None, Some(9 * SECOND));
        assert_eq!(all.pause(&limiter(), now, 0), None, "it was not rejected");
        all.add(report(Some(429), None));
        let guessed = all.pause(&limiter(), now, 0).unwrap();
        assert_eq!((guessed.wait, guessed.max), (None, Micros::from(60 * SECOND)));
        all.add(report(Some(429), Some(3 * SECOND)));
        all.add(report(Some(429), Some(SECOND)));
        all.add(report(Some(429), None));
        let asked = all.pause(&limiter(), now, 0).unwrap();
        assert_eq!((asked.wait, asked.max), (Some(Micros::from(3 * SECOND)), Micros::from(3600 * SECOND)));
        let another = Limiter { name: LimiterName::parse("another").unwrap(), ..limiter() };
        assert_eq!(all.pause(&another, now, 0), None, "no rule of its own has matched");
        assert_eq!(report(Some(429), None).pause(&Limiter { pause: None, ..limiter() }, now, 0), None);
        assert!(report(Some(429), Some(Duration::MAX)).pause(&limiter(), now, 0).is_some());
        let other = Limiter { follows_upstream: false, ..limiter() };
        assert_eq!((all.refused(0, &limiter()), all.refused(0, &other)), (vec![(SLOT, 2); 4], Vec::new()));
    }

    #[test]
    fn a_window_is_matched_by_its_size_and_length() {
        let took = Micros::from(SECOND);
        let reported = |limit, per, remaining| PendingReport {
            windows: vec![ReportedWindow { window: Window { limit, remaining, per }, slot: SLOT, took }],
            ..report(None, None)
        };
        let limiter = limiter();
        let left = |report: &PendingReport| -> Vec<(usize, u64)> {
            let remaining = report.remaining(&limiter).into_iter();
            remaining.map(|(limit, remaining)| (limit, remaining.permits)).collect()
        };
        let remaining = reported(None, None, 5).remaining(&limiter)[0].1;
        assert_eq!((remaining.per, remaining.slot, remaining.took), (took, SLOT, took));
        assert_eq!(left(&reported(Some(20), None, 5)), [(0, 5)]);
        assert_eq!(left(&reported(None, Some(SECOND), 5)), [(0, 5)]);
        assert_eq!(left(&reported(None, None, 5)), [(0, 5)]);
        assert_eq!(left(&reported(Some(21), None, 5)), []);
        assert_eq!(left(&reported(Some(20), Some(2 * SECOND), 5)), []);
        let other = Limiter { follows_upstream: false, ..limiter.clone() };
        assert_eq!(reported(Some(20), None, 5).remaining(&other), []);
    }
}
