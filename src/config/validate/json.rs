//! Places in JSON documents, and the values that are wanted there.

use super::check::Check;
use super::place::{Given, all};
use crate::config::json_path::JsonPath;
use crate::config::schema::forms::Named;
use crate::config::schema::{PATHS_MAX, Paths};

/// The message about a text that is no path.
const PATH_EXPECTED: &str = "expected the path of a value, such as error.code or errors.0.type";

/// Checks values of a JSON document, each with its path.
pub(super) fn json_values(
    check: &mut Check<'_>,
    given: &Given<'_, Named<String>>,
) -> Option<Vec<(JsonPath, String)>> {
    all(given.entries().map(|(path, value)| {
        let Some(path) = JsonPath::parse(path) else {
            return check.refuse_key(&value.at, PATH_EXPECTED);
        };
        Some((path, value.value.clone()))
    }))
}

/// Parses a path that is the value of a key.
pub(super) fn json_path(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<JsonPath> {
    let path = given.value.strip_prefix("json:").unwrap_or(given.value);
    JsonPath::parse(path).or_else(|| check.refuse(&given.at, PATH_EXPECTED))
}

/// Parses one path, or a list of them.
pub(super) fn json_paths(check: &mut Check<'_>, given: &Given<'_, Paths>) -> Option<Vec<JsonPath>> {
    let Paths(paths) = given.value;
    // A text has no elements.
    if let ([path], 0) = (paths.as_slice(), given.at.length()) {
        return Some(vec![json_path(check, &Given::new(path, given.at.clone()))?]);
    }
    if !(1..=PATHS_MAX).contains(&given.at.length()) {
        return check.refuse(&given.at, format!("needs 1 to {PATHS_MAX} paths, such as usage.total_tokens"));
    }
    all(Given::new(paths, given.at.clone()).items().map(|path| json_path(check, &path)))
}
