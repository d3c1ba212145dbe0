//! Keeps tests whose judgement depends on timing away from each other, and from a machine that stands still.
//!
//! The test runner starts more tests at once than there are cores, because most of them wait most of the time. A test
//! that judges instants takes the lane for itself, or with other quiet tests; every other test shares it, in its first
//! line. Tests that may run beside the current ones enter first: no test waits for long, because the runner starts only
//! so many.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::Notify;

/// The kinds of tests, by the tests that may run beside them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Tests that run beside each other, whatever load they make.
    Shared,
    /// Tests that run beside each other, because they make little load.
    Calm,
    /// Tests that run beside no other test.
    Alone,
}

/// The most tests that run beside each other: on two cores they still end in time.
const BESIDE_MAX: usize = 3;

/// The lane. When it is empty, the test that has waited longest enters.
struct Lane {
    inside: Vec<Kind>,
    waiting: VecDeque<u64>,
    next: u64,
}

static LANE: Mutex<Lane> = Mutex::new(Lane { inside: Vec::new(), waiting: VecDeque::new(), next: 0 });
static MOVED: Notify = Notify::const_new();

/// The shortest standstill of the machine that excuses a failure: it may delay a permit, between weir's last look at
/// the clock and the upstream's, beyond the guard of a window of one second.
const STALL: Duration = Duration::from_millis(10);

/// The number of attempts of a test on a machine that stands still each time.
const ATTEMPTS: usize = 5;

/// A place in the lane, or in front of it.
pub(crate) struct Place {
    kind: Kind,
    ticket: u64,
}

impl Place {
    async fn take(kind: Kind) -> Place {
        let place = {
            let mut lane = lane();
            lane.next += 1;
            let ticket = lane.next;
            lane.waiting.push_back(ticket);
            Place { kind, ticket }
        };
        loop {
            let moved = MOVED.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if place.enters() {
                return place;
            }
            moved.await;
        }
    }

    fn enters(&self) -> bool {
        let mut lane = lane();
        let goes_beside = |other: &Kind| *other == self.kind && self.kind != Kind::Alone;
        let enters = match lane.inside.len() {
            0 => lane.waiting.front() == Some(&self.ticket),
            inside => inside < BESIDE_MAX && lane.inside.iter().all(goes_beside),
        };
        if enters {
            lane.waiting.retain(|ticket| *ticket != self.ticket);
            lane.inside.push(self.kind);
            MOVED.notify_waiters();
        }
        enters
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lane = lane();
        if let Some(index) = lane.waiting.iter().position(|ticket| *ticket == self.ticket) {
            lane.waiting.remove(index);
        } else if let Some(index) = lane.inside.iter().position(|kind| *kind == self.kind) {
            lane.inside.swap_remove(index);
        }
        MOVED.notify_waiters();
    }
}

fn lane() -> MutexGuard<'static, Lane> {
    LANE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a place for a test that judges events, not instants.
pub(crate) async fn shared() -> Place {
    Place::take(Kind::Shared).await
}

/// Runs a test that judges instants and loads the machine. A failed test is repeated if, and only if, the machine stood
/// still meanwhile: a thread that only looks at the clock was held up for [`STALL`] or longer.
pub(crate) async fn alone(test: impl AsyncFn()) {
    judged(Kind::Alone, test).await;
}

/// Runs a test that judges instants and mostly waits. A failed test is repeated as by [`alone`].
pub(crate) async fn calm(test: impl AsyncFn()) {
    judged(Kind::Calm, test).await;
}

async fn judged(kind: Kind, test: impl AsyncFn()) {
    let _place = Place::take(kind).await;
    for attempt in 1.. {
        let watch = StallWatch::start();
        let Err(failure) = AssertUnwindSafe(test()).catch_unwind().await else { return };
        let longest = watch.longest();
        if longest < STALL || attempt == ATTEMPTS {
            resume_unwind(failure);
        }
        println!("attempt {attempt} is not judged: the machine stood still for {longest:?}");
    }
}

/// A thread that looks at the clock each millisecond.
struct StallWatch {
    longest_us: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl StallWatch {
    fn start() -> StallWatch {
        let watch = StallWatch { longest_us: Arc::default(), stop: Arc::default() };
        let (longest_us, stop) = (Arc::clone(&watch.longest_us), Arc::clone(&watch.stop));
        thread::spawn(move || {
            const INTERVAL: Duration = Duration::from_millis(1);
            while !stop.load(Ordering::Relaxed) {
                let due = Instant::now() + INTERVAL;
                thread::sleep(INTERVAL);
                let late_us = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                longest_us.fetch_max(late_us, Ordering::Relaxed);
            }
        });
        watch
    }

    /// Returns the longest time for which the thread was held up since the start.
    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
