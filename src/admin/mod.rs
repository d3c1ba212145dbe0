//! The admin listener: health, metrics, live state, and the dashboard that shows it.
//!
//! - `server`: accepts connections, on a thread of its own; `connections`: bounds them.
//! - `router`: finds the endpoint of a path and applies the access rule.
//! - `access`: the access rule.
//! - `audit`: the line in the log for each action by hand.
//! - `response`: the forms of an answer.
//! - `health`, `metrics`, `limiters`, `replicas`, `config`, `reload`, `explain`, `events`, `usage`: the endpoints, one file each.
//! - `named_partition`: the partition that a query names; `partitions`: those of a limiter that matter.
//! - `dashboard`: what all open pages share; `hour`: the last hour of the fleet; `routes`: the routes lately; `page.html` is the page.
//! - `state`: the handles that the endpoints share.
//!
//! Reads the other rooms, and asks them for a reload, a pause or a reset. Knows no store: a limiter asks its own.
//! Knows nothing of the proxy.

mod access;
mod audit;
mod config;
mod connections;
mod dashboard;
mod events;
mod explain;
mod health;
mod hour;
mod limiters;
mod metrics;
mod named_partition;
mod partitions;
mod reload;
mod replicas;
mod response;
mod router;
mod routes;
mod server;
mod state;
mod usage;

pub use self::dashboard::Dashboard;
pub use self::explain::{Explain, Explained, asked};
pub use self::limiters::{PAUSE_LENGTH, pause_length};
pub(crate) use self::reload::RELOAD_TIME_MAX;
pub use self::reload::{ReloadRequest, Reloader};
pub use self::server::serve;
pub use self::state::{AdminState, Breakers, FleetUsage};
