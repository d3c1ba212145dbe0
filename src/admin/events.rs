//! `/`, the dashboard's page, and `/api/events`, its data: the live state as server-sent events (WHATWG HTML, 9.2).
//!
//! The page contains no data: where a token is set, anyone may load it and it asks for the token. `/api/events` and
//! all actions need the token.

use std::convert::Infallible;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::unfold;
use http::header::CONTENT_SECURITY_POLICY;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Duration, Instant, Interval, MissedTickBehavior, interval, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::dashboard::Snapshot;
use super::hour::FleetSnapshot;
use super::response::{self, Response};
use super::state::AdminState;
use super::{config, limiters, replicas};
use crate::clock::{millis, unix_now, unix_time};
use crate::config::Outcome;
use crate::limiter::{Replica, replica_name};

/// The whole page; it loads nothing else.
const PAGE: &str = include_str!("page.html");

/// Time between two `state` events of a stream, and the longest wait for the store while one is computed.
const STATE_INTERVAL: Duration = Duration::from_secs(2);

/// The length of a stream, after which the page opens another. Shorter than a connection of this listener lives.
const STREAM_LENGTH: Duration = Duration::from_secs(240);

/// The delay after which a page that has lost its stream opens another.
const RETRY_MILLIS: u32 = 2000;

/// The page's content security policy: its own script and style, and requests to this listener. Nothing else.
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

/// Returns the page.
pub(super) fn page() -> Response {
    let mut page = response::of(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    page
}

/// The stream of one open page.
struct Stream {
    state: AdminState,
    _page: OwnedSemaphorePermit,
    next: Interval,
    ends: Instant,
    is_first: bool,
}

/// Answers with a stream of events: the last hour, then the state at a fixed interval.
pub(super) fn events(state: &AdminState) -> Response {
    let Some(page) = state.dashboard.open_page() else {
        let detail = "too many dashboard pages are open: close one";
        return response::problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    };
    let mut next = interval(STATE_INTERVAL);
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ends = Instant::now() + STREAM_LENGTH;
    let stream = Stream { state: state.clone(), _page: page, next, ends, is_first: true };
    let frames = unfold(stream, |mut stream| async move {
        if Instant::now() >= stream.ends {
            return None;
        }
        stream.next.tick().await;
        let bytes = stream.next_events().await;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), stream))
    });
    response::stream("text/event-stream", StreamBody::new(frames))
}

impl Stream {
    async fn next_events(&mut self) -> Bytes {
        let state = &self.state;
        if *state.draining.borrow() {
            // This is the stream's last event: it tells the page of the shutdown, which an open stream would delay.
            self.ends = Instant::now();
        }
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.is_first) {
            bytes.extend_from_slice(format!("retry: {RETRY_MILLIS}\n").as_bytes());
            bytes.extend_from_slice(&state.dashboard.history());
        }
        // The page's connection has a thread without workers, and the state asks the store.
        let shown = async {
            let looked = state.clone();
            let looking = state.workers.spawn(async move { live_state(&looked).await });
            AbortOnDropHandle::new(looking).await.unwrap_or_default()
        };
        bytes.extend_from_slice(&state.dashboard.state(shown).await);
        bytes.into()
    }
}

/// Takes a snapshot for the dashboard. Asks no store.
pub(super) fn snapshot(state: &AdminState) -> Snapshot {
    let replica = |replica: Replica| {
        let name = if replica.host.is_empty() { replica_name(replica.id) } else { replica.host.to_string() };
        (replica.id, name)
    };
    let reload = state.config.last_reload();
    let fleet = FleetSnapshot {
        limiters: state.usage.fleet.limiters(),
        store_up: state.limiters.store_up(),
        reload: reload.map(|reload| {
            (unix_time(reload.at).as_secs(), matches!(reload.outcome, Outcome::Applied { .. }))
        }),
        replicas: state.limiters.replicas().into_iter().map(replica).collect(),
    };
    let tallies = state.limiters.tallies().into_iter();
    let waits = tallies.map(|tally| (tally.name.to_string(), tally.longest_wait)).collect();
    Snapshot { fleet, routes: state.metrics.route_counts(), waits }
}

/// Collects the state that the page shows.
async fn live_state(state: &AdminState) -> Value {
    // A store that does not answer must not keep the page from showing that.
    let limiters = timeout(STATE_INTERVAL, limiters::listing(&state.limiters, &state.usage.fleet)).await.ok();
    json!({
        "at": millis(unix_now()),
        "store_up": state.limiters.store_up(),
        "draining": *state.draining.borrow(),
        "limiters": limiters,
        "longest_waits_ms": state.dashboard.longest_waits_ms(),
        "replicas": replicas::views(&state.limiters),
        "configuration": &*state.config.config().hash,
        "last_reload": config::last(&state.config),
        "breakers": (state.breakers)(),
        "upstream_rejections": state.metrics.upstream_rejections(),
        "routes": state.dashboard.routes(),
        "marks": state.dashboard.marks(),
    })
}
