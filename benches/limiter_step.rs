//! What one step of the limiter costs in Rust: `reserve`, on a limiter that is saturated and has a window of requests
//! waiting.
//!
//! `cargo bench --bench limiter_step`. Every measured call finds the same state.

mod cases;

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use cases::{CASES, Case, call};
use weir::clock::Micros;
use weir::limiter::book::Book;
use weir::limiter::order::QueueOrder;
use weir::limiter::reserve::{Answer, Call, Outcome, reserve};
use weir::limiter::store::Subject;

/// Requests in one call.
const BATCHES: [u64; 4] = [1, 10, 100, 1000];
/// Calls in a round, and rounds, of which the median counts.
const CALLS: usize = 100;
const ROUNDS: usize = 15;
/// As with Redis; without a change of the limits it plays no part.
const LEASE: Micros = Micros::from_millis(500);
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
    let saturated = Saturated::new(case, &subjects[0]);
    let cells: Vec<String> =
        BATCHES.iter().map(|batch| format!("{:.0}", saturated.measure(*batch))).collect();
    cells.join(" | ")
}

/// A limiter of which a whole window has been used, step by step, and another one is booked.
struct Saturated<'a> {
    subject: &'a Subject,
    now: Micros,
    state: State,
}

/// What a store keeps of a queue with one limiter.
#[derive(Clone, Default)]
struct State {
    book: Book,
    order: QueueOrder,
}

impl<'a> Saturated<'a> {
    fn new(case: &Case, subject: &'a Subject) -> Saturated<'a> {
        let mut saturated = Saturated { subject, now: BEGIN, state: State::default() };
        let (permits, micros) = case.step();
        let (asked, steps) = (call(permits, 1, WAIT_MAX), case.rate / permits);
        for step in 0..2 * steps {
            // The first window is used as time goes on, the second one is booked at its end.
            if step < steps {
                saturated.now = saturated.now + Micros(micros);
            }
            let mut state = std::mem::take(&mut saturated.state);
            saturated.step(&mut state, &asked);
            saturated.state = state;
        }
        saturated
    }

    fn step(&self, state: &mut State, asked: &Call) -> Answer {
        let mut books = [(&mut state.book, self.subject.rules.clone())];
        reserve(self.now, LEASE, &mut books, &mut state.order, asked)
    }

    /// Nanoseconds of one call for so many requests: the median of the rounds.
    fn measure(&self, batch: u64) -> f64 {
        let asked = call(batch, 1, WAIT_MAX);
        let last = self.step(&mut self.state.clone(), &asked);
        let waits = |outcome: &Outcome| matches!(outcome, Outcome::Booked(slot) if *slot > self.now);
        assert!(last.outcomes.iter().all(|(_, outcome)| waits(outcome)), "it is not saturated");
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| self.round(&asked)).collect();
        rounds.sort_by(f64::total_cmp);
        rounds[ROUNDS / 2]
    }

    /// Each call has a copy of the state, made before the clock runs.
    fn round(&self, asked: &Call) -> f64 {
        let mut copies = vec![self.state.clone(); CALLS];
        let begun = Instant::now();
        for state in &mut copies {
            black_box(self.step(state, asked));
        }
        begun.elapsed().as_nanos() as f64 / CALLS as f64
    }
}
