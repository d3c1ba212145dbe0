//! `weir schema`: prints every key of the configuration, as JSON Schema or as a page in Markdown.

use std::io::Write;
use std::process::ExitCode;

use crate::config;

/// Prints the schema on standard output.
///
/// # Errors
/// If the output cannot be written.
pub fn run(markdown: bool) -> std::io::Result<ExitCode> {
    let mut output = std::io::stdout().lock();
    if markdown {
        write!(output, "{}", config::reference())?;
    } else {
        writeln!(output, "{:#}", config::json_schema())?;
    }
    Ok(ExitCode::SUCCESS)
}
