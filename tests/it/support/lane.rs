//! Keeps tests whose judgement depends on timing away from each other, and from a machine that stands still.
//!
//! The test runner starts more tests at once than there are cores, because most of them wait most of the time. A test
//! that judges instants takes the lane for itself, or with other quiet tests; every other test shares it, in its first
//! line. Tests that may run beside the current ones enter first, so that few seconds are lost by going over to the other
//! kind: the more tests the runner has started, the fewer. None waits for ever, because it starts only so many.

use std::collections::{HashMap, VecDeque};
use std::fs;
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

impl Kind {
    /// Returns how many tests of a kind run beside each other at most: on two cores they still end in time.
    fn beside_max(self) -> usize {
        match self {
            Kind::Shared => 6,
            Kind::Calm => 4,
            Kind::Alone => 1,
        }
    }
}

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
pub(crate) const STALL: Duration = Duration::from_millis(10);

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
        let goes_beside = |other: &Kind| *other == self.kind;
        let enters = match lane.inside.len() {
            0 => lane.waiting.front() == Some(&self.ticket),
            inside => inside < self.kind.beside_max() && lane.inside.iter().all(goes_beside),
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
/// still meanwhile: a thread that only looks at the clock, or one of a process that the test had started, was held up for
/// [`STALL`] or longer.
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
        println!("attempt {attempt} is not judged: a process was held up for {longest:?}");
    }
}

/// A thread that looks at the clock each millisecond, and now and then at how long the started processes waited for a processor:
/// one of them may stand still alone.
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
            /// Looks at the clock for each one at the processes.
            const LOOKS: u32 = 25;
            let mut waits = ProcessorWaits::default();
            for look in 0_u32.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let due = Instant::now() + INTERVAL;
                thread::sleep(INTERVAL);
                let late = due.elapsed();
                let waited = if look % LOOKS == 0 { waits.longest_since() } else { Duration::ZERO };
                let stall_us = u64::try_from(late.max(waited).as_micros()).unwrap_or(u64::MAX);
                longest_us.fetch_max(stall_us, Ordering::Relaxed);
            }
        });
        watch
    }

    /// Returns the longest time for which a thread was held up since the start.
    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// How long each thread of this process's children has waited for a processor, as the kernel counts it.
#[derive(Default)]
pub(crate) struct ProcessorWaits {
    /// Nanoseconds, by the thread's directory.
    by_thread: HashMap<String, u64>,
}

impl ProcessorWaits {
    /// Returns the longest wait of a thread since the last look. A wait that has not ended yet is seen after its end.
    pub(crate) fn longest_since(&mut self) -> Duration {
        let mut longest = 0;
        let threads =
            listed("/proc/self/task").flat_map(|task| children(&task)).flat_map(|child| listed(&child));
        let now = threads.filter_map(|thread| Some((waited(&thread)?, thread)));
        let mut by_thread = HashMap::new();
        for (waited, thread) in now {
            longest =
                longest.max(waited - self.by_thread.get(&thread).copied().unwrap_or(waited).min(waited));
            by_thread.insert(thread, waited);
        }
        self.by_thread = by_thread;
        Duration::from_nanos(longest)
    }
}

/// Returns the entries of a directory; none if it is gone.
fn listed(directory: &str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path().to_str()?.to_owned()))
}

/// Returns the directories of the threads of a thread's child processes.
fn children(thread: &str) -> Vec<String> {
    let children = fs::read_to_string(format!("{thread}/children")).unwrap_or_default();
    children.split_whitespace().map(|child| format!("/proc/{child}/task")).collect()
}

/// Returns how many nanoseconds a thread has waited for a processor; nothing if it has ended.
fn waited(thread: &str) -> Option<u64> {
    fs::read_to_string(format!("{thread}/schedstat")).ok()?.split_whitespace().nth(1)?.parse().ok()
}
