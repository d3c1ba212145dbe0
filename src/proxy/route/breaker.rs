//! A route's breaker as its requests meet it: it refuses those that arrive, and holds back, in order, those whose turn has come.
//!
//! [`super::breaker_core`] decides; this file has the lock, the clock and the waits. Opens no connection.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::breaker_core::{Answer, Change, Core, Event, Pass, State};
use crate::config::model::Breaker as Rule;
use crate::proxy::error::ProxyError;
use crate::proxy::messages::response::millis;

/// The breaker of a route.
pub(crate) struct Breaker {
    /// The name of the route, for the log.
    route: Arc<str>,
    rule: Rule,
    core: Mutex<Core>,
    /// Wakes those that are held back when the state has changed.
    changed: Notify,
    /// The place of the first of those that are held back, which is the next probe. The lock is fair, so they come in their order.
    first: tokio::sync::Mutex<()>,
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
        let (core, first) = (Mutex::new(Core::new(rule)), tokio::sync::Mutex::default());
        Breaker { route: Arc::clone(route), rule, core, changed: Notify::new(), first }
    }

    /// Returns whether it is as configured.
    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.rule == rule
    }

    /// Lets a request that has arrived go on to its permit, or refuses it.
    pub(crate) fn arrives(&self) -> Result<(), ProxyError> {
        match self.on(Event::Arrives) {
            (Answer::Goes(_), _) => Ok(()),
            (_, retry_after) => Err(ProxyError::UpstreamUnavailable { retry_after }),
        }
    }

    /// Lets a request connect: at once, as the probe, or once a probe has reached the upstream. Those that are held back go in their
    /// order.
    ///
    /// # Errors
    /// That the upstream is unavailable, once it is known that the request cannot go before its `deadline`.
    pub(crate) async fn connects(&self, deadline: Instant) -> Result<Attempt<'_>, ProxyError> {
        let mut place = self.first.try_lock().ok();
        let mut first = pin!(self.first.lock());
        loop {
            // Before the state is looked at, so that no change is missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let (answer, retry_after) =
                self.on(if place.is_some() { Event::Connects } else { Event::Queues });
            let refused = Err(ProxyError::UpstreamUnavailable { retry_after });
            let wakes_at = match answer {
                Answer::Goes(pass) => return Ok(Attempt { breaker: self, pass: Some(pass) }),
                Answer::NotBefore(until) if until > deadline => return refused,
                Answer::NotBefore(until) if place.is_some() => until,
                _ if Instant::now() >= deadline => return refused,
                Answer::NotBefore(_) | Answer::BehindProbe => deadline,
            };
            tokio::select! {
                guard = &mut first, if place.is_none() => place = Some(guard),
                () = changed => {}
                () = sleep_until(wakes_at) => {}
            }
        }
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
        breaker.connects(Instant::now()).await.unwrap().ended(false);
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
        assert_eq!(retry_after(&breaker.arrives()), Some(Duration::from_secs(5)));
        let short = breaker.connects(began + Duration::from_millis(4999)).await;
        assert_eq!((retry_after(&short), began.elapsed()), (Some(Duration::from_secs(5)), Duration::ZERO));
        let probe = breaker.connects(began + Duration::from_secs(5)).await.unwrap();
        assert_eq!((probe.pass, began.elapsed()), (Some(Pass::Probe), Duration::from_secs(5)));
        // One without a wait is refused behind the probe, and is the probe itself where none is under way.
        assert_eq!(retry_after(&breaker.connects(Instant::now()).await), Some(Duration::from_secs(5)));
        drop(probe);
        assert_eq!(breaker.connects(Instant::now()).await.unwrap().pass, Some(Pass::Probe));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_are_held_back_go_in_their_order() {
        let breaker = Arc::new(breaker());
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        fail(&breaker).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        for number in 0..5 {
            let (breaker, told) = (Arc::clone(&breaker), told.clone());
            tokio::spawn(async move {
                let attempt = breaker.connects(deadline).await.unwrap();
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
        for number in 3..5 {
            assert_eq!(order.recv().await, Some((number, Some(Pass::Free))));
        }
        assert_eq!(began.elapsed().as_secs(), 18);
    }
}
