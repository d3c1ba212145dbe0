//! `weir man`: prints weir's manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::Man;

use super::arguments::Cli;

/// Prints the manual page of weir on standard output, or writes the pages of weir and of each command to a directory, which is made
/// if it is not there.
///
/// # Errors
/// If the output cannot be written.
pub fn run(directory: Option<&Path>) -> io::Result<ExitCode> {
    match directory {
        Some(directory) => {
            let written = fs::create_dir_all(directory)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
            let named = |error: io::Error| format!("cannot write to {}: {error}", directory.display());
            written.map_err(|error| io::Error::new(error.kind(), named(error)))?;
        }
        None => {
            let mut page = Vec::new();
            Man::new(Cli::command()).render(&mut page)?;
            io::stdout().lock().write_all(&page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
