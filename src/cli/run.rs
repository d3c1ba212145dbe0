//! One command, from the parsed arguments to the exit code.
//!
//! Here and not in the binary, so that the compiler makes the code of all that runs once: the code of a future is made
//! where it is waited for, and a binary that waits makes most of this crate once more.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use thiserror::Error;
use tokio::runtime::{self, Runtime};

use super::arguments::{Cli, Command};
use super::remote::{self, LimiterArguments};
use super::{check, completions, demo, explain, man, schema, usage};
use crate::app;

/// There are no threads for the runtime.
#[derive(Debug, Error)]
#[error("cannot start the runtime")]
struct RuntimeError(#[source] io::Error);

/// Runs the command until its end.
///
/// # Errors
///
/// The command's own error, with its causes.
pub fn run(cli: Cli) -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let code = match cli.command {
        Command::Check { file, options } => start()?.block_on(check::run(&file.into_path(), options))?,
        Command::Explain(arguments) => start()?.block_on(explain::run(arguments))?,
        Command::Reload { remote } => start()?.block_on(remote::reload(remote))?,
        Command::Completions { shell } => completions::run(shell)?,
        Command::Man { directory } => man::run(directory.as_deref())?,
        Command::Schema { markdown } => schema::run(markdown)?,
        Command::Serve(file) => {
            run_to_end(app::serve(&file.into_path()))??;
            ExitCode::SUCCESS
        }
        Command::Limiters { name, partition, top, watch, remote } => {
            let limiter = name.map(|name| LimiterArguments { name, partition });
            start()?.block_on(remote::limiters(remote, limiter, top, watch))?
        }
        Command::Pause { limiter, lasting, remote } => {
            start()?.block_on(remote::act(remote, limiter, "pause", Some(&lasting)))?
        }
        Command::Resume { limiter, remote } => {
            start()?.block_on(remote::act(remote, limiter, "resume", None))?
        }
        Command::Reset { limiter, remote } => {
            start()?.block_on(remote::act(remote, limiter, "reset", None))?
        }
        Command::Replicas { remote } => start()?.block_on(remote::replicas(remote))?,
        Command::Usage(arguments) => start()?.block_on(usage::run(arguments))?,
        Command::Health { remote } => start()?.block_on(remote::health(remote))?,
        Command::Demo { seconds } => {
            run_to_end(demo::run(seconds))??;
            ExitCode::SUCCESS
        }
    };
    Ok(code)
}

/// Runs what ends its own tasks. Those that are left behind a second signal are not waited for.
fn run_to_end<T>(future: impl Future<Output = T>) -> Result<T, RuntimeError> {
    let runtime = start()?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}

/// Starts one runtime over all cores. docs/runtime.md gives the reasons against one per core.
fn start() -> Result<Runtime, RuntimeError> {
    runtime::Builder::new_multi_thread().enable_all().build().map_err(RuntimeError)
}
