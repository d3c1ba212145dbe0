//! The command line: `arguments` parses it, and each command has a file.
//!
//! - `check`, `schema`, `completions`, `man`: commands that need no running weir.
//! - `remote`: `limiters`, `pause`, `resume`, `reset`, `reload`, `replicas` and `health`, which ask a running weir over HTTP.
//! - `partitions`, `shares`: tables of a limiter's partitions and of its callers.
//! - `usage`: who has used what, from a running weir.
//! - `explain`: what would become of a request, by a configuration or by a running weir.
//! - `demo`: a provider, a weir and traffic in one process.
//!
//! `run` carries one out, `address` parses where to ask, and `table` aligns what they print.
//!
//! `weir serve` is [`crate::app::serve`]. Knows nothing of how limiters or stores work: it prints the answers of
//! other rooms.

mod address;
pub mod arguments;
pub mod check;
pub mod completions;
pub mod demo;
pub mod explain;
pub mod man;
mod partitions;
pub mod remote;
mod run;
pub mod schema;
mod shares;
mod table;
pub mod usage;

pub use self::arguments::{Cli, Command};
pub use self::run::run;
