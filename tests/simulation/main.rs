//! A whole fleet in deterministic simulation: today's real limiters over the real Redis store and the real scripts, on a
//! simulated network, with clocks, faults and clients drawn from a seed, and an oracle that judges each request that is sent.
//!
//! docs/simulation.md says what is real, how to repeat a seed and how to add a fault. Without arguments, as `cargo test` runs it,
//! this is the short form that CI makes; `scripts/simulate` runs as long as one likes.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people, and for scripts")]
#![allow(unreachable_pub, reason = "a program has no public interface")]

mod client;
mod crowd;
mod fault;
mod history;
mod host;
mod judge;
mod known;
mod mutation;
mod network;
#[allow(dead_code, reason = "tests/oracle.rs uses the rest")]
mod oracle;
mod plan;
mod redis;
mod replica;
mod run;
mod shrink;
mod stall;
mod watchdog;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::json;

use crate::crowd::{AlgorithmName, Change, Crowd};
use crate::oracle::Finding;
use crate::plan::{Mix, Plan};
use crate::run::{Wanted, json_of, kind_of};
use crate::stall::Stall;
use crate::world::World;

/// Runs a simulated fleet.
#[derive(Parser)]
struct Arguments {
    /// How long to run, in minutes.
    #[arg(long)]
    minutes: Option<f64>,
    /// On how many cores; all by default.
    #[arg(long)]
    cores: Option<usize>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// The most runs.
    #[arg(long, default_value_t = u64::MAX / 4)]
    runs: u64,
    /// Repeats one seed, and prints its shortened history.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints the whole history of the seed, not the shortened one.
    #[arg(long)]
    whole: bool,
    /// Puts a mistake into the scripts, which must be found.
    #[arg(long)]
    mutate: Option<String>,
    /// Stops at the first finding.
    #[arg(long)]
    stop_at_first: bool,
    /// How runs are drawn: at random, or calm where a mistake is to be found.
    #[arg(long, value_enum)]
    mix: Option<Mix>,
    /// Shortens each finding, and lists them as known_seeds.txt does.
    #[arg(long)]
    shorten: bool,
    /// Looks at findings of one kind only, for instance Over.
    #[arg(long, value_name = "KIND")]
    what: Option<String>,
    /// Prints the hashes of as many runs, for a comparison with another process.
    #[arg(long)]
    hashes: Option<u64>,
    /// Compares the simulated Redis with a real one, by random sequences of calls.
    #[arg(long, value_name = "SEQUENCES", num_args = 0..=1, default_missing_value = "2000")]
    parity: Option<u64>,
    /// Moves the bookings of a crowd, and prints what that costs, and the order in which the crowd is sent.
    #[arg(long = "move", value_enum, value_name = "CHANGE")]
    change: Option<Change>,
    /// On how many limiters at once the crowd waits, of which algorithm, and how many of it at each of three replicas.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    limiters: u8,
    #[arg(long, value_enum, default_value_t = AlgorithmName::Sliding)]
    algorithm: AlgorithmName,
    #[arg(long, default_value_t = 3000)]
    waiting: u64,
    /// How many different costs the requests of the crowd have.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    costs: u64,
    /// How many callers share the quota of the crowd's first limiter, if any do.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    callers: Option<u64>,
    /// Lets the store stand still for a second while requests of so many partitions wait, and prints how much is used when it is back.
    #[arg(long, value_name = "PARTITIONS")]
    stall: Option<u64>,
}

fn main() -> ExitCode {
    let is_simulate = std::env::args().nth(1).is_some_and(|first| first == "simulate");
    let result = if is_simulate {
        simulate(&Arguments::parse_from(std::env::args().skip(1)))
    } else if is_asked_for() {
        known::short_form()
    } else {
        Ok(true)
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether the arguments of `cargo test` ask for this test: they name it, or none. Those of other harnesses pass.
fn is_asked_for() -> bool {
    let mut arguments = std::env::args().skip(1);
    let mut names = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" | "--ignored" => return false,
            "--test-threads" | "--skip" => drop(arguments.next()),
            flag if flag.starts_with('-') => {}
            _ => names.push(argument),
        }
    }
    names.is_empty() || names.iter().any(|name| "simulation".contains(name.as_str()))
}

/// Returns whether nothing was found.
fn simulate(arguments: &Arguments) -> Result<bool, String> {
    if let Some(name) = &arguments.mutate {
        mutation::choose(name)?;
    }
    if let Some(sequences) = arguments.parity {
        return redis::parity::compare(sequences);
    }
    if let Some(change) = arguments.change {
        let (limiters, algorithm) = (usize::from(arguments.limiters), arguments.algorithm);
        let Arguments { waiting, costs, callers, .. } = *arguments;
        let crowd = Crowd { change, limiters, algorithm, waiting, costs, callers };
        println!("{}", crowd.run(arguments.seed.unwrap_or(1))?);
        return Ok(true);
    }
    if let Some(partitions) = arguments.stall {
        let (shown, is_good) = Stall { partitions }.run(arguments.seed.unwrap_or(1))?;
        println!("{shown}");
        return Ok(is_good);
    }
    let usual = if arguments.mutate.is_some() { Mix::Calm } else { Mix::Random };
    let mix = arguments.mix.unwrap_or(usual);
    if let Some(runs) = arguments.hashes {
        for seed in arguments.from..arguments.from + runs {
            println!("{seed} {:016x}", World::run(&Plan::draw(seed, mix), false)?.hash);
        }
        return Ok(true);
    }
    match arguments.seed {
        Some(seed) => repeat(seed, mix, arguments),
        None => many(arguments, mix),
    }
}

/// Repeats one seed. Returns whether it finds nothing.
fn repeat(seed: u64, mix: Mix, arguments: &Arguments) -> Result<bool, String> {
    let (plan, is_whole) = (Plan::draw(seed, mix), arguments.whole);
    let outcome = World::run(&plan, is_whole)?;
    let is_meant = |finding: &&Finding| run::is_meant(finding, arguments.what.as_deref());
    let Some(finding) = outcome.findings.iter().find(is_meant) else {
        outcome.history.iter().for_each(|line| println!("{line}"));
        println!("{}", json!({ "seed": seed, "hash": format!("{:016x}", outcome.hash), "what": null }));
        return Ok(true);
    };
    if is_whole {
        println!("{plan:#?}");
        outcome.history.iter().for_each(|line| println!("{line}"));
    } else {
        let shortened = shrink::shorten(&plan, finding);
        let history = World::run(&shortened.plan, true)?.history;
        println!("{:#?}", shortened.plan);
        history.iter().for_each(|line| println!("{line}"));
        println!("{}", kind_of(&shortened));
    }
    for finding in &outcome.findings {
        println!("{finding:?}");
    }
    let what = json_of(seed, finding);
    println!("{}", json!({ "seed": seed, "hash": format!("{:016x}", outcome.hash), "what": what }));
    Ok(false)
}

/// Makes many runs. Returns whether they find nothing.
fn many(arguments: &Arguments, mix: Mix) -> Result<bool, String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let wanted = Wanted {
        mix,
        from: arguments.from,
        time: Duration::from_secs_f64(arguments.minutes.unwrap_or(1.0) * 60.0),
        runs: arguments.runs,
        cores: arguments.cores.unwrap_or(cores),
        shortens: arguments.shorten,
        what: arguments.what.clone(),
        stops_at_first: arguments.stop_at_first || arguments.mutate.is_some(),
    };
    let totals = run::run(&wanted);
    let mut shortened = totals.shortened.clone();
    shortened.sort();
    shortened.iter().for_each(|(seed, kind)| println!("{seed} {kind}"));
    println!("{}", totals.json());
    match totals.errors.first() {
        Some(error) => Err(error.clone()),
        None => Ok(totals.findings.is_empty()),
    }
}
