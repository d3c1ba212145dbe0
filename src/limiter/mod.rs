//! Decides when a request may pass. Knows nothing of HTTP, Redis or YAML.
//!
//! What is limited, and the arithmetic; all of it pure:
//! - [`limit`]: what a limiter promises, as values that cannot be wrong.
//! - [`calendar`]: what has been booked.
//! - [`algorithm`]: the earliest instant with room.
//! - [`book`]: the state of one limiter, over changes of its limits.
//! - [`reserve`]: one call to a store.

pub mod algorithm;
pub mod book;
pub mod calendar;
pub mod limit;
pub mod reserve;

mod api_stub;
pub use api_stub::{Demand, Entered, Limiters, Permit, Queue, Refusal, Ticket};
