//! Durations, sizes, shares and the short form of a limit, as text with a unit.
//!
//! Only the syntax: bounds are checked by the user of a value. A number that does not fit becomes the largest one, so
//! that a bound catches it.

use std::time::Duration;

use super::model::Leave;
use crate::clock::millis;

/// Units of a duration, in milliseconds, the longest first.
pub(super) const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
/// Units of a size, in bytes, the largest first.
pub(super) const SIZE_UNITS: [(&str, u64); 4] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// A share of a whole, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    pub(crate) ppm: u32,
}

impl Share {
    /// None of it.
    pub(crate) const NONE: Share = Share { ppm: 0 };
    /// The whole.
    pub(crate) const WHOLE: Share = Share { ppm: 1_000_000 };
}

/// A limit in short form: `rate` permits in each `per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) rate: u64,
    pub(crate) per: Duration,
}

/// The length of a limit's window: a duration, or a week or a month of the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Per {
    Span(Duration),
    Week,
    Month,
}

/// Parses a duration: `250ms`, `10s`, `1m`, `1h`, `1d`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    amount(text, &DURATION_UNITS).map(Duration::from_millis)
}

/// Parses a size: `64KiB`.
pub(crate) fn size(text: &str) -> Option<Size> {
    amount(text, &SIZE_UNITS).map(Size)
}

/// Parses a share: `20%`, `0.5%`, with up to four decimal places.
pub(crate) fn share(text: &str) -> Option<Share> {
    const PLACES: usize = 4;
    let percent = text.strip_suffix('%')?;
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    if decimals.is_empty() || decimals.len() > PLACES {
        return None;
    }
    let ppm = number(whole)?.saturating_mul(10_000);
    let ppm = ppm.saturating_add(number(&format!("{decimals:0<PLACES$}"))?);
    Some(Share { ppm: u32::try_from(ppm).unwrap_or(u32::MAX) })
}

/// Parses what is left of a time: `auto`, a share or a duration.
pub(crate) fn leave(text: &str) -> Option<Leave> {
    match text {
        "auto" => Some(Leave::Auto),
        _ => {
            share(text).map(|Share { ppm }| Leave::Share { ppm }).or_else(|| duration(text).map(Leave::Time))
        }
    }
}

/// Parses the short form of a limit: `900/1m`. `20/s` is `20/1s`.
pub(crate) fn quota(text: &str) -> Option<Quota> {
    let (rate, per) = text.split_once('/')?;
    let rate = number(rate)?;
    if DURATION_UNITS.iter().any(|(unit, _)| *unit == per) {
        return duration(&format!("1{per}")).map(|per| Quota { rate, per });
    }
    duration(per).map(|per| Quota { rate, per })
}

/// Parses the length of a window: a duration, `1w` or `1mo`.
pub(crate) fn per(text: &str) -> Option<Per> {
    match text {
        "1w" => Some(Per::Week),
        "1mo" => Some(Per::Month),
        _ => duration(text).map(Per::Span),
    }
}

/// Formats a duration in the longest unit that divides it.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = millis(duration);
    let (unit, scale) = DURATION_UNITS
        .iter()
        .find(|(_, scale)| millis >= *scale && millis.is_multiple_of(*scale))
        .unwrap_or(&("s", 1000));
    format!("{}{unit}", millis / scale)
}

/// Formats a size in the largest unit that divides it.
pub(crate) fn show_size(Size(bytes): Size) -> String {
    let (unit, scale) =
        SIZE_UNITS.iter().find(|(_, scale)| bytes >= *scale && bytes % scale == 0).unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / scale)
}

/// Formats a share in percent, without needless zeros.
pub(crate) fn show_share(Share { ppm }: Share) -> String {
    let percent = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
    format!("{}%", percent.trim_end_matches('0').trim_end_matches('.'))
}

fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    number(count).map(|count| count.saturating_mul(*scale))
}

/// Parses digits and nothing else. Saturates.
pub(crate) fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(duration("1m"), Some(Duration::from_secs(60)));
        assert_eq!(duration("1h"), Some(Duration::from_secs(3600)));
        assert_eq!(duration("1d"), Some(Duration::from_secs(86_400)));
        assert_eq!(duration("0s"), Some(Duration::ZERO));
        for wrong in ["", "10", "s", "1.5s", "-1s", "1 s", "1S", "1w", "1mo", "1s ", "+1s", "١s"] {
            assert_eq!(duration(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_number_that_does_not_fit_saturates() {
        assert_eq!(duration("99999999999999999999999d"), Some(Duration::from_millis(u64::MAX)));
        assert_eq!(size("18446744073709551615GiB"), Some(Size(u64::MAX)));
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(size("64KiB"), Some(Size(65_536)));
        assert_eq!(size("1MiB"), Some(Size(1 << 20)));
        assert_eq!(size("512B"), Some(Size(512)));
        assert_eq!(size("64KB"), None);
        assert_eq!(size("64"), None);
    }

    #[test]
    fn shares_are_percentages() {
        for (text, ppm) in [("0%", 0), ("1%", 10_000), ("0.5%", 5_000), ("0.0001%", 1), ("100%", 1_000_000)] {
            assert_eq!(share(text), Some(Share { ppm }), "{text}");
            assert_eq!(show_share(Share { ppm }), text);
        }
        for wrong in ["", "%", "1", ".5%", "1.%", "1.00001%", "-1%", "1.5.5%", "1 %", "+1%"] {
            assert_eq!(share(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_short_form_of_a_limit() {
        assert_eq!(quota("900/1m"), Some(Quota { rate: 900, per: Duration::from_secs(60) }));
        assert_eq!(quota("20/s"), quota("20/1s"));
        assert_eq!(quota("5/ms"), Some(Quota { rate: 5, per: Duration::from_millis(1) }));
        for wrong in ["900", "900/", "/1m", "900/60", "-5/1s", "1.5/s", "900/1m/2", "900 /1m"] {
            assert_eq!(quota(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_formatted_duration_can_be_parsed_again() {
        for text in ["250ms", "1500ms", "90s", "1m", "36h", "7d"] {
            assert_eq!(duration(text).map(show_duration).as_deref(), Some(text));
        }
        assert_eq!(show_duration(Duration::from_secs(3600)), "1h");
        assert_eq!(show_duration(Duration::ZERO), "0s");
        assert_eq!(show_size(Size(65_536)), "64KiB");
    }
}
