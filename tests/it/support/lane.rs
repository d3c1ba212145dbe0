//! Keeps tests whose judgement depends on timing away from each other, and from a machine that stands still.
//!
//! The test runner starts more tests at once than there are cores, because most of them wait most of the time. A test
//! that judges instants takes the lane for itself, or with other quiet tests; every other test shares it, in its first
//! line. Tests that may run beside the current ones enter first, so that few seconds are lost by going over to another
//! kind. `scripts/test` starts so many at once that all that judge instants wait when the last shared test has ended: each
//! kind has one turn, which begins with its longest tests, so that none of those runs on when the others have ended. None
//! waits for ever, because the tests come to an end.

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The beginnings of the names of tests that take tens of seconds.
const LONG: [&str; 3] = ["soak::", "failover::", "walkthrough::"];

/// A test in front of the lane.
struct Waiting {
    ticket: u64,
    kind: Kind,
    is_long: bool,
}

/// The lane, with the tests in front of it in the order in which they came.
struct Lane {
    inside: Vec<Kind>,
    waiting: VecDeque<Waiting>,
    next: u64,
}

impl Lane {
    /// Puts a test in front of the lane. Returns its ticket.
    fn join(&mut self, kind: Kind, is_long: bool) -> u64 {
        self.next += 1;
        self.waiting.push_back(Waiting { ticket: self.next, kind, is_long });
        self.next
    }

    /// Returns the ticket of the test that may enter now, if one may. An empty lane goes to the kind that has waited
    /// longest.
    fn entering(&self) -> Option<u64> {
        let kind = match self.inside.first() {
            None => self.waiting.front()?.kind,
            Some(kind) if self.inside.len() < kind.beside_max() => *kind,
            Some(_) => return None,
        };
        let of_kind = || self.waiting.iter().filter(|waiting| waiting.kind == kind);
        let first = of_kind().find(|waiting| waiting.is_long).or_else(|| of_kind().next());
        first.map(|waiting| waiting.ticket)
    }

    /// Lets a test in if it is the one that may enter.
    fn enter(&mut self, ticket: u64) -> bool {
        let index = self.waiting.iter().position(|waiting| waiting.ticket == ticket);
        let entered = index.filter(|_| self.entering() == Some(ticket));
        let entered = entered.and_then(|index| self.waiting.remove(index));
        self.inside.extend(entered.as_ref().map(|waiting| waiting.kind));
        entered.is_some()
    }

    /// Takes out a test of a kind, which is inside or still waits.
    fn leave(&mut self, ticket: u64, kind: Kind) {
        if let Some(index) = self.waiting.iter().position(|waiting| waiting.ticket == ticket) {
            self.waiting.remove(index);
        } else if let Some(index) = self.inside.iter().position(|inside| *inside == kind) {
            self.inside.swap_remove(index);
        }
    }
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
        // The runner names the thread of a test after the test.
        let is_long = thread::current().name().is_some_and(is_long);
        let place = Place { kind, ticket: lane().join(kind, is_long) };
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

    /// Enters if it is this place's turn. Everybody looks again then: another one may go beside it.
    fn enters(&self) -> bool {
        let entered = lane().enter(self.ticket);
        if entered {
            MOVED.notify_waiters();
        }
        entered
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lane().leave(self.ticket, self.kind);
        MOVED.notify_waiters();
    }
}

/// Returns whether the test of a name takes tens of seconds.
fn is_long(name: &str) -> bool {
    LONG.iter().any(|beginning| name.starts_with(beginning))
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

#[test]
fn the_lane_keeps_its_kind_and_lets_long_tests_in_first() {
    let mut lane = Lane { inside: Vec::new(), waiting: VecDeque::new(), next: 0 };
    assert_eq!(lane.entering(), None, "nobody waits");
    let came = [
        (Kind::Calm, "share::a_test"),
        (Kind::Alone, "fleet::a_test"),
        (Kind::Calm, "soak::a_test"),
        (Kind::Shared, "limits::a_test"),
        (Kind::Alone, "capacity::a_test"),
    ];
    let [share, fleet, soak, limits, capacity] = came.map(|(kind, name)| lane.join(kind, is_long(name)));
    assert!(!lane.enter(share), "it is first, but of its kind a long one waits");
    assert!(lane.enter(soak) && lane.enter(share) && !lane.enter(fleet) && !lane.enter(limits));
    // Nobody of another kind enters before the last one has left.
    lane.leave(soak, Kind::Calm);
    assert_eq!(lane.entering(), None);
    lane.leave(share, Kind::Calm);
    assert!(lane.enter(fleet) && !lane.enter(capacity), "alone");
    lane.leave(fleet, Kind::Alone);
    assert!(lane.enter(limits), "which has waited longest");
    // A test that gives up in front of the lane takes nobody's place.
    lane.leave(capacity, Kind::Alone);
    lane.leave(limits, Kind::Shared);
    assert!(lane.inside.is_empty() && lane.waiting.is_empty());
}

#[test]
fn each_kind_has_one_turn_where_all_wait_at_once() {
    let kinds = [Kind::Shared, Kind::Calm, Kind::Alone];
    let mut lane = Lane { inside: Vec::new(), waiting: VecDeque::new(), next: 0 };
    for index in 0..90 {
        lane.join(kinds[index % 3], index % 7 == 0);
    }
    let (mut inside, mut turns) = (VecDeque::new(), Vec::new());
    loop {
        while let Some(ticket) = lane.entering() {
            assert!(lane.enter(ticket));
            inside.push_back((ticket, lane.inside[0]));
            turns.push(lane.inside[0]);
        }
        let Some((ticket, kind)) = inside.pop_front() else { break };
        assert!(inside.len() < kind.beside_max(), "{kind:?}");
        lane.leave(ticket, kind);
    }
    assert_eq!(turns.len(), 90, "everybody gets through");
    turns.dedup();
    assert_eq!(turns, kinds);
}
