//! The earliest instant at which every limit has room. Pure: knows no store, no clock and no queue of requests.
//!
//! Each file has a twin in `lua/`, compared with it step by step on a real Redis.

pub mod algorithm;
pub mod external_usage;
pub mod limiter_ref;
pub mod pause;
pub mod queue_order;
pub mod reserve;
pub mod rule;
pub mod state;
pub mod timeline;
