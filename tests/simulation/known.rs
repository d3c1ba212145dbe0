//! The short form for CI: runs are the same in another process, nothing is found that is not known, and what is known to fail
//! still does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::crowd;
use crate::mutation;
use crate::plan::Mix;
use crate::redis::{parity, scripts};
use crate::run::{Totals, Wanted, run};
use crate::stall::Stall;

/// Each line is a seed of the random mix that fails, and what fails: who mends it takes it out. Made by
/// `scripts/simulate --runs 200 --shorten`.
const KNOWN: &str = include_str!("known_seeds.txt");

/// How many seeds are compared between two processes, from 1 on.
const COMPARED: u64 = 10;

/// How many seeds of the random mix are run, from 1 on: all that fail are in the list. Two cores take half a minute for them.
const SEEDS: u64 = 45;

/// Runs in which nothing is found: without faults, with all of them, of queues whose slots are dealt, and of what recovery is for.
const CLEAN: [(Mix, u64); 7] = [
    (Mix::Calm, 10),
    (Mix::Share, 10),
    (Mix::Tokens, 8),
    (Mix::Losses, 10),
    (Mix::Away, 4),
    (Mix::Hours, 4),
    (Mix::Cells, 5),
];

/// Seeds that found something once, each for a cause that no small test shows whole: answers that are lost on one connection, a probe over a
/// dead one, limits that change in an outage, slots that are lost behind a wait, a pause that meets a burst, a resume in an outage, a lost
/// answer at the end of a wait, a clock that is stepped by more than a window while replicas stall, or behind a deploy, three reloads in an
/// outage, and (of the simulation itself) a frozen server that was restarted and went on standing still.
const MENDED: [(Mix, u64); 13] = [
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
    (Mix::Random, 9_905_282),
    (Mix::Changes, 9_905_438),
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
    let other = OtherProcess::start()?;
    let mut is_good = parity::compare(PARITY)?;
    for (mix, runs) in CLEAN {
        is_good &= clean(&Wanted { mix, runs, ..WANTED });
    }
    for (mix, from) in MENDED {
        is_good &= clean(&Wanted { mix, from, runs: 1, ..WANTED });
    }
    is_good &= stalled()?;
    is_good &= crowd::short_form()?;
    let totals = run(&Wanted { mix: Mix::Random, runs: SEEDS, ..WANTED });
    is_good &= known(&totals)?;
    is_good &= other.agrees_with(&totals)?;
    Ok(is_good)
}

/// Another process that makes the first runs of the random mix, beside the work of this one. Dropping it ends it.
struct OtherProcess(Child);

impl OtherProcess {
    fn start() -> Result<OtherProcess, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        // So few lines fit into the pipe before anybody reads them.
        let child = Command::new(program)
            .args(["simulate", "--from", "1", "--hashes", &COMPARED.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        Ok(OtherProcess(child))
    }

    /// Compares its hashes with those of the same runs here, which were made among many others on several threads.
    fn agrees_with(mut self, totals: &Totals) -> Result<bool, String> {
        let stdout = self.0.stdout.take().ok_or("the other process has no output")?;
        let others = io::read_to_string(stdout).map_err(|error| error.to_string())?;
        let own: String =
            totals.hashes.range(1..=COMPARED).map(|(seed, hash)| format!("{seed} {hash:016x}\n")).collect();
        let is_same = own == others && own.lines().count() as u64 == COMPARED;
        if is_same {
            println!("{COMPARED} runs are the same in two processes");
        } else {
            println!("runs differ between two processes:\n{own}---\n{others}");
        }
        Ok(is_same)
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // It may have ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
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

/// Judges the runs of the first seeds: those that are known to fail do, and no others.
fn known(totals: &Totals) -> Result<bool, String> {
    let mut known = BTreeMap::new();
    for line in KNOWN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (seed, what) = line.split_once(' ').unwrap_or((line, ""));
        let seed: u64 = seed.parse().map_err(|_| format!("known_seeds.txt: not a seed: {line}"))?;
        known.entry(seed).or_insert_with(Vec::new).push(what);
    }
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
