//! What survives a store that forgets or is away. Knows no requests.

pub(in crate::limiter) mod fallback;
pub(in crate::limiter) mod heartbeat;
pub(in crate::limiter) mod ledger;
pub(in crate::limiter) mod members;
pub(in crate::limiter) mod outage_fence;
pub(in crate::limiter) mod session;
pub(in crate::limiter) mod write_back;
