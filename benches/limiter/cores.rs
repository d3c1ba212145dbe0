//! The cores: Redis has one of its own, if there are two.

use std::process::{Command, Stdio};
use std::thread;

/// The number of this process's core; the next constant is Redis's.
const OWN: &str = "0";
const REDIS: &str = "1";

/// The distribution of cores: whether Redis has one of its own.
#[derive(Clone, Copy)]
pub(crate) enum Cores {
    Apart,
    Shared,
}

impl Cores {
    /// Puts this process on its core. Threads inherit that, so it must come before the runtime.
    pub(crate) fn choose() -> Cores {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let moved = || {
            let mut taskset = Command::new("taskset");
            taskset.args(["-cp", OWN, &std::process::id().to_string()]);
            taskset.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        if cores > 1 && moved() { Cores::Apart } else { Cores::Shared }
    }

    /// Returns the command that starts Redis on its core, and ends Redis with this process.
    pub(crate) fn launcher(self) -> &'static [&'static str] {
        match self {
            Cores::Apart => &["setpriv", "--pdeathsig", "KILL", "taskset", "-c", REDIS],
            Cores::Shared => &[],
        }
    }

    pub(crate) fn told(self) -> String {
        match self {
            Cores::Apart => format!("Replicas and callers are on core {OWN}, Redis on core {REDIS}."),
            Cores::Shared => {
                "Nothing is pinned: there is one core, or no `taskset`. Replicas, callers and Redis disturb each other.".into()
            }
        }
    }
}
