//! One multi-threaded runtime, or one current-thread runtime per core with SO_REUSEPORT?
//!
//! `cargo bench --bench runtime` needs `wrk` and Linux. It starts this binary again as an origin and, in turns, as a
//! bare proxy of each kind, lets `wrk` load it, and compares requests per second and the proxy's own CPU time per
//! request, round by round: other work of the machine affects both kinds of a round alike.

#[expect(dead_code, reason = "benches/compare asks for more of what was measured")]
#[path = "../load/mod.rs"]
mod load;
mod proxy;
mod round;

use std::fmt::Write as _;

use load::{Result, median};
use proxy::{Kind, Permits};
use round::{Load, Measure};

/// The number of rounds for each load: the report has the median of the paired ratios.
const ROUNDS: usize = 10;
/// The number of cores that the proxies may use.
const CORES: usize = 2;

/// The loads. Few connections spread unevenly over the listeners of SO_REUSEPORT; many do not. With permits, each
/// request asks one task of the process before it continues, as with weir's limiters.
const LOADS: [Load; 4] = [
    Load { connections: 4, permits: Permits::None },
    Load { connections: 4, permits: Permits::OneTask },
    Load { connections: 64, permits: Permits::None },
    Load { connections: 64, permits: Permits::OneTask },
];

#[expect(clippy::print_stdout, reason = "the report")]
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["origin", listen] => proxy::origin(listen.parse()?),
        ["proxy", kind, permits, listen, origin] => {
            proxy::run(Kind::parse(kind)?, Permits::parse(permits)?, listen.parse()?, origin.parse()?)
        }
        // Cargo passes the flag to benches; without it this is a test run, with nothing to measure.
        ["--bench", ..] => {
            println!("{}", compare()?);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn compare() -> Result<String> {
    let origin = round::Origin::start()?;
    let mut report = String::from(
        "| connections | permits | multi-threaded, req/s | per core, req/s | ratio | multi-threaded, us CPU/req \
         | per core, us CPU/req | ratio |\n|---|---|---|---|---|---|---|---|\n",
    );
    for load in LOADS {
        let mut pairs = Vec::with_capacity(ROUNDS);
        for round in 0..ROUNDS {
            // The order of the kinds alternates, too.
            let order = if round % 2 == 0 { Kind::BOTH } else { [Kind::PerCore, Kind::MultiThreaded] };
            let first = origin.measure(order[0], load)?;
            let second = origin.measure(order[1], load)?;
            pairs.push(if round % 2 == 0 { (first, second) } else { (second, first) });
        }
        report += &row(load, &pairs)?;
    }
    Ok(report)
}

fn row(load: Load, pairs: &[(Measure, Measure)]) -> Result<String> {
    let of = |value: fn(&(Measure, Measure)) -> f64| median(pairs.iter().map(value).collect());
    let mut row = String::new();
    writeln!(
        row,
        "| {} | {} | {:.0} | {:.0} | {:.2} | {:.1} | {:.1} | {:.2} |",
        load.connections,
        load.permits.name(),
        of(|(multi, _)| multi.requests_per_second),
        of(|(_, per_core)| per_core.requests_per_second),
        of(|(multi, per_core)| per_core.requests_per_second / multi.requests_per_second),
        of(|(multi, _)| multi.cpu_us_per_request),
        of(|(_, per_core)| per_core.cpu_us_per_request),
        of(|(multi, per_core)| per_core.cpu_us_per_request / multi.cpu_us_per_request),
    )?;
    Ok(row)
}
