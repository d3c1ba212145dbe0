//! The proxy room by itself, over real sockets, mostly without limiters.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clients;
mod connecting;
mod http2_upstreams;
mod limiters;
mod messages;
mod support;
mod upgrades;
mod upstreams;
