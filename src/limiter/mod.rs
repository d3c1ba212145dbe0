//! Decides when a request may pass. Knows nothing of HTTP, Redis or YAML.
//!
//! Its rooms, from the bottom to the top; each looks down only:
//! - [`model`]: values that cannot be wrong, and the words that pass between rooms.
//! - [`arithmetic`]: the earliest instant with room. Pure.
//! - [`store`]: where state lives; the store in this process; the clock of a store.
//! - [`recovery`]: what survives a store that forgets or is away.
//! - [`queue`]: the requests that wait, and the worker that asks for them.
//! - [`registry`]: which limiters there are, over reloads.

pub mod arithmetic;
pub mod model;
pub mod queue;
mod recovery;
pub mod registry;
pub mod store;
#[cfg(test)]
mod tests;

pub use model::partition::Partition;
pub use model::refusal::Refusal;
pub(crate) use model::replica::printable;
pub use model::replica::{Replica, replica_name};
pub use queue::permit::{Permit, Receipt};
pub use queue::ticket::{Demand, Entered, Ticket};
pub use queue::upstream_report::{UpstreamSignal, Window};
pub(crate) use recovery::members::COUNTS_FOR;
pub use registry::inspection::{Inspection, LimiterStatus, NotFound, PauseState, Tally};
pub use registry::limiter_set::{LimiterSet, LimiterSetError};
pub use registry::limiters::Limiters;
