//! The part of a value that is wrong, in words, for values that [`units`](super::units) does not understand.
//!
//! Called for such values only, so each function always has something to say. Knows no key. Its texts repeat the value: they are for
//! values that stand in the file.

use super::problem::{quoted, unknown};
use super::units::{self, DURATION_UNITS, SIZE_UNITS};

/// The windows of the calendar, beside durations.
const CALENDAR_UNITS: [&str; 2] = ["w", "mo"];

/// Returns the fault of a key's colon, by the character behind it, which is no space.
pub(crate) fn colon(key: &str, next: Option<char>) -> String {
    let key = quoted(key);
    let space = match next {
        Some('\t') => "a tab",
        Some('\u{a0}' | '\u{202f}') => "a no-break space",
        Some(other) if other.is_whitespace() => "a space of another kind",
        _ => return format!("a space is missing after the colon of {key}"),
    };
    format!("{space} stands behind the colon of {key}; use a space")
}

/// Returns the fault of a duration.
pub(crate) fn duration(text: &str) -> String {
    amount(text, &duration_units(), "10s")
}

/// Returns the fault of a size.
pub(crate) fn size(text: &str) -> String {
    amount(text, &SIZE_UNITS.map(|(unit, _)| unit), "64KiB")
}

/// Returns the fault of the length of a window.
pub(crate) fn per(text: &str) -> String {
    match text.trim_start_matches(|digit: char| digit.is_ascii_digit()) {
        unit if CALENDAR_UNITS.contains(&unit) => "a window of the calendar is 1w or 1mo".to_owned(),
        _ => amount(text, &[&duration_units()[..], &CALENDAR_UNITS].concat(), "1m"),
    }
}

/// Returns the fault of a share.
pub(crate) fn share(text: &str) -> String {
    let Some(percent) = text.strip_suffix('%') else {
        return format!("the `%` is missing behind {}", quoted(text));
    };
    match percent.split_once('.') {
        Some((_, decimals)) if decimals.len() > 4 => "a percentage has up to four decimal places".to_owned(),
        _ => format!("{} is no number, such as 20 or 0.5", quoted(percent)),
    }
}

/// Returns the fault of what is left of a time.
pub(crate) fn leave(text: &str) -> String {
    let begins_with_digit = text.starts_with(|first: char| first.is_ascii_digit());
    match text {
        _ if text.ends_with('%') => share(text),
        _ if begins_with_digit => duration(text),
        _ => unknown("value", text, ["auto"]),
    }
}

/// Returns the fault of a limit in its short form.
pub(crate) fn quota(text: &str) -> String {
    let Some((rate, per)) = text.split_once('/') else {
        return format!("no `/` between rate and window in {}, as there is in 900/1m", quoted(text));
    };
    if units::number(rate).is_none() {
        return format!("the rate {} is no whole number", quoted(rate));
    }
    let unit = per.trim_start_matches(|digit: char| digit.is_ascii_digit());
    if CALENDAR_UNITS.contains(&unit) {
        return format!(
            "a window of the calendar needs the long form: {{rate: {rate}, per: 1{unit}, algorithm: fixed_window}}"
        );
    }
    // A window may be a unit alone.
    let per = if per.starts_with(|first: char| first.is_ascii_alphabetic()) {
        format!("1{per}")
    } else {
        per.to_owned()
    };
    duration(&per)
}

/// Returns the fault of a number with a unit.
fn amount(text: &str, units: &[&str], example: &str) -> String {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let known = || units.join(", ");
    match unit.chars().next() {
        _ if number.is_empty() => {
            format!(
                "{} does not begin with a whole number; expected one with a unit, such as {example}",
                quoted(text)
            )
        }
        None => format!("the unit is missing behind {number}; known: {}", known()),
        Some('.' | ',') => format!("{} is no whole number; a smaller unit makes it one", quoted(text)),
        Some(first) if first.is_whitespace() => format!("no space belongs between {number} and its unit"),
        Some(_) => unknown("unit", unit, units.iter().copied()),
    }
}

fn duration_units() -> [&'static str; DURATION_UNITS.len()] {
    let mut units = DURATION_UNITS.map(|(unit, _)| unit);
    units.reverse();
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faulty_part_is_named() {
        for (text, fault) in [
            ("1sek", r#"unknown unit "sek"; known: ms, s, m, h, d"#),
            ("1S", r#"unknown unit "S"; did you mean "s"?"#),
            ("10", "the unit is missing behind 10; known: ms, s, m, h, d"),
            ("1.5s", r#""1.5s" is no whole number; a smaller unit makes it one"#),
            ("1 s", "no space belongs between 1 and its unit"),
            ("s", r#""s" does not begin with a whole number; expected one with a unit, such as 10s"#),
            ("-1s", r#""-1s" does not begin with a whole number; expected one with a unit, such as 10s"#),
            ("", r#""" does not begin with a whole number; expected one with a unit, such as 10s"#),
        ] {
            assert_eq!(duration(text), fault, "{text:?}");
            assert_eq!(units::duration(text), None, "{text:?}");
        }
        assert_eq!(per("1sek"), r#"unknown unit "sek"; known: ms, s, m, h, d, w, mo"#);
        assert_eq!(per("2mo"), "a window of the calendar is 1w or 1mo");
        assert_eq!(size("64KB"), r#"unknown unit "KB"; did you mean "KiB"?"#);
        assert_eq!(share("5"), r#"the `%` is missing behind "5""#);
        assert_eq!(share("1.00001%"), "a percentage has up to four decimal places");
        assert_eq!(share(".5%"), r#"".5" is no number, such as 20 or 0.5"#);
        assert_eq!(leave("aut"), r#"unknown value "aut"; did you mean "auto"?"#);
        assert_eq!(leave("5sek"), r#"unknown unit "sek"; known: ms, s, m, h, d"#);
        assert_eq!(leave("x%"), r#""x" is no number, such as 20 or 0.5"#);
    }

    #[test]
    fn the_faulty_part_of_a_limit_is_named() {
        for (text, fault) in [
            ("900", r#"no `/` between rate and window in "900", as there is in 900/1m"#),
            ("1.5/s", r#"the rate "1.5" is no whole number"#),
            ("/1m", r#"the rate "" is no whole number"#),
            ("900/60", "the unit is missing behind 60; known: ms, s, m, h, d"),
            ("900/1sek", r#"unknown unit "sek"; known: ms, s, m, h, d"#),
            ("900/min", r#"unknown unit "min"; known: ms, s, m, h, d"#),
            (
                "5/1mo",
                "a window of the calendar needs the long form: {rate: 5, per: 1mo, algorithm: fixed_window}",
            ),
            (
                "5/w",
                "a window of the calendar needs the long form: {rate: 5, per: 1w, algorithm: fixed_window}",
            ),
            ("900/1m/2", r#"unknown unit "m/2"; known: ms, s, m, h, d"#),
        ] {
            assert_eq!(quota(text), fault, "{text:?}");
            assert_eq!(units::quota(text), None, "{text:?}");
        }
    }
}
