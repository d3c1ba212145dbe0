//! Log lines to standard error, as JSON or text. A reload can change the form, the level and the access log.
//!
//! weir's own lines are shown from `log.level` on, actions by hand always, and those of its libraries from `warn` on: at `debug` they would
//! bury weir's. The access log writes its lines itself ([`super::access_log`]), whatever the level. All lines go through a bounded
//! buffer, so that nothing in weir waits for the log's reader.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{Targets, dynamic_filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, reload};

use super::Metrics;
use super::access_log::{AccessLog, AccessRule};
use super::log_buffer::{LineKind, LogBuffer, LogThread};

/// The longest time for writing the last lines at the end of the process.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

/// The target of the lines about actions by hand.
pub(crate) const AUDIT: &str = "weir::admin::audit";
/// The events of OpenTelemetry about each export that fails, which may be one a second. weir tells of them once in a while ([`super::otlp`]).
const FAILED_EXPORTS: [&str; 4] = [
    "BatchSpanProcessor.ExportError",
    "Export.Failed.DeadlineExceeded",
    "Export.Failed.Exhausted",
    "Export.Failed.NonRetryable",
];

/// The settings of logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The lowest level of weir's own lines.
    pub level: Level,
    /// The form of each line.
    pub format: LogFormat,
    /// The requests that the access log names; `None` without an access log.
    pub access: Option<AccessRule>,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Text for a person.
    Text,
}

/// The error of logging that could not be set up.
#[derive(Debug, Error)]
pub enum LoggingError {
    /// Logging has been set up before.
    #[error("cannot set up logging")]
    Again(#[from] tracing_subscriber::util::TryInitError),
    /// The thread that writes the log cannot be started.
    #[error("cannot start the thread of the log")]
    Thread(#[from] io::Error),
}

/// The logging of this process. Cheap to clone.
#[derive(Clone)]
pub struct Logging {
    filter: reload::Handle<Targets, Layered<AccessLog, Registry>>,
    json: Arc<AtomicBool>,
    thread: Arc<LogThread>,
}

impl Logging {
    /// Sets up the process's logging.
    ///
    /// # Errors
    /// If logging has been set up before, or its thread cannot be started.
    pub fn init(log: &Log) -> Result<Logging, LoggingError> {
        let (filter, handle) = reload::Layer::new(targets(log));
        let thread = Arc::new(LogBuffer::start(io::stderr())?);
        let lines = Lines(Arc::clone(&thread.buffer));
        let logging = Logging { filter: handle, json: Arc::new(AtomicBool::new(is_json(log))), thread };

        // Both layers exist and one of them is enabled. A layer swapped under open spans would look for fields
        // that it never recorded.
        let wants_json = Arc::clone(&logging.json);
        let json = fmt::layer()
            .json()
            .flatten_event(true)
            // The library writes of its own errors to standard error, and would wait for the reader.
            .log_internal_errors(false)
            .with_writer(lines.clone())
            .with_filter(dynamic_filter_fn(move |event, _| {
                wants_json.load(Ordering::Relaxed) && is_shown(event)
            }));
        let wants_json = Arc::clone(&logging.json);
        let coloured = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let text = fmt::layer()
            .with_ansi(coloured)
            .log_internal_errors(false)
            .with_writer(lines.clone())
            .with_filter(dynamic_filter_fn(move |event, _| {
                !wants_json.load(Ordering::Relaxed) && is_shown(event)
            }));

        let buffer = Arc::clone(&lines.0);
        let access = AccessLog { buffer: lines.0, json: Arc::clone(&logging.json), coloured };
        // In this order and with both forms as one layer, the filter's level is that of the whole, so that an event below it costs next to
        // nothing. h2 has a hundred of them in a request.
        tracing_subscriber::registry().with(access).with(filter).with(json.and_then(text)).try_init()?;
        panic::set_hook(Box::new(move |panic| {
            log_panic(panic);
            // The process may end now. But a panic must not wait for a reader that has stalled.
            if !buffer.is_stalled() {
                buffer.flush(FLUSH_TIME_MAX);
            }
        }));
        Ok(logging)
    }

    /// Counts dropped lines among these metrics.
    pub fn count_in(&self, metrics: &Metrics) {
        self.thread.buffer.count_by(metrics.log_lines_dropped());
    }

    /// Writes the last lines, for a bounded time. Blocks.
    pub fn flush(&self) {
        self.thread.buffer.flush(FLUSH_TIME_MAX);
    }

    /// Applies changed settings.
    pub fn apply(&self, log: &Log) {
        self.json.store(is_json(log), Ordering::Relaxed);
        // It fails only when the subscriber is gone, and then there is no log.
        let _ = self.filter.reload(targets(log));
    }
}

/// Makes the writers of single events.
#[derive(Clone)]
struct Lines(Arc<LogBuffer>);

/// The writer of one event, which the library hands over in one piece.
struct Line<'a> {
    buffer: &'a LogBuffer,
    kind: LineKind,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { buffer: &self.0, kind: LineKind::Event }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        let kind = match *metadata.level() {
            Level::ERROR | Level::WARN => LineKind::Warning,
            _ => LineKind::Event,
        };
        Line { buffer: &self.0, kind }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.add(self.kind, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs a panic. Rust's own report would be written past the buffer, and would wait for the reader.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    let reason = panic.payload_as_str();
    let place = panic.location().map(ToString::to_string);
    tracing::error!(reason, place, backtrace, "panicked");
}

fn is_shown(event: &Metadata<'_>) -> bool {
    !FAILED_EXPORTS.contains(&event.name())
}

fn is_json(log: &Log) -> bool {
    log.format == LogFormat::Json
}

fn targets(log: &Log) -> Targets {
    Targets::new()
        .with_default(log.level.min(Level::WARN))
        .with_target("weir", log.level)
        // The audit trail has no gaps.
        .with_target(AUDIT, LevelFilter::INFO.max(log.level.into()))
        // weir logs failures of Redis itself, once each. The client's own warnings name files of the build.
        .with_target("redis", LevelFilter::ERROR.min(log.level.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets_at(level: Level) -> Targets {
        targets(&Log { level, format: LogFormat::Json, access: None })
    }

    #[test]
    fn the_level_is_for_weir_and_its_libraries_only_warn() {
        let targets = targets_at(Level::DEBUG);
        assert!(targets.would_enable("weir::proxy", &Level::DEBUG));
        assert!(!targets.would_enable("weir::proxy", &Level::TRACE));
        assert!(targets.would_enable("h2::codec", &Level::WARN));
        assert!(!targets.would_enable("h2::codec", &Level::INFO));
    }

    /// The variable that makes a test set up the logging of its process, which is then one of its own.
    const INSIDE: &str = "WEIR_TEST_LOGGING";

    /// Runs a test in a process of its own, and returns that process's output on standard error.
    fn run_inside(name: &str) -> String {
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        let name = format!("telemetry::logging::tests::{name}");
        let ended = test.args([&name, "--exact", "--nocapture"]).env(INSIDE, "1").output().unwrap();
        String::from_utf8(ended.stderr).unwrap()
    }

    #[test]
    #[allow(clippy::panic)]
    fn a_panic_is_written_even_if_the_process_ends_with_it() {
        if std::env::var_os(INSIDE).is_some() {
            let log = Log { level: Level::INFO, format: LogFormat::Json, access: None };
            let _logging = Logging::init(&log).unwrap();
            tracing::info!("before the panic");
            let _ = panic::catch_unwind(|| panic!("the reason"));
            std::process::abort();
        }
        let log = run_inside("a_panic_is_written_even_if_the_process_ends_with_it");
        assert!(log.contains("\"before the panic\"") && log.contains("\"the reason\""), "{log}");
    }

    /// A level that nobody wants is the cheapest way to skip an event: no layer is asked.
    #[test]
    fn the_level_of_the_process_follows_the_settings() {
        if std::env::var_os(INSIDE).is_none() {
            let log = run_inside("the_level_of_the_process_follows_the_settings");
            assert!(log.contains("followed"), "{log}");
            return;
        }
        let log = |level| Log { level, format: LogFormat::Json, access: None };
        let logging = Logging::init(&log(Level::INFO)).unwrap();
        assert_eq!(LevelFilter::current(), LevelFilter::INFO);
        logging.apply(&log(Level::DEBUG));
        assert_eq!(LevelFilter::current(), LevelFilter::DEBUG);
        logging.apply(&log(Level::WARN));
        assert_eq!(LevelFilter::current(), LevelFilter::INFO, "for actions by hand");
        tracing::warn!("followed");
        logging.flush();
    }

    #[test]
    fn a_quiet_level_silences_libraries_and_no_action_by_hand() {
        for level in [Level::ERROR, Level::WARN, Level::INFO, Level::TRACE] {
            assert!(targets_at(level).would_enable(AUDIT, &Level::INFO), "{level}");
        }
        assert!(!targets_at(Level::ERROR).would_enable("h2::codec", &Level::WARN));
    }
}
