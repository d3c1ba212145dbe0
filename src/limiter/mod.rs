//! Decides when a request may pass. Knows nothing of HTTP, Redis or YAML.
//!
//! Its rooms, from the bottom to the top; each looks down only:
//! - [`model`]: values that cannot be invalid, and the values that pass between rooms.
//! - [`arithmetic`]: the earliest instant at which a request fits into its limits. Pure.
//! - [`store`]: where state lives; the store in this process; the clock of a store.
//! - [`recovery`]: what is remembered of a store that loses its state or is away.
//! - [`queue`]: the requests that wait, and the worker that asks the store for their slots.
//! - [`registry`]: the limiters in force, over reloads, and the sets of them that routes use.

pub mod arithmetic;
pub mod model;
pub mod queue;
mod recovery;
pub mod registry;
pub mod store;
#[cfg(test)]
mod tests;

pub use model::limit::LimiterName;
pub use model::partition::Partition;
pub use model::refusal::Refusal;
pub(crate) use model::replica::printable;
pub use model::replica::{Replica, replica_name};
pub use queue::outside::WaitingOutside;
pub use queue::permit::{Permit, Provenance, Receipt};
pub use queue::quota_left::QuotaLeft;
pub use queue::ticket::{Demand, Entered, Ticket};
pub use queue::upstream_report::{AskedPause, UpstreamSignal, Window};
pub(crate) use recovery::fleet::MEMBERSHIP_TTL;
pub use registry::inspection::{Applied, Inspection, LimiterStatus, NotFound, PauseState, Tally};
pub use registry::limiter_set::{LimiterSet, LimiterSetError};
pub use registry::limiters::Limiters;
pub use registry::prepared_limiters::PreparedLimiters;
pub use registry::shares::{ClassStatus, FlowStatus, ShareStatus};
