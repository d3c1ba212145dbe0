//! What an upstream said of its quota in an answer, on its way from a request to the store; and the pause that comes of it,
//! as a queue sees it.
//!
//! Whoever hears it says it to the queue from which the permit came ([`Receipt`]). The queue's worker tells the store, one
//! call at a time: what is said meanwhile is put together.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::model::limit::{Limiter, Permits};
use crate::limiter::model::pause::PauseRequest;
use crate::limiter::model::upstream_report::Remaining;
use crate::limiter::queue::slot::{Slot, Source};

/// The most windows of which something is kept until the store is told.
const WINDOWS_MAX: usize = 16;

/// The most slots of which is kept that their permits were refused.
const REFUSED_MAX: usize = 256;

/// What an answer says of the quota.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct UpstreamSignal {
    /// The code of an answer that refuses, of those that a limiter's pause may be made for; `None` for any other.
    pub refusal: Option<u16>,
    /// How long the upstream asks to be left alone, if it names an instant.
    pub wait: Option<Duration>,
    /// What it leaves of its windows.
    pub windows: Vec<Window>,
}

/// A window of the upstream's quota, as it reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// How much it holds, if that is said.
    pub limit: Option<u64>,
    /// What is left of it.
    pub remaining: u64,
    /// How long it is, if that is said.
    pub per: Option<Duration>,
}

/// What a queue has to tell the store, put together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct PendingReport {
    refusal: Option<u16>,
    /// Until when the upstream asks to be left alone.
    until: Option<Instant>,
    /// When the last request was sent that was refused.
    sent: Option<Instant>,
    /// The store's slots of permits that were refused, and how many.
    refused: Vec<(Micros, u64)>,
    pub(in crate::limiter) cost: u64,
    windows: Vec<ReportedWindow>,
}

/// A window of the upstream's quota as an answer told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReportedWindow {
    window: Window,
    /// The store's slot of its request, and how long after that the answer was there.
    slot: Micros,
    took: Micros,
}

impl PendingReport {
    pub(in crate::limiter) fn new(
        spoken: UpstreamSignal,
        sent: Instant,
        slot: Slot,
        taken: Permits,
    ) -> PendingReport {
        let UpstreamSignal { refusal, wait, windows } = spoken;
        let now = Instant::now();
        let took = Micros::from(now.saturating_duration_since(slot.due));
        // The store knows nothing of slots that are not its own.
        let slot = (slot.source == Source::Store).then_some(slot.at);
        let told = |window| slot.map(|slot| ReportedWindow { window, slot, took });
        let refused = slot.filter(|_| refusal.is_some()).map(|slot| (slot, taken.get()));
        // What is further away than that is capped anyway.
        let until = wait.map(|wait| now + wait.min(Duration::from_secs(u64::from(u32::MAX))));
        PendingReport {
            refusal,
            until: until.filter(|_| refusal.is_some()),
            sent: refusal.map(|_| sent),
            refused: refused.into_iter().collect(),
            cost: 0,
            windows: windows.into_iter().take(WINDOWS_MAX).filter_map(told).collect(),
        }
    }

    /// A report of permits that a request has cost beyond what it had taken.
    pub(in crate::limiter) fn charge(cost: u64) -> PendingReport {
        PendingReport {
            refusal: None,
            until: None,
            sent: None,
            refused: Vec::new(),
            cost,
            windows: Vec::new(),
        }
    }

    /// Adds what was said later.
    pub(in crate::limiter) fn add(&mut self, later: PendingReport) {
        self.refusal = later.refusal.or(self.refusal);
        self.until = self.until.max(later.until);
        self.sent = self.sent.max(later.sent);
        self.refused.extend(later.refused);
        self.refused.truncate(REFUSED_MAX);
        self.cost += later.cost;
        for told in later.windows {
            // The last word on each.
            let name = |told: &ReportedWindow| (told.window.limit, told.window.per);
            self.windows.retain(|before| name(before) != name(&told));
            self.windows.push(told);
        }
        self.windows.truncate(WINDOWS_MAX);
    }

    /// The pause that is asked for, if the limiter is paused for that.
    pub(in crate::limiter) fn pause(&self, limiter: &Limiter, now: Instant) -> Option<PauseRequest> {
        let (code, policy) = (self.refusal?, limiter.pause.as_ref()?);
        let sent_ago = now.saturating_duration_since(self.sent?);
        policy.on.contains(&code).then(|| PauseRequest {
            wait: self.until.map(|until| Micros::from(until.saturating_duration_since(now))),
            fallback: Micros::from(policy.fallback),
            max: Micros::from(policy.max),
            sent_ago: Micros::from(sent_ago),
            // The standard library seeds each of these at random.
            jitter: RandomState::new().hash_one(0_u8) % 1024,
            status: code,
        })
    }

    /// Whether it may wait until more has been said: what is left of a quota changes with each answer.
    pub(in crate::limiter) fn can_wait(&self) -> bool {
        self.refusal.is_none() && self.cost == 0
    }

    /// The slots of permits that were refused, if it matters to the limiter what the upstream counts.
    pub(in crate::limiter) fn refused(&self, limiter: &Limiter) -> Vec<(Micros, u64)> {
        self.refused.iter().filter(|_| limiter.follows_upstream).copied().collect()
    }

    /// What the upstream leaves of the limiter's limits.
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

/// Which limit a window is: the one of its size and length, or the only one where it does not say.
fn limit_of(limiter: &Limiter, window: &Window) -> Option<usize> {
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
    use crate::limiter::model::limit::PausePolicy;
    use crate::limiter::tests;

    const SECOND: Duration = Duration::from_secs(1);
    const SLOT: Micros = Micros::from_millis(1_800_000_000_000);

    fn limiter() -> Limiter {
        let limiter = Limiter::clone(&tests::limiter(20, SECOND, SECOND));
        let pause = PausePolicy { on: vec![429], max: 60 * SECOND, fallback: SECOND };
        Limiter { pause: Some(pause), follows_upstream: true, ..limiter }
    }

    fn saying(refusal: Option<u16>, wait: Option<Duration>) -> PendingReport {
        let slot = Slot { at: SLOT, due: Instant::now(), source: Source::Store };
        let spoken = UpstreamSignal { refusal, wait, windows: Vec::new() };
        PendingReport::new(spoken, Instant::now(), slot, Permits::new(2).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_pause_of_several_is_asked_for() {
        let now = Instant::now();
        let mut all = saying(None, Some(9 * SECOND));
        assert_eq!(all.pause(&limiter(), now), None, "what is no refusal");
        all.add(saying(Some(429), None));
        assert_eq!(all.pause(&limiter(), now).map(|pause| pause.wait), Some(None));
        all.add(saying(Some(429), Some(3 * SECOND)));
        all.add(saying(Some(429), Some(SECOND)));
        all.add(saying(Some(429), None));
        let asked = all.pause(&limiter(), now).unwrap();
        assert_eq!((asked.wait, asked.max), (Some(Micros::from(3 * SECOND)), Micros::from(60 * SECOND)));
        assert_eq!(saying(Some(503), Some(SECOND)).pause(&limiter(), now), None);
        assert_eq!(saying(Some(429), None).pause(&Limiter { pause: None, ..limiter() }, now), None);
        assert!(saying(Some(429), Some(Duration::MAX)).pause(&limiter(), now).is_some());
        let other = Limiter { follows_upstream: false, ..limiter() };
        assert_eq!((all.refused(&limiter()), all.refused(&other)), (vec![(SLOT, 2); 4], Vec::new()));
    }

    #[test]
    fn a_window_is_told_by_its_size_and_length() {
        let took = Micros::from(SECOND);
        let spoken = |limit, per, remaining| PendingReport {
            windows: vec![ReportedWindow { window: Window { limit, remaining, per }, slot: SLOT, took }],
            ..saying(None, None)
        };
        let limiter = limiter();
        let left = |saying: &PendingReport| -> Vec<(usize, u64)> {
            let remaining = saying.remaining(&limiter).into_iter();
            remaining.map(|(limit, remaining)| (limit, remaining.permits)).collect()
        };
        let remaining = spoken(None, None, 5).remaining(&limiter)[0].1;
        assert_eq!((remaining.per, remaining.slot, remaining.took), (took, SLOT, took));
        assert_eq!(left(&spoken(Some(20), None, 5)), [(0, 5)]);
        assert_eq!(left(&spoken(None, Some(SECOND), 5)), [(0, 5)]);
        assert_eq!(left(&spoken(None, None, 5)), [(0, 5)]);
        assert_eq!(left(&spoken(Some(21), None, 5)), []);
        assert_eq!(left(&spoken(Some(20), Some(2 * SECOND), 5)), []);
        let other = Limiter { follows_upstream: false, ..limiter.clone() };
        assert_eq!(spoken(Some(20), None, 5).remaining(&other), []);
    }
}
