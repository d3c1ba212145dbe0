//! The forms of values, and how the values of one response fit together.

use std::time::{Duration, UNIX_EPOCH};

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue};

use super::{Lines, all, headers, invalid, ms, read, seconds, valid, window};
use crate::proxy::messages::quota::reader::{Quota, VALUE_BYTES_MAX, WINDOWS_MAX};
use crate::proxy::messages::quota::values::{SECOND, SPAN_MAX};
use crate::proxy::messages::quota::window::QuotaWindow;

#[test]
fn other_headers_report_no_quota() {
    let plain: Lines<'_> = &[
        ("content-type", "application/json"),
        ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ("x-rate", "1"),
        ("x-generated-by", "1"),
        ("x-corporate-limit", "1"),
        ("x-ratelimited", "1"),
        ("x-ratelimitbysize-limit", "1"),
        // GitHub, Discord, IBM.
        ("x-ratelimit-used", "1"),
        ("x-ratelimit-resource", "core"),
        ("x-ratelimit-bucket", "abcd1234"),
        ("x-rate-limit-policy", "gold"),
    ];
    assert_eq!(read(plain), Quota::default());
    assert!(!Quota::is_reported(&headers(plain)));
    for name in ["retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy", "x-ratelimit-reset"] {
        assert!(Quota::is_reported(&headers(&[(name, "")])), "{name}");
    }
}

/// RFC 9110, 10.2.3, with the dates of 5.6.7.
#[test]
fn retry_after_is_seconds_or_a_date() {
    let wait = |value: &str| read(&[("retry-after", value)]);
    for (value, expected) in [
        ("120", seconds(120)),
        (" 120\t", seconds(120)),
        ("0120", seconds(120)),
        ("1.5", ms(1500)),
        ("0.250", ms(250)),
        ("0.0000000019", Duration::from_nanos(1)),
        ("Thu, 01 Jan 2026 00:00:30 GMT", seconds(30)),
        ("Thursday, 01-Jan-26 00:00:30 GMT", seconds(30)),
        ("Thu Jan  1 00:00:30 2026", seconds(30)),
        ("2026-01-01T00:00:30Z", seconds(30)),
        ("31622400", SPAN_MAX),
        ("31622399", SPAN_MAX - SECOND),
        ("31622400.1", SPAN_MAX),
        ("99999999999", SPAN_MAX),
        ("1767225630", SPAN_MAX),
        ("18446744073709551616.999999999", SPAN_MAX),
        ("99999999999999999999999999999999999999999999999999", SPAN_MAX),
        ("Fri, 31 Dec 9999 23:59:59 GMT", SPAN_MAX),
    ] {
        assert_eq!(wait(value), valid(Some(expected), &[]), "{value}");
    }
    // A wait of zero is no wait. Upstreams send it, for example, for a limit that is not reached.
    for value in ["0", "0.0", "0.0000000001", "Thu, 01 Jan 2026 00:00:00 GMT"] {
        assert_eq!(wait(value), valid(None, &[]), "{value}");
    }
    for value in [
        "",
        "-1",
        "+1",
        "1e3",
        "1.",
        ".5",
        "1,5",
        "1 2",
        "0x10",
        "soon",
        "30s",
        "\"30\"",
        "NaN",
        "\u{661}",
        "Wed, 31 Dec 2025 23:59:59 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "2025-12-31T23:59:59Z",
        "Thu, 32 Jan 2026 00:00:30 GMT",
    ] {
        assert_eq!(wait(value), invalid(1), "{value:?}");
    }
    let longest = "1".repeat(VALUE_BYTES_MAX);
    assert_eq!(wait(&longest), valid(Some(SPAN_MAX), &[]));
    assert_eq!(wait(&format!("1{longest}")), invalid(1));
    let mut bytes = HeaderMap::new();
    bytes.insert(RETRY_AFTER, HeaderValue::from_bytes(b"\xff").unwrap());
    assert_eq!(Quota::of(&bytes, UNIX_EPOCH), invalid(1), "not UTF-8");
}

/// Azure (<https://learn.microsoft.com/azure/ai-services/openai/how-to/quota>) and OpenAI's clients
/// (<https://github.com/openai/openai-python>, `_parse_retry_after_header`) read the milliseconds first as well.
#[test]
fn milliseconds_come_before_retry_after() {
    all(&[
        (&[("retry-after-ms", "1500")], valid(Some(ms(1500)), &[])),
        (&[("x-ms-retry-after-ms", "1500.5")], valid(Some(Duration::from_micros(1_500_500)), &[])),
        (&[("retry-after", "2"), ("retry-after-ms", "1500")], valid(Some(ms(1500)), &[])),
        (&[("retry-after", "2"), ("retry-after-ms", "0")], valid(Some(seconds(2)), &[])),
        (&[("retry-after", "x"), ("retry-after-ms", "7")], Quota { invalid: 1, ..valid(Some(ms(7)), &[]) }),
        (
            &[("retry-after", "2"), ("retry-after-ms", "x")],
            Quota { invalid: 1, ..valid(Some(seconds(2)), &[]) },
        ),
        (&[("retry-after-ms", "99999999999999999999")], valid(Some(SPAN_MAX), &[])),
        (&[("retry-after-ms", "-5"), ("retry-after-ms", "5s")], invalid(2)),
    ]);
}

#[test]
fn the_longest_of_several_lines_counts() {
    let lines: Lines<'_> = &[
        ("retry-after", "10"),
        ("retry-after", "Thu, 01 Jan 2026 00:00:30 GMT"),
        ("retry-after", "never"),
        ("retry-after", "20"),
    ];
    assert_eq!(read(lines), Quota { invalid: 1, ..valid(Some(seconds(30)), &[]) });
}

/// An instant comes from the upstream's clock, which is an hour slow here.
#[test]
fn instants_are_relative_to_the_date_of_the_response() {
    let slow = ("date", "Wed, 31 Dec 2025 23:00:00 GMT");
    all(&[
        (&[slow, ("retry-after", "Wed, 31 Dec 2025 23:00:10 GMT")], valid(Some(seconds(10)), &[])),
        (&[slow, ("retry-after", "Wed, 31 Dec 2025 22:59:59 GMT")], invalid(1)),
        (
            &[slow, ("x-ratelimit-reset", "1767222010")],
            valid(Some(seconds(10)), &[window(None, None, Some(10), None)]),
        ),
        // An invalid `Date` counts as absent, and as no invalid value of a quota.
        (
            &[("date", "yesterday"), ("x-ratelimit-reset", "1767225610")],
            valid(Some(seconds(10)), &[window(None, None, Some(10), None)]),
        ),
    ]);
}

#[test]
fn a_reset_is_read_in_every_form() {
    for (value, expected) in [
        ("0", Duration::ZERO),
        ("60", seconds(60)),
        ("1.5", ms(1500)),
        // Up to the thresholds, and from them on.
        ("999999999", SPAN_MAX),
        ("1767225599", Duration::ZERO),
        ("1767225660", seconds(60)),
        ("1767225660.25", ms(60_250)),
        ("999999999999", SPAN_MAX),
        ("1767225660250", ms(60_250)),
        ("99999999999", SPAN_MAX),
        ("9999999999999999999999", SPAN_MAX),
        ("Thu, 01 Jan 2026 00:01:00 GMT", seconds(60)),
        ("Thursday, 01-Jan-26 00:01:00 GMT", seconds(60)),
        ("Thu Jan  1 00:01:00 2026", seconds(60)),
        ("2026-01-01T00:01:00Z", seconds(60)),
        ("2026-01-01T00:01:00.5Z", ms(60_500)),
        ("2026-01-01T01:01:00+01:00", seconds(60)),
        ("2026-01-01T00:01Z", seconds(60)),
        ("1s", seconds(1)),
        ("6m0s", seconds(360)),
        ("20ms", ms(20)),
        ("1h30m", seconds(5400)),
        ("2m59.56s", ms(179_560)),
        ("7.66s", ms(7660)),
        ("1d2h", seconds(26 * 3600)),
        ("5us7ns", Duration::from_nanos(5007)),
        ("5µs", Duration::from_micros(5)),
        ("99999999999999999999d1s", SPAN_MAX),
    ] {
        let expected = QuotaWindow { resets_in: Some(expected), ..QuotaWindow::default() };
        assert_eq!(read(&[("x-ratelimit-reset", value)]).windows, [expected], "{value}");
    }
    for value in [
        "",
        "-1",
        "1000000000",
        "1000000000000",
        "1767221999",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "2018-03-13T00:00:00Z",
        "1x",
        "1s 2s",
        "s",
        "1m-2s",
        "m1",
        "tomorrow",
        "Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)",
    ] {
        assert_eq!(read(&[("x-ratelimit-reset", value)]), invalid(1), "{value:?}");
    }
    // A reset of an hour ago has passed.
    let past = read(&[("x-ratelimit-reset", "1767222000")]);
    assert_eq!(past, valid(None, &[window(None, None, Some(0), None)]));
}

#[test]
fn limit_and_remaining_are_read_in_every_form() {
    let limit = |limit, span| window(Some(limit), None, None, span);
    for (value, windows) in [
        ("100", vec![limit(100, None)]),
        ("0", vec![limit(0, None)]),
        ("100.9", vec![limit(100, None)]),
        ("99999999999999999999999", vec![limit(u64::MAX, None)]),
        ("100;w=60", vec![limit(100, Some(60))]),
        ("100, 100;w=60", vec![limit(100, Some(60))]),
        ("100, 1000;w=3600, 100;w=60", vec![limit(100, Some(60)), limit(1000, Some(3600))]),
        ("100;w=999999999999999", vec![limit(100, Some(SPAN_MAX.as_secs()))]),
    ] {
        assert_eq!(read(&[("x-ratelimit-limit", value)]), valid(None, &windows), "{value}");
    }
    for value in ["", "-1", "many", "1,000", "100;w=x", "100;w=-1", "100, x;w=1", "burst:100;rate:10", "(1)"]
    {
        assert_eq!(read(&[("x-ratelimit-limit", value)]), invalid(1), "{value:?}");
    }
    let left = |left| window(None, Some(left), None, None);
    for (value, windows) in [("0", left(0)), ("594.0", left(594)), ("0.9", left(0)), ("76;w=21600", left(76))]
    {
        assert_eq!(read(&[("x-ratelimit-remaining", value)]), valid(None, &[windows]), "{value}");
    }
    for value in ["", "-1", "none", "5, 6", "\"5\""] {
        assert_eq!(read(&[("x-ratelimit-remaining", value)]), invalid(1), "{value:?}");
    }
}

#[test]
fn the_last_reset_of_the_spent_windows_counts() {
    let cases: [(Lines<'_>, Option<u64>); 9] = [
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")], Some(30)),
        (&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "30")], None),
        (&[("x-ratelimit-reset", "30")], Some(30)),
        (&[("x-ratelimit-remaining", "0")], None),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")], None),
        (&[("ratelimit", "\"a\";r=0;t=30, \"b\";r=0;t=60, \"c\";r=1;t=90, \"d\";r=0")], Some(60)),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30"), ("retry-after", "5")], Some(5)),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30"), ("retry-after", "0")], Some(30)),
        // An invalid remainder counts as absent.
        (&[("x-ratelimit-remaining", "x"), ("x-ratelimit-reset", "30"), ("retry-after", "x")], Some(30)),
    ];
    for (lines, expected) in cases {
        assert_eq!(read(lines).wait, expected.map(seconds), "{lines:?}");
    }
}

/// A gateway and the application behind it report on two lines of one name, or under two names.
#[test]
fn windows_of_several_servers_are_not_mixed() {
    let lines: Lines<'_> = &[
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "99"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "nonsense"),
        ("x-ratelimit-reset", "5"),
        ("ratelimit-remaining", "7"),
    ];
    let windows = [
        window(Some(100), Some(99), None, None),
        window(Some(10), Some(0), Some(5), None),
        window(None, Some(7), None, None),
    ];
    assert_eq!(read(lines), Quota { invalid: 1, ..valid(Some(seconds(5)), &windows) });
}

#[test]
fn windows_are_bounded() {
    let names: Vec<String> = (0..20).map(|number| format!("x-ratelimit-reset-{number}")).collect();
    let lines: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "5")).collect();
    let quota = read(&lines);
    assert_eq!((quota.windows.len(), quota.invalid), (WINDOWS_MAX, 0));
    let lines = vec![("ratelimit-policy", "1;w=1, 2;w=2, 3;w=3, 4;w=4, 5;w=5"); 100];
    let quota = read(&lines);
    assert_eq!((quota.windows.len(), quota.invalid), (5, 0), "each once");
}

#[test]
fn huge_values_do_not_overflow() {
    let numbers = [
        "9".repeat(256),
        format!("{0}.{0}", "9".repeat(120)),
        format!("{}d", "9".repeat(255)),
        "1d".repeat(128),
    ];
    for number in &numbers {
        for name in ["retry-after-ms", "retry-after", "x-ratelimit-reset", "x-ratelimit-reset-after"] {
            let quota = read(&[(name, number)]);
            assert!(quota.wait.is_none_or(|wait| wait <= SPAN_MAX), "{name}: {number}");
            assert!(quota.invalid == 1 || quota.wait.is_some(), "{name}: {number}");
        }
    }
    for origin in [UNIX_EPOCH, UNIX_EPOCH - SPAN_MAX * 3000, UNIX_EPOCH + SPAN_MAX * 100_000] {
        for value in [&*numbers[0], "1767225600", "1767225600000", "Fri, 31 Dec 9999 23:59:59 GMT"] {
            let _ = Quota::of(&headers(&[("x-ratelimit-reset", value)]), origin);
        }
    }
}
