//! The measures as Markdown.

use std::fmt::Write as _;

use crate::Measures;
use crate::callers::{Callers, LONG, Load, Throughput};
use crate::latency::{Latency, Percentiles, WINDOWS};
use crate::load::{self, Result};

/// The targets of the limiter.
const LATENCY_RATIO_MAX: f64 = 2.0;
const PER_REDIS_CORE_MIN: f64 = 1e6;
const CALLS_PER_PERMIT_MAX: f64 = 0.1;
/// The ratio of the highest percent of bare round trips to their median beyond which the scheduler is measured.
const DISTURBED: f64 = 5.0;
/// The callers of the target for a full Redis core.
const MANY: Callers = Callers::Loop(1000);

pub(crate) fn tables(measures: &Measures) -> Result<String> {
    let mut text = String::new();
    throughput(&mut text, measures)?;
    latency(&mut text, &measures.latencies)?;
    targets(&mut text, measures)?;
    Ok(text)
}

fn throughput(text: &mut String, measures: &Measures) -> Result<()> {
    writeln!(
        text,
        "| limit | replicas | callers | permits/s measured | script calls a permit | us of Redis's CPU a permit | of them in \
         the script | Redis's core used | us of own CPU a permit | permits/s that a full Redis core would carry |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    )?;
    for (load, rounds) in &measures.throughputs {
        let of = |value: fn(&Throughput) -> f64| median(rounds.iter().map(value));
        writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.4} | {:.2} | {:.2} | {:.0} % | {:.2} | {:.0} |",
            load.window,
            load.replicas,
            load.callers,
            of(|round| round.permits_per_second),
            of(|round| round.calls_per_permit),
            of(|round| round.redis_us_per_permit),
            of(|round| round.script_us_per_permit),
            of(|round| round.redis_cores) * 100.0,
            of(|round| round.own_us_per_permit),
            of(Throughput::per_redis_core),
        )?;
    }
    writeln!(
        text,
        "\nOwn CPU is that of all replicas and callers together. Where callers come one by one it says nothing: what lets \
         them come takes all that is left of the core. The last column is no measured rate: it is 1 / (Redis's CPU a \
         permit). Under a pace permits come from a stock that is booked in advance.\n"
    )?;
    Ok(())
}

fn latency(text: &mut String, latencies: &[Vec<Latency>]) -> Result<()> {
    writeln!(
        text,
        "| us, one at a time | window | p50 | p90 | p99 | p50 / bare p50 | p90 / bare p90 | p99 / bare p99 |\n\
         |---|---|---|---|---|---|---|---|"
    )?;
    let rows: [(&str, Of); 3] = [
        ("bare round trip (PING)", |part| &part.bare),
        ("the store's call, without a worker", |part| &part.call),
        ("a permit: enter, confirm, commit", |part| &part.permit),
    ];
    for ((window, _), parts) in WINDOWS.iter().zip(latencies) {
        let parts = quiet(parts);
        for (name, of) in rows {
            let median_of = |value: &dyn Fn(&Latency) -> f64| median(parts.iter().copied().map(value));
            writeln!(
                text,
                "| {name} | {window} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} |",
                median_of(&|part| of(part).p50),
                median_of(&|part| of(part).p90),
                median_of(&|part| of(part).p99),
                median_of(&|part| of(part).p50 / part.bare.p50),
                median_of(&|part| of(part).p90 / part.bare.p90),
                median_of(&|part| of(part).p99 / part.bare.p99),
            )?;
        }
    }
    writeln!(
        text,
        "\nAll permits are granted at once, and none comes from a stock. The state of a window of a second that is in use is \
         full, that of a millisecond next to empty: between the two lies what the state costs the script.\n"
    )?;
    Ok(())
}

/// Returns the half of the parts in which the bare round trips were least disturbed: where another process takes the
/// core now and then, it causes the highest percent of everything.
fn quiet(parts: &[Latency]) -> Vec<&Latency> {
    let mut parts: Vec<&Latency> = parts.iter().collect();
    parts.sort_by(|one, other| one.bare.p99.total_cmp(&other.bare.p99));
    parts.truncate(parts.len().div_ceil(2));
    parts
}

type Of = fn(&Latency) -> &Percentiles;

/// Writes the targets; each figure is a quotient of two figures of the same round.
fn targets(text: &mut String, measures: &Measures) -> Result<()> {
    writeln!(text, "| target | wanted | median | reached |\n|---|---|---|---|")?;
    for ((window, _), parts) in WINDOWS.iter().zip(&measures.latencies) {
        let parts = quiet(parts);
        let ratio = median(parts.iter().map(|part| part.permit.p99 / part.bare.p99));
        let is_disturbed = median(parts.iter().map(|part| part.bare.p99 / part.bare.p50)) > DISTURBED;
        let reached = if is_disturbed {
            "cannot be told: neighbours had the cores"
        } else {
            yes(ratio <= LATENCY_RATIO_MAX)
        };
        writeln!(
            text,
            "| p99 of an uncontended permit / of a bare round trip, window of {window} | <= {LATENCY_RATIO_MAX} \
             | {ratio:.2} | {reached} |"
        )?;
    }
    let long = measures.throughputs.iter().filter(|(load, _)| load.window == LONG);
    for (Load { replicas, callers, .. }, rounds) in long {
        if *callers == MANY {
            let permits = median(rounds.iter().map(Throughput::per_redis_core));
            writeln!(
                text,
                "| permits/s of a full Redis core, {callers} callers, replicas: {replicas} | >= {PER_REDIS_CORE_MIN:.0} \
                 | {permits:.0} | {} |",
                yes(permits >= PER_REDIS_CORE_MIN)
            )?;
        } else if matches!(callers, Callers::Spread | Callers::EachMillisecond) {
            let calls = median(rounds.iter().map(|round| round.calls_per_permit));
            writeln!(
                text,
                "| script calls a permit, {callers}, replicas: {replicas} | <= {CALLS_PER_PERMIT_MAX} | {calls:.3} | {} |",
                yes(calls <= CALLS_PER_PERMIT_MAX)
            )?;
        }
    }
    Ok(())
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    load::median(values.collect())
}
