//! Bounds the calls of workers to a store that are under way at once, by how quickly the store answers.
//!
//! A store carries out one call after the other. When very many queues ask at once, as after an outage, calls that are sent together
//! wait there for each other until all are late, are given up and made again, while the store works for nobody. Here they wait before
//! they are sent, and none is late. The number changes as the windows of TCP do (Jacobson 1988, *Congestion avoidance and control*): it
//! grows by one with each answer in time, up to a threshold, and beyond that with each round of them; a slow answer takes a quarter, and a call
//! that was answered too late begins anew from the fewest. It grows only while calls wait for a place: what few calls show says nothing
//! about many.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::{Micros, Moment};

/// The fewest calls that may be under way, as at the start, and the most. The fewest of some replicas together take a store less time
/// than a slow answer.
const CALLS: std::ops::RangeInclusive<usize> = 2..=256;

/// The gate before a store.
pub(in crate::limiter) struct CallGate {
    places: Semaphore,
    window: Mutex<Window>,
    /// An answer that takes longer is slow.
    slow: Micros,
    /// An answer that takes longer was given up.
    timeout: Micros,
}

/// How many calls may be under way.
struct Window {
    size: usize,
    /// The places that there are. More than the size where calls under way have still to give theirs up.
    places: usize,
    /// Up to here the number grows with each answer.
    threshold: usize,
    /// The answers in time since the number was last changed.
    quick: usize,
    /// When the number was last made smaller. Calls that were sent before say nothing about the smaller one.
    shrunk: Moment,
    latency: Latency,
}

/// How long answers lately took at most, and when the last one came.
#[derive(Clone, Copy)]
struct Latency {
    took: Micros,
    at: Moment,
}

impl Latency {
    /// Returns how long answers take at a moment: a long one is forgotten bit by bit, with further answers and with time.
    fn at(self, now: Moment) -> Micros {
        let seconds = u32::try_from((now - self.at).0 / 1_000_000).unwrap_or(u32::MAX);
        Micros(self.took.0.checked_shr(seconds).unwrap_or_default())
    }

    fn observe(&mut self, took: Micros, now: Moment) {
        *self = Latency { took: Micros(self.at(now).0 / 8 * 7).max(took), at: now };
    }
}

/// The right to make one call. Dropping it makes room for the next one.
pub(in crate::limiter) struct CallPlace<'a> {
    gate: &'a CallGate,
    place: Option<SemaphorePermit<'a>>,
}

impl CallGate {
    /// Creates the gate before a store whose calls fail after `timeout`; zero for a store that answers at once.
    pub(in crate::limiter) fn new(timeout: Micros) -> CallGate {
        let (least, most) = CALLS.into_inner();
        let latency = Latency { took: Micros::ZERO, at: Moment(0) };
        let window =
            Window { size: least, places: least, threshold: most, quick: 0, shrunk: Moment(0), latency };
        // A store in this process answers at once.
        let timeout = if timeout == Micros::ZERO { Micros(u64::MAX) } else { timeout };
        let slow = Micros(timeout.0 / 4);
        CallGate { places: Semaphore::new(least), window: Mutex::new(window), slow, timeout }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long the store lately took to answer at most, from the sending of a call on.
    pub(in crate::limiter) fn latency(&self, now: Moment) -> Micros {
        self.window().latency.at(now)
    }

    /// Waits for a place. Places are given in the order of asking.
    pub(in crate::limiter) async fn enter(&self) -> CallPlace<'_> {
        // The semaphore is never closed.
        CallPlace { gate: self, place: self.places.acquire().await.ok() }
    }
}

impl Window {
    /// Takes in an answer in time, which came while other calls waited for a place.
    fn grow(&mut self) {
        self.quick += 1;
        if self.size < self.threshold || self.quick >= self.size {
            (self.size, self.quick) = ((self.size + 1).min(*CALLS.end()), 0);
        }
    }

    /// Takes in that a call was answered slowly, or too late.
    fn shrink(&mut self, is_lost: bool, now: Moment) {
        self.threshold = (self.size - self.size / 4).max(*CALLS.start());
        self.size = if is_lost { *CALLS.start() } else { self.threshold };
        (self.quick, self.shrunk) = (0, now);
    }
}

impl CallPlace<'_> {
    /// Leaves after a call that was sent, and answered or given up, at these moments.
    pub(in crate::limiter) fn leave(mut self, sent: Moment, ended: Moment, is_answered: bool) {
        let (took, gate) = (ended - sent, self.gate);
        let mut window = gate.window();
        if is_answered {
            // One that came after its time says nothing about the next.
            window.latency.observe(took.min(gate.timeout), ended);
        }
        if took >= gate.slow {
            if sent >= window.shrunk {
                window.shrink(took >= gate.timeout, ended);
            }
        } else if is_answered && gate.places.available_permits() == 0 {
            window.grow();
        }
        if window.places > window.size
            && let Some(place) = self.place.take()
        {
            place.forget();
            window.places -= 1 + gate.places.forget_permits(window.places - window.size - 1);
        } else if window.places < window.size {
            gate.places.add_permits(window.size - window.places);
            window.places = window.size;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::future::{FutureExt, join_all};

    use super::*;

    const TIMEOUT: Micros = Micros::from_millis(100);

    /// Makes calls in rounds through a gate at which many more wait. Each takes some milliseconds times the calls that are under way
    /// together. Returns how many were under way in the last round.
    fn rounds(gate: &CallGate, clock: &mut Moment, count: usize, millis: usize) -> usize {
        let (mut waiting, mut last) = (VecDeque::new(), 0);
        for _ in 0..count {
            waiting.resize_with(2 * CALLS.end(), || gate.enter().boxed());
            let mut calls = Vec::new();
            waiting.retain_mut(|call| match call.now_or_never() {
                Some(place) => {
                    calls.push(place);
                    false
                }
                None => true,
            });
            last = calls.len();
            let sent = *clock;
            *clock = sent + Micros::from_millis((last * millis) as u64);
            calls.into_iter().for_each(|call| call.leave(sent, *clock, true));
        }
        last
    }

    #[test]
    fn a_long_answer_is_forgotten_with_others_and_with_time() {
        let (gate, start) = (CallGate::new(TIMEOUT), Moment(1_000_000));
        let answered = |millis: u64, at: Moment| {
            let place = gate.enter().now_or_never().unwrap();
            place.leave(at - Micros::from_millis(millis), at, true);
            gate.latency(at)
        };
        assert_eq!(answered(64, start), Micros::from_millis(64));
        assert_eq!(answered(1, start), Micros::from_millis(56));
        assert_eq!(gate.latency(start + Micros::from_millis(2000)), Micros::from_millis(14));
        assert_eq!(
            answered(5000, start),
            TIMEOUT,
            "one that came after its time says nothing about the next"
        );
    }

    #[test]
    fn the_number_of_calls_follows_what_the_store_can_do() {
        let (gate, mut clock) = (CallGate::new(TIMEOUT), Moment(1_000_000));
        // Twice as many in each round, as long as all are answered quickly.
        assert_eq!([(); 5].map(|()| rounds(&gate, &mut clock, 1, 1)), [2, 4, 8, 16, 32]);
        let settled = rounds(&gate, &mut clock, 20, 1);
        assert!((16..=28).contains(&settled), "{settled}");
        // The store becomes slow.
        let settled = rounds(&gate, &mut clock, 20, 5);
        assert!((2..=6).contains(&settled), "{settled}");
        // And stands still.
        assert_eq!(rounds(&gate, &mut clock, 3, 1000), *CALLS.start());
        assert_eq!(rounds(&gate, &mut clock, 300, 0), *CALLS.end());
    }

    #[tokio::test]
    async fn calls_that_do_not_wait_for_a_place_prove_nothing() {
        let gate = CallGate::new(TIMEOUT);
        for _ in 0..1000 {
            gate.enter().await.leave(Moment(0), Moment(1000), true);
        }
        assert_eq!(gate.places.available_permits(), *CALLS.start());
    }

    #[tokio::test]
    async fn all_places_beyond_the_number_are_given_up_although_calls_wait() {
        let (gate, mut clock) = (CallGate::new(TIMEOUT), Moment(1_000_000));
        let many = rounds(&gate, &mut clock, 5, 0);
        assert_eq!(many, 32);
        let calls = join_all((0..2 * many).map(|_| gate.enter())).await;
        let next = gate.enter();
        let ended = clock + TIMEOUT;
        calls.into_iter().for_each(|call| call.leave(clock, ended, true));
        let place = next.await;
        assert_eq!(gate.places.available_permits(), *CALLS.start() - 1);
        // A refusal at once shows neither that the store is slow nor that it can do more.
        place.leave(ended, ended, false);
        assert_eq!(gate.places.available_permits(), *CALLS.start());
    }
}
