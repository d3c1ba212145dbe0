//! The cost of a request in weir, in plain proxies, and in common setups of nginx and Lua.
//!
//! `cargo bench --bench compare`, or `cargo bench --bench compare -- --short` for weir, nginx and a bare proxy of hyper
//! alone, in a minute or two. The first rows are weir and nginx as they are shipped, with their logs to a file. Needs
//! Linux and Debian's packages, which are installed with apt-get where they are missing (root or sudo): nginx, wrk
//! (without it h2load loads by HTTP/1.1, too, and there are no latencies); and for a part of it haproxy, redis-server,
//! nghttp2-client, libnginx-mod-http-lua, lua-nginx-redis. The bench prints
//! which contenders it leaves out for want of a package. Ports are free ones of loopback, configurations lie in a
//! temporary directory, and every process ends with the bench. The targets are reported, not asserted: the exit code is
//! 0 whether they are reached or not, and an error only if a contender did not answer as it should.
//!
//! Each contender is one process on the first core, alone while it is loaded; origin, Redis and load generator are on
//! the second core. CPU is the contender's own, user and system; the kernel's work for packets on loopback counts for
//! the sender. A round loads each contender once, scenario by scenario, and the order within a scenario rotates from
//! round to round. Ratios are taken within a round: other work of the machine affects neighbouring measures alike. The
//! report shows how much of the core other processes took; beyond a few percent the figures are rough. A contender that
//! left its core idle waited for the second core: then the ratio of the CPU is more meaningful than that of the
//! throughput.

#[path = "../bare/mod.rs"]
mod bare;
#[path = "../load/mod.rs"]
mod load;

mod contender;
mod machine;
mod packages;
mod report;
mod round;
mod start;

use std::fmt::Write as _;
use std::process::ExitCode;

use contender::Contender;
use load::Result;
use machine::Machine;
use packages::{H2LOAD, NGINX, WRK, obtain};
use report::Rounds;
use round::{Protocol, measure};

/// The options of the command line.
#[derive(Clone, Copy)]
struct Options {
    rounds: usize,
    /// The length of each load, after its warm-up.
    seconds: u64,
    /// True if only weir, nginx and the bare proxy are measured.
    is_short: bool,
}

const DEFAULTS: Options = Options { rounds: 7, seconds: 3, is_short: false };
const SHORT: Options = Options { rounds: 5, seconds: 1, is_short: true };

/// The first argument that makes this program the bare proxy; its address and the origin's follow.
const BARE: &str = "bare-proxy";

#[expect(clippy::print_stdout, reason = "the report")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [BARE, address, origin] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return proxy(address, origin).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    // Cargo passes the flag to benches; without it this is a test run, with nothing to measure.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    match options(&arguments).and_then(compare) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tell(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn proxy(address: &str, origin: &str) -> Result<()> {
    bare::run(address.parse()?, origin.parse()?).inspect_err(|error| tell(&error.to_string()))
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = DEFAULTS;
    let mut left = arguments.iter().filter(|argument| *argument != "--bench");
    while let Some(argument) = left.next() {
        let mut number = || {
            let number = left.next().and_then(|text| text.parse::<u64>().ok()).filter(|number| *number > 0);
            number.ok_or_else(|| format!("{argument}: a number from 1 on is missing"))
        };
        match argument.as_str() {
            "--rounds" => options.rounds = usize::try_from(number()?)?,
            "--seconds" => options.seconds = number()?,
            "--short" => options = SHORT,
            _ => {
                let known = "--short, --rounds N and --seconds N";
                return Err(format!("{argument}: unknown; there are {known}").into());
            }
        }
    }
    Ok(options)
}

fn compare(options: Options) -> Result<String> {
    let machine = Machine::new()?;
    tell(&machine.to_string());
    let (has_wrk, has_h2load) = (obtain(&WRK), obtain(&H2LOAD));
    if !obtain(&NGINX) || !(has_wrk || has_h2load) {
        return Err("nothing can be measured without nginx, and wrk or h2load".into());
    }
    if !has_h2load {
        tell("HTTP/2: left out");
    }
    let started = start::start(&machine, options.is_short)?;
    let with = |protocol| started.contenders.iter().map(move |contender| (contender, protocol));
    let mut loads: Vec<_> = with(Protocol::Http1).collect();
    loads.extend(with(Protocol::Http2).filter(|(contender, _)| has_h2load && contender.http2.is_some()));
    let of = |(contender, protocol): &(&Contender, Protocol)| (contender.name.scenario(), *protocol);
    let mut scenarios: Vec<_> = loads.chunk_by(|one, next| of(one) == of(next)).map(<[_]>::to_vec).collect();

    let mut rounds = Rounds(Vec::with_capacity(options.rounds));
    for round in 1..=options.rounds {
        let mut measures = Vec::with_capacity(loads.len());
        for scenario in &mut scenarios {
            for (contender, protocol) in &*scenario {
                let measure = measure(&machine, contender, *protocol, options.seconds)?;
                tell(&format!("round {round} of {}: {measure}", options.rounds));
                measures.push(measure);
            }
            scenario.rotate_left(1);
        }
        rounds.0.push(measures);
    }
    let mut report = format!("{machine}\n\n{}", rounds.report()?);
    for contender in &started.contenders {
        let complaints = contender.complaints()?;
        if !complaints.is_empty() {
            writeln!(report, "\n{} answered all that, but said:\n\n{complaints}", contender.name)?;
        }
    }
    Ok(report)
}

/// Prints progress, and anything out of the ordinary.
#[expect(clippy::print_stderr, reason = "the report alone goes to the standard output")]
fn tell(message: &str) {
    eprintln!("{message}");
}
