//! The limiter: `reserve`, on a saturated limiter with a window of requests waiting. `lua.rs` measures the same in Lua.

use criterion::{BatchSize, BenchmarkId, Criterion};
use weir::clock::Micros;
use weir::limiter::arithmetic::limiter_ref::LimiterRef;
use weir::limiter::arithmetic::queue_order::QueueOrder;
use weir::limiter::arithmetic::reserve::reserve;
use weir::limiter::arithmetic::state::LimiterState;
use weir::limiter::model::call::{Answer, Call, Outcome};

use crate::Result;
use crate::cases::{CASES, Case, call};

/// The numbers of requests in a call.
const BATCHES: [u64; 4] = [1, 10, 100, 1000];
/// The lease as with Redis; without a change of the limits it plays no part.
const LEASE: Micros = Micros::from_millis(500);
/// A wait that is longer than any here.
const WAIT_MAX: Micros = Micros::from_millis(3_600_000);
/// An arbitrary instant.
const BEGIN: Micros = Micros(1_800_000_000_000_000);

/// Measures calls, each on a copy of the same state.
pub(crate) fn step(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("limiter");
    for case in &CASES {
        let config = case.config().ok_or_else(|| format!("{}: not supported", case.name))?;
        let limiter_refs = case.limiter_refs(&config);
        let saturated = Saturated::new(case, &limiter_refs[0]);
        for batch in BATCHES {
            let asked = call(batch, 1, WAIT_MAX);
            if !saturated.makes_wait(&asked) {
                return Err(format!("{}: it is not saturated", case.name).into());
            }
            group.bench_function(BenchmarkId::new(case.name, batch), |bencher| {
                let one = |state: &mut State| saturated.step(state, &asked);
                bencher.iter_batched_ref(|| saturated.state.clone(), one, BatchSize::SmallInput);
            });
        }
    }
    group.finish();
    Ok(())
}

/// A limiter of which a whole window has been used, step by step, and another one is booked.
struct Saturated<'a> {
    limiter_ref: &'a LimiterRef,
    now: Micros,
    state: State,
}

/// The state that a store keeps of a queue with one limiter.
#[derive(Clone, Default)]
struct State {
    book: LimiterState,
    order: QueueOrder,
}

impl<'a> Saturated<'a> {
    fn new(case: &Case, limiter_ref: &'a LimiterRef) -> Saturated<'a> {
        let mut saturated = Saturated { limiter_ref, now: BEGIN, state: State::default() };
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
        let mut books = [(&mut state.book, self.limiter_ref.rules.clone())];
        reserve(self.now, LEASE, &mut books, &mut state.order, asked)
    }

    fn makes_wait(&self, asked: &Call) -> bool {
        let waits = |outcome: &Outcome| matches!(outcome, Outcome::Booked(slot) if *slot > self.now);
        self.step(&mut self.state.clone(), asked).outcomes.iter().all(|(_, outcome)| waits(outcome))
    }
}
