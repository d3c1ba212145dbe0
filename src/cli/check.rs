//! `weir check`: says whether a configuration is valid, and everything that is wrong with it.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::config::model::Store;
use crate::config::{self, Config};
use crate::redis::RedisStore;
use crate::telemetry::Metrics;

/// Checks a file: a summary on standard output and success, or every problem on standard error and failure.
///
/// # Errors
/// When the output cannot be written.
pub fn run(path: &Path) -> std::io::Result<ExitCode> {
    match config::load(path) {
        Ok(loaded) => {
            writeln!(std::io::stdout().lock(), "{} is valid: {}", path.display(), summary(&loaded.config))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            writeln!(std::io::stderr().lock(), "{error}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The same, and then tries the store: what it is and success, or what does not work and failure.
///
/// # Errors
/// When the output cannot be written.
pub async fn run_with_store(path: &Path) -> std::io::Result<ExitCode> {
    let verdict = run(path)?;
    let Ok(loaded) = config::load(path) else { return Ok(verdict) };
    let Store::Redis(settings) = &loaded.config.store else {
        writeln!(std::io::stdout().lock(), "the store is this process's memory: there is nothing to try")?;
        return Ok(verdict);
    };
    let checked = match RedisStore::new(settings, Metrics::new().store()) {
        Ok(store) => store.check().await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match checked {
        Ok(server) => {
            let addresses = settings.servers.addresses();
            writeln!(std::io::stdout().lock(), "the store works: {server} at {addresses}")?;
            Ok(verdict)
        }
        Err(error) => {
            writeln!(std::io::stderr().lock(), "the store does not work: {error}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// `2 limiters, 3 routes, store redis at 127.0.0.1:6379`.
fn summary(config: &Config) -> String {
    let store = match &config.store {
        Store::Memory => "memory".to_owned(),
        Store::Redis(redis) => format!("redis at {}", redis.servers.addresses()),
    };
    format!(
        "{}, {}, store {store}",
        count(config.limiters.len(), "limiter"),
        count(config.routes.len(), "route")
    )
}

fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
