//! weir: an HTTP reverse proxy that keeps a whole fleet inside the rate limits of third-party APIs.
//!
//! [docs/architecture.md](../docs/architecture.md) leads through the code; [docs/glossary.md](../docs/glossary.md) defines
//! its words.
//!
//! The rooms that a request passes:
//!
//! - [`proxy`]: the only room that speaks HTTP to clients and upstreams. Its rooms, in the order of a request: `listen` accepts
//!   connections; `route` finds route, caller and partitions; `forward` takes permits and sends; `upstream` lends connections.
//!   Below them: `messages`, heads and bodies; `net`, sockets and timers.
//! - [`limiter`]: decides when a request may pass. Its rooms, from the bottom to the top: `model`, the values; `arithmetic`, the
//!   earliest instant with room; `store`, the places for limiter state; `recovery`, for a store that loses its state or is
//!   unreachable; `queue`, the waiting requests and their worker; `registry`, the limiters in force.
//! - [`redis`]: the store that a fleet shares. The only room that knows Redis.
//!
//! The other rooms:
//!
//! - [`config`]: YAML to [`config::Config`], every problem with its place; watches the file for changes.
//! - [`admin`]: health, metrics, live state and the dashboard.
//! - [`telemetry`]: logs, traces, and every metric's name in one place.
//! - [`usage`]: who has used what, in hours and days, of the whole fleet.
//! - `bearer`: tokens in headers, for `proxy`, `config` and `admin`.
//! - [`clock`]: instants and spans in whole microseconds; [`entropy`]: random numbers.
//! - [`app`]: wires the rooms together, owns every task, reloads and the shutdown.
//! - [`cli`]: one file per command.

#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
mod bearer;
pub mod cli;
pub mod clock;
pub mod config;
pub mod entropy;
pub mod limiter;
pub mod proxy;
pub mod redis;
pub mod telemetry;
pub mod usage;
