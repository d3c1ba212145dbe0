//! `/metrics`. A scrape reads this process's counters and never calls the store.

use bytes::Bytes;
use http::StatusCode;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::response::{self, Response};
use super::state::AdminState;

/// Answers with all metrics in Prometheus's text format. Scrapes that come at the same time share one reading, so that a crowd of them
/// holds up no health probe.
pub(super) async fn answer(state: &AdminState) -> Response {
    let asked = Instant::now();
    // All that have arrived ask before the first one reads.
    yield_now().await;
    let mut last = state.last_scrape.lock().await;
    let text = match &*last {
        Some((began, text)) if *began >= asked => text.clone(),
        _ => {
            let began = Instant::now();
            state.limiters.refresh_metrics();
            state.usage.show_in(&state.metrics);
            (state.breakers)();
            state.metrics.tasks(state.workers.metrics().num_alive_tasks());
            let text = Bytes::from(state.metrics.render());
            *last = Some((began, text.clone()));
            text
        }
    };
    response::of(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}
