//! The access log: a line for each request.
//!
//! The JSON line is written by hand, because there is one for each request: an event of the logging library, which looks for its
//! subscribers, its fields and its spans, costs several times as much. A line of text, for a person, is such an event. Both have the
//! same fields. Knows nothing of requests beyond [`Summary`].

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::to_writer;
use tracing_subscriber::Layer;

use super::log_buffer::{LineKind, LogBuffer};
use super::spans::Summary;

/// The target of the access log: one line per request, at `info`.
pub const ACCESS: &str = "weir::access";

/// The usual length of a line, to allocate once.
const LINE_BYTES: usize = 384;

/// A finished request, as the access log names it.
#[derive(Clone, Copy, Debug)]
pub struct AccessLine<'a> {
    /// What the request's trace says, too.
    pub summary: Summary<'a>,
    /// The time from the request's head to the end of its response.
    pub duration: Duration,
    /// The reason of weir's own answer.
    pub reason: Option<&'a str>,
    /// The trace's id, if the request has one.
    pub trace_id: Option<&'a str>,
}

impl AccessLine<'_> {
    /// Logs the line, where the process's logging has set up the access log.
    pub fn log(&self) {
        let is_written = tracing::dispatcher::get_default(|logging| {
            logging.downcast_ref::<AccessLog>().is_some_and(|log| log.write(self))
        });
        if !is_written {
            self.log_event();
        }
    }

    fn log_event(&self) {
        let Summary { method, path, route, status, outcome, error, waited, client_address, client } =
            self.summary;
        tracing::info!(
            target: ACCESS,
            method = method.as_str(),
            path,
            route,
            status,
            outcome = outcome.as_str(),
            wait_ms = millis(waited),
            duration_ms = millis(self.duration),
            error,
            reason = self.reason,
            client_ip = %client_address,
            client,
            trace_id = self.trace_id,
        );
    }

    /// Returns the line as JSON.
    fn json(&self, now: SystemTime) -> Vec<u8> {
        let Summary { method, path, route, status, outcome, error, waited, client_address, client } =
            self.summary;
        let mut line = Vec::with_capacity(LINE_BYTES);
        line.extend_from_slice(b"{\"timestamp\":\"");
        write_time(&mut line, now);
        line.extend_from_slice(b"\",\"level\":\"INFO\"");
        write_text(&mut line, "method", Some(method.as_str()));
        write_text(&mut line, "path", Some(path));
        write_text(&mut line, "route", Some(route));
        write_number(&mut line, "status", u64::from(status));
        write_text(&mut line, "outcome", Some(outcome.as_str()));
        write_number(&mut line, "wait_ms", millis(waited));
        write_number(&mut line, "duration_ms", millis(self.duration));
        write_text(&mut line, "error", error);
        write_text(&mut line, "reason", self.reason);
        // Writing to memory does not fail; nor do the other lines here.
        let _ = write!(line, ",\"client_ip\":\"{client_address}\"");
        write_text(&mut line, "client", client);
        write_text(&mut line, "trace_id", self.trace_id);
        write_text(&mut line, "target", Some(ACCESS));
        line.extend_from_slice(b"}\n");
        line
    }
}

/// The access log of a process, found through its logging. A layer without events of its own.
pub(super) struct AccessLog {
    /// The buffer of the process's log.
    pub(super) buffer: Arc<LogBuffer>,
    /// True if lines are JSON.
    pub(super) json: Arc<AtomicBool>,
}

impl<S: tracing::Subscriber> Layer<S> for AccessLog {}

impl AccessLog {
    /// Writes a line as JSON. Returns false if lines are text.
    fn write(&self, line: &AccessLine<'_>) -> bool {
        let is_json = self.json.load(Ordering::Relaxed);
        if is_json {
            self.buffer.add(LineKind::Access, &line.json(SystemTime::now()));
        }
        is_json
    }
}

fn write_text(line: &mut Vec<u8>, key: &str, value: Option<&str>) {
    let Some(value) = value else { return };
    line.extend_from_slice(b",\"");
    line.extend_from_slice(key.as_bytes());
    line.extend_from_slice(b"\":");
    // Most values need no escapes.
    if value.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        line.push(b'"');
        line.extend_from_slice(value.as_bytes());
        line.push(b'"');
    } else {
        let _ = to_writer(line, value);
    }
}

fn write_number(line: &mut Vec<u8>, key: &str, value: u64) {
    line.extend_from_slice(b",\"");
    line.extend_from_slice(key.as_bytes());
    line.extend_from_slice(b"\":");
    let _ = to_writer(line, &value);
}

/// Writes an instant in the form of the log's other lines, `2026-01-31T23:59:59.000000Z`.
fn write_time(line: &mut Vec<u8>, time: SystemTime) {
    const DAY: u64 = 24 * 60 * 60;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = date(since.as_secs() / DAY);
    let second = since.as_secs() % DAY;
    write_digits(line, year, 4, b'-');
    write_digits(line, month, 2, b'-');
    write_digits(line, day, 2, b'T');
    write_digits(line, second / 3600, 2, b':');
    write_digits(line, second / 60 % 60, 2, b':');
    write_digits(line, second % 60, 2, b'.');
    write_digits(line, u64::from(since.subsec_micros()), 6, b'Z');
}

/// Writes the last `count` digits of a number, and what follows them.
fn write_digits(line: &mut Vec<u8>, number: u64, count: u32, then: u8) {
    for place in (0..count).rev() {
        // A digit is below ten.
        line.push(b'0' + u8::try_from(number / 10_u64.pow(place) % 10).unwrap_or(0));
    }
    line.push(then);
}

/// Returns year, month and day of a day since 1970. The years begin in March here, so that the leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    const YEARS_400: u64 = 146_097;
    /// The days from the first of March of the year 0 until 1970.
    const BEFORE_1970: u64 = 719_468;
    let days = days + BEFORE_1970;
    let day = days % YEARS_400;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let in_month = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (days / YEARS_400 * 400 + year + next_year, month, in_month)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::Method;
    use jiff::Timestamp;

    use super::*;
    use crate::telemetry::Outcome;

    fn line(path: &str) -> AccessLine<'_> {
        let summary = Summary {
            method: &Method::GET,
            path,
            route: "all",
            status: 200,
            outcome: Outcome::Forwarded,
            error: None,
            waited: Duration::from_micros(7_999),
            client_address: IpAddr::from([127, 0, 0, 1]),
            client: None,
        };
        AccessLine { summary, duration: Duration::from_secs(2), reason: None, trace_id: None }
    }

    fn json(line: &AccessLine<'_>) -> String {
        String::from_utf8(line.json(UNIX_EPOCH)).unwrap()
    }

    #[test]
    fn a_line_has_the_form_of_the_other_lines() {
        let expected = "{\"timestamp\":\"1970-01-01T00:00:00.000000Z\",\"level\":\"INFO\",\"method\":\"GET\",\
            \"path\":\"/a\\\"b\",\"route\":\"all\",\"status\":200,\"outcome\":\"forwarded\",\"wait_ms\":7,\
            \"duration_ms\":2000,\"client_ip\":\"127.0.0.1\",\"target\":\"weir::access\"}\n";
        assert_eq!(json(&line("/a\"b")), expected);
    }

    #[test]
    fn every_field_is_there_and_the_line_is_one_line() {
        let mut line = line("/\n\u{1}ü");
        line.summary.error = Some("rate_limited");
        line.summary.client = Some("billing");
        line.reason = Some("limiter api has no permit within the wait");
        line.trace_id = Some("4bf9");
        let text = json(&line);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["path"], "/\n\u{1}ü");
        assert_eq!(value["error"], "rate_limited");
        assert_eq!(value["client"], "billing");
        assert_eq!(value["reason"], "limiter api has no permit within the wait");
        assert_eq!(value["trace_id"], "4bf9");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        // Each day of more than 400 years, at another instant.
        for day in 0_u32..150_000 {
            let since = Duration::new(u64::from(day) * 86_400 + u64::from(day % 86_400), day * 6_000);
            let mut written = Vec::new();
            write_time(&mut written, UNIX_EPOCH + since);
            let expected = Timestamp::from_duration(since.try_into().unwrap()).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), format!("{expected:.6}"));
        }
    }
}
