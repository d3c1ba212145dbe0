//! The store that a fleet shares. The only room that knows Redis; knows nothing of HTTP.
//!
//! - [`store`]: calls as scripts, answers as values.
//! - `script`: the Lua sources, called by their hash.
//! - `keys`: every key's name, and why it looks so.
//! - `servers`: where Redis is: one server, behind sentinels, a Cluster. `pool`: connections, made and replaced.
//! - `explain`: what an error means to whoever runs weir.
//! - `announcements`: what the fleet tells without being asked.
//! - `health`: whether the store is worth asking.
//! - [`fuzz`]: shows a fuzzer how a script's answer is read.

mod announcements;
mod explain;
#[cfg(test)]
mod forgetting;
#[doc(hidden)]
pub mod fuzz;
mod health;
mod keys;
mod pool;
mod script;
mod servers;
pub mod store;
#[cfg(test)]
mod twin;

pub use servers::RedisSetupError;
pub use store::{Checked, RedisStore};
