//! What one step of the limiter costs in Rust: a call to the memory store, on a limiter that is saturated and has a
//! window of requests waiting.
//!
//! `cargo bench --bench limiter_step`. Time is simulated and goes on as fast as the limiter gives permits, so that the
//! state stays what it is.

mod cases;

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use cases::{CASES, Case, call};
use weir::clock::{Clock, Micros};
use weir::limiter::memory::MemoryStore;
use weir::limiter::reserve::{Answer, Outcome};
use weir::limiter::store::Subject;

/// Requests in one call.
const BATCHES: [u64; 4] = [1, 10, 100, 1000];
/// Each is measured for so long, in rounds of which the median counts.
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(15);
/// Longer than any wait that comes up.
const WAIT_MAX: Micros = Micros::from_millis(3_600_000);
/// Any instant will do.
const BEGIN: Micros = Micros(1_800_000_000_000_000);

#[expect(clippy::print_stdout, reason = "the report")]
fn main() {
    // Cargo says so; without it this is a test run, in which there is nothing to measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let mut report = String::from("| ns a call, requests in it |");
    for batch in BATCHES {
        let _ = write!(report, " {batch} |");
    }
    report += "\n|---|---|---|---|---|\n";
    for case in &CASES {
        let _ = writeln!(report, "| {} | {} |", case.name, row(case));
    }
    println!("{report}");
}

fn row(case: &Case) -> String {
    let Some(config) = case.config() else { return "not supported | | |".into() };
    let subjects = case.subjects(&config);
    let cells: Vec<String> = BATCHES
        .iter()
        .map(|batch| format!("{:.0}", Saturated::new(case, &subjects).measure(*batch)))
        .collect();
    cells.join(" | ")
}

/// A limiter of which a whole window has been used, step by step, and another one is booked.
struct Saturated<'a> {
    store: MemoryStore,
    subjects: &'a [Subject],
    now: Micros,
    rate: u64,
}

impl<'a> Saturated<'a> {
    fn new(case: &Case, subjects: &'a [Subject]) -> Saturated<'a> {
        let store = MemoryStore::new(Clock::start());
        let mut saturated = Saturated { store, subjects, now: BEGIN, rate: case.rate };
        let (permits, micros) = case.step();
        let steps = case.rate / permits;
        for _ in 0..steps {
            saturated.now = saturated.now + Micros(micros);
            saturated.ask(permits);
        }
        for _ in 0..steps {
            saturated.ask(permits);
        }
        saturated
    }

    fn ask(&self, requests: u64) -> Answer {
        self.store.reserve_at(self.now, self.subjects, &call(requests, 1, WAIT_MAX))
    }

    /// Nanoseconds of one call for so many requests: the median of the rounds.
    fn measure(mut self, batch: u64) -> f64 {
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| self.round(batch)).collect();
        let last = self.ask(batch);
        let waits = |outcome: &Outcome| matches!(outcome, Outcome::Booked(slot) if *slot > self.now);
        assert!(last.outcomes.iter().all(|(_, outcome)| waits(outcome)), "it is not saturated any more");
        rounds.sort_by(f64::total_cmp);
        rounds[ROUNDS / 2]
    }

    fn round(&mut self, batch: u64) -> f64 {
        // Less than a permit's time is lost to rounding in each call; the requests that wait make up for it.
        let micros = Micros(batch * 1_000_000 / self.rate);
        let asked = call(batch, 1, WAIT_MAX);
        let (begun, mut calls) = (Instant::now(), 0_u32);
        while begun.elapsed() < ROUND {
            for _ in 0..8 {
                self.now = self.now + micros;
                black_box(self.store.reserve_at(self.now, self.subjects, &asked));
            }
            calls += 8;
        }
        begun.elapsed().as_nanos() as f64 / f64::from(calls)
    }
}
