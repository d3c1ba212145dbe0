//! The tables: the measures, and the ratios of contenders within a round.

use std::fmt::{self, Write as _};

use crate::contender::Name;
use crate::load::{Result, median};
use crate::round::{Measure, Protocol};

/// All measures, round by round.
pub(crate) struct Rounds(pub(crate) Vec<Vec<Measure>>);

/// A target for the ratio of two contenders.
struct Target {
    what: &'static str,
    of: Name,
    against: Name,
    value: Value,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Value {
    Cpu,
    Throughput,
    /// The throughput of a core that is busy all the time.
    Capacity,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    /// At most the first by HTTP/1.1, the second by HTTP/2.
    ByProtocol(f64, f64),
    AtLeast(f64),
}

/// The targets. A throughput has two: the measured one, and the one that follows from the CPU, since origin, Redis and
/// load generator share a core that may be full before the contender's is.
const TARGETS: [Target; 10] = [
    Target {
        what: "CPU per request as shipped, weir with a limiter in Redis against nginx with its access log",
        of: Name::WeirShipped,
        against: Name::NginxShipped,
        value: Value::Cpu,
        bound: Bound::ByProtocol(1.2, 1.15),
    },
    Target {
        what: "CPU per request, weir with a limiter in Redis against nginx, both without logs",
        of: Name::WeirRedis,
        against: Name::Nginx,
        value: Value::Cpu,
        bound: Bound::ByProtocol(1.15, 1.1),
    },
    Target {
        what: "CPU per request, weir with a limiter in Redis against a bare proxy of hyper",
        of: Name::WeirRedis,
        against: Name::Bare,
        value: Value::Cpu,
        bound: Bound::AtMost(1.1),
    },
    Target {
        what: "CPU per request, a bare proxy of hyper against nginx with its access log",
        of: Name::Bare,
        against: Name::NginxShipped,
        value: Value::Cpu,
        bound: Bound::AtMost(1.15),
    },
    Target {
        what: "CPU per request, weir with a limiter in Redis against plain HAProxy",
        of: Name::WeirRedis,
        against: Name::Haproxy,
        value: Value::Cpu,
        bound: Bound::AtMost(1.1),
    },
    Target {
        what: "throughput on one core, weir with a limiter in Redis against nginx + Lua + Redis",
        of: Name::WeirRedis,
        against: Name::NginxLua,
        value: Value::Throughput,
        bound: Bound::AtLeast(3.0),
    },
    Target {
        what: "throughput of a busy core, by CPU per request, weir with a limiter in Redis against nginx + Lua + Redis",
        of: Name::WeirRedis,
        against: Name::NginxLua,
        value: Value::Capacity,
        bound: Bound::AtLeast(3.0),
    },
    Target {
        what: "throughput on one core, refusals of weir against a static 200 of nginx",
        of: Name::WeirRefusing,
        against: Name::NginxStatic,
        value: Value::Throughput,
        bound: Bound::AtLeast(0.8),
    },
    Target {
        what: "throughput of a busy core, by CPU per request, refusals of weir against a static 200 of nginx",
        of: Name::WeirRefusing,
        against: Name::NginxStatic,
        value: Value::Capacity,
        bound: Bound::AtLeast(0.8),
    },
    Target {
        what: "CPU per request, weir with 10 000 routes against 10",
        of: Name::WeirManyRoutes,
        against: Name::WeirFewRoutes,
        value: Value::Cpu,
        bound: Bound::AtMost(1.1),
    },
];

impl Value {
    fn of(self, measure: &Measure) -> f64 {
        match self {
            Value::Cpu => measure.cpu_us_per_request,
            Value::Throughput => measure.requests_per_second,
            Value::Capacity => 1e6 / measure.cpu_us_per_request,
        }
    }
}

impl Bound {
    /// Returns the bound of one protocol.
    fn by(self, protocol: Protocol) -> Bound {
        match (self, protocol) {
            (Bound::ByProtocol(bound, _), Protocol::Http1)
            | (Bound::ByProtocol(_, bound), Protocol::Http2) => Bound::AtMost(bound),
            _ => self,
        }
    }

    fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtMost(bound) => ratio <= bound,
            Bound::ByProtocol(http1, http2) => ratio <= http1 && ratio <= http2,
            Bound::AtLeast(bound) => ratio >= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtMost(bound) => write!(formatter, "<= {bound:.2}"),
            Bound::ByProtocol(http1, http2) => write!(formatter, "<= {http1:.2} and {http2:.2}"),
            Bound::AtLeast(bound) => write!(formatter, ">= {bound:.2}"),
        }
    }
}

impl Rounds {
    /// Returns the report, in Markdown.
    pub(crate) fn report(&self) -> Result<String> {
        let mut report = String::new();
        for protocol in [Protocol::Http1, Protocol::Http2] {
            if !self.names(protocol).is_empty() {
                writeln!(report, "{}; the medians, rounds: {}\n", protocol.load(), self.0.len())?;
                writeln!(report, "{}", self.medians(protocol)?)?;
            }
        }
        report += "Ratios within a round:\n\n";
        report += &self.ratios()?;
        Ok(report)
    }

    fn medians(&self, protocol: Protocol) -> Result<String> {
        let mut table = String::from(
            "| contender | requests/s | CPU us/request | its % of the core | others, % | Redis CPU us/request \
             | p50 ms | p99 ms | MiB |\n\
             |---|---|---|---|---|---|---|---|---|\n",
        );
        for name in self.names(protocol) {
            let rounds: Vec<&Measure> =
                self.0.iter().filter_map(|round| find(round, name, protocol)).collect();
            let told = |digits: usize, value: &dyn Fn(&Measure) -> Option<f64>| {
                let values: Vec<f64> = rounds.iter().filter_map(|measure| value(measure)).collect();
                if values.is_empty() { "-".to_owned() } else { format!("{:.digits$}", median(values)) }
            };
            writeln!(
                table,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
                told(0, &|measure| Some(measure.requests_per_second)),
                told(1, &|measure| Some(measure.cpu_us_per_request)),
                told(0, &|measure| Some(measure.share * 100.0)),
                told(0, &|measure| Some(measure.share_of_others? * 100.0)),
                told(1, &|measure| measure.redis_cpu_us_per_request),
                told(2, &|measure| Some(measure.latency?.p50_ms)),
                told(2, &|measure| Some(measure.latency?.p99_ms)),
                told(0, &|measure| Some(measure.resident_mib)),
            )?;
        }
        Ok(table)
    }

    fn ratios(&self) -> Result<String> {
        let mut table =
            String::from("| | load | target | median | min to max | reached |\n|---|---|---|---|---|---|\n");
        for target in &TARGETS {
            for protocol in [Protocol::Http1, Protocol::Http2] {
                let ratios = self.paired(target, protocol);
                let bound = target.bound.by(protocol);
                if ratios.is_empty() {
                    // A target over HTTP/2 is an addition to the same over HTTP/1.1.
                    if protocol == Protocol::Http1 {
                        writeln!(table, "| {} | {protocol} | {bound} | not measured | | |", target.what)?;
                    }
                    continue;
                }
                let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
                let most = ratios.iter().copied().fold(0.0, f64::max);
                let middle = median(ratios);
                let reached = if bound.holds(middle) { "yes" } else { "no" };
                writeln!(
                    table,
                    "| {} | {protocol} | {bound} | {middle:.2} | {least:.2} to {most:.2} | {reached} |",
                    target.what
                )?;
            }
        }
        Ok(table)
    }

    /// Returns the ratios, both parts of each from the same round, since other work of the machine affects both alike.
    fn paired(&self, target: &Target, protocol: Protocol) -> Vec<f64> {
        let ratio = |round: &Vec<Measure>| {
            let value = |name| Some(target.value.of(find(round, name, protocol)?));
            Some(value(target.of)? / value(target.against)?)
        };
        self.0.iter().filter_map(ratio).collect()
    }

    /// Returns the contenders with this protocol, in the order of the first round.
    fn names(&self, protocol: Protocol) -> Vec<Name> {
        let first = self.0.iter().take(1).flatten();
        first.filter(|measure| measure.protocol == protocol).map(|measure| measure.name).collect()
    }
}

fn find(round: &[Measure], name: Name, protocol: Protocol) -> Option<&Measure> {
    round.iter().find(|measure| measure.name == name && measure.protocol == protocol)
}
