//! A proxy under `wrk` for some seconds: its throughput and its CPU time.

use std::env;
use std::net::SocketAddr;
use std::process::Command;

use crate::load::process::{Process, free_address};
use crate::load::wrk::{self, Answers};
use crate::proxy::{Kind, Permits};
use crate::{CORES, Result};

/// The time until pools are filled and code is warm.
const WARM_UP_SECONDS: u64 = 1;
/// The measured time.
const SECONDS: u64 = 3;

/// A load of a proxy.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) permits: Permits,
}

/// The result of a load.
pub(crate) struct Measure {
    pub(crate) requests_per_second: f64,
    pub(crate) cpu_us_per_request: f64,
}

/// A process of this binary.
struct Listening {
    process: Process,
    address: SocketAddr,
}

impl Listening {
    fn start(arguments: &[&str], further: &[String]) -> Result<Listening> {
        let address = free_address()?;
        let mut command = Command::new(env::current_exe()?);
        command.args(arguments).arg(address.to_string()).args(further);
        Ok(Listening { process: Process::start(command, &[address])?, address })
    }
}

/// The origin behind all proxies.
pub(crate) struct Origin {
    listening: Listening,
}

impl Origin {
    pub(crate) fn start() -> Result<Origin> {
        Ok(Origin { listening: Listening::start(&["origin"], &[])? })
    }

    /// Loads a fresh proxy of this kind.
    pub(crate) fn measure(&self, kind: Kind, load: Load) -> Result<Measure> {
        let origin = self.listening.address.to_string();
        let proxy = Listening::start(&["proxy", kind.name(), load.permits.name()], &[origin])?;
        answers(proxy.address, load.connections, WARM_UP_SECONDS)?;
        let before = proxy.process.cpu()?;
        let answers = answers(proxy.address, load.connections, SECONDS)?;
        let cpu = proxy.process.cpu()?.saturating_sub(before);
        Ok(Measure {
            requests_per_second: answers.requests_per_second,
            cpu_us_per_request: cpu.as_secs_f64() * 1e6 / answers.requests,
        })
    }
}

fn answers(target: SocketAddr, connections: usize, seconds: u64) -> Result<Answers> {
    let load = wrk::Load { threads: CORES, connections, seconds };
    let answers = wrk::run(Command::new("wrk"), &load, &format!("http://{target}/"))?;
    if answers.unsuccessful > 0.0 {
        return Err(format!("{} requests did not go through", answers.unsuccessful).into());
    }
    Ok(answers)
}
