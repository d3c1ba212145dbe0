//! `/api/config`: the running configuration, and how its last reload ended.

use serde_json::{Value, json};
use url::form_urlencoded;

use super::response::{self, Response};
use crate::clock::unix_time;
use crate::config::{Handle, Outcome, Reload};

/// Answers with the running configuration, secrets masked, and the result of its last reload: as it was written, or with
/// `defaults=1` every default filled in.
pub(super) fn show(config: &Handle, query: Option<&str>) -> Response {
    let loaded = config.loaded();
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let with_defaults = pairs.last().is_some_and(|(key, value)| key == "defaults" && value != "0");
    response::document(&json!({
        "hash": &*loaded.config.hash,
        "config": if with_defaults { loaded.effective() } else { loaded.masked() },
        "last_reload": last(config),
    }))
}

/// Returns the result of the last reload; `None` before the first.
pub(super) fn last(config: &Handle) -> Option<Value> {
    config.last_reload().as_deref().map(last_reload)
}

fn last_reload(reload: &Reload) -> Value {
    let at = unix_time(reload.at).as_secs();
    match &reload.outcome {
        Outcome::Applied { restart_needed, .. } => {
            json!({ "at_unix_seconds": at, "ok": true, "restart_needed": restart_needed })
        }
        Outcome::Refused { problems } => {
            json!({ "at_unix_seconds": at, "ok": false, "problems": problems })
        }
    }
}
