//! The pause of a limiter: nothing is booked before its end. Then permits come one by one for a moment, so that the requests
//! that have waited do not come as a burst.
//!
//! Pure: the instant is an argument. The twin is `lua/pause.lua`.

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{Cause, Lasting, PauseRequest, Reason};

/// The longest time in which permits come one by one: a day's limit is not to be spread over the day.
const PACED_MAX: Micros = Micros::from_millis(10_000);

/// The longest time for which the first request stands alone after a pause that was too short: its answer shows whether this
/// pause was long enough.
const PROBE_MAX: Micros = Micros::from_millis(1000);

/// The most by which a pause is made longer than asked: other callers of the same upstream wait for the same instant.
const JITTER_MAX: Micros = Micros::from_millis(250);
const JITTER_PART: u64 = 16;
const JITTER_PARTS: u64 = 1024;

/// The pause of one limiter, or of one of its partitions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pause {
    /// The end: nothing is booked before.
    until: Micros,
    /// When the pause was set.
    set_at: Micros,
    /// The length of the last pause without a named instant; zero after one with it.
    length: Micros,
    /// The instant until which permits come one by one.
    paced_until: Micros,
    /// The distance between permits that come one by one.
    spacing: Micros,
    /// The earliest instant of the next permit of those that come one by one.
    next: Micros,
    /// The time by which the second permit after the pause is further away from the first than `spacing`.
    probe: Micros,
    /// When a pause was last set or lifted by hand.
    by_hand_at: Micros,
    /// The cause; `None` before the first pause, and when it was lifted.
    cause: Option<Cause>,
    /// The pause lasts at least until then, even if it is lifted: slots that it has voided may be used by who has not heard of it.
    held_until: Micros,
}

impl Pause {
    /// Returns the end of the pause.
    pub fn until(&self) -> Micros {
        self.until
    }

    /// Returns the end and the cause while the pause is in force.
    pub fn lasting(&self, now: Micros) -> Option<Lasting> {
        let until = self.until;
        self.cause.filter(|_| until > now).map(|cause| Lasting { until, cause })
    }

    /// Sets a pause as the upstream asks a replica. A longer pause is never shortened. The rejection of a request that was sent
    /// before the last pause began changes nothing, unless it names an instant; nor does a pause that a replica has kept to by itself
    /// if an operator has acted since. Returns whether anything has changed.
    pub(in crate::limiter) fn ask(
        &mut self,
        now: Micros,
        request: &PauseRequest,
        replica: u64,
        rules: &[Rule],
    ) -> bool {
        let PauseRequest { wait, fallback, max, sent_ago, jitter, status, made_ago } = *request;
        if made_ago > Micros::ZERO && now - made_ago <= self.by_hand_at {
            return false;
        }
        let reason = Reason::Upstream { status, is_named: wait.is_some() };
        let (length, wait) = match wait {
            Some(wait) => (Micros::ZERO, wait.min(max)),
            None if now < self.until || now - sent_ago <= self.set_at => return false,
            None => {
                let length = self.grown(now, fallback).min(max);
                (length, length)
            }
        };
        let most = Micros(wait.0 / JITTER_PART).min(JITTER_MAX);
        let until = now + wait + Micros(most.0 * jitter.min(JITTER_PARTS) / JITTER_PARTS);
        if until <= self.until {
            return false;
        }
        self.length = length;
        let probe = if length > fallback { length.min(PROBE_MAX) } else { Micros::ZERO };
        self.set(now, until, probe, Cause { reason, replica }, rules);
        true
    }

    /// Returns twice the length of the last pause, halved for each such length that has passed since without a rejection.
    fn grown(&self, now: Micros, fallback: Micros) -> Micros {
        if self.length == Micros::ZERO {
            return fallback;
        }
        let quiet = (now - self.until).0 / self.length.0;
        Micros((2 * self.length.0) >> quiet.min(60)).max(fallback)
    }

    fn set(&mut self, now: Micros, until: Micros, probe: Micros, cause: Cause, rules: &[Rule]) {
        let shortest = rules.iter().min_by_key(|rule| rule.window);
        let paced = shortest.map_or(Micros::ZERO, |rule| rule.window.min(PACED_MAX));
        let spacing = shortest.map_or(Micros::ZERO, |rule| Micros(rule.window.0.div_ceil(rule.rate)));
        let paced_until = until + probe + paced;
        let cause = Some(cause);
        *self = Pause { until, set_at: now, paced_until, spacing, next: until, probe, cause, ..*self };
    }

    /// Lets the pause last until an instant at least.
    pub(in crate::limiter) fn hold(&mut self, until: Micros) {
        let more = until - self.until;
        self.held_until = until;
        self.until = self.until + more;
        self.paced_until = self.paced_until + more;
    }

    /// Follows a pause by hand, set at an instant through a replica. An end that has passed lifts the pause; an upstream's later
    /// pause stays. Returns whether it had not been followed yet.
    pub(in crate::limiter) fn follow(
        &mut self,
        now: Micros,
        at: Micros,
        until: Micros,
        replica: u64,
        rules: &[Rule],
    ) -> bool {
        if at <= self.by_hand_at {
            return false;
        }
        self.by_hand_at = at;
        let is_upstreams = matches!(self.cause, Some(Cause { reason: Reason::Upstream { .. }, .. }));
        if is_upstreams && at < self.set_at {
            return false;
        }
        self.length = Micros::ZERO;
        if until > now {
            self.set(now, until, Micros::ZERO, Cause { reason: Reason::ByHand, replica }, rules);
        } else {
            self.cause = None;
            self.until = self.until.min(now.max(self.held_until));
            self.paced_until = self.until;
        }
        true
    }

    /// Lets permits come one by one anew: all bookings after the pause are rescheduled.
    pub(in crate::limiter) fn restart(&mut self, now: Micros) {
        if now < self.until {
            self.next = self.until;
        }
    }

    /// Returns the first instant from `at` on that the pause leaves open.
    pub(in crate::limiter) fn floor(&self, at: Micros) -> Micros {
        let at = at.max(self.until);
        if at < self.paced_until { at.max(self.next.min(self.paced_until)) } else { at }
    }

    /// Returns whether permits come one by one at an instant.
    pub(in crate::limiter) fn is_paced(&self, at: Micros) -> bool {
        self.until <= at && at < self.paced_until
    }

    /// Notes permits that were booked at an instant.
    pub(in crate::limiter) fn booked(&mut self, at: Micros, permits: u64) {
        if self.is_paced(at) {
            let probe = if self.next == self.until { self.probe } else { Micros::ZERO };
            let span = Micros(self.spacing.0.saturating_mul(permits)).min(self.paced_until - self.until);
            self.next = self.next.max(at) + probe + span;
        }
    }

    /// Returns the instant from which the pause does not matter: until then the next one may have to be longer.
    pub(in crate::limiter) fn expires(&self) -> Micros {
        self.paced_until.max(self.until + self.length + self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::arithmetic::algorithm::kind::Kind;
    use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;

    const SECOND: u64 = 1_000_000;
    const REPLICA: u64 = 7;

    fn rules() -> [Rule; 2] {
        let rule = |rate, window| Rule {
            rate,
            window: Micros(window),
            cell: Micros::ONE,
            kind: Kind::SlidingWindow(SlidingWindow),
        };
        [rule(1000, 60 * SECOND), rule(20, SECOND)]
    }

    fn request(wait: Option<u64>) -> PauseRequest {
        PauseRequest {
            wait: wait.map(Micros),
            fallback: Micros(SECOND),
            max: Micros(60 * SECOND),
            sent_ago: Micros(1000),
            jitter: 0,
            status: 429,
            made_ago: Micros::ZERO,
        }
    }

    #[test]
    fn a_named_instant_is_kept_and_never_brought_forward() {
        let (mut pause, now) = (Pause::default(), Micros(100 * SECOND));
        assert!(pause.ask(now, &request(Some(3 * SECOND)), REPLICA, &rules()));
        assert_eq!(pause.until(), Micros(103 * SECOND));
        assert!(!pause.ask(now + Micros(SECOND), &request(Some(SECOND)), REPLICA, &rules()));
        assert!(!pause.ask(now + Micros(SECOND), &request(None), REPLICA, &rules()));
        assert_eq!(pause.until(), Micros(103 * SECOND));
        assert!(pause.ask(now + Micros(SECOND), &request(Some(u64::MAX)), REPLICA, &rules()));
        assert_eq!(pause.until(), Micros(161 * SECOND), "no longer than the longest");
    }

    #[test]
    fn the_jitter_is_positive_and_small() {
        for (wait, jitter, more) in [(16, 1024, 1), (SECOND, 1024, 62_500), (3600 * SECOND, 512, 125_000)] {
            let mut pause = Pause::default();
            let max = Micros(7200 * SECOND);
            pause.ask(Micros(1), &PauseRequest { jitter, max, ..request(Some(wait)) }, REPLICA, &rules());
            assert_eq!(pause.until(), Micros(1 + wait + more));
        }
    }

    #[test]
    fn pauses_without_an_instant_grow_and_shrink_again() {
        let (mut pause, mut now) = (Pause::default(), Micros(100 * SECOND));
        let mut asked = |after: u64| {
            now = pause.until().max(now) + Micros(after);
            pause.ask(now, &request(None), REPLICA, &rules());
            (pause.until() - now).0 / SECOND
        };
        assert_eq!([0; 8].map(|_| asked(2000)), [1, 2, 4, 8, 16, 32, 60, 60]);
        // No rejection for once, twice and three times the length of the last pause.
        assert_eq!(asked(60 * SECOND), 60);
        assert_eq!(asked(120 * SECOND), 30);
        assert_eq!(asked(90 * SECOND), 7);
        assert_eq!(asked(3600 * SECOND), 1);
    }

    #[test]
    fn a_rejection_of_a_request_sent_before_the_pause_changes_nothing() {
        let (mut pause, now) = (Pause::default(), Micros(100 * SECOND));
        assert!(pause.ask(now, &request(None), REPLICA, &rules()));
        let late = PauseRequest { sent_ago: Micros(2 * SECOND), ..request(None) };
        assert!(!pause.ask(now + Micros(SECOND + 1000), &late, REPLICA, &rules()));
    }

    #[test]
    fn permits_come_one_by_one_after_it() {
        let (mut pause, now) = (Pause::default(), Micros(100 * SECOND));
        pause.ask(now, &request(Some(3 * SECOND)), REPLICA, &rules());
        let mut at = now;
        let mut taken = Vec::new();
        for _ in 0..22 {
            at = pause.floor(at);
            taken.push((at - now).0);
            pause.booked(at, 1);
        }
        // Evenly, at the pace of the shortest window's limit, 20 in a second; then without pacing.
        let even = (0..20).map(|index| 3 * SECOND + index * SECOND / 20);
        assert_eq!(taken[..20], even.collect::<Vec<_>>());
        assert_eq!(taken[20..], [4 * SECOND; 2]);
    }

    #[test]
    fn the_first_stands_alone_after_a_pause_that_was_too_short() {
        let (mut pause, now) = (Pause::default(), Micros(100 * SECOND));
        pause.ask(now, &request(None), REPLICA, &rules());
        let again = now + Micros(SECOND + 2000);
        pause.ask(again, &request(None), REPLICA, &rules());
        let first = pause.floor(again);
        pause.booked(first, 1);
        let second = pause.floor(first);
        assert_eq!((first - again, second - first), (Micros(2 * SECOND), Micros(SECOND + SECOND / 20)));
    }

    #[test]
    fn a_pause_by_hand_is_followed_once() {
        let (mut pause, now) = (Pause::default(), Micros(100 * SECOND));
        assert!(pause.follow(now, now, now + Micros(30 * SECOND), REPLICA, &rules()));
        assert!(!pause.follow(now, now, now + Micros(30 * SECOND), REPLICA, &rules()));
        let later = now + Micros(SECOND);
        assert!(pause.follow(later, later, Micros::ZERO, REPLICA, &rules()));
        assert_eq!((pause.until(), pause.floor(later)), (later, later));
    }

    #[test]
    fn the_later_of_two_actions_counts_whichever_is_told_first() {
        let (mut pause, now) = (Pause::default(), Micros(100 * SECOND));
        let ago = |seconds| now - Micros(seconds * SECOND);
        // A replica that was cut off tells of an upstream's pause, from before the operator's resume.
        pause.follow(now, ago(5), Micros::ZERO, REPLICA, &rules());
        let kept = |made_ago: u64| {
            let made_ago = Micros(made_ago * SECOND);
            PauseRequest { made_ago, sent_ago: made_ago, ..request(Some(30 * SECOND)) }
        };
        assert!(!pause.ask(now, &kept(6), REPLICA, &rules()));
        assert!(!pause.ask(now, &kept(5), REPLICA, &rules()));
        assert!(pause.ask(now, &kept(4), REPLICA, &rules()));
        // An operator's resume from before the upstream's pause does not end it.
        let end = pause.until();
        assert!(!pause.follow(now, ago(3), Micros::ZERO, REPLICA, &rules()));
        assert_eq!(pause.until(), end);
        assert!(!pause.follow(now, ago(4), Micros::ZERO, REPLICA, &rules()), "it is known already");
        assert!(pause.follow(now + Micros(SECOND), now + Micros(SECOND), Micros::ZERO, REPLICA, &rules()));
        assert_eq!(pause.until(), now + Micros(SECOND));
    }

    fn refused(status: u16, is_named: bool, replica: u64) -> Option<Cause> {
        Some(Cause { reason: Reason::Upstream { status, is_named }, replica })
    }

    #[test]
    fn the_cause_names_the_reason_and_the_replica() {
        let (mut pause, now) = (Pause::default(), Micros(100 * SECOND));
        let cause = |pause: &Pause, at| pause.lasting(at).map(|lasting| lasting.cause);
        assert_eq!(pause.lasting(now), None);
        pause.ask(now, &request(None), 1, &rules());
        let end = pause.until();
        let expected = refused(429, false, 1).map(|cause| Lasting { until: end, cause });
        assert_eq!((pause.lasting(end - Micros::ONE), pause.lasting(end)), (expected, None));
        // A rejection that changes nothing does not become the cause.
        for other in [request(None), request(Some(10))] {
            assert!(!pause.ask(now + Micros(10), &PauseRequest { status: 503, ..other }, 2, &rules()));
            assert_eq!(cause(&pause, now), refused(429, false, 1));
        }
        let longer = PauseRequest { status: 503, ..request(Some(5 * SECOND)) };
        assert!(pause.ask(now + Micros(10), &longer, 3, &rules()));
        assert_eq!(cause(&pause, now), refused(503, true, 3));
    }

    #[test]
    fn the_last_action_by_hand_is_the_cause() {
        let (mut pause, now) = (Pause::default(), Micros(100 * SECOND));
        let cause = |pause: &Pause| pause.lasting(now).map(|lasting| lasting.cause);
        pause.ask(now, &request(Some(50 * SECOND)), 1, &rules());
        pause.follow(now, now, now + Micros(30 * SECOND), 2, &rules());
        let by_hand = Some(Cause { reason: Reason::ByHand, replica: 2 });
        assert_eq!(cause(&pause), by_hand);
        assert!(!pause.follow(now, now, now + Micros(40 * SECOND), 3, &rules()), "it has been followed");
        assert!(!pause.ask(now, &request(Some(20 * SECOND)), 3, &rules()), "it lasts longer");
        assert_eq!(cause(&pause), by_hand);
        pause.ask(now, &request(Some(40 * SECOND)), 3, &rules());
        assert_eq!(cause(&pause), refused(429, true, 3));
        pause.follow(now, now + Micros::ONE, Micros::ZERO, 4, &rules());
        assert_eq!((pause.cause, pause.lasting(now - Micros::ONE)), (None, None), "it was lifted");
    }
}
