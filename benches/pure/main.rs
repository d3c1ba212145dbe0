//! The cost of the pure parts of a request: finding its route, its headers, one step of the limiter.
//!
//! `cargo bench --bench pure`; `-- routing`, `-- headers` or `-- limiter` for a part of it. Criterion compares each
//! with the run before.

#[path = "../cases/mod.rs"]
mod cases;
mod limiter;
mod proxy;

use std::error::Error;
use std::time::Duration;

use criterion::Criterion;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The allocator of weir itself.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Result<()> {
    // Cargo passes the flag to benches; without it this is a test run, with nothing to measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    // Criterion's defaults suit a handful of benches; these are dozens, and steady.
    let criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(50);
    let mut criterion = criterion.configure_from_args();
    proxy::routing(&mut criterion)?;
    proxy::headers(&mut criterion)?;
    limiter::step(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}
