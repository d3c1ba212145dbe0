//! The page at `/`, and what it shows: the live state as server-sent events (WHATWG HTML, 9.2).
//!
//! The page holds no data, so where a token is set it is open to everybody and asks for the token; `/api/events` and whatever
//! the page does are not. Whoever looks costs little: the store is asked once in a while for all pages together, and the
//! counts of the last minutes are kept whether somebody looks or not, so that a page begins with them.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::unfold;
use http::header::CONTENT_SECURITY_POLICY;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use serde::Serialize;
use serde_json::{Map, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Duration, Instant, MissedTickBehavior, interval, timeout};

use super::response::{self, Response};
use super::{AdminState, config, limiters, replicas};
use crate::limiter::{Limiters, Tally};

/// Needs nothing from outside itself.
const PAGE: &str = include_str!("page.html");

/// How often a page is told the state, and how often the store is asked for that at most.
const TOLD_EVERY: Duration = Duration::from_secs(2);

/// The counts that are kept: one for each of these, for five minutes.
const SAMPLED_EVERY: Duration = Duration::from_secs(5);
const SAMPLES_MAX: usize = 60;

/// Pages that look at once. A probe must find a connection beside them.
const PAGES_MAX: usize = 32;

/// A stream ends after a while, and the page asks for another: shorter than a connection of this listener lives.
const STREAM_LASTS: Duration = Duration::from_secs(240);

/// How soon a page that has lost its stream asks for another one.
const RETRY_MILLIS: u32 = 2000;

/// The page may run its own script and style, and talk to the listener that it came from. Nothing else.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |tag: &str| {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let inside = PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
        STANDARD.encode(Sha256::digest(inside.map_or("", |(inside, _)| inside)))
    };
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        hash("script"),
        hash("style")
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

pub(super) fn page() -> Response {
    let mut page = response::of(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    page
}

/// The counts of all limiters at an instant.
struct Sample {
    at_unix_ms: u64,
    tallies: Vec<Tally>,
}

/// What all pages share. Cheap to clone.
#[derive(Clone)]
pub struct Dashboard {
    samples: Arc<Mutex<VecDeque<Sample>>>,
    /// The last event, and when it was made.
    told: Arc<AsyncMutex<Option<(Instant, Bytes)>>>,
    pages: Arc<Semaphore>,
}

impl Default for Dashboard {
    fn default() -> Dashboard {
        Dashboard {
            samples: Arc::default(),
            told: Arc::default(),
            pages: Arc::new(Semaphore::new(PAGES_MAX)),
        }
    }
}

impl Dashboard {
    /// Keeps the counts of the last minutes. Does not end.
    pub(super) async fn sample(&self, limiters: &Limiters) {
        let mut next = interval(SAMPLED_EVERY);
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

    /// The counts that are kept, in the order of time.
    fn history(&self) -> Bytes {
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

    /// How long one has waited at most for each limiter in the last minutes, in milliseconds.
    fn longest_waits_ms(&self) -> HashMap<String, u64> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let mut longest = HashMap::new();
        for tally in samples.iter().flat_map(|sample| &sample.tallies) {
            let waited = u64::try_from(tally.longest_wait.as_millis()).unwrap_or(u64::MAX);
            let known = longest.entry(tally.name.to_string()).or_default();
            *known = waited.max(*known);
        }
        longest
    }

    /// The state of now, or of a moment ago if another page has asked then.
    async fn state(&self, state: &AdminState) -> Bytes {
        let mut told = self.told.lock().await;
        if let Some((at, event)) = &*told
            && at.elapsed() < TOLD_EVERY / 2
        {
            return event.clone();
        }
        // A store that does not answer must not keep a page from showing that.
        let shown = timeout(TOLD_EVERY, limiters::listing(&state.limiters)).await.ok();
        let event = event(
            "state",
            &json!({
                "at": unix_ms(),
                "store_up": state.limiters.store_up(),
                "draining": *state.draining.borrow(),
                "limiters": shown,
                "longest_waits_ms": self.longest_waits_ms(),
                "replicas": replicas::views(&state.limiters),
                "configuration": &*state.config.config().hash,
                "last_reload": config::last(&state.config),
                "upstream_rejections": state.metrics.upstream_rejections(),
            }),
        );
        *told = Some((Instant::now(), event.clone()));
        event
    }
}

/// What one page is being told.
struct Stream {
    state: AdminState,
    _page: OwnedSemaphorePermit,
    next: tokio::time::Interval,
    ends: Instant,
    is_first: bool,
}

/// `/api/events`: the counts of the last minutes, then the state again and again.
pub(super) fn events(state: &AdminState) -> Response {
    let Ok(page) = state.dashboard.pages.clone().try_acquire_owned() else {
        let detail = "as many pages as may are open: close one";
        return response::problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    };
    let mut next = interval(TOLD_EVERY);
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ends = Instant::now() + STREAM_LASTS;
    let stream = Stream { state: state.clone(), _page: page, next, ends, is_first: true };
    let frames = unfold(stream, |mut stream| async move {
        let state = &stream.state;
        if Instant::now() >= stream.ends {
            return None;
        }
        stream.next.tick().await;
        if *state.draining.borrow() {
            // That is told, and then nothing must hold up the end.
            stream.ends = Instant::now();
        }
        let mut bytes = Vec::new();
        if std::mem::take(&mut stream.is_first) {
            bytes.extend_from_slice(format!("retry: {RETRY_MILLIS}\n").as_bytes());
            bytes.extend_from_slice(&state.dashboard.history());
        }
        bytes.extend_from_slice(&state.dashboard.state(state).await);
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(bytes))), stream))
    });
    response::stream("text/event-stream", StreamBody::new(frames))
}

/// An event whose data are JSON, in one line.
fn event<T: Serialize>(name: &str, data: &T) -> Bytes {
    // It does not fail: what is written is made of maps with names, lists, texts and numbers.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
