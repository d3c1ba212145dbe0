//! `weir check`: reports every problem and warning of a configuration, and tries its store.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use crate::config::model::Store;
use crate::config::{self, Config, LoadError, Loaded, Problem};
use crate::redis::{Checked, RedisStore};
use crate::telemetry::Metrics;

/// The name of standard input on the command line, and in problems.
const STANDARD_INPUT: (&str, &str) = ("-", "standard input");

/// The parts of a check beyond the file itself, and the form of its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct Options {
    /// Also try the store: every operation that weir needs
    #[arg(long)]
    pub store: bool,
    /// Exit 1 if there are warnings
    #[arg(long)]
    pub strict: bool,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// Checks a file, or standard input (`-`), and if asked its store. Prints a summary on standard output and returns success, or prints
/// every problem on standard error and returns failure. Warnings go to standard error, JSON is always printed on standard output.
///
/// # Errors
/// If the output cannot be written. A reader that has closed it, such as `head`, changes nothing about the verdict.
pub async fn run(path: &Path, options: Options) -> std::io::Result<ExitCode> {
    let (is_input, as_json) = (path == Path::new(STANDARD_INPUT.0), options.json);
    let name = if is_input { STANDARD_INPUT.1.into() } else { path.display().to_string() };
    let loaded =
        if is_input { config::load_from(&name, std::io::stdin().lock()) } else { config::load(path) };
    let Loaded { config, warnings, .. } = match loaded {
        Ok(loaded) => loaded,
        Err(LoadError { problems }) => {
            let printed = if as_json {
                let outcome = json!({ "ok": false, "problems": problems, "warnings": [] });
                writeln!(std::io::stdout(), "{outcome:#}")
            } else {
                print(&problems, "")
            };
            unless_closed(printed)?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let summary = summary(&config);
    if !as_json {
        unless_closed(print(&warnings, "warning: "))?;
        unless_closed(writeln!(std::io::stdout(), "{name} is valid: {summary}"))?;
    }
    let tried = if options.store { Some(try_store(&config.store).await) } else { None };
    let is_well = !matches!(tried, Some(Err(_))) && (warnings.is_empty() || !options.strict);
    let printed = match &tried {
        _ if as_json => {
            let store = tried.as_ref().map(|tried| {
                let (Ok(detail) | Err(detail)) = tried;
                json!({ "ok": tried.is_ok(), "detail": detail })
            });
            let outcome =
                json!({ "ok": is_well, "summary": summary, "warnings": &*warnings, "store": store });
            writeln!(std::io::stdout(), "{outcome:#}")
        }
        Some(Ok(found)) => writeln!(std::io::stdout(), "{found}"),
        Some(Err(error)) => writeln!(std::io::stderr(), "the store does not work: {error}"),
        None => Ok(()),
    };
    unless_closed(printed)?;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Takes output that its reader has closed for written.
pub(super) fn unless_closed(printed: std::io::Result<()>) -> std::io::Result<()> {
    match printed {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Prints problems on standard error, each with its line.
fn print(problems: &[Problem], kind: &str) -> std::io::Result<()> {
    let mut output = std::io::stderr().lock();
    problems.iter().try_for_each(|problem| writeln!(output, "{}", problem.with_line(kind)))
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
