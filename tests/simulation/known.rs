//! The short form for CI: runs are the same in another process, nothing is found that is not known, and what is known to fail
//! still does.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use crate::crowd;
use crate::mutation;
use crate::plan::{Mix, Plan};
use crate::redis::{parity, scripts};
use crate::run::{Wanted, run};
use crate::stall::Stall;
use crate::world::World;

/// Each line is a seed of the random mix that fails, and what fails: who mends it takes it out. Made by
/// `scripts/simulate --runs 200 --shorten`.
const KNOWN: &str = include_str!("known_seeds.txt");

/// How many seeds are compared between two processes.
const COMPARED: u64 = 10;

/// How many seeds of the random mix are run, from 1 on: all that fail are in the list. Two cores take a minute and a half for them.
const SEEDS: u64 = 100;

/// Runs in which nothing is found: without faults, with all of them, of queues whose slots are dealt, and of what recovery is for.
const CLEAN: [(Mix, u64); 6] = [
    (Mix::Calm, 12),
    (Mix::Share, 12),
    (Mix::Tokens, 10),
    (Mix::Losses, 10),
    (Mix::Away, 6),
    (Mix::Cells, 8),
];

/// Seeds that found something once, each for a cause that no small test shows whole: answers that are lost on one connection, a probe over a
/// dead one, limits that change in an outage, slots that are lost behind a wait, a pause that meets a burst, a resume in an outage, a lost
/// answer at the end of a wait, a clock that is stepped by more than a window while replicas stall, and (of the simulation itself) a frozen
/// server that was restarted and went on standing still.
const MENDED: [(Mix, u64); 11] = [
    (Mix::Random, 800_012),
    (Mix::Random, 800_102),
    (Mix::Random, 1_000_720),
    (Mix::Random, 1_002_556),
    (Mix::Share, 41_332),
    (Mix::Share, 30_011),
    (Mix::Share, 810_100),
    (Mix::Share, 840_081),
    (Mix::Random, 9_001_404),
    (Mix::Dense, 9_710_838),
    (Mix::Dense, 9_712_110),
];

/// The first runs of a mix.
const WANTED: Wanted = Wanted {
    mix: Mix::Calm,
    from: 1,
    time: Duration::from_secs(1200),
    runs: 0,
    cores: 2,
    shortens: false,
    what: None,
    stops_at_first: false,
};

/// How many partitions wait while the store stands still.
const STALLED: u64 = 4000;

/// How many random sequences of calls are compared with a real Redis.
const PARITY: u64 = 200;

/// Makes the short form. Returns whether all is as it should be.
pub fn short_form() -> Result<bool, String> {
    mutation::all_apply(&scripts::all())?;
    let mut is_good = parity::compare(PARITY)?;
    is_good &= repeats()?;
    for (mix, runs) in CLEAN {
        is_good &= clean(&Wanted { mix, runs, ..WANTED });
    }
    for (mix, from) in MENDED {
        is_good &= clean(&Wanted { mix, from, runs: 1, ..WANTED });
    }
    is_good &= stalled()?;
    is_good &= crowd::short_form()?;
    is_good &= known()?;
    Ok(is_good)
}

/// Compares the hashes of runs with those of another process.
fn repeats() -> Result<bool, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["simulate", "--from", "1", "--hashes", &COMPARED.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    let others = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut own = String::new();
    for seed in 1..=COMPARED {
        own += &format!("{seed} {:016x}\n", World::run(&Plan::draw(seed, Mix::Random), false)?.hash);
    }
    if own != others {
        println!("runs differ between two processes:\n{own}---\n{others}");
    }
    println!("{COMPARED} runs are the same in two processes");
    Ok(own == others)
}

/// Makes runs in which nothing may be found: nothing is over, nobody waits too long, and the quota is used.
fn clean(wanted: &Wanted) -> bool {
    let (totals, mix) = (run(wanted), wanted.mix);
    for (seed, finding) in &totals.findings {
        println!("seed {seed} of the mix {mix:?}: {finding:?}");
    }
    totals.errors.iter().for_each(|error| println!("{error}"));
    let used = totals.used().map(|used| format!(", {used:.4} used")).unwrap_or_default();
    println!("{} runs of the mix {mix:?}{used}", totals.runs);
    totals.findings.is_empty() && totals.errors.is_empty()
}

/// Lets the store stand still while thousands of partitions wait for one limiter: no herd comes after it.
fn stalled() -> Result<bool, String> {
    let (shown, is_good) = Stall { partitions: STALLED }.run(1)?;
    println!("{shown}");
    Ok(is_good)
}

/// Makes the runs of the first seeds: those that are known to fail do, and no others.
fn known() -> Result<bool, String> {
    let mut known = BTreeMap::new();
    for line in KNOWN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (seed, what) = line.split_once(' ').unwrap_or((line, ""));
        let seed: u64 = seed.parse().map_err(|_| format!("known_seeds.txt: not a seed: {line}"))?;
        known.entry(seed).or_insert_with(Vec::new).push(what);
    }
    let totals = run(&Wanted { mix: Mix::Random, runs: SEEDS, ..WANTED });
    let mut is_good = totals.errors.is_empty();
    totals.errors.iter().for_each(|error| println!("{error}"));
    let found: BTreeSet<u64> = totals.findings.iter().map(|(seed, _)| *seed).collect();
    for (seed, finding) in totals.findings.iter().filter(|(seed, _)| !known.contains_key(seed)) {
        println!("seed {seed} was not known to fail: {finding:?}");
        is_good = false;
    }
    for (seed, what) in known.iter().filter(|(seed, _)| !found.contains(seed)) {
        println!("seed {seed} fails no more {what:?}: take it out of tests/simulation/known_seeds.txt");
        is_good = false;
    }
    println!("{}", totals.json());
    Ok(is_good)
}
