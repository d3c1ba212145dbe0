//! The decisions of a route's breaker: after some failures to connect in a row nothing goes to the upstream for a while, but for one
//! probe at a time.
//!
//! Pure: the present instant is handed in. Waits for nothing, and knows no requests.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::model::Breaker as Rule;

/// The breaker of a route.
#[derive(Debug)]
pub(super) struct Core {
    rule: Rule,
    state: State,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Everything goes.
    Closed {
        /// The failures since the last success.
        failures: u32,
    },
    /// Nothing goes before an instant; then a probe does.
    Open {
        /// The instant.
        until: Instant,
    },
    /// A probe is under way, and nothing else goes.
    Probing,
}

/// An event of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A request has arrived, and is still to get its permit.
    Arrives,
    /// A request is about to connect, and none is before it.
    Connects,
    /// A request is about to connect, behind another one that is held back.
    Queues,
    /// The upstream has taken a connection, or answered over one.
    Reached,
    /// The upstream could not be reached.
    Failed(Pass),
    /// A request has left before it was known whether the upstream can be reached.
    Left(Pass),
}

/// How a request was let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// As any other.
    Free,
    /// As the probe.
    Probe,
}

/// The answer to a request that has arrived or is about to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It goes on.
    Goes(Pass),
    /// It cannot go before this instant, at which a probe is due.
    NotBefore(Instant),
    /// It cannot go before the probe that is under way has ended.
    BehindProbe,
}

/// A change that operators are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Requests are refused from now on.
    Opened,
    /// The upstream can be reached again.
    Closed,
}

impl Core {
    /// Creates a breaker that lets everything through.
    pub(super) fn new(rule: Rule) -> Core {
        Core { rule, state: State::Closed { failures: 0 } }
    }

    /// Returns the state.
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Takes an event. Returns the answer for a request that asks, and the change that the event makes.
    pub(super) fn on(&mut self, event: Event, now: Instant) -> (Answer, Option<Change>) {
        let before = self.state;
        self.state = self.after(event, now);
        let change = match (before, self.state) {
            (State::Closed { .. }, State::Open { .. }) => Some(Change::Opened),
            (State::Open { .. } | State::Probing, State::Closed { .. }) => Some(Change::Closed),
            _ => None,
        };
        let answer = match (before, event) {
            (State::Closed { .. }, _) => Answer::Goes(Pass::Free),
            (State::Open { until }, event) if now < until || event == Event::Queues => {
                Answer::NotBefore(until)
            }
            (State::Open { .. }, Event::Connects) => Answer::Goes(Pass::Probe),
            // It may have to wait for its permit, and another one be the probe meanwhile.
            (State::Open { .. }, _) => Answer::Goes(Pass::Free),
            (State::Probing, _) => Answer::BehindProbe,
        };
        (answer, change)
    }

    fn after(&self, event: Event, now: Instant) -> State {
        let opened = State::Open { until: now + self.rule.lasting };
        match (self.state, event) {
            (_, Event::Reached) => State::Closed { failures: 0 },
            (State::Closed { failures }, Event::Failed(_)) => match failures + 1 {
                failures if failures >= self.rule.failures => opened,
                failures => State::Closed { failures },
            },
            (State::Probing, Event::Failed(Pass::Probe)) => opened,
            (State::Probing, Event::Left(Pass::Probe)) => State::Open { until: now },
            (State::Open { until }, Event::Connects) if now >= until => State::Probing,
            // A request that began before it opened is no news.
            (state, _) => state,
        }
    }

    /// Returns how long a request that cannot go should stay away.
    pub(super) fn retry_after(&self, answer: Answer, now: Instant) -> Duration {
        match answer {
            Answer::NotBefore(until) => until.saturating_duration_since(now),
            // If the probe fails, this is the least.
            Answer::BehindProbe | Answer::Goes(_) => self.rule.lasting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Answer = Answer::Goes(Pass::Free);
    const PROBE: Answer = Answer::Goes(Pass::Probe);
    const FAILED: Event = Event::Failed(Pass::Free);

    /// A breaker of three failures and five seconds, in virtual time.
    struct Run {
        core: Core,
        began: Instant,
    }

    impl Run {
        fn new() -> Run {
            let core = Core::new(Rule { failures: 3, lasting: Duration::from_secs(5) });
            Run { core, began: Instant::now() }
        }

        fn opened() -> Run {
            let mut run = Run::new();
            for _ in 0..3 {
                run.at(0, FAILED);
            }
            run
        }

        fn instant(&self, millis: u64) -> Instant {
            self.began + Duration::from_millis(millis)
        }

        fn at(&mut self, millis: u64, event: Event) -> (Answer, Option<Change>) {
            let now = self.instant(millis);
            self.core.on(event, now)
        }

        fn answer(&mut self, millis: u64, event: Event) -> Answer {
            self.at(millis, event).0
        }
    }

    #[test]
    fn failures_in_a_row_open_it_and_no_others() {
        let mut run = Run::new();
        for _ in 0..10 {
            assert_eq!(
                (run.at(0, FAILED).1, run.at(0, FAILED).1, run.at(0, Event::Reached).1),
                (None, None, None)
            );
        }
        assert_eq!((run.at(0, FAILED).1, run.at(0, FAILED).1), (None, None));
        assert_eq!(run.answer(0, Event::Arrives), FREE);
        assert_eq!(run.at(0, FAILED).1, Some(Change::Opened));
        let until = run.instant(5000);
        assert_eq!(run.answer(0, Event::Arrives), Answer::NotBefore(until));
        assert_eq!(run.answer(4999, Event::Connects), Answer::NotBefore(until));
        assert_eq!(run.core.retry_after(Answer::NotBefore(until), run.instant(1000)), Duration::from_secs(4));
    }

    #[test]
    fn one_probe_at_a_time_goes() {
        let mut run = Run::opened();
        // Neither an arrival is the probe, nor one that is not the first.
        assert_eq!(run.answer(5000, Event::Queues), Answer::NotBefore(run.instant(5000)));
        assert_eq!((run.answer(5000, Event::Arrives), run.answer(5000, Event::Arrives)), (FREE, FREE));
        assert_eq!(run.answer(5000, Event::Connects), PROBE);
        assert_eq!(run.answer(5000, Event::Connects), Answer::BehindProbe);
        assert_eq!(run.answer(60_000, Event::Arrives), Answer::BehindProbe);
        assert_eq!(run.core.retry_after(Answer::BehindProbe, run.instant(60_000)), Duration::from_secs(5));
        // Failures of what began earlier are no news.
        assert_eq!(run.at(60_000, FAILED).1, None);
        assert_eq!(run.answer(60_000, Event::Connects), Answer::BehindProbe);
        run.at(60_000, Event::Failed(Pass::Probe));
        assert_eq!(run.answer(64_999, Event::Connects), Answer::NotBefore(run.instant(65_000)));
        assert_eq!(run.answer(65_000, Event::Connects), PROBE);
    }

    #[test]
    fn a_success_closes_it_whoever_had_it() {
        let mut run = Run::opened();
        assert_eq!(run.answer(5000, Event::Connects), PROBE);
        assert_eq!(run.at(5001, Event::Reached).1, Some(Change::Closed));
        assert_eq!((run.answer(5001, Event::Arrives), run.answer(5001, Event::Connects)), (FREE, FREE));
        // And the count begins anew.
        assert_eq!((run.at(5002, FAILED).1, run.at(5002, FAILED).1), (None, None));

        // A connection that was slow, and has opened after all.
        let mut run = Run::opened();
        assert_eq!(run.at(1000, Event::Reached).1, Some(Change::Closed));
        assert_eq!(run.at(1000, Event::Reached).1, None);
    }

    #[test]
    fn a_probe_that_leaves_is_followed_by_another_at_once() {
        let mut run = Run::opened();
        assert_eq!(run.answer(5000, Event::Connects), PROBE);
        run.at(5100, Event::Left(Pass::Free));
        assert_eq!(run.answer(5100, Event::Connects), Answer::BehindProbe);
        run.at(5100, Event::Left(Pass::Probe));
        assert_eq!(run.answer(5100, Event::Connects), PROBE);
    }

    #[test]
    fn failures_while_it_is_open_do_not_prolong_it() {
        let mut run = Run::opened();
        for _ in 0..100 {
            run.at(4000, FAILED);
        }
        assert_eq!(run.answer(5000, Event::Connects), PROBE);
    }
}
