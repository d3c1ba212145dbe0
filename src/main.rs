//! The `weir` binary: arguments, a runtime, the command, an exit code.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use weir::cli::remote::{self, Which};
use weir::cli::{self, Cli, Command};

/// Returns memory to the system soon after a burst of queues or connections.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The longest time for writing the last words.
const SAY_TIME_MAX: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say(format!("weir: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard error, because logging may be what failed. Does not wait for ever for a reader that has stalled.
fn say(text: String) {
    let (done, said) = mpsc::sync_channel(1);
    let saying = thread::Builder::new().spawn(move || {
        let _ = io::stderr().write_all(text.as_bytes());
        let _ = done.send(());
    });
    if saying.is_ok() {
        let _ = said.recv_timeout(SAY_TIME_MAX);
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Check { file, options } => {
            Ok(runtime()?.block_on(cli::check::run(&file.into_path(), options))?)
        }
        Command::Explain(asked) => Ok(runtime()?.block_on(cli::explain::run(asked))?),
        Command::Reload { remote } => Ok(runtime()?.block_on(remote::reload(remote))?),
        Command::Completions { shell } => Ok(cli::completions::run(shell)?),
        Command::Man { directory } => Ok(cli::man::run(directory.as_deref())?),
        Command::Schema { markdown } => Ok(cli::schema::run(markdown)?),
        Command::Serve(file) => {
            runtime()?.block_on(weir::app::serve(&file.into_path()))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Limiters { name, partition, top, watch, remote } => {
            let which = name.map(|name| Which { name, partition });
            Ok(runtime()?.block_on(remote::limiters(remote, which, top, watch))?)
        }
        Command::Pause { which, lasting, remote } => {
            Ok(runtime()?.block_on(remote::act(remote, which, "pause", Some(&lasting)))?)
        }
        Command::Resume { which, remote } => {
            Ok(runtime()?.block_on(remote::act(remote, which, "resume", None))?)
        }
        Command::Reset { which, remote } => {
            Ok(runtime()?.block_on(remote::act(remote, which, "reset", None))?)
        }
        Command::Replicas { remote } => Ok(runtime()?.block_on(remote::replicas(remote))?),
        Command::Usage(asked) => Ok(runtime()?.block_on(cli::usage::run(asked))?),
        Command::Health { remote } => Ok(runtime()?.block_on(remote::health(remote))?),
        Command::Demo { seconds } => {
            runtime()?.block_on(cli::demo::run(seconds))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns whether the reader of the output, such as `head`, has closed it. That is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// Starts one runtime over all cores. docs/runtime.md gives the reasons against one per core.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}
