//! Bounds the calls of workers to a store that are under way at once, by how quickly the store answers.
//!
//! A store carries out one call after the other. When very many queues ask at once, as after an outage, calls that are sent together
//! wait there for each other until all are late, are given up and made again, while the store works for nobody. Here they wait before
//! they are sent, and none is late. The number grows by one with each round of answers in time and shrinks by a quarter with a slow
//! one, as the windows of TCP do (Chiu and Jain 1989, *Analysis of the increase and decrease algorithms for congestion avoidance*).

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::{Micros, Moment};

/// The calls under way at the start: some milliseconds of a store's time.
const CALLS_START: usize = 32;

/// The fewest and the most calls that may be under way.
const CALLS: std::ops::RangeInclusive<usize> = 4..=256;

/// The gate before a store.
pub(in crate::limiter) struct CallGate {
    places: Semaphore,
    window: Mutex<Window>,
    /// An answer that takes longer is slow.
    slow: Micros,
}

/// How many calls may be under way.
struct Window {
    size: usize,
    /// The answers in time since the number was last changed.
    quick: usize,
    /// When the number was last made smaller. Calls that were sent before say nothing about the smaller one.
    shrunk: Moment,
}

/// The right to make one call. Dropping it makes room for the next one.
pub(in crate::limiter) struct CallPlace<'a> {
    gate: &'a CallGate,
    place: Option<SemaphorePermit<'a>>,
}

impl CallGate {
    /// Creates the gate before a store whose calls fail after `timeout`; zero for a store that answers at once.
    pub(in crate::limiter) fn new(timeout: Micros) -> CallGate {
        let window = Window { size: CALLS_START, quick: 0, shrunk: Moment(0) };
        // A store in this process answers at once.
        let slow = if timeout == Micros::ZERO { Micros(u64::MAX) } else { Micros(timeout.0 / 4) };
        CallGate { places: Semaphore::new(CALLS_START), window: Mutex::new(window), slow }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. Places are given in the order of asking.
    pub(in crate::limiter) async fn enter(&self) -> CallPlace<'_> {
        // The semaphore is never closed.
        CallPlace { gate: self, place: self.places.acquire().await.ok() }
    }
}

impl CallPlace<'_> {
    /// Leaves after a call that was sent and answered, or given up, at these moments.
    pub(in crate::limiter) fn leave(mut self, sent: Moment, ended: Moment) {
        let mut window = self.gate.window();
        if ended - sent < self.gate.slow {
            window.quick += 1;
            if window.quick >= window.size && window.size < *CALLS.end() {
                (window.size, window.quick) = (window.size + 1, 0);
                self.gate.places.add_permits(1);
            }
            return;
        }
        if sent < window.shrunk {
            return;
        }
        let size = (window.size - window.size / 4).max(*CALLS.start());
        let surplus = window.size - size;
        // Places that are taken are given up as calls end: this one first.
        let mut forgotten = 0;
        if surplus > 0
            && let Some(place) = self.place.take()
        {
            place.forget();
            forgotten = 1 + self.gate.places.forget_permits(surplus - 1);
        }
        (window.size, window.quick) = (window.size - forgotten, 0);
        window.shrunk = ended;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    const TIMEOUT: Micros = Micros::from_millis(100);

    fn at(millis: u64) -> Moment {
        Moment(1_000_000) + Micros::from_millis(millis)
    }

    /// Returns how many calls can enter at once.
    fn room(gate: &CallGate) -> usize {
        gate.places.available_permits()
    }

    #[tokio::test]
    async fn quick_answers_make_room_and_slow_ones_take_it() {
        let gate = CallGate::new(TIMEOUT);
        assert_eq!(room(&gate), CALLS_START);
        for _ in 0..32 + 33 {
            gate.enter().await.leave(at(0), at(24));
        }
        assert_eq!(room(&gate), CALLS_START + 2);
        let calls = join_all((0..8).map(|_| gate.enter())).await;
        for call in calls {
            call.leave(at(0), at(26));
        }
        // Calls that were under way together shrink it once.
        assert_eq!(room(&gate), 34 - 8);
        for step in 1..100 {
            gate.enter().await.leave(at(100 * step), at(100 * step + 60));
        }
        assert_eq!(room(&gate), *CALLS.start());
        for _ in 0..100_000 {
            gate.enter().await.leave(at(20_000), at(20_001));
        }
        assert_eq!(room(&gate), *CALLS.end());
    }
}
