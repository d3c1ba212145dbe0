//! Connections to upstreams.

pub(crate) mod connect;
pub(crate) mod dial;
pub(crate) mod outbound;
pub(crate) mod pool;
#[expect(clippy::module_inception, reason = "one upstream, in the room of upstreams")]
pub(crate) mod upstream;
