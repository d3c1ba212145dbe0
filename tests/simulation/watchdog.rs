//! Ends the program when a run does not end: something spins at one instant of virtual time.
//!
//! A task that wakes itself again and again keeps its runtime busy for ever, because time stands still meanwhile. Nothing inside the run
//! can notice that.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The most time of a processor that a run may take, which is some seconds. Real time would judge how busy the machine is.
const RUN_MAX: Duration = Duration::from_secs(180);

/// How often it is looked at.
const INTERVAL: Duration = Duration::from_secs(5);

/// Watches a run until it is dropped.
pub struct Watchdog {
    _ended: Sender<()>,
}

impl Watchdog {
    /// Begins to watch the run of a seed.
    pub fn watch(seed: u64) -> Watchdog {
        let (ended, has_ended) = mpsc::channel();
        thread::spawn(move || {
            // Other runs take their time of the same processors.
            let runs =
                thread::available_parallelism().map_or(1, |count| count.get().try_into().unwrap_or(u32::MAX));
            let most = used() + RUN_MAX * runs;
            while has_ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if used() > most {
                    eprintln!("the run of seed {seed} does not end: something wakes itself without end");
                    std::process::exit(1);
                }
            }
        });
        Watchdog { _ended: ended }
    }
}

/// Returns how much time of processors this program has taken.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}
