//! `weir schema`: every key of the configuration, as JSON Schema for editors or as a page for people.

use std::io::Write;
use std::process::ExitCode;

use crate::config;

/// Prints it on standard output.
///
/// # Errors
/// When the output cannot be written.
pub fn run(markdown: bool) -> std::io::Result<ExitCode> {
    let mut output = std::io::stdout().lock();
    if markdown {
        write!(output, "{}", config::reference())?;
    } else {
        writeln!(output, "{:#}", config::json_schema())?;
    }
    Ok(ExitCode::SUCCESS)
}
