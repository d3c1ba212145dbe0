//! Bounds the calls of workers to a store that are under way at once, by how quickly the store answers, and orders those that wait.
//!
//! A store carries out one call after the other. When very many queues ask at once, as after an outage, calls that are sent together
//! wait there for each other until all are late, are given up and made again, while the store works for nobody. Here they wait before
//! they are sent, and none is late. The number changes as the windows of TCP do (Jacobson 1988, *Congestion avoidance and control*): it
//! grows by one with each answer in time, up to a threshold, and beyond that with each round of them; a slow answer takes a quarter, and a call
//! that was answered too late begins anew from the fewest. It grows only while calls wait for a place: what few calls show says nothing
//! about many.
//!
//! The caller that has waited longest comes first, whichever queue it waits in: where ten thousand queues book anew under one limit, those with the
//! next slots must not come behind all that are to wait for a minute.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::clock::{Micros, Moment};

/// The fewest calls that may be under way, as at the start, and the most. The fewest of some replicas together take a store less time
/// than a slow answer.
const CALLS: std::ops::RangeInclusive<usize> = 2..=256;

/// The gate before a store.
pub(in crate::limiter) struct CallGate {
    window: Mutex<Window>,
    /// An answer that takes longer is slow.
    slow: Micros,
    /// An answer that takes longer was given up.
    timeout: Micros,
}

/// When whoever a call is for began to wait, and a number, in the order of asking.
type Turn = (Moment, u64);

/// How many calls may be under way, how many are, and which wait.
struct Window {
    size: usize,
    /// More than the size where it was made smaller.
    under_way: usize,
    waiting: BTreeMap<Turn, oneshot::Sender<()>>,
    /// The number of the last call that asked.
    asked: u64,
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

    /// Takes in an answer, and how long it took. `most` is what one that came after its time says of the next at most, `slow` what it says
    /// alone: a single one may have been lost, and waiting for as long would help nobody.
    fn observe(&mut self, took: Micros, slow: Micros, most: Micros, now: Moment) {
        let before = self.at(now);
        let counted = if before < slow && took >= most { slow } else { took.min(most) };
        *self = Latency { took: Micros(before.0 / 8 * 7).max(counted), at: now };
    }
}

/// The right to make one call, or a place among those that wait for it. Dropping it makes room for the next one.
pub(in crate::limiter) struct CallPlace<'a> {
    gate: &'a CallGate,
    turn: Turn,
}

impl CallGate {
    /// Creates the gate before a store whose calls fail after `timeout`; zero for a store that answers at once.
    pub(in crate::limiter) fn new(timeout: Micros) -> CallGate {
        let (least, most) = CALLS.into_inner();
        let latency = Latency { took: Micros::ZERO, at: Moment(0) };
        let window = Window {
            size: least,
            under_way: 0,
            waiting: BTreeMap::new(),
            asked: 0,
            threshold: most,
            quick: 0,
            shrunk: Moment(0),
            latency,
        };
        // A store in this process answers at once.
        let timeout = if timeout == Micros::ZERO { Micros(u64::MAX) } else { timeout };
        let slow = Micros(timeout.0 / 4);
        CallGate { window: Mutex::new(window), slow, timeout }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long the store lately took to answer at most, from the sending of a call on.
    pub(in crate::limiter) fn latency(&self, now: Moment) -> Micros {
        self.window().latency.at(now)
    }

    /// Waits for a place for a call on behalf of somebody who has waited since a moment.
    pub(in crate::limiter) async fn enter(&self, since: Moment) -> CallPlace<'_> {
        let (place, turn) = {
            let mut window = self.window();
            window.asked += 1;
            let place = CallPlace { gate: self, turn: (since, window.asked) };
            if window.under_way < window.size {
                window.under_way += 1;
                return place;
            }
            let (turn, turned) = oneshot::channel();
            window.waiting.insert(place.turn, turn);
            (place, turned)
        };
        // Its sender is dropped only with the gate.
        let _ = turn.await;
        place
    }
}

impl Window {
    /// Gives the free places to those who have waited longest. One that leaves at this moment gives its place back.
    fn admit(&mut self) {
        while self.under_way < self.size
            && let Some((_, turn)) = self.waiting.pop_first()
        {
            self.under_way += 1;
            let _ = turn.send(());
        }
    }

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
    pub(in crate::limiter) fn leave(self, sent: Moment, ended: Moment, is_answered: bool) {
        let (took, gate) = (ended - sent, self.gate);
        let mut window = gate.window();
        if is_answered {
            window.latency.observe(took, gate.slow, gate.timeout, ended);
        }
        if took >= gate.slow {
            if sent >= window.shrunk {
                window.shrink(took >= gate.timeout, ended);
            }
        } else if is_answered && window.under_way >= window.size {
            window.grow();
        }
    }
}

impl Drop for CallPlace<'_> {
    fn drop(&mut self) {
        let mut window = self.gate.window();
        if window.waiting.remove(&self.turn).is_none() {
            window.under_way -= 1;
            window.admit();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::future::{FutureExt, join_all};

    use super::*;

    const TIMEOUT: Micros = Micros::from_millis(100);

    fn free(gate: &CallGate) -> usize {
        let window = gate.window();
        window.size - window.under_way
    }

    /// Makes calls in rounds through a gate at which many more wait. Each takes some milliseconds times the calls that are under way
    /// together. Returns how many were under way in the last round.
    fn rounds(gate: &CallGate, clock: &mut Moment, count: usize, millis: usize) -> usize {
        let (mut waiting, mut last) = (VecDeque::new(), 0);
        for _ in 0..count {
            waiting.resize_with(2 * CALLS.end(), || gate.enter(*clock).boxed());
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
            let place = gate.enter(start).now_or_never().unwrap();
            place.leave(at - Micros::from_millis(millis), at, true);
            gate.latency(at)
        };
        assert_eq!(answered(64, start), Micros::from_millis(64));
        assert_eq!(answered(1, start), Micros::from_millis(56));
        assert_eq!(gate.latency(start + Micros::from_millis(2000)), Micros::from_millis(14));
        assert_eq!(answered(5000, start), TIMEOUT, "one after its time");
        let later = start + Micros::from_millis(20_000);
        assert_eq!(answered(5000, later), Micros(TIMEOUT.0 / 4), "one alone may have been lost");
        assert_eq!(answered(5000, later), TIMEOUT, "two have not");
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
            gate.enter(Moment(0)).await.leave(Moment(0), Moment(1000), true);
        }
        assert_eq!(free(&gate), *CALLS.start());
    }

    #[tokio::test]
    async fn the_call_that_waited_longest_passes_the_gate_first() {
        let gate = CallGate::new(TIMEOUT);
        let mut under_way = vec![gate.enter(Moment(9)).await, gate.enter(Moment(9)).await];
        let mut calls: Vec<_> = [5, 3, 7, 3].map(|since| Some(gate.enter(Moment(since)).boxed())).into();
        assert!(calls.iter_mut().flatten().all(|call| call.now_or_never().is_none()));
        // One of them leaves before its turn.
        calls[0] = None;
        let mut order = Vec::new();
        for _ in 0..3 {
            under_way.remove(0);
            for (number, call) in calls.iter_mut().enumerate() {
                if let Some(place) = call.as_mut().and_then(FutureExt::now_or_never) {
                    order.push(number);
                    under_way.push(place);
                    *call = None;
                }
            }
        }
        assert_eq!(order, [1, 3, 2]);
        drop(under_way);
        assert_eq!(free(&gate), *CALLS.start());
    }

    #[tokio::test]
    async fn all_places_beyond_the_number_are_given_up_although_calls_wait() {
        let (gate, mut clock) = (CallGate::new(TIMEOUT), Moment(1_000_000));
        let many = rounds(&gate, &mut clock, 5, 0);
        assert_eq!(many, 32);
        let calls = join_all((0..2 * many).map(|_| gate.enter(clock))).await;
        let next = gate.enter(clock);
        let ended = clock + TIMEOUT;
        calls.into_iter().for_each(|call| call.leave(clock, ended, true));
        let place = next.await;
        assert_eq!(free(&gate), *CALLS.start() - 1);
        // A refusal at once shows neither that the store is slow nor that it can do more.
        place.leave(ended, ended, false);
        assert_eq!(free(&gate), *CALLS.start());
    }
}
