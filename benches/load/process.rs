//! A server that a bench starts, measures and ends. Knows nothing of its protocol.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use crate::load::Result;

/// The longest time for a server to start listening.
const START_DEADLINE: Duration = Duration::from_secs(10);

/// A process; killed when dropped.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts the process, and waits until it listens on all addresses.
    pub(crate) fn start(mut command: Command, addresses: &[SocketAddr]) -> Result<Process> {
        let mut process = Process { child: command.spawn()? };
        let deadline = Instant::now() + START_DEADLINE;
        for address in addresses {
            while TcpStream::connect(address).is_err() {
                if let Some(status) = process.child.try_wait()? {
                    return Err(format!("it has ended: {status}").into());
                }
                if Instant::now() > deadline {
                    return Err(format!("it does not listen on {address}").into());
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(process)
    }

    /// Returns the user and system time of all its threads so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu(self.child.id())
    }

    /// Returns the process's resident memory, in KiB.
    pub(crate) fn resident_kib(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let size = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        size.ok_or_else(|| "no VmRSS in /proc/PID/status".into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an address on which nothing listens yet.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Returns the user and system time of all threads of a process so far.
///
/// The time is the scheduler's own count, in nanoseconds: the ticks of `/proc/PID/stat` are coarse, 10 ms each.
pub(crate) fn cpu(process: u32) -> Result<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        match fs::read_to_string(thread?.path().join("schedstat")) {
            Ok(counts) => {
                let first = counts.split_whitespace().next();
                nanos += first.and_then(|text| text.parse::<u64>().ok()).ok_or("an unknown schedstat")?;
            }
            // A thread that has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Duration::from_nanos(nanos))
}
