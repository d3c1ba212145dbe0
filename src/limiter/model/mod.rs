//! Values that cannot be wrong, and the values that pass between rooms: limits, partitions, calls and their answers,
//! refusals.
//!
//! Knows no state of a limiter, no store and no queue.

pub mod calendar_windows;
pub mod call;
pub mod clock_step;
pub mod epoch;
pub mod limit;
pub mod partition;
pub mod pause;
pub mod refusal;
pub mod replica;
pub mod upstream_report;
pub mod write_back;
