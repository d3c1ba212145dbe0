//! Opens, keeps and lends connections to upstreams, directly or through an outbound proxy.
//!
//! Knows how a request is written to a connection, and nothing of routes, limiters and clients.

pub(crate) mod answer_times;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod header_room;
pub(crate) mod key;
pub(crate) mod lease;
pub(crate) mod outbound;
pub(crate) mod pool;
pub(crate) mod progress;
pub(crate) mod tls;
#[expect(clippy::module_inception, reason = "one upstream, in the room of upstreams")]
pub(crate) mod upstream;
