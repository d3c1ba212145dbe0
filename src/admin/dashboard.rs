//! The parts of the dashboard that all open pages share: the last hour, the latest state, a bound on their number.
//!
//! The fleet's figures are sampled whether or not a page is open, so that a page has a history when it opens. The state is
//! computed at most once a second, however many pages ask. Knows nothing of the page itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};

use super::hour::{FleetSnapshot, Hour};
use super::routes::Routes;
use crate::clock::{millis, unix_now};
use crate::telemetry::RouteCounts;

/// The age at which a state is computed anew: half the interval at which a page asks for it.
const STATE_AGE_MAX: Duration = Duration::from_secs(1);

/// Time between two samples.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// Samples of the longest waits that are kept: five minutes.
const WAITS_MAX: usize = 60;

/// Pages open at once. Few enough that a probe still finds a free connection.
const PAGES_MAX: usize = 32;

/// The state that all open pages share. Cheap to clone.
#[derive(Clone)]
pub struct Dashboard {
    sampled: Arc<Mutex<Sampled>>,
    /// The latest `state` event, and when it was computed.
    latest: Arc<AsyncMutex<Option<(Instant, Bytes)>>>,
    pages: Arc<Semaphore>,
}

/// The samples of an instant.
#[derive(Default)]
struct Sampled {
    hour: Hour,
    routes: Routes,
    /// The longest wait of each limiter in each of the last samples.
    waits: VecDeque<Vec<(String, Duration)>>,
}

impl Default for Dashboard {
    fn default() -> Dashboard {
        let pages = Arc::new(Semaphore::new(PAGES_MAX));
        Dashboard { sampled: Arc::default(), latest: Arc::default(), pages }
    }
}

impl Dashboard {
    /// Keeps a snapshot at a fixed interval. Never returns.
    pub(super) async fn sample(&self, snapshot: impl Fn() -> Snapshot) {
        let mut next = interval(SAMPLE_INTERVAL);
        next.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            next.tick().await;
            let Snapshot { fleet, routes, waits } = snapshot();
            let mut sampled = self.sampled();
            let now = millis(unix_now());
            sampled.hour.add(now, fleet);
            sampled.routes.add(now, routes);
            if sampled.waits.len() >= WAITS_MAX {
                sampled.waits.pop_front();
            }
            sampled.waits.push_back(waits);
        }
    }

    fn sampled(&self) -> MutexGuard<'_, Sampled> {
        self.sampled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of the places for open pages; `None` when all are taken.
    pub(super) fn open_page(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.pages).try_acquire_owned().ok()
    }

    /// Returns the last hour as a `history` event.
    pub(super) fn history(&self) -> Bytes {
        event("history", &self.sampled().hour.view())
    }

    /// Returns the last marks on the time axis.
    pub(super) fn marks(&self) -> Value {
        self.sampled().hour.marks()
    }

    /// Returns the routes of this replica in the last minute.
    pub(super) fn routes(&self) -> Vec<Value> {
        self.sampled().routes.view()
    }

    /// Returns the longest wait of each limiter in the kept samples, in milliseconds.
    pub(super) fn longest_waits_ms(&self) -> HashMap<String, u64> {
        let mut longest = HashMap::new();
        for (name, wait) in self.sampled().waits.iter().flatten() {
            let so_far: &mut u64 = longest.entry(name.clone()).or_default();
            *so_far = millis(*wait).max(*so_far);
        }
        longest
    }

    /// Returns the latest state as a `state` event; runs `compute` if that one is too old.
    pub(super) async fn state(&self, compute: impl Future<Output = Value>) -> Bytes {
        let mut latest = self.latest.lock().await;
        if let Some((at, event)) = &*latest
            && at.elapsed() < STATE_AGE_MAX
        {
            return event.clone();
        }
        let event = event("state", &compute.await);
        *latest = Some((Instant::now(), event.clone()));
        event
    }
}

/// The fleet and this replica at one instant.
pub(super) struct Snapshot {
    /// The fleet.
    pub(super) fleet: FleetSnapshot,
    /// The counts of this replica's routes.
    pub(super) routes: Vec<RouteCounts>,
    /// The longest wait of each limiter of this replica since the last snapshot.
    pub(super) waits: Vec<(String, Duration)>,
}

/// Formats a server-sent event with JSON data on one line.
fn event<T: Serialize>(name: &str, data: &T) -> Bytes {
    let mut event = format!("event: {name}\ndata: ").into_bytes();
    // Serializing cannot fail: the data are maps with string keys, lists, strings and numbers.
    serde_json::to_writer(&mut event, data).unwrap_or_default();
    event.extend_from_slice(b"\n\n");
    event.into()
}
