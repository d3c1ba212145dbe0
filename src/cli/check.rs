//! `weir check`: reports every problem of a configuration, and tries its store.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use crate::config::model::Store;
use crate::config::{self, Config};
use crate::redis::{Checked, RedisStore};
use crate::telemetry::Metrics;

/// Checks a file, and with `tries_store` its store. Prints a summary on standard output and returns success, or prints
/// every problem on standard error and returns failure. JSON is always printed on standard output.
///
/// # Errors
/// If the output cannot be written.
pub async fn run(path: &Path, tries_store: bool, as_json: bool) -> std::io::Result<ExitCode> {
    let config = match config::load(path) {
        Ok(loaded) => loaded.config,
        Err(error) => {
            if as_json {
                writeln!(std::io::stdout(), "{:#}", json!({ "ok": false, "problems": error.problems }))?;
            } else {
                writeln!(std::io::stderr(), "{error}")?;
            }
            return Ok(ExitCode::FAILURE);
        }
    };
    let summary = summary(&config);
    if !as_json {
        writeln!(std::io::stdout(), "{} is valid: {summary}", path.display())?;
    }
    let tried = if tries_store { Some(try_store(&config.store).await) } else { None };
    let is_well = !matches!(tried, Some(Err(_)));
    match &tried {
        _ if as_json => {
            let store = tried.as_ref().map(|tried| {
                let (Ok(detail) | Err(detail)) = tried;
                json!({ "ok": is_well, "detail": detail })
            });
            let outcome = json!({ "ok": is_well, "summary": summary, "store": store });
            writeln!(std::io::stdout(), "{outcome:#}")?;
        }
        Some(Ok(found)) => writeln!(std::io::stdout(), "{found}")?,
        Some(Err(error)) => writeln!(std::io::stderr(), "the store does not work: {error}")?,
        None => {}
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs every operation that weir needs from its store.
async fn try_store(store: &Store) -> Result<String, String> {
    let Store::Redis(settings) = store else {
        return Ok("the store is this process's memory, and always works".to_owned());
    };
    let store = RedisStore::new(settings, Metrics::new().store()).map_err(|error| error.to_string())?;
    let Checked { server, cautions } = store.check().await.map_err(|error| error.to_string())?;
    let cautions: String = cautions.iter().map(|caution| format!("\nbut {caution}")).collect();
    Ok(format!("the store works: {server} at {}{cautions}", settings.servers.addresses()))
}

/// Summarizes a configuration: `2 limiters, 3 routes, store redis at 127.0.0.1:6379`.
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
