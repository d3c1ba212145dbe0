//! Tests of the headers that report a quota: forms of values, the IETF's drafts, and vendors.

mod drafts;
mod forms;
mod vendors;

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::reader::Quota;
use super::window::QuotaWindow;

/// Thursday, the first of January 2026, 00:00:00 UTC.
pub(super) const NOW: u64 = 1_767_225_600;

pub(super) type Lines<'a> = &'a [(&'a str, &'a str)];

pub(super) fn headers(lines: Lines<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

pub(super) fn read(lines: Lines<'_>) -> Quota {
    let headers = headers(lines);
    let quota = Quota::of(&headers, UNIX_EPOCH + seconds(NOW));
    assert!(Quota::is_reported(&headers) || quota == Quota::default(), "{lines:?}");
    quota
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Returns a window of a limit, what remains of it, the seconds until its reset, and its length in seconds.
pub(super) fn window(
    limit: Option<u64>,
    remaining: Option<u64>,
    resets_in: Option<u64>,
    length: Option<u64>,
) -> QuotaWindow {
    QuotaWindow { limit, remaining, resets_in: resets_in.map(seconds), length: length.map(seconds) }
}

pub(super) fn valid(wait: Option<Duration>, windows: &[QuotaWindow]) -> Quota {
    Quota { wait, windows: windows.to_vec(), invalid: 0 }
}

pub(super) fn invalid(values: u64) -> Quota {
    Quota { invalid: values, ..Quota::default() }
}

#[track_caller]
pub(super) fn all(cases: &[(Lines<'_>, Quota)]) {
    for (lines, expected) in cases {
        assert_eq!(read(lines), *expected, "{lines:?}");
    }
}
