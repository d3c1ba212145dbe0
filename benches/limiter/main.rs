//! The cost of a permit from Redis: permits per second, script calls, Redis's own CPU, latency.
//!
//! `cargo bench --bench limiter` needs `redis-server` and Linux; `-- --rounds 3 --seconds 2` sets its length. It takes
//! permits as the proxy does (enter, turn, confirm, commit) from the real workers over the real store, without HTTP.
//! All replicas live in this process, each with its own connections. Where there are two cores and `taskset`, one is
//! Redis's and the other one everything else's, so replicas and callers always have one core.
//!
//! Every round takes each measure once, so that other work of the machine affects all alike; the report has medians
//! over the rounds. Latency is measured in short parts, of which the half with the quickest bare round trips counts.
//! Nothing is asserted: the last table shows which targets were reached. `lua.rs` measures the script by algorithm and
//! batch.

mod callers;
mod cores;
mod fleet;
mod latency;
#[expect(dead_code, reason = "other benches ask for more of a process")]
#[path = "../load/mod.rs"]
mod load;
mod report;
mod sample;
#[path = "../server/mod.rs"]
mod server;

use std::time::Duration;

use callers::{Load, Throughput};
use clap::Parser;
use cores::Cores;
use latency::Latency;
use load::Result;
use server::Server;

/// The number of parts in which a round's latency is measured; the quieter half counts.
const LATENCY_PARTS: u32 = 10;

/// The allocator of weir itself.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
struct Arguments {
    /// The flag that Cargo passes to benches.
    #[arg(long, hide = true)]
    bench: bool,
    /// The number of rounds: the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The length of each measure of a round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

#[expect(clippy::print_stdout, reason = "the report")]
fn main() -> Result<()> {
    // Cargo passes the flag to benches; without it this is a test run, with nothing to measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let arguments = Arguments::parse();
    let cores = Cores::choose();
    // As in weir itself: a thread for each core that the process may use.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measures = runtime.block_on(async move {
        // Off the main thread, which is not one of the runtime's: each wake-up would cross threads.
        tokio::spawn(async move { measure(&arguments, cores).await }).await?
    })?;
    println!("{}\n\n{}", cores.told(), report::tables(&measures)?);
    Ok(())
}

/// All rounds of all measures.
struct Measures {
    /// Each load, with a value for each round.
    throughputs: Vec<(Load, Vec<Throughput>)>,
    /// The latencies of each of [`latency::WINDOWS`].
    latencies: [Vec<Latency>; 2],
}

async fn measure(arguments: &Arguments, cores: Cores) -> Result<Measures> {
    let time = Duration::from_secs(arguments.seconds);
    let mut server = Server::start(cores.launcher(), &[]).await?;
    let throughputs = callers::all().into_iter().map(|load| (load, Vec::new())).collect();
    let mut measures = Measures { throughputs, latencies: Default::default() };
    for round in 1..=arguments.rounds {
        for (load, throughputs) in &mut measures.throughputs {
            progress(&format!("round {round} of {}: {load}", arguments.rounds));
            throughputs.push(load.measure(&mut server, time).await?);
        }
        progress(&format!("round {round} of {}: latency", arguments.rounds));
        for _ in 0..LATENCY_PARTS {
            for ((_, window), latencies) in latency::WINDOWS.iter().zip(&mut measures.latencies) {
                latencies.push(latency::measure(&mut server, *window, time * 2 / LATENCY_PARTS).await?);
            }
        }
    }
    Ok(measures)
}

#[expect(clippy::print_stderr, reason = "progress on the terminal; the report goes to standard output")]
fn progress(line: &str) {
    eprintln!("{line}");
}
