//! Names and values of headers that routes match, set or remove.

use http::{HeaderName, HeaderValue};

use super::check::Check;
use super::place::{At, Given, all};
use crate::config::schema::forms::Named;

/// Headers that weir sets itself: they frame the message or address it.
const OWN_HEADERS: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The purpose of a list of headers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Match,
    Set,
}

/// Checks headers with their values. The values of headers to set are marked sensitive.
pub(super) fn headers(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Named<String>>>,
    purpose: Purpose,
) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut earlier = Vec::new();
    all(given.entries().map(|(name, value)| {
        let name = header_name(check, name, &value.at)?;
        if earlier.contains(&name) {
            check.problem_of_key(&value.at, "this header is given twice");
        }
        earlier.push(name.clone());
        if purpose == Purpose::Set && !may_be_changed(check, &name, &value.at) {
            return None;
        }
        let Ok(mut header_value) = HeaderValue::from_str(value.value) else {
            let message = "the value holds characters that a header cannot carry, such as a line break";
            return check.refuse(&value.at, message);
        };
        header_value.set_sensitive(purpose == Purpose::Set);
        Some((name, header_value))
    }))
}

/// Checks the names of headers to remove.
pub(super) fn header_names(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Vec<String>>>,
) -> Option<Vec<HeaderName>> {
    all(given.items().map(|name| {
        let header = header_name(check, name.value, &name.at);
        header.filter(|header| may_be_changed(check, header, &name.at))
    }))
}

/// Parses a header's name that is the value of a key.
pub(super) fn named_header(
    check: &mut Check<'_>,
    given: &Given<'_, String>,
    example: &str,
) -> Option<HeaderName> {
    let name = HeaderName::try_from(given.value).ok();
    name.or_else(|| check.refuse(&given.at, format!("expected the name of a header, such as {example}")))
}

/// Returns whether weir sets a header itself.
pub(super) fn is_own(name: &HeaderName) -> bool {
    OWN_HEADERS.contains(&name.as_str())
}

fn header_name(check: &mut Check<'_>, given: &str, at: &At<'_>) -> Option<HeaderName> {
    let name = HeaderName::try_from(given).ok();
    if name.is_none() {
        check.problem_of_key(at, "expected the name of a header, such as x-api-key");
    }
    name
}

fn may_be_changed(check: &mut Check<'_>, name: &HeaderName, at: &At<'_>) -> bool {
    if name == http::header::HOST {
        check.problem_of_key(at, "weir sets `host` itself; see `preserve_host`");
    } else if is_own(name) {
        check.problem_of_key(at, format!("weir sets `{name}` itself"));
    }
    !is_own(name)
}
