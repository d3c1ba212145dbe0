//! Where log lines go and which of them: to standard error, as JSON or as text, changed by a reload.
//!
//! weir's own lines are shown from `log.level` on, those of its libraries from `warn` on: at `debug` theirs
//! would bury ours. The access log has a target of its own, [`ACCESS`], and is switched by `log.access`
//! whatever the level.

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

use crate::config::model::{Log, LogFormat};

/// The target of the access log: one line a request, at `info`.
pub const ACCESS: &str = "weir::access";

/// Logging could not be set up.
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
    /// Sets up the process's logging. Fails if that was already done.
    pub fn init(log: &Log) -> Result<Logging, LoggingError> {
        let (filter, handle) = reload::Layer::new(targets(log));
        let logging = Logging { filter: handle, json: Arc::new(AtomicBool::new(is_json(log))) };

        // Both forms stand ready and one of them listens: a layer whose kind changes under open spans would
        // look for what it never recorded.
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

    /// Takes over what a reload says about logging.
    pub fn apply(&self, log: &Log) {
        self.json.store(is_json(log), Ordering::Relaxed);
        // It fails only where the subscriber is gone, and then nobody listens anyway.
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
        // What goes wrong there weir says itself, once, and without naming files of the build.
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
