//! How long the client of a request waits for its answer, as headers of the request say: SDKs tell their timeout.
//!
//! Reads heads alone, and knows nothing of limiters.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::header_flags::HeaderFlags;
use crate::clock::millis;
use crate::config::model::{Leave, Patience};
use crate::config::units;
use crate::proxy::error::ProxyError;

/// The header by which a request shortens its wait.
const WEIR_TIMEOUT: HeaderName = HeaderName::from_static("weir-timeout");
/// The header with the rest of a gRPC call's deadline.
const GRPC_TIMEOUT: &str = "grpc-timeout";
/// The most digits of a `grpc-timeout`.
const GRPC_DIGITS_MAX: usize = 8;
/// The longest patience. More is as good as none.
const PATIENCE_MAX: Duration = Duration::from_hours(24);

/// The patience of a client, by the header that leaves the least time for waiting.
#[derive(Debug)]
pub(crate) struct ClientPatience {
    header: HeaderName,
    value: HeaderValue,
    time: Duration,
    leave: Leave,
}

impl ClientPatience {
    /// Reads the headers of a request. `answer_time` tells what the upstream lately took to answer.
    ///
    /// # Errors
    /// If `weir-timeout` is malformed. Any other header is not for weir, and is ignored then.
    pub(crate) fn of(
        headers: &HeaderMap,
        flags: HeaderFlags,
        rules: &[Patience],
        answer_time: impl Fn() -> Duration,
    ) -> Result<Option<Box<ClientPatience>>, ProxyError> {
        if flags.has(HeaderFlags::OWN) && headers.contains_key(WEIR_TIMEOUT) {
            let mut values = headers.get_all(WEIR_TIMEOUT).iter();
            let value = values.next().filter(|_| values.next().is_none());
            value.and_then(|value| time(&WEIR_TIMEOUT, value)).ok_or(ProxyError::BadRequest(
                "weir-timeout must be seconds or a duration, such as 2, 0.5 or 500ms",
            ))?;
        }
        let has_usual = flags.has(HeaderFlags::OWN) || flags.has(HeaderFlags::PATIENCE);
        let mut least: Option<(Duration, Box<ClientPatience>)> = None;
        for rule in rules.iter().filter(|rule| has_usual || !rule.is_usual) {
            for header in &rule.headers {
                let values = headers.get_all(header).iter();
                let patience =
                    values.filter_map(|value| Some((time(header, value)?, value))).min_by_key(|it| it.0);
                let Some((time, value)) = patience else { continue };
                let (header, value, leave) = (header.clone(), value.clone(), rule.leave);
                let patience = ClientPatience { header, value, time, leave };
                let wait = patience.wait(&answer_time);
                if least.as_ref().is_none_or(|(before, known)| (wait, time) < (*before, known.time)) {
                    least = Some((wait, Box::new(patience)));
                }
            }
        }
        Ok(least.map(|(_, patience)| patience))
    }

    /// Returns the longest wait that leaves enough time for the answer.
    pub(crate) fn wait(&self, answer_time: impl Fn() -> Duration) -> Duration {
        self.time.saturating_sub(self.left_for_answer(answer_time))
    }

    /// Returns whether a request that is sent `elapsed` after it came is likely to be answered after its client has left, because the
    /// upstream has become slower meanwhile. An eighth of its time is let go, because slots are used a little late.
    pub(crate) fn is_too_late(&self, elapsed: Duration, answer_time: impl Fn() -> Duration) -> bool {
        self.leave == Leave::Auto && elapsed + self.left_for_answer(answer_time) * 7 / 8 > self.time
    }

    fn left_for_answer(&self, answer_time: impl Fn() -> Duration) -> Duration {
        match self.leave {
            Leave::Auto => answer_time().min(self.time / 2),
            Leave::Share { ppm } => Duration::from_micros(
                u64::try_from(self.time.as_micros() * u128::from(ppm) / 1_000_000).unwrap_or(0),
            ),
            Leave::Time(time) => time,
        }
    }

    /// Describes a wait, for the detail of a refusal.
    pub(crate) fn describe(&self, wait: Duration) -> String {
        let (wait, header) = (millis(wait), &self.header);
        format!("{wait} ms that `{header}: {}` leaves", self.value.to_str().unwrap_or_default())
    }
}

/// Returns the time in a header, in the unit that the header has.
fn time(header: &HeaderName, value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?;
    let time = match header.as_str() {
        GRPC_TIMEOUT => grpc(text),
        _ => seconds(text).or_else(|| units::duration(text)),
    };
    time.map(|time| time.min(PATIENCE_MAX))
}

/// Parses seconds, with up to nine decimal places: `600`, `3.5`.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let nanos = units::number(&format!("{decimals:0<9}")).filter(|_| (1..=9).contains(&decimals.len()))?;
    Some(Duration::new(units::number(whole)?.min(PATIENCE_MAX.as_secs()), u32::try_from(nanos).ok()?))
}

/// Parses a `grpc-timeout`: up to eight digits, and a unit.
fn grpc(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count = units::number(digits).filter(|_| digits.len() <= GRPC_DIGITS_MAX)?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = crate::config::model::PATIENCE_HEADERS;

    fn rule(leave: Leave) -> Patience {
        Patience { headers: NAMES.map(HeaderName::from_static).to_vec(), leave, is_usual: true }
    }

    fn read(
        rules: &[Patience],
        pairs: &[(&'static str, &str)],
    ) -> Result<Option<Box<ClientPatience>>, ProxyError> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        let headers: HeaderMap = pairs.collect();
        ClientPatience::of(&headers, HeaderFlags::of(&headers), rules, || Duration::from_millis(800))
    }

    #[test]
    fn each_header_has_its_own_unit() {
        let millis = |name, value| {
            let patience = read(&[rule(Leave::Time(Duration::ZERO))], &[(name, value)]);
            patience.unwrap().map(|patience| patience.wait(|| Duration::ZERO).as_millis())
        };
        for (name, value, expected) in [
            ("weir-timeout", "250ms", 250),
            ("weir-timeout", "5", 5000),
            ("weir-timeout", "0.5", 500),
            ("x-stainless-timeout", "3", 3000),
            ("x-stainless-read-timeout", "3.5", 3500),
            ("x-stainless-read-timeout", "600.0", 600_000),
            ("x-server-timeout", "2m", 120_000),
            ("grpc-timeout", "1H", 3_600_000),
            ("grpc-timeout", "2M", 120_000),
            ("grpc-timeout", "3S", 3000),
            ("grpc-timeout", "00004000m", 4000),
            ("grpc-timeout", "5000u", 5),
            ("grpc-timeout", "6000000n", 6),
            ("grpc-timeout", "99999999H", 86_400_000),
            ("x-stainless-timeout", "99999999999999999999999", 86_400_000),
            ("x-stainless-timeout", "0", 0),
        ] {
            assert_eq!(millis(name, value), Some(expected), "{name}: {value}");
        }
        for (name, value) in [
            ("grpc-timeout", "3"),
            ("grpc-timeout", "123456789S"),
            ("grpc-timeout", ""),
            ("x-stainless-timeout", "soon"),
            ("x-stainless-timeout", "-1"),
            ("x-server-timeout", "1."),
            ("x-server-timeout", "1.0000000001"),
        ] {
            assert_eq!(millis(name, value), None, "{name}: {value}");
        }
    }

    #[test]
    fn the_header_that_leaves_least_counts() {
        let headers = [("x-stainless-timeout", "3.5"), ("grpc-timeout", "2S"), ("weir-timeout", "10s")];
        for (leave, expected) in [
            (Leave::Auto, 1200),
            (Leave::Share { ppm: 200_000 }, 1600),
            (Leave::Time(Duration::from_millis(500)), 1500),
            (Leave::Time(Duration::from_secs(5)), 0),
        ] {
            let patience = read(&[rule(leave)], &headers).unwrap().unwrap();
            let wait = patience.wait(|| Duration::from_millis(800));
            assert_eq!(wait.as_millis(), expected, "{leave:?}");
            assert_eq!(patience.describe(wait), format!("{expected} ms that `grpc-timeout: 2S` leaves"));
        }
    }

    #[test]
    fn at_most_half_of_the_patience_is_left_for_a_slow_upstream() {
        let patience = read(&[rule(Leave::Auto)], &[("x-server-timeout", "4")]).unwrap().unwrap();
        let slow = || Duration::from_secs(60);
        assert_eq!(patience.wait(slow), Duration::from_secs(2));
        assert!(!patience.is_too_late(Duration::from_secs(2), slow));
        assert!(patience.is_too_late(Duration::from_secs(3), slow));
        assert!(!patience.is_too_late(Duration::from_secs(3), || Duration::ZERO));
    }

    #[test]
    fn only_weirs_own_header_must_be_well_formed() {
        for malformed in ["soon", "0.5s", "", "5S"] {
            assert!(read(&[], &[("weir-timeout", malformed)]).is_err(), "{malformed}");
        }
        assert!(read(&[], &[("weir-timeout", "2s")]).unwrap().is_none());
        assert!(read(&[], &[("x-stainless-timeout", "2")]).unwrap().is_none());
    }

    #[test]
    fn other_headers_are_in_seconds_or_durations() {
        let headers = vec![HeaderName::from_static("x-deadline")];
        let rule = Patience { headers, leave: Leave::Time(Duration::ZERO), is_usual: false };
        for value in ["2", "2.0", "2s", "2000ms"] {
            let patience = read(std::slice::from_ref(&rule), &[("x-deadline", value)]).unwrap().unwrap();
            assert_eq!(patience.wait(|| Duration::ZERO), Duration::from_secs(2));
        }
    }
}
