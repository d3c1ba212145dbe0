//! One proxy, loaded by `wrk` for some seconds; what it did and what CPU time it took.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::proxy::{Kind, Permits};
use crate::{CORES, Result};

/// Until pools are filled and code is warm.
const WARM_UP: &str = "1s";
/// What is measured.
const TIME: &str = "3s";
/// Linux counts CPU time in these, whatever the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

/// How a proxy is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) permits: Permits,
}

/// What came of it.
pub(crate) struct Measure {
    pub(crate) requests_per_second: f64,
    pub(crate) cpu_us_per_request: f64,
}

/// A process of this binary; ended when dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(arguments: &[&str], further: &[String]) -> Result<Process> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let child = Command::new(env::current_exe()?)
            .args(arguments)
            .arg(address.to_string())
            .args(further)
            .spawn()?;
        let process = Process { child, address };
        let deadline = Instant::now() + Duration::from_secs(5);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err("a process does not listen".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(process)
    }

    /// User and system time of all its threads so far.
    fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name, in brackets, may hold anything; the 14th and 15th fields are the 12th and 13th after it.
        let (_, fields) = stat.rsplit_once(") ").ok_or("an unknown format of /proc/PID/stat")?;
        let ticks = |field: usize| fields.split(' ').nth(field).and_then(|text| text.parse::<f64>().ok());
        let (user, system) = ticks(11).zip(ticks(12)).ok_or("an unknown format of /proc/PID/stat")?;
        Ok((user + system) / TICKS_PER_SECOND)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What all proxies forward to.
pub(crate) struct Origin {
    process: Process,
}

impl Origin {
    pub(crate) fn start() -> Result<Origin> {
        Ok(Origin { process: Process::start(&["origin"], &[])? })
    }

    /// Loads a fresh proxy of this kind.
    pub(crate) fn measure(&self, kind: Kind, load: Load) -> Result<Measure> {
        let origin = self.process.address.to_string();
        let proxy = Process::start(&["proxy", kind.name(), load.permits.name()], &[origin])?;
        wrk(proxy.address, load.connections, WARM_UP)?;
        let before = proxy.cpu_seconds()?;
        let (requests, requests_per_second) = wrk(proxy.address, load.connections, TIME)?;
        let cpu_seconds = proxy.cpu_seconds()? - before;
        Ok(Measure { requests_per_second, cpu_us_per_request: cpu_seconds * 1e6 / requests })
    }
}

/// Requests answered, in all and per second.
fn wrk(target: SocketAddr, connections: usize, time: &str) -> Result<(f64, f64)> {
    let output = Command::new("wrk")
        .args(["-t", &CORES.to_string(), "-c", &connections.to_string(), "-d", time])
        .arg(format!("http://{target}/"))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("wrk, which this needs: {error}"))?;
    let text = String::from_utf8(output.stdout)?;
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("not every request went through:\n{text}").into());
    }
    let before = |word: &str| text.split(word).next()?.split_whitespace().last()?.parse().ok();
    let after = |word: &str| text.split(word).nth(1)?.split_whitespace().next()?.parse().ok();
    before(" requests in").zip(after("Requests/sec:")).ok_or_else(|| format!("wrk said:\n{text}").into())
}
