//! `/api/reload`: asks the app to read the configuration file again.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::response::{self, Response};
use crate::config::Outcome;

/// Reloads that may wait: each reads the whole file, so one that waits serves all who ask later.
const RELOADS_WAITING_MAX: usize = 4;
/// The longest time until a reload has ended: reading a file and building routes takes milliseconds.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Asks for a reload; the outcome goes back through it.
pub type ReloadRequest = oneshot::Sender<Outcome>;

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
    async fn reload(&self) -> Option<Outcome> {
        let (request, outcome) = oneshot::channel();
        self.requests.try_send(request).ok()?;
        tokio::time::timeout(RELOAD_TIMEOUT, outcome).await.ok()?.ok()
    }
}

/// 200 once the file is in use, 422 with every problem if it cannot be.
pub(super) async fn reload(reloader: &Reloader) -> Response {
    match reloader.reload().await {
        Some(Outcome::Applied { restart_needed }) => {
            response::document(&json!({ "ok": true, "restart_needed": restart_needed }))
        }
        Some(Outcome::Refused { problems }) => response::problem_with(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the file has problems, so nothing was changed",
            json!({ "problems": problems }),
        ),
        None => response::problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "weir runs without a file, is shutting down, or has enough reloads waiting",
        ),
    }
}
