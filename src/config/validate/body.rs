//! `routes.body` and `match.json`: which bodies are looked into, and for what.

use super::check::Check;
use super::json::json_values;
use super::limiter::Keyed;
use super::place::{At, Given, key};
use super::share::By;
use crate::config::json_path::JsonMatch;
use crate::config::model::{Cost, KeyPart, Match};
use crate::config::problem::quoted;
use crate::config::schema::{self, forms::Named};
use crate::config::units::{Size, show_size};

/// The default of `body.max`, and its maximum. Each request that waits may hold as much.
const BODY_BYTES: Size = Size(1024 * 1024);
const BODY_BYTES_MAX: Size = Size(16 * 1024 * 1024);

/// Checks the largest body that is looked into, in bytes.
pub(super) fn body_max(check: &mut Check<'_>, given: &Given<'_, Option<schema::Body>>) -> Option<u64> {
    let absent = schema::Body::default();
    let body = given.or(&absent);
    check.bounded(&key!(body.max), BODY_BYTES, Size(0)..=BODY_BYTES_MAX).map(|max| max.0)
}

/// Checks the conditions of a match on the JSON body.
pub(super) fn json_match(
    check: &mut Check<'_>,
    given: &Given<'_, Named<String>>,
    body_max: Option<u64>,
) -> Option<Box<JsonMatch>> {
    if given.at.names().is_empty() {
        return check.refuse(&given.at, "names no value; leave the key out for all bodies");
    }
    let values = json_values(check, given)?;
    Some(Box::new(JsonMatch { values, body_bytes_max: body_max? }))
}

/// Returns whether the bodies of a route can be read as its parts ask for; reports why not. `memory` is `server.body_memory`.
pub(super) fn can_be_read(
    check: &mut Check<'_>,
    body: &At<'_>,
    (max, memory): (u64, Option<u64>),
    parts: (&Match, &[&Keyed], &[&Cost]),
) -> bool {
    let Some(asks) = asks(parts) else { return true };
    let at = body.key("max");
    if max == 0 {
        check.problem(&at, format!("{asks}, and with 0B nothing of a body is looked into"));
    } else if let Some(memory) = memory.filter(|memory| *memory < max) {
        let memory = show_size(Size(memory));
        check.problem(
            &at,
            format!("{asks}, so it must not be larger than `server.body_memory`, which is {memory}"),
        );
    } else {
        return true;
    }
    false
}

/// Describes the first part of a route that looks into bodies.
fn asks((matches, limiters, costs): (&Match, &[&Keyed], &[&Cost])) -> Option<String> {
    if matches.json.is_some() {
        return Some("`match.json` looks into bodies".to_owned());
    }
    if costs.iter().any(|cost| matches!(cost, Cost::Estimate(_))) {
        return Some("the estimate of a `cost` looks into bodies".to_owned());
    }
    if costs.iter().any(|cost| matches!(cost, Cost::Json { .. })) {
        return Some("`cost.json` looks into bodies".to_owned());
    }
    limiters.iter().find_map(|(limiter, reading)| {
        let name = quoted(limiter.name.as_str());
        if let Some(path) = reading.key.iter().find_map(KeyPart::json_path) {
            return Some(format!("limiter {name} has `json:{path}` in its `key`"));
        }
        let path = reading.flow.iter().flat_map(|by| by.iter()).find_map(By::json_path)?;
        Some(format!("limiter {name} has `json:{path}` in `share.by`"))
    })
}
