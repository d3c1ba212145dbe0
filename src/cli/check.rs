//! `weir check`: says whether a configuration is valid, and everything that is wrong with it.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::config::model::Store;
use crate::config::{self, Config};

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
