//! The forms of numbers, spans and instants in these headers.
//!
//! Pure, and never overflows: too large a number saturates, too long a span is cut to [`SPAN_MAX`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest span that is returned: the longest window of a limit. Adding it to an instant cannot overflow.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The smallest number that is read as seconds since 1970; smaller ones are spans. As a span, 10^9 seconds are 31 years, longer than
/// any window. As an instant they are September 2001, before any of these headers.
const EPOCH_SECONDS_MIN: u64 = 1_000_000_000;

/// The smallest number that is read as milliseconds since 1970. As seconds, 10^12 are the year 33658; as milliseconds they are
/// September 2001 again.
const EPOCH_MILLISECONDS_MIN: u64 = 1_000_000_000_000;

/// One second.
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// One millisecond.
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
/// One day.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The units behind numbers.
const UNITS: [(&str, Duration); 8] = [
    ("ns", Duration::from_nanos(1)),
    ("us", Duration::from_micros(1)),
    ("µs", Duration::from_micros(1)),
    ("ms", MILLISECOND),
    ("s", SECOND),
    ("m", MINUTE),
    ("h", HOUR),
    ("d", DAY),
];

/// The words at the end of a window's label that tell its length (Kong: `-minute`, `-videos-hour`; HubSpot: `secondly-`). Months and
/// years vary in length.
const LABELS: [(&str, Duration); 8] = [
    ("second", SECOND),
    ("secondly", SECOND),
    ("minute", MINUTE),
    ("minutely", MINUTE),
    ("hour", HOUR),
    ("hourly", HOUR),
    ("day", DAY),
    ("daily", DAY),
];

/// A decimal number without sign and exponent.
#[derive(Clone, Copy)]
pub(crate) struct Decimal {
    /// The whole part, saturating.
    pub(crate) whole: u64,
    billionths: u64,
}

impl Decimal {
    /// Reads a text that is a number as a whole.
    pub(crate) fn of(text: &str) -> Option<Decimal> {
        Decimal::leading(text).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number)
    }

    /// Reads the number at the beginning of a text; returns the rest as well.
    fn leading(text: &str) -> Option<(Decimal, &str)> {
        let (digits, rest) = split_digits(text)?;
        let add = |sum: u64, digit: u8| {
            sum.saturating_mul(10).saturating_add(u64::from(digit.saturating_sub(b'0')))
        };
        let whole = digits.bytes().fold(0, add);
        let Some(fraction) = rest.strip_prefix('.') else {
            return Some((Decimal { whole, billionths: 0 }, rest));
        };
        let (digits, rest) = split_digits(fraction)?;
        let billionths = digits.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, add);
        Some((Decimal { whole, billionths }, rest))
    }

    /// Returns this many units, at most the five centuries that 64 bits hold in nanoseconds.
    fn times(self, unit: Duration) -> Duration {
        // Units are at most a day, below 2^47 nanoseconds, and the rest of the products below 2^64 and 2^30.
        let unit = unit.as_nanos();
        let nanoseconds = u128::from(self.whole) * unit + u128::from(self.billionths) * unit / 1_000_000_000;
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// Returns this many units, at most [`SPAN_MAX`].
    pub(crate) fn span(self, unit: Duration) -> Duration {
        self.times(unit).min(SPAN_MAX)
    }
}

/// Splits a text behind its leading digits, of which there is at least one.
fn split_digits(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).filter(|(digits, _)| !digits.is_empty())
}

/// Returns a number of seconds, at most [`SPAN_MAX`].
pub(crate) fn seconds(number: u64) -> Duration {
    Duration::from_secs(number).min(SPAN_MAX)
}

/// Returns the instant this many units after 1970.
fn epoch(number: Decimal, unit: Duration) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(number.times(unit))
}

/// Reads a date in one of the three forms of RFC 9110 (5.6.7), or of RFC 3339, as JSON interfaces prefer.
pub(crate) fn date(text: &str) -> Option<SystemTime> {
    let date = httpdate::parse_http_date(text).ok();
    date.or_else(|| Some(text.parse::<jiff::Timestamp>().ok()?.into()))
}

/// Reads seconds, or numbers with units in a row, as Go writes durations: `1s`, `6m0s`, `1h30m`, `7.66s`, `20ms`.
pub(crate) fn span(text: &str) -> Option<Duration> {
    if let Some(seconds) = Decimal::of(text) {
        return Some(seconds.span(SECOND));
    }
    let (mut sum, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let (number, behind) = Decimal::leading(rest)?;
        let end = behind.find(|letter: char| letter.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(end)?;
        // No overflow: each is at most SPAN_MAX, and a value holds fewer than 130.
        sum += number.span(lookup(&UNITS, unit)?);
        rest = behind;
    }
    Some(sum.min(SPAN_MAX)).filter(|_| !text.is_empty())
}

/// Returns the length of a window whose label ends in a unit of time.
pub(crate) fn length_of_label(label: &str) -> Option<Duration> {
    lookup(&LABELS, label.rsplit('-').next()?)
}

fn lookup(table: &[(&str, Duration)], name: &str) -> Option<Duration> {
    table.iter().find(|(known, _)| *known == name).map(|(_, unit)| *unit)
}

/// Reads an instant, or the number of its seconds or milliseconds since 1970, or a span. `until` turns an instant into a span.
pub(crate) fn reset(text: &str, until: impl FnOnce(SystemTime) -> Option<Duration>) -> Option<Duration> {
    let at = match Decimal::of(text) {
        Some(number) if number.whole >= EPOCH_MILLISECONDS_MIN => epoch(number, MILLISECOND),
        Some(number) if number.whole >= EPOCH_SECONDS_MIN => epoch(number, SECOND),
        _ => match span(text) {
            Some(span) => return Some(span),
            None => date(text),
        },
    };
    until(at?)
}

/// Reads `32/40`: the permits used, and the limit.
pub(crate) fn used_of_limit(text: &str) -> Option<(u64, u64)> {
    let (used, limit) = text.split_once('/')?;
    Some((Decimal::of(used)?.whole, Decimal::of(limit)?.whole))
}
