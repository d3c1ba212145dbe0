//! Decides when a request may pass. Knows nothing of HTTP, Redis or YAML.
//!
//! What is limited, and the arithmetic; all of it pure:
//! - [`limit`]: what a limiter promises, as values that cannot be wrong.
//! - [`windows`]: where the windows of a calendar begin.
//! - [`partition`]: one value of a limiter's key.
//! - [`calendar`]: what has been booked.
//! - [`algorithm`]: the earliest instant with room.
//! - [`book`]: the state of one limiter, over changes of its limits.
//! - [`rule`]: a limit as a calendar is searched for it.
//! - [`order`]: where a queue stands.
//! - [`pause`]: what an upstream's refusal does to a limiter; [`others`]: what it tells of other callers.
//! - [`reserve`]: one call to a store.
//!
//! Where the state lives:
//! - [`store`]: what a store is.
//! - [`memory`]: the store in this process.
//! - [`store_clock`]: what is known of a store's clock.
//!
//! Those who wait:
//! - [`gate`]: the limiters of a route, taken together.
//! - [`registry`]: all limiters of this process, over reloads; [`chosen`]: one of them, looked at or acted on by hand.
//! - `live`: one limiter in use; `queues`: all queues of this process, which come and go.
//! - [`queue`]: the way in, and a place in it; `inbox`: what its worker has not seen yet.
//! - `shadow`: limiters that only count.
//! - `worker`: the task that owns a queue; `cost_queue`: its requests of one cost, and their slots.
//! - `learnt`: refusing without asking.
//! - `fleet`: the replicas that share a store.
//! - `ledger`: what this replica was granted; `keeper`: writes it back when the store has lost its memory.
//! - [`permit`]: the right to send, which settles itself.
//! - [`refusal`]: why not, and when.
//! - [`said`]: what an upstream says of its quota, on its way to the store.

mod active_limiter;
pub mod algorithm;
pub mod book;
pub mod calendar;
pub mod chosen;
mod cost_queue;
mod expiring;
#[cfg(test)]
mod far_store;
mod fleet;
pub mod gate;
#[cfg(test)]
mod gates;
mod inbox;
#[cfg(test)]
mod interleavings;
mod keeper;
mod learnt;
mod ledger;
pub mod limit;
pub mod memory;
#[cfg(test)]
mod modes;
#[cfg(test)]
mod oracle;
pub mod order;
pub mod others;
pub mod partition;
pub mod pause;
pub mod permit;
pub mod queue;
mod queues;
pub mod refusal;
pub mod registry;
pub mod reserve;
pub mod rule;
pub mod said;
mod shadow;
#[cfg(test)]
mod shared_quota;
#[cfg(test)]
mod spreading;
mod stock;
#[cfg(test)]
mod stocking;
pub mod store;
pub mod store_clock;
#[cfg(test)]
mod tests;
pub mod windows;
mod worker;

pub use chosen::{Inspection, LimiterStatus, NotFound, PauseState, Tally};
pub(crate) use fleet::COUNTS_FOR;
pub(crate) use fleet::printable;
pub use fleet::{Replica, replica_name};
pub use gate::{LimiterSet, LimiterSetError};
pub use partition::Partition;
pub use permit::Permit;
pub use queue::{Demand, Entered, Ticket};
pub use refusal::Refusal;
pub use registry::Limiters;
pub use said::{Receipt, UpstreamSignal, Window};
