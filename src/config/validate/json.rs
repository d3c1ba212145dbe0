//! Places in JSON documents, and the values that are wanted there.

use super::check::Check;
use super::place::{Given, all};
use crate::config::json_path::JsonPath;
use crate::config::schema::forms::Named;

/// The message about a text that is no path.
const PATH_EXPECTED: &str = "expected the path of a value, such as error.code or errors.0.type";

/// Checks values of a JSON document, each with its path.
pub(super) fn json_values(
    check: &mut Check<'_>,
    given: &Given<'_, Named<String>>,
) -> Option<Vec<(JsonPath, String)>> {
    all(given.entries().map(|(path, value)| {
        let Some(path) = JsonPath::parse(path) else {
            check.problem_of_key(&value.at, PATH_EXPECTED);
            return None;
        };
        Some((path, value.value.clone()))
    }))
}

/// Parses a path that is the value of a key.
pub(super) fn json_path(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<JsonPath> {
    JsonPath::parse(given.value).or_else(|| check.refuse(&given.at, PATH_EXPECTED))
}
