//! weir: an HTTP reverse proxy that keeps a whole fleet inside the rate limits of third-party APIs.
//!
//! The rooms, in the order in which a request passes them:
//!
//! - [`proxy`]: listener, router, forwarder, body. The only room that speaks HTTP to clients and upstreams.
//! - [`limiter`]: decides when a request may pass; the queue, its workers, the memory store.
//! - [`redis`]: the store that a fleet shares. The only room that knows Redis.
//!
//! Beside the way of a request:
//!
//! - [`config`]: YAML to [`config::Config`], every problem with its place; watching for changes.
//! - [`admin`]: health, metrics and live state.
//! - [`telemetry`]: logs, and every metric's name in one place.
//! - `bearer`: tokens in headers, for the two rooms that ask for them.
//! - [`clock`]: instants and spans in whole microseconds.
//! - [`app`]: wires the rooms together, owns every task and the shutdown.
//! - [`cli`]: one file per command.

#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
mod bearer;
pub mod cli;
pub mod clock;
pub mod config;
pub mod limiter;
pub mod proxy;
pub mod redis;
pub mod telemetry;
