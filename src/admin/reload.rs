//! `/api/reload`: asks the app to read the configuration file again.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::response::{self, Response};
use crate::clock::unix_time;
use crate::config::{Changed, Outcome};

/// The most waiting reloads. Each reads the whole file, so more would change nothing.
const RELOADS_WAITING_MAX: usize = 4;
/// The longest time of a reload, which takes milliseconds.
pub(crate) const RELOAD_TIME_MAX: Duration = Duration::from_secs(30);

/// A request for a reload. The outcome is sent through it.
pub type ReloadRequest = oneshot::Sender<Outcome>;

/// Sends requests for reloads to the app. Cheap to clone.
#[derive(Clone)]
pub struct Reloader {
    requests: mpsc::Sender<ReloadRequest>,
}

impl Reloader {
    /// Returns a reloader, and the receiver of its requests for the app.
    pub fn channel() -> (Reloader, mpsc::Receiver<ReloadRequest>) {
        let (requests, receiver) = mpsc::channel(RELOADS_WAITING_MAX);
        (Reloader { requests }, receiver)
    }

    /// Requests a reload and returns its outcome; `None` if the app does not carry it out in time.
    async fn reload(&self) -> Option<Outcome> {
        let (request, outcome) = oneshot::channel();
        self.requests.try_send(request).ok()?;
        tokio::time::timeout(RELOAD_TIME_MAX, outcome).await.ok()?.ok()
    }
}

/// Answers 200 with what has changed once the file is in force, or 422 with every problem.
pub(super) async fn reload(reloader: &Reloader) -> Response {
    match reloader.reload().await {
        Some(Outcome::Applied { restart_needed, has_changed, changed, warnings }) => {
            let since = |changed: &Changed| unix_time(changed.at).as_secs();
            response::document(&json!({
                "ok": true,
                "restart_needed": restart_needed,
                "changed": has_changed,
                "changed_at_unix_seconds": changed.as_deref().map(since),
                "changes": changed.as_deref().map(|changed| &*changed.changes).unwrap_or_default(),
                "warnings": &*warnings,
            }))
        }
        Some(Outcome::Refused { problems }) => response::problem_with(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the file has problems; nothing has changed",
            json!({ "problems": problems }),
        ),
        None => response::problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "weir runs without a file, is shutting down, or has enough reloads waiting",
        ),
    }
}
