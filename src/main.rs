//! The `weir` binary: arguments, a runtime, the command, an exit code.

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use weir::cli::{self, Cli, Command};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "logging may be what failed")]
            {
                eprintln!("weir: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Check { config } => Ok(cli::check::run(&config)),
        Command::Schema => Ok(cli::schema::run()),
        Command::Serve { config } => {
            runtime()?.block_on(weir::app::serve(&config))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo { seconds } => {
            runtime()?.block_on(cli::demo::run(seconds))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// One runtime over all cores; docs/runtime.md tells why not one per core.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}
