//! Log lines to standard error, as JSON or text. A reload can change the form, the level and the access log.
//!
//! weir's own lines are shown from `log.level` on, and those of its libraries from `warn` on: at `debug` they would
//! bury weir's. The access log has its own target, [`ACCESS`]; `log.access` switches it, whatever the level.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{Targets, dynamic_filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, reload};

/// The target of the access log: one line per request, at `info`.
pub const ACCESS: &str = "weir::access";

/// The settings of logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The lowest level of weir's own lines.
    pub level: Level,
    /// The form of each line.
    pub format: LogFormat,
    /// True if each request is logged.
    pub access: bool,
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
#[error("cannot set up logging")]
pub struct LoggingError(#[from] tracing_subscriber::util::TryInitError);

/// The logging of this process. Cheap to clone.
#[derive(Clone)]
pub struct Logging {
    filter: reload::Handle<Targets, Registry>,
    json: Arc<AtomicBool>,
}

impl Logging {
    /// Sets up the process's logging.
    ///
    /// # Errors
    /// If logging has been set up before.
    pub fn init(log: &Log) -> Result<Logging, LoggingError> {
        let (filter, handle) = reload::Layer::new(targets(log));
        let logging = Logging { filter: handle, json: Arc::new(AtomicBool::new(is_json(log))) };

        // Both layers exist and one of them is enabled. A layer swapped under open spans would look for fields
        // that it never recorded.
        let wants_json = Arc::clone(&logging.json);
        let json = fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(io::stderr)
            .with_filter(dynamic_filter_fn(move |_, _| wants_json.load(Ordering::Relaxed)));
        let wants_json = Arc::clone(&logging.json);
        let text = fmt::layer()
            .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
            .with_writer(io::stderr)
            .with_filter(dynamic_filter_fn(move |_, _| !wants_json.load(Ordering::Relaxed)));

        tracing_subscriber::registry().with(filter).with(json).with(text).try_init()?;
        Ok(logging)
    }

    /// Applies changed settings.
    pub fn apply(&self, log: &Log) {
        self.json.store(is_json(log), Ordering::Relaxed);
        // It fails only when the subscriber is gone, and then there is no log.
        let _ = self.filter.reload(targets(log));
    }
}

fn is_json(log: &Log) -> bool {
    log.format == LogFormat::Json
}

fn targets(log: &Log) -> Targets {
    let access = if log.access { LevelFilter::INFO } else { LevelFilter::OFF };
    Targets::new()
        .with_default(log.level.min(Level::WARN))
        .with_target("weir", log.level)
        // weir logs failures of Redis itself, once each. The client's own warnings name files of the build.
        .with_target("redis", LevelFilter::ERROR.min(log.level.into()))
        .with_target(ACCESS, access)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(level: Level, access: bool) -> Log {
        Log { level, format: LogFormat::Json, access }
    }

    #[test]
    fn the_level_is_for_weir_and_its_libraries_only_warn() {
        let targets = targets(&log(Level::DEBUG, false));
        assert!(targets.would_enable("weir::proxy", &Level::DEBUG));
        assert!(!targets.would_enable("weir::proxy", &Level::TRACE));
        assert!(targets.would_enable("h2::codec", &Level::WARN));
        assert!(!targets.would_enable("h2::codec", &Level::INFO));
    }

    #[test]
    fn the_access_log_does_not_depend_on_the_level() {
        assert!(targets(&log(Level::ERROR, true)).would_enable(ACCESS, &Level::INFO));
        assert!(!targets(&log(Level::TRACE, false)).would_enable(ACCESS, &Level::INFO));
    }

    #[test]
    fn a_quiet_level_silences_libraries_too() {
        assert!(!targets(&log(Level::ERROR, true)).would_enable("h2::codec", &Level::WARN));
    }
}
