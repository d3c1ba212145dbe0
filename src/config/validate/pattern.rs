//! Regular expressions, and what is wrong with one.

use regex::{Regex, RegexBuilder};

use super::check::Check;
use super::place::Given;
use crate::config::problem::quoted;

/// The largest compiled `path_regex`, in bytes.
const REGEX_BYTES_MAX: usize = 1024 * 1024;

/// Compiles a pattern, first by itself, which shows that its groups balance, and then as a part of another.
pub(super) fn regex(
    check: &mut Check<'_>,
    given: &Given<'_, String>,
    whole: impl Fn(&str) -> String,
) -> Option<Regex> {
    let pattern = given.value;
    let compile = |pattern: &str| RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build();
    match compile(pattern).and_then(|_| compile(&whole(pattern))) {
        Ok(regex) => Some(regex),
        Err(error) => {
            let reason =
                pattern_fault(pattern, given.at.is_interpolated()).unwrap_or_else(|| last_line(&error));
            check.refuse(&given.at, format!("not a valid regular expression: {reason}"))
        }
    }
}

/// Returns the fault of a pattern's syntax with its position.
fn pattern_fault(pattern: &str, is_interpolated: bool) -> Option<String> {
    let (span, reason) = match regex_syntax::parse(pattern).err()? {
        regex_syntax::Error::Parse(error) => (*error.span(), error.kind().to_string()),
        regex_syntax::Error::Translate(error) => (*error.span(), error.kind().to_string()),
        _ => return None,
    };
    let rest = pattern.get(span.start.offset..).filter(|rest| !rest.is_empty() && !is_interpolated);
    let at = rest.map_or(String::new(), |rest| format!(", {}", quoted(rest)));
    Some(format!("{reason}, at character {}{at}", span.start.column))
}

/// Returns the reason of an error that repeats the pattern over several lines.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    text.lines().next_back().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
