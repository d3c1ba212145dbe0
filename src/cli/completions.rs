//! `weir completions`: prints completions of weir's commands for a shell.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::arguments::Cli;

/// Prints the completions on standard output.
///
/// # Errors
/// If the output cannot be written.
pub fn run(shell: Shell) -> std::io::Result<ExitCode> {
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "weir", &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
