//! Keeps limits when the store forgets its state, or cannot be reached.
//!
//! - [`link`]: one part of a store as this replica knows it: clock, epoch, whether it answers; a pure core.
//! - [`members`]: the members that share a part of a store, and what this replica has told it; a pure core.
//! - [`ledger`]: the permits granted to this replica, to be written back to a store that lost them; a pure core.
//! - [`copies`]: copies of the other replicas' ledgers; a pure core.
//! - [`session`]: the four cores as all workers share them.
//! - [`offline_grants`]: the permits granted by this replica itself while the store was unreachable.
//! - [`grants`]: the permits that an answer of the store grants.
//! - [`write_back`]: sends both to the store.
//! - [`heartbeat`]: the loop that tells the store of this replica, and notices a doubt of what the store knows.
//! - [`fleet`]: the registered replicas, for people; and the number assumed before the store answers.
//! - [`earlier_layout`]: has states written for replicas of an earlier version.
//! - [`fallback`]: this replica's own memory, used meanwhile.
//!
//! Knows no requests and no queues.

pub(in crate::limiter) mod copies;
pub(in crate::limiter) mod earlier_layout;
pub(in crate::limiter) mod fallback;
pub(in crate::limiter) mod fleet;
pub(in crate::limiter) mod grants;
pub(in crate::limiter) mod heartbeat;
pub(in crate::limiter) mod ledger;
pub(in crate::limiter) mod link;
pub(in crate::limiter) mod members;
pub(in crate::limiter) mod offline_grants;
pub(in crate::limiter) mod session;
pub(in crate::limiter) mod write_back;

#[cfg(test)]
mod tests;
