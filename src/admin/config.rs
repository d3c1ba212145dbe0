//! `/api/config`: the running configuration, and how its last reload ended.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use super::response::{self, Response};
use crate::config::{Handle, Outcome, Reload};

/// Answers with the running configuration, secrets masked, and the result of its last reload.
pub(super) fn show(config: &Handle) -> Response {
    response::document(&json!({
        "hash": &*config.config().hash,
        "config": &*config.masked(),
        "last_reload": last(config),
    }))
}

/// Returns the result of the last reload; `None` before the first.
pub(super) fn last(config: &Handle) -> Option<Value> {
    config.last_reload().as_deref().map(last_reload)
}

fn last_reload(reload: &Reload) -> Value {
    let at = reload.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match &reload.outcome {
        Outcome::Applied { restart_needed } => {
            json!({ "at_unix_seconds": at, "ok": true, "restart_needed": restart_needed })
        }
        Outcome::Refused { problems } => {
            json!({ "at_unix_seconds": at, "ok": false, "problems": problems })
        }
    }
}
