//! `weir completions`: what a shell needs to complete weir's commands.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::arguments::Cli;

/// Prints it.
///
/// # Errors
/// When the output cannot be written.
pub fn run(shell: Shell) -> std::io::Result<ExitCode> {
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "weir", &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
