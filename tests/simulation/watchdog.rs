//! Ends the program when a run does not end: something spins at one instant of virtual time.
//!
//! A task that wakes itself again and again keeps its runtime busy for ever, because time stands still meanwhile. Nothing inside the run
//! can notice that.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// The longest real time of a run, which takes seconds on a busy machine.
const RUN_MAX: Duration = Duration::from_secs(180);

/// Watches a run until it is dropped.
pub struct Watchdog {
    _ended: Sender<()>,
}

impl Watchdog {
    /// Begins to watch the run of a seed.
    pub fn watch(seed: u64) -> Watchdog {
        let (ended, has_ended) = mpsc::channel();
        thread::spawn(move || {
            if has_ended.recv_timeout(RUN_MAX) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the run of seed {seed} does not end: something wakes itself without end");
                std::process::exit(1);
            }
        });
        Watchdog { _ended: ended }
    }
}
