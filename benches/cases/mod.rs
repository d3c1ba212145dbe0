//! What the benches of the limiter measure: one table for Rust and for Lua.

use std::path::Path;

use weir::clock::Micros;
use weir::config::{self, Config};
use weir::limiter::arithmetic::limiter_ref::LimiterRef;
use weir::limiter::model::call::{Call, Run};

/// A limiter's limits, as a configuration has them. Every first window is one second: the states are made for that.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) limits: &'static str,
    /// Permits a second that fill it: the first limit's rate.
    pub(crate) rate: u64,
}

const fn case(name: &'static str, rate: u64, limits: &'static str) -> Case {
    Case { name, limits, rate }
}

/// Of an algorithm that this version does not support, the report says so.
pub(crate) const CASES: [Case; 12] = [
    case("sliding_window 100/1s", 100, "100/1s"),
    case("sliding_window 256/1s", 256, "256/1s"),
    case("sliding_window 20000/1s", 20_000, "20000/1s"),
    case("sliding_window 20000/1s, precision 10", 20_000, "{rate: 20000, per: 1s, precision: 10}"),
    case("sliding_window 20000/1s and 50000000/1h", 20_000, "20000/1s, 50000000/1h"),
    case("token_bucket 100/1s", 100, "{rate: 100, per: 1s, algorithm: token_bucket}"),
    case("token_bucket 20000/1s", 20_000, "{rate: 20000, per: 1s, algorithm: token_bucket}"),
    case("leaky_bucket 100/1s", 100, "{rate: 100, per: 1s, algorithm: leaky_bucket}"),
    case("leaky_bucket 20000/1s", 20_000, "{rate: 20000, per: 1s, algorithm: leaky_bucket}"),
    case("fixed_window 100/1s", 100, "{rate: 100, per: 1s, algorithm: fixed_window}"),
    case("fixed_window 20000/1s", 20_000, "{rate: 20000, per: 1s, algorithm: fixed_window}"),
    case(
        "one of each, 20000/1s",
        20_000,
        "20000/1s, {rate: 20001, per: 1s, algorithm: token_bucket}, \
         {rate: 20002, per: 1s, algorithm: leaky_bucket}, {rate: 20003, per: 1s, algorithm: fixed_window}",
    ),
];

/// Steps in which a second's permits are booked: more would be kept apart by no limiter of a high rate.
const STEPS_PER_SECOND: u64 = 256;

impl Case {
    /// The configuration of this case alone, with a Redis store; `None` while it is not supported.
    pub(crate) fn config(&self) -> Option<Config> {
        let name = self.limiter();
        let text = format!(
            "store: {{redis: {{url: \"redis://127.0.0.1:1\", timeout: 5s}}}}\n\
             limiters: {{{name}: {{limits: [{}]}}}}\n\
             routes: [{{name: all, match: {{}}, upstream: \"http://127.0.0.1:1\", limiter: {name}}}]\n",
            self.limits
        );
        let loaded = config::parse(Path::new("bench.yaml"), &text).ok()?;
        Some((*loaded.config).clone())
    }

    /// Its name as a limiter's.
    fn limiter(&self) -> String {
        self.name.replace([' ', '/', ','], "-")
    }

    /// What a store is asked about.
    pub(crate) fn limiter_refs(&self, config: &Config) -> Vec<LimiterRef> {
        config.limiters.iter().map(|limiter| LimiterRef::new(limiter, None, Micros::ZERO)).collect()
    }

    /// How many permits one step of filling books, and how far the steps lie apart in microseconds.
    pub(crate) fn step(&self) -> (u64, u64) {
        let permits = self.rate.div_ceil(STEPS_PER_SECOND);
        (permits, permits * 1_000_000 / self.rate)
    }
}

/// A call for so many requests of cost 1, in so many runs, each of which may wait so long.
pub(crate) fn call(requests: u64, runs: u64, wait_max: Micros) -> Call {
    let run = Run { cost: 1, wait_max, count: requests / runs };
    let runs = (0..runs).map(|_| run).collect();
    Call { replica: 1, runs, queue_slots_left: u64::from(u32::MAX), ..Call::default() }
}
