//! A contender under load for some seconds: its throughput and its cost.

use std::fmt;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::contender::{Contender, Name};
use crate::load::Result;
use crate::load::process::Process;
use crate::load::wrk;
use crate::machine::{Machine, Side};
use crate::packages::{WRK, is_there};

/// The time until connections are open, pools filled and code is warm.
const WARM_UP_SECONDS: u64 = 1;
/// The connections by HTTP/1.1.
const CONNECTIONS: usize = 64;
/// The connections by HTTP/2.
const CONNECTIONS_HTTP2: usize = 16;
const STREAMS: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// Describes the load.
    pub(crate) fn load(self) -> String {
        match self {
            Protocol::Http1 => format!("HTTP/1.1, {CONNECTIONS} connections"),
            Protocol::Http2 => {
                format!("HTTP/2, {CONNECTIONS_HTTP2} connections of {STREAMS} streams each")
            }
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Protocol::Http1 => "HTTP/1.1",
            Protocol::Http2 => "HTTP/2",
        })
    }
}

/// The result of one load.
pub(crate) struct Measure {
    pub(crate) name: Name,
    pub(crate) protocol: Protocol,
    pub(crate) requests_per_second: f64,
    pub(crate) cpu_us_per_request: f64,
    pub(crate) redis_cpu_us_per_request: Option<f64>,
    /// The part of the core that the contender took.
    pub(crate) share: f64,
    /// The part of the core that other processes took, if it is known.
    pub(crate) share_of_others: Option<f64>,
    pub(crate) latency: Option<Latency>,
    pub(crate) resident_mib: f64,
}

#[derive(Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl fmt::Display for Measure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, protocol, rate, cpu) =
            (self.name, self.protocol, self.requests_per_second, self.cpu_us_per_request);
        write!(formatter, "{name}, {protocol}: {rate:.0} requests/s, {cpu:.1} us CPU/request")
    }
}

/// The counts of a load generator.
struct Answers {
    requests: f64,
    requests_per_second: f64,
    latency: Option<Latency>,
}

/// The counters before and after a load.
struct Counters {
    at: Instant,
    /// The CPU time of the contender.
    cpu: Duration,
    redis_cpu: Option<Duration>,
    /// The busy time of the contender's core, of all processes.
    core: Option<Duration>,
}

impl Counters {
    fn read(machine: &Machine, contender: &Contender) -> Result<Counters> {
        Ok(Counters {
            at: Instant::now(),
            cpu: contender.process.cpu()?,
            redis_cpu: contender.redis.as_ref().map(Process::cpu).transpose()?,
            core: machine.busy()?,
        })
    }
}

pub(crate) fn measure(
    machine: &Machine,
    contender: &Contender,
    protocol: Protocol,
    seconds: u64,
) -> Result<Measure> {
    load(machine, contender, protocol, WARM_UP_SECONDS)?;
    let before = Counters::read(machine, contender)?;
    let answers = load(machine, contender, protocol, seconds)?;
    let after = Counters::read(machine, contender)?;
    let resident_mib = contender.process.resident_kib()? / 1024.0;
    // A load generator tells good from bad, but not one bad answer from another.
    contender.check()?;
    let cpu = micros(before.cpu, after.cpu);
    let time = after.at.duration_since(before.at).as_secs_f64() * 1e6;
    let optional = |before: Option<_>, after| before.zip(after).map(|(before, after)| micros(before, after));
    Ok(Measure {
        name: contender.name,
        protocol,
        requests_per_second: answers.requests_per_second,
        cpu_us_per_request: cpu / answers.requests,
        redis_cpu_us_per_request: optional(before.redis_cpu, after.redis_cpu)
            .map(|cpu| cpu / answers.requests),
        share: cpu / time,
        share_of_others: optional(before.core, after.core).map(|core| (core - cpu).max(0.0) / time),
        latency: answers.latency,
        resident_mib,
    })
}

fn load(machine: &Machine, contender: &Contender, protocol: Protocol, seconds: u64) -> Result<Answers> {
    let answers = match (protocol, contender.http2) {
        (Protocol::Http1, _) if is_there(&WRK) => wrk(machine, contender, seconds),
        (Protocol::Http1, _) => h2load(machine, contender, contender.http1, (CONNECTIONS, 1), seconds),
        (Protocol::Http2, Some(address)) => {
            h2load(machine, contender, address, (CONNECTIONS_HTTP2, STREAMS), seconds)
        }
        (Protocol::Http2, None) => Err("no HTTP/2".into()),
    };
    match answers {
        Ok(answers) => Ok(answers),
        Err(problem) => {
            Err(format!("{}, {protocol}: {problem}\n{}", contender.name, contender.complaints()?).into())
        }
    }
}

fn wrk(machine: &Machine, contender: &Contender, seconds: u64) -> Result<Answers> {
    let load = wrk::Load { threads: 1, connections: CONNECTIONS, seconds };
    let url = format!("http://{}{}", contender.http1, contender.path);
    let answers = wrk::run(machine.command(Side::Surroundings, "wrk"), &load, &url)?;
    let expected = if contender.status < 400 { 0.0 } else { answers.requests };
    if answers.requests < 1.0 || (answers.unsuccessful - expected).abs() > 0.5 {
        let (all, unsuccessful, status) = (answers.requests, answers.unsuccessful, contender.status);
        return Err(
            format!("{unsuccessful} of {all} answers were errors, where each is to be {status}").into()
        );
    }
    Ok(Answers {
        requests: answers.requests,
        requests_per_second: answers.requests_per_second,
        latency: Some(Latency { p50_ms: answers.p50_ms, p99_ms: answers.p99_ms }),
    })
}

/// Loads by HTTP/1.1 where a connection has one stream, else by HTTP/2.
fn h2load(
    machine: &Machine,
    contender: &Contender,
    address: SocketAddr,
    (connections, streams): (usize, usize),
    seconds: u64,
) -> Result<Answers> {
    let output = machine
        .command(Side::Surroundings, "h2load")
        .args((streams == 1).then_some("--h1"))
        .args(["--clients", &connections.to_string()])
        .args(["--max-concurrent-streams", &streams.to_string()])
        .args(["--threads", "1", "--duration", &seconds.to_string()])
        .arg(format!("http://{address}{}", contender.path))
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let before = |words: &str| text.split(words).next()?.split_whitespace().last()?.parse::<f64>().ok();
    let counted = || {
        let failed = before(" errored,")? + before(" timeout")?;
        let good = before(if contender.status < 400 { " 2xx," } else { " 4xx," })?;
        Some((before(" done,")?, good, failed, before(" req/s,")?))
    };
    match counted() {
        Some((requests, good, failed, requests_per_second))
            if output.status.success() && good >= requests && requests >= 1.0 && failed < 1.0 =>
        {
            Ok(Answers { requests, requests_per_second, latency: None })
        }
        _ => Err(format!("not every request was answered as it should:\n{text}").into()),
    }
}

fn micros(before: Duration, after: Duration) -> f64 {
    after.saturating_sub(before).as_secs_f64() * 1e6
}
