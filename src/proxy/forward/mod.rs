//! Forwards one request from its plan to the end of its response, and records it.
//!
//! Takes permits from the limiters without knowing how they decide; chooses neither status codes nor connections' addresses.

pub(crate) mod admission;
mod attempts;
mod body_ahead;
mod connect;
pub(crate) mod feedback;
pub(crate) mod forwarder;
mod held;
pub(crate) mod outgoing;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod rejection;
pub(crate) mod response_body;
pub(crate) mod retry;
pub(crate) mod send;
pub(crate) mod settling;
pub(crate) mod tunnel;
