//! `weir schema`: the JSON Schema of the configuration, for editors.

use std::io::Write;
use std::process::ExitCode;

use crate::config;

/// Prints the schema on standard output.
///
/// # Errors
/// When the output cannot be written.
pub fn run() -> std::io::Result<ExitCode> {
    writeln!(std::io::stdout().lock(), "{:#}", config::json_schema())?;
    Ok(ExitCode::SUCCESS)
}
