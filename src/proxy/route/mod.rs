//! Decides what a request is, before anything is done for it: its route, its caller, its partitions and its target upstream.
//!
//! Pure but for [`table`], which carries the resolved configuration. Takes no permit and opens no connection.

pub(crate) mod breaker;
mod breaker_core;
pub(crate) mod caller;
pub(crate) mod callers;
pub(crate) mod learned_outputs;
pub(crate) mod links;
mod loose;
pub(crate) mod partition;
pub(crate) mod path;
pub(crate) mod query;
pub(crate) mod retry_budget;
pub(crate) mod rewrite;
pub(crate) mod router;
pub(crate) mod set_headers;
pub(crate) mod table;
