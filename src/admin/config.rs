//! `/api/config` and `/api/reload`: what runs, and how to take up a changed file.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::response::{self, Response};
use crate::config::Handle;
use crate::config::handle::ReloadOutcome;

/// Reloads that may wait: each reads the whole file, so one that waits serves all who ask later.
const RELOADS_WAITING_MAX: usize = 4;
/// The longest time until a reload has ended: reading a file and building routes takes milliseconds.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Asks for a reload; the outcome goes back through it.
pub type ReloadRequest = oneshot::Sender<ReloadOutcome>;

/// Asks the app for reloads. Cheap to clone.
#[derive(Clone)]
pub struct Reloader {
    requests: mpsc::Sender<ReloadRequest>,
}

impl Reloader {
    /// A reloader, and the end at which the app takes its requests.
    pub fn channel() -> (Reloader, mpsc::Receiver<ReloadRequest>) {
        let (requests, receiver) = mpsc::channel(RELOADS_WAITING_MAX);
        (Reloader { requests }, receiver)
    }

    /// The outcome of a reload; `None` where nobody carries it out, now or in time.
    async fn reload(&self) -> Option<ReloadOutcome> {
        let (request, outcome) = oneshot::channel();
        self.requests.try_send(request).ok()?;
        tokio::time::timeout(RELOAD_TIMEOUT, outcome).await.ok()?.ok()
    }
}

/// The running configuration, secrets masked, and how the last attempt to change it ended.
pub(super) fn show(config: &Handle) -> Response {
    let outcome = config.outcome();
    response::document(&json!({
        "hash": &*config.running().hash,
        "config": config.masked(),
        "last_reload": {
            "at_unix_seconds": outcome.at_unix_seconds,
            "ok": outcome.problems.is_empty(),
            "problems": outcome.problems,
            "restart_needed": outcome.restart_needed,
        },
    }))
}

/// 200 once the file is in use, 422 with every problem if it cannot be.
pub(super) async fn reload(reloader: &Reloader) -> Response {
    match reloader.reload().await {
        Some(outcome) if outcome.problems.is_empty() => {
            response::document(&json!({ "reloaded": true, "restart_needed": outcome.restart_needed }))
        }
        Some(outcome) => response::problem_with(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the file has problems, so nothing was changed",
            json!({ "problems": outcome.problems }),
        ),
        None => response::problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "weir is shutting down, or too many reloads are under way",
        ),
    }
}
