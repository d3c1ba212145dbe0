//! The `weir` binary: arguments, the command, an exit code.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use weir::cli::{self, Cli};

/// Returns memory to the system soon after a burst of queues or connections.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The longest time for writing the last words.
const SAY_TIME_MAX: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match cli::run(Cli::parse()) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            say(format!("weir: {:#}\n", anyhow::Error::from_boxed(error)));
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

/// Returns whether the reader of the output, such as `head`, has closed it. That is no failure.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let causes = anyhow::Chain::new(error);
    let mut kinds = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.any(|kind| kind == io::ErrorKind::BrokenPipe)
}
