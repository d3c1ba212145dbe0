//! Keeps tests whose judgement depends on timing away from each other, and from a machine that stands still.
//!
//! The test runner starts as many tests at once as there are cores. A test that judges instants takes the lane for
//! itself; every other test shares it, in its first line.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::{RwLock, RwLockReadGuard};

/// Fair: a test that waits for the lane alone is not overtaken by those that share it.
static LANE: RwLock<()> = RwLock::const_new(());

/// A machine that stands still for this long may delay a permit beyond what any limiter can answer for, between weir's last
/// look at the clock and the upstream's; it is the guard of a window of a second.
const STALL: Duration = Duration::from_millis(10);

/// How often a test is begun in all on a machine that stands still each time.
const ATTEMPTS: usize = 5;

/// For tests that judge what happened, not when.
pub(crate) async fn shared() -> RwLockReadGuard<'static, ()> {
    LANE.read().await
}

/// For tests that judge instants, or load the machine. One that fails is run again if, and only if, the machine stood
/// still meanwhile: a thread that only looks at the clock was held up for [`STALL`] or longer.
pub(crate) async fn alone(test: impl AsyncFn()) {
    let _lane = LANE.write().await;
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

    /// The longest time for which the thread was held up since the start.
    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
