//! The parts of the dashboard that all open pages share: recent counts, the latest state, a bound on their number.
//!
//! Counts are sampled whether or not a page is open, so that a page has a history when it opens. The state is
//! computed at most once a second, however many pages ask. Knows nothing of the page itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};

use crate::limiter::{Limiters, Tally};

/// The age at which a state is computed anew: half the interval at which a page asks for it.
const STATE_AGE_MAX: Duration = Duration::from_secs(1);

/// Time between two samples of the counts.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Samples that are kept: five minutes.
const SAMPLES_MAX: usize = 60;

/// Pages open at once. Few enough that a probe still finds a free connection.
const PAGES_MAX: usize = 32;

/// The counts of all limiters at one instant.
struct Sample {
    at_unix_ms: u64,
    tallies: Vec<Tally>,
}

/// The state that all open pages share. Cheap to clone.
#[derive(Clone)]
pub struct Dashboard {
    samples: Arc<Mutex<VecDeque<Sample>>>,
    /// The latest `state` event, and when it was computed.
    latest: Arc<AsyncMutex<Option<(Instant, Bytes)>>>,
    pages: Arc<Semaphore>,
}

impl Default for Dashboard {
    fn default() -> Dashboard {
        let pages = Arc::new(Semaphore::new(PAGES_MAX));
        Dashboard { samples: Arc::default(), latest: Arc::default(), pages }
    }
}

impl Dashboard {
    /// Samples the counts of all limiters at a fixed interval. Never returns.
    pub(super) async fn sample(&self, limiters: &Limiters) {
        let mut next = interval(SAMPLE_INTERVAL);
        next.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            next.tick().await;
            let sample = Sample { at_unix_ms: unix_ms(), tallies: limiters.tallies() };
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            if samples.len() >= SAMPLES_MAX {
                samples.pop_front();
            }
            samples.push_back(sample);
        }
    }

    /// Takes one of the places for open pages; `None` when all are taken.
    pub(super) fn open_page(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.pages).try_acquire_owned().ok()
    }

    /// Returns the kept samples as a `history` event, oldest first.
    pub(super) fn history(&self) -> Bytes {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let samples: Vec<_> = samples
            .iter()
            .map(|sample| {
                let counts = |tally: &Tally| (tally.name.to_string(), json!([tally.granted, tally.refused]));
                let counts: Map<_, _> = sample.tallies.iter().map(counts).collect();
                json!({ "at": sample.at_unix_ms, "counts": counts })
            })
            .collect();
        event("history", &samples)
    }

    /// Returns the longest wait of each limiter in the kept samples, in milliseconds.
    pub(super) fn longest_waits_ms(&self) -> HashMap<String, u64> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let mut longest = HashMap::new();
        for tally in samples.iter().flat_map(|sample| &sample.tallies) {
            let waited = u64::try_from(tally.longest_wait.as_millis()).unwrap_or(u64::MAX);
            let so_far: &mut u64 = longest.entry(tally.name.to_string()).or_default();
            *so_far = waited.max(*so_far);
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

/// Formats a server-sent event with JSON data on one line.
fn event<T: Serialize>(name: &str, data: &T) -> Bytes {
    // Serializing cannot fail: the data are maps with string keys, lists, strings and numbers.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// Returns the wall time in milliseconds since the Unix epoch.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
