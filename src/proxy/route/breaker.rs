//! A route's breaker as its requests meet it: it refuses those that arrive, and holds back, in order, those whose turn has come.
//!
//! [`super::breaker_core`] decides; this file has the lock, the clock and the waits. Opens no connection.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::breaker_core::{Answer, Change, Core, Event, Pass, State};
use crate::clock::millis;
use crate::config::model::Breaker as Rule;
use crate::proxy::error::ProxyError;

/// The breaker of a route.
pub(crate) struct Breaker {
    /// The name of the route, for the log.
    route: Arc<str>,
    rule: Rule,
    core: Mutex<Core>,
    /// Wakes those that are held back when the state has changed.
    changed: Notify,
    /// Those that are held back, by their arrival. The first is the next probe.
    held: Mutex<BTreeSet<Rank>>,
}

/// The arrival of a request that is held back, and a number that tells it from others of that instant.
type Rank = (Instant, u64);

/// A place among those that are held back.
struct Place<'breaker> {
    breaker: &'breaker Breaker,
    rank: Rank,
}

/// A request that was let through to connect. A drop says that it has left before the end was known.
#[must_use = "a dropped attempt has left"]
pub(crate) struct Attempt<'breaker> {
    breaker: &'breaker Breaker,
    pass: Option<Pass>,
}

impl Breaker {
    /// Creates the breaker of a route. It lets everything through at first.
    pub(crate) fn new(route: &Arc<str>, rule: Rule) -> Breaker {
        let (core, held) = (Mutex::new(Core::new(rule)), Mutex::default());
        Breaker { route: Arc::clone(route), rule, core, changed: Notify::new(), held }
    }

    /// Returns whether it is as configured.
    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.rule == rule
    }

    /// Lets a request that has arrived go on to its permit, or refuses it.
    pub(crate) fn check(&self) -> Result<(), ProxyError> {
        match self.on(Event::Arrives) {
            (Answer::Goes(_), _) => Ok(()),
            (_, retry_after) => Err(ProxyError::UpstreamUnavailable { retry_after }),
        }
    }

    /// Lets a request connect: at once, as the probe, or once a probe has reached the upstream. Those that are held back go in the
    /// order of their arrival.
    ///
    /// # Errors
    /// That the upstream is unavailable, once it is known that the request cannot go before its `deadline`.
    pub(crate) async fn admit(&self, arrived: Instant, deadline: Instant) -> Result<Attempt<'_>, ProxyError> {
        if let (Answer::Goes(pass), _) = self.on(Event::Queues) {
            return Ok(Attempt { breaker: self, pass: Some(pass) });
        }
        let place = self.place(arrived);
        loop {
            // Before the state is looked at, so that no change is missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let is_first = self.held().first() == Some(&place.rank);
            let (answer, retry_after) = self.on(if is_first { Event::Connects } else { Event::Queues });
            let refused = Err(ProxyError::UpstreamUnavailable { retry_after });
            let wakes_at = match answer {
                Answer::Goes(pass) => return Ok(Attempt { breaker: self, pass: Some(pass) }),
                Answer::NotBefore(until) if until > deadline => return refused,
                Answer::NotBefore(until) if is_first => until,
                _ if Instant::now() >= deadline => return refused,
                Answer::NotBefore(_) | Answer::BehindProbe => deadline,
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(wakes_at) => {}
            }
        }
    }

    fn place(&self, arrived: Instant) -> Place<'_> {
        let mut held = self.held();
        let mut rank = (arrived, 0);
        while !held.insert(rank) {
            rank.1 += 1;
        }
        Place { breaker: self, rank }
    }

    fn held(&self) -> MutexGuard<'_, BTreeSet<Rank>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the upstream has answered.
    pub(crate) fn answered(&self) {
        self.on(Event::Reached);
    }

    /// Returns whether requests are refused now.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.core().state(), State::Closed { .. })
    }

    /// Returns the state for people and programs.
    pub(crate) fn view(&self) -> Value {
        let (state, failures, retry_in) = match self.core().state() {
            State::Closed { failures } => ("closed", failures, None),
            State::Open { until } => {
                let left = until.saturating_duration_since(Instant::now());
                ("open", self.rule.failures, Some(millis(left)))
            }
            State::Probing => ("probing", self.rule.failures, None),
        };
        json!({ "route": &*self.route, "state": state, "failures": failures, "probe_in_ms": retry_in })
    }

    /// Takes an event. Returns the answer for a request that asks, and how long it should stay away if it cannot go.
    fn on(&self, event: Event) -> (Answer, Duration) {
        let now = Instant::now();
        let mut core = self.core();
        let before = core.state();
        let (answer, change) = core.on(event, now);
        let (retry_after, has_changed) = (core.retry_after(answer, now), core.state() != before);
        drop(core);
        if has_changed {
            self.changed.notify_waiters();
        }
        match change {
            Some(Change::Opened) => {
                let Rule { failures, lasting } = self.rule;
                tracing::warn!(route = %self.route, failures, probes_every = ?lasting,
                    "the breaker has opened: the upstream cannot be reached, and requests are refused");
            }
            Some(Change::Closed) => {
                tracing::info!(route = %self.route, "the breaker has closed: the upstream can be reached");
            }
            None => {}
        }
        (answer, retry_after)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut held = self.breaker.held();
        let was_first = held.first() == Some(&self.rank);
        held.remove(&self.rank);
        drop(held);
        if was_first {
            // Another one is the first now.
            self.breaker.changed.notify_waiters();
        }
    }
}

impl Attempt<'_> {
    /// Notes how the attempt to connect has ended.
    pub(crate) fn ended(mut self, is_connected: bool) {
        if let Some(pass) = self.pass.take() {
            self.breaker.on(if is_connected { Event::Reached } else { Event::Failed(pass) });
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.breaker.on(Event::Left(pass));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(&"r".into(), Rule { failures: 1, lasting: Duration::from_secs(5) })
    }

    async fn fail(breaker: &Breaker) {
        breaker.admit(Instant::now(), Instant::now()).await.unwrap().ended(false);
    }

    fn retry_after<T>(refused: &Result<T, ProxyError>) -> Option<Duration> {
        match refused {
            Err(ProxyError::UpstreamUnavailable { retry_after }) => Some(*retry_after),
            _ => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_whose_wait_reaches_the_probe_are_held_back() {
        let breaker = breaker();
        let began = Instant::now();
        fail(&breaker).await;
        assert_eq!(retry_after(&breaker.check()), Some(Duration::from_secs(5)));
        let short = breaker.admit(began, began + Duration::from_millis(4999)).await;
        assert_eq!((retry_after(&short), began.elapsed()), (Some(Duration::from_secs(5)), Duration::ZERO));
        let probe = breaker.admit(began, began + Duration::from_secs(5)).await.unwrap();
        assert_eq!((probe.pass, began.elapsed()), (Some(Pass::Probe), Duration::from_secs(5)));
        // One without a wait is refused behind the probe, and is the probe itself where none is under way.
        assert_eq!(
            retry_after(&breaker.admit(Instant::now(), Instant::now()).await),
            Some(Duration::from_secs(5))
        );
        drop(probe);
        assert_eq!(breaker.admit(Instant::now(), Instant::now()).await.unwrap().pass, Some(Pass::Probe));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_are_held_back_go_in_their_order() {
        let breaker = Arc::new(breaker());
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        fail(&breaker).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        // They come to connect in another order.
        for number in [1, 0, 4, 2, 3] {
            let (breaker, told) = (Arc::clone(&breaker), told.clone());
            let arrived = Instant::now() + Duration::from_micros(number);
            tokio::spawn(async move {
                let attempt = breaker.admit(arrived, deadline).await.unwrap();
                told.send((number, attempt.pass)).unwrap();
                // Two probes fail, the third one reaches the upstream.
                tokio::time::sleep(Duration::from_secs(1)).await;
                attempt.ended(number >= 2);
            });
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        for number in 0..3 {
            assert_eq!(order.recv().await, Some((number, Some(Pass::Probe))));
            assert_eq!(began.elapsed().as_secs(), 5 + 6 * number);
        }
        // The others go all at once; the limits put them in their order.
        let mut others = [order.recv().await.unwrap(), order.recv().await.unwrap()];
        others.sort_by_key(|other| other.0);
        assert_eq!(others, [3, 4].map(|number| (number, Some(Pass::Free))));
        assert_eq!(began.elapsed().as_secs(), 18);
    }
}
