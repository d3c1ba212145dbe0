//! The store that a fleet shares. The only room that knows Redis; knows nothing of HTTP, nor which algorithms there are.
//!
//! - [`store`]: calls as scripts, answers as values. `check` tries them all out.
//! - `connection`: calls within their deadlines. `repetition`: those that are made once more.
//! - `script`: the Lua scripts, called by their hash. `arguments`: what each takes. `answers`: what each returns.
//! - `keys`: the names of all keys.
//! - `servers`: one server, behind sentinels, or a Cluster. `sentinels`: the primary that they name. `clients`: their addresses and
//!   certificates.
//! - `pool`: connections, made and replaced. `exclusive`: those that one call has to itself.
//! - `explain`: what an error means to an operator.
//! - `announcements`: what other replicas publish.
//! - `usage`: the fleet's counts of who has used what.
//! - `health`: whether the store is worth asking.
//! - [`fuzz`]: shows a fuzzer how a script's answer is read.

mod announcements;
mod answers;
mod arguments;
mod check;
mod clients;
mod connection;
mod exclusive;
mod explain;
#[doc(hidden)]
pub mod fuzz;
mod health;
mod keys;
mod pool;
mod repetition;
mod script;
mod sentinels;
mod servers;
mod setup_error;
mod sockets;
pub mod store;
#[cfg(test)]
mod tests;
mod usage;

pub use check::Checked;
#[doc(hidden)]
pub use script::script_texts;
pub use servers::{Stream, Transport};
pub use setup_error::RedisSetupError;
pub use store::RedisStore;
pub use usage::RedisUsage;
