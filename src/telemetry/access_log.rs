//! The access log: a line for each request, or for those that a rule picks.
//!
//! The lines are written by hand, because there is one for each request: an event of the logging library, which looks for its
//! subscribers, its fields and its spans, costs several times as much. They have the form of the log's other lines. Knows nothing of
//! requests beyond [`Summary`].

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::to_writer;
use tracing_subscriber::Layer;

use super::log_buffer::{LineKind, LogBuffer};
use super::outcome::Outcome;
use super::spans::Summary;
use crate::clock::millis;
use crate::entropy::Entropy;

/// The target of the access log's lines.
const TARGET: &str = "weir::access";

/// The usual length of a line, to allocate once.
const LINE_BYTES: usize = 384;

/// A share of one, in millionths.
const ALL_PPM: u32 = 1_000_000;

/// The requests that the access log names. Failures are always among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessRule {
    /// The share of all requests, in millionths. They are chosen at random.
    pub sample_ppm: u32,
    /// The duration from which on every request is named.
    pub slow: Option<Duration>,
}

impl AccessRule {
    /// Names every request.
    pub const ALL: AccessRule = AccessRule { sample_ppm: ALL_PPM, slow: None };

    fn picks(&self, line: &AccessLine<'_>) -> bool {
        self.sample_ppm == ALL_PPM
            || line.summary.status >= 500
            || line.summary.outcome == Outcome::Failed
            || self.slow.is_some_and(|slow| line.duration >= slow)
            || (self.sample_ppm > 0 && self.samples(Entropy::system().draw()))
    }

    fn samples(&self, number: u64) -> bool {
        number % u64::from(ALL_PPM) < u64::from(self.sample_ppm)
    }
}

/// A finished request, as the access log names it.
#[derive(Clone, Copy, Debug)]
pub struct AccessLine<'a> {
    /// The part that the request's trace has, too.
    pub summary: Summary<'a>,
    /// The time from the request's head to the end of its response.
    pub duration: Duration,
    /// The reason of weir's own answer, or for which the upstream's broke off.
    pub reason: Option<&'a str>,
    /// The trace's id, if the request has one.
    pub trace_id: Option<&'a str>,
}

impl AccessLine<'_> {
    /// Logs the line if the rule picks it, where the process's logging has set up the access log.
    pub fn log(&self, rule: &AccessRule) {
        if rule.picks(self) {
            tracing::dispatcher::get_default(|logging| {
                if let Some(log) = logging.downcast_ref::<AccessLog>() {
                    log.write(self);
                }
            });
        }
    }

    /// Returns the line as it is written.
    fn written(&self, form: Form, now: SystemTime) -> Vec<u8> {
        let Summary { method, path, route, status, outcome, error, waited, client_address, client } =
            self.summary;
        let mut line = Line { bytes: Vec::with_capacity(LINE_BYTES), form };
        line.begin(now);
        line.text("method", Some(method.as_str()));
        line.text("path", Some(path));
        line.text("route", Some(route));
        line.number("status", u64::from(status));
        line.text("outcome", Some(outcome.as_str()));
        line.number("wait_ms", millis(waited));
        line.number("duration_ms", millis(self.duration));
        line.text("error", error);
        line.text("reason", self.reason);
        line.key("client_ip");
        // JSON has no addresses: there it is a text. Writing to memory does not fail; nor do the other lines here.
        let quote = if form == Form::Json { "\"" } else { "" };
        let _ = write!(line.bytes, "{quote}{client_address}{quote}");
        line.text("client", client);
        line.text("trace_id", self.trace_id);
        line.end();
        line.bytes
    }
}

/// The access log of a process, found through its logging. A layer without events of its own.
pub(super) struct AccessLog {
    /// The buffer of the process's log.
    pub(super) buffer: Arc<LogBuffer>,
    /// True if lines are JSON.
    pub(super) json: Arc<AtomicBool>,
    /// True if lines of text have colours.
    pub(super) coloured: bool,
}

impl<S: tracing::Subscriber> Layer<S> for AccessLog {}

impl AccessLog {
    fn write(&self, line: &AccessLine<'_>) {
        let form = if self.json.load(Ordering::Relaxed) {
            Form::Json
        } else if self.coloured {
            Form::Coloured
        } else {
            Form::Text
        };
        self.buffer.add(LineKind::Access, &line.written(form, SystemTime::now()));
    }
}

/// The form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Text,
    /// Text with colours, for a terminal.
    Coloured,
}

/// A line that is being written.
struct Line {
    bytes: Vec<u8>,
    form: Form,
}

impl Line {
    fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn begin(&mut self, now: SystemTime) {
        let (before, behind) = match self.form {
            Form::Json => ("{\"timestamp\":\"", "\",\"level\":\"INFO\""),
            Form::Text => ("", "  INFO weir::access:"),
            Form::Coloured => {
                ("\x1b[2m", "\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2mweir::access\x1b[0m\x1b[2m:\x1b[0m")
            }
        };
        self.push(before);
        // The form of the log's other lines, `2026-01-31T23:59:59.000000Z`. Every time of a clock is one.
        let _ = write!(self.bytes, "{:.6}", Timestamp::try_from(now).unwrap_or_default());
        self.push(behind);
    }

    fn key(&mut self, key: &str) {
        let (before, behind) = match self.form {
            Form::Json => (",\"", "\":"),
            Form::Text => (" ", "="),
            Form::Coloured => (" \x1b[3m", "\x1b[0m\x1b[2m=\x1b[0m"),
        };
        self.push(before);
        self.push(key);
        self.push(behind);
    }

    fn text(&mut self, key: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.key(key);
        // Most values need no escapes.
        if value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
            self.push("\"");
            self.push(value);
            self.push("\"");
        } else if self.form == Form::Json {
            let _ = to_writer(&mut self.bytes, value);
        } else {
            let _ = write!(self.bytes, "{value:?}");
        }
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        let _ = to_writer(&mut self.bytes, &value);
    }

    fn end(&mut self) {
        if self.form == Form::Json {
            self.text("target", Some(TARGET));
            self.push("}");
        }
        self.push("\n");
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Mutex;
    use std::time::UNIX_EPOCH;

    use http::Method;
    use tracing::subscriber::with_default;
    use tracing_subscriber::fmt::format::Writer;
    use tracing_subscriber::fmt::time::FormatTime;

    use super::*;

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

    /// A line with every field, and with characters that need escapes.
    fn full(path: &str) -> AccessLine<'_> {
        let mut line = line(path);
        line.summary.error = Some("rate_limited");
        line.summary.client = Some("billing");
        line.reason = Some("limiter \"api\" has no permit within the wait");
        line.trace_id = Some("4bf9");
        line
    }

    /// The time of all lines here, as the logging library writes it.
    struct Epoch;

    impl FormatTime for Epoch {
        fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
            writer.write_str("1970-01-01T00:00:00.000000Z")
        }
    }

    /// Collects what the logging library writes.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Returns the line as the logging library writes an event with the same fields.
    fn as_event(line: &AccessLine<'_>, form: Form) -> String {
        let written = Written::default();
        let sink = written.clone();
        let builder = tracing_subscriber::fmt().with_timer(Epoch).with_writer(move || sink.clone());
        let log = || {
            let Summary { method, path, route, status, outcome, error, waited, client_address, client } =
                line.summary;
            tracing::info!(
                target: TARGET,
                method = method.as_str(),
                path,
                route,
                status,
                outcome = outcome.as_str(),
                wait_ms = millis(waited),
                duration_ms = millis(line.duration),
                error,
                reason = line.reason,
                client_ip = %client_address,
                client,
                trace_id = line.trace_id,
            );
        };
        match form {
            Form::Json => with_default(builder.json().flatten_event(true).finish(), log),
            _ => with_default(builder.with_ansi(form == Form::Coloured).finish(), log),
        }
        let written = written.0.lock().unwrap().clone();
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn a_line_is_that_of_an_event_byte_for_byte() {
        for form in [Form::Json, Form::Text, Form::Coloured] {
            for path in ["/a", "/a\"b\\c", "/\n\u{1}\u{7f}ü\u{9b}"] {
                for line in [line(path), full(path)] {
                    let written = String::from_utf8(line.written(form, UNIX_EPOCH)).unwrap();
                    assert_eq!(written, as_event(&line, form), "{form:?}");
                    assert_eq!(written.matches('\n').count(), 1, "{written}");
                }
            }
        }
    }

    #[test]
    fn a_rule_picks_failures_slow_requests_and_a_share_of_the_others() {
        let picks = |sample_ppm, slow: Option<u64>, line: AccessLine<'_>| {
            AccessRule { sample_ppm, slow: slow.map(Duration::from_secs) }.picks(&line)
        };
        let (mut unavailable, mut failed) = (line("/"), line("/"));
        unavailable.summary.status = 503;
        failed.summary.outcome = Outcome::Failed;
        assert!(picks(0, None, unavailable) && picks(0, None, failed));
        assert!(!picks(0, None, line("/")) && !picks(0, Some(3), line("/")));
        assert!(picks(0, Some(2), line("/")), "it took two seconds");
        assert!(picks(ALL_PPM, None, line("/")) && AccessRule::ALL.picks(&line("/")));
        let rule = AccessRule { sample_ppm: 10_000, slow: None };
        assert_eq!((0..u64::from(2 * ALL_PPM)).filter(|number| rule.samples(*number)).count(), 20_000);
    }
}
