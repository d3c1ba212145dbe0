//! The cores of this machine, and the programs on each.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;
use std::{fmt, fs};

use crate::load::Result;

/// The unit of the times in `/proc`: 10 ms, regardless of the kernel's own tick.
const MILLIS_PER_TICK: u64 = 10;

/// The two sides, each with a core.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// The measured proxy.
    Proxy,
    /// Everything else that a measure needs: origin, Redis, load.
    Surroundings,
}

/// The two cores of the sides; none if this process may not use two.
pub(crate) struct Machine {
    cores: Option<[usize; 2]>,
}

impl Machine {
    pub(crate) fn new() -> Result<Machine> {
        let status = fs::read_to_string("/proc/self/status")?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Ok(Machine { cores: two_of(list.ok_or("no list of cores in /proc/self/status")?.trim())? })
    }

    /// Returns a command that runs on its side's core and ends with this process, however this process ends.
    pub(crate) fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some([proxy, surroundings]) = self.cores {
            let core = match side {
                Side::Proxy => proxy,
                Side::Surroundings => surroundings,
            };
            command.args(["taskset", "--cpu-list", &core.to_string()]);
        }
        command.arg(program);
        command
    }

    /// Returns the time for which the core of the measured proxy has been busy so far, with any process; none if
    /// nothing is pinned.
    pub(crate) fn busy(&self) -> Result<Option<Duration>> {
        let Some([core, _]) = self.cores else { return Ok(None) };
        let stat = fs::read_to_string("/proc/stat")?;
        let line = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")));
        let ticks: Vec<u64> = line
            .unwrap_or_default()
            .split_whitespace()
            .map(str::parse)
            .collect::<std::result::Result<_, _>>()?;
        // The time of guests, the last field, is part of the user time.
        let [user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen, ..] = ticks[..] else {
            return Err("an unknown format of /proc/stat".into());
        };
        let busy = user + nice + system + interrupts + soft_interrupts + stolen;
        Ok(Some(Duration::from_millis(busy * MILLIS_PER_TICK)))
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cores {
            Some([proxy, surroundings]) => write!(
                formatter,
                "The measured proxy is on core {proxy}; origin, Redis and load generator are on core {surroundings}."
            ),
            None => {
                write!(formatter, "There is one core only: nothing is pinned, and all disturb each other.")
            }
        }
    }
}

/// Returns the first two numbers of a list such as `0-3,8`.
fn two_of(list: &str) -> Result<Option<[usize; 2]>> {
    let mut cores = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(cores.first_chunk().copied())
}
